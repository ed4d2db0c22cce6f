//! Pages of docs/ that are made from the code. `ILB_UPDATE_DOCS=1 cargo test --test it docs`
//! rewrites them.

use std::path::Path;
use std::process::Command;

fn ilb(arguments: &[&str]) -> String {
    // Defaults must not depend on who runs the test.
    let output = Command::new(env!("CARGO_BIN_EXE_ilb")).args(arguments).env_remove("ILB_SOCKET").output().expect("ilb runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn each_generated_page_of_docs_is_what_the_code_makes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let mut stale = Vec::new();
    for page in ilb(&["docs"]).lines() {
        let (file, made) = (folder.join(format!("{page}.md")), ilb(&["docs", page]));
        if std::env::var_os("ILB_UPDATE_DOCS").is_some() {
            std::fs::write(&file, &made).expect("writable");
        }
        if std::fs::read_to_string(&file).unwrap_or_default() != made {
            stale.push(page.to_owned());
        }
    }
    let command = "ILB_UPDATE_DOCS=1 cargo test --release -p router-user --test it docs";
    assert!(stale.is_empty(), "docs/{{{}}}.md differ from the code; to rewrite them: {command}", stale.join(","));
}

#[test]
fn operations_names_only_metrics_that_exist() {
    let metrics = ilb(&["docs", "metrics"]);
    let operations = include_str!("../../../docs/operations.md");
    let words = operations.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("ilb_"));
    let unknown: Vec<&str> = words.filter(|word| !metrics.contains(&format!("| `{word}` |"))).collect();
    assert!(operations.contains("ilb_") && unknown.is_empty(), "unknown metrics: {unknown:?}");
}

#[test]
fn the_command_page_has_every_command_and_flag_that_help_shows() {
    let page = ilb(&["docs", "cli"]);
    let mut open = vec![Vec::<String>::new()];
    let mut commands = 0;
    while let Some(path) = open.pop() {
        let arguments: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let help = ilb(&arguments);
        let heading = ["ilb".to_owned()].iter().chain(&path).cloned().collect::<Vec<_>>().join(" ");
        assert!(page.contains(&format!("\n## `{heading}`\n")), "{heading} is not in the page");
        commands += 1;
        for flag in help.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2) {
            let flag = flag.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
            let known = ["--help", "--version"].contains(&flag) || page.contains(flag);
            assert!(known, "{flag} of {heading} is not in the page");
        }
        let listed = help.split_once("\nCommands:\n").map_or("", |(_, rest)| rest.split("\n\n").next().unwrap_or_default());
        let names = listed.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        for name in names.filter(|name| !name.is_empty() && *name != "help") {
            open.push(path.iter().cloned().chain([name.to_owned()]).collect());
        }
    }
    assert!(commands > 20, "only {commands} commands were found in the help texts");
}
