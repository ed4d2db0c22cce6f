//! Configuration files: a mistake names a line of the file, and what is legal prints and reads back
//! as the same configuration.

use router_user::config::parse;

pub(crate) fn run(input: &[u8]) {
    let Ok(source) = std::str::from_utf8(input) else { return };
    match parse(source) {
        Ok(config) => {
            let printed = config.to_toml();
            let again = parse(&printed).unwrap_or_else(|mistakes| panic!("{mistakes:?} in what was printed:\n{printed}"));
            assert_eq!(again, config, "printed as\n{printed}");
        }
        Err(mistakes) => {
            assert!(!mistakes.is_empty(), "refused without a reason");
            let lines = 1 + source.bytes().filter(|&byte| byte == b'\n').count();
            assert!(mistakes.iter().all(|mistake| mistake.line <= lines), "{mistakes:?} in {lines} lines");
            assert!(mistakes.iter().all(|mistake| !mistake.message.is_empty()), "{mistakes:?}");
        }
    }
}
