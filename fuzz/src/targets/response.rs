//! Response heads: the client gets one head with the engine's status, without the engine's framing,
//! and it reads the same again.

use router_user::proxy::http1::head::find_end;
use router_user::proxy::http1::request::Method;
use router_user::proxy::http1::response::{Body, parse};

/// Longest head, in bytes.
const HEAD_BYTES_MAX: usize = 2048;

pub(crate) fn run(input: &[u8]) {
    let Ok(Some(end)) = find_end(input, &mut 0, HEAD_BYTES_MAX) else { return };
    for method in [Method::Get, Method::Head] {
        let mut out = b"before".to_vec();
        let Ok(response) = parse(&input[..end], method, &mut out) else {
            continue;
        };
        let mut wire = out.strip_prefix(b"before").expect("what was in the buffer stays").to_vec();
        assert!(wire.starts_with(format!("HTTP/1.1 {} ", response.status).as_bytes()), "the status line");
        wire.extend_from_slice(b"\r\n");
        assert_eq!(find_end(&wire, &mut 0, usize::MAX), Ok(Some(wire.len())), "another head hides in this one");
        check_framing(&wire, method == Method::Head || response.body == Body::None);

        let mut again = Vec::new();
        let second = parse(&wire, method, &mut again);
        let second = second.unwrap_or_else(|error| panic!("{error} in {:?}", String::from_utf8_lossy(&wire)));
        assert_eq!((second.status, second.is_event_stream), (response.status, response.is_event_stream));
        again.extend_from_slice(b"\r\n");
        assert_eq!(again, wire, "what was passed on is passed on unchanged");
    }
}

/// Framing is not passed on: the proxy writes its own. Only a head without a body may keep what a
/// body's length would have been.
fn check_framing(wire: &[u8], is_bodiless: bool) {
    for line in wire.split(|&byte| byte == b'\n').skip(1) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let name = line[..colon].to_ascii_lowercase();
        assert_ne!(name, b"transfer-encoding", "framing of the engine's");
        assert!(name != b"content-length" || is_bodiless, "framing of the engine's");
    }
}
