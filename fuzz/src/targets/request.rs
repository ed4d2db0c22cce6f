//! Request heads: the end is found alike at every split, and what an engine gets is one head that
//! reads the same again.

use router_user::proxy::http1::head::{Length, find_end};
use router_user::proxy::http1::request::{FIELDS_CAP, finish, parse};
use router_user::proxy::http1::target::decoded_path;

use crate::cuts;

/// Longest head, in bytes. It is below libFuzzer's longest input, so that the limit is reached.
const HEAD_BYTES_MAX: usize = 2048;
/// Fields that the client may send: the proxy adds up to five of its own, and what it sends is read
/// again here.
const FIELDS_MAX: usize = FIELDS_CAP - 5;
/// The client's address.
const CLIENT: &str = "192.0.2.7";
/// Body bytes that are announced to the engine.
const BODY_BYTES: usize = 12;

pub(crate) fn run(input: &[u8]) {
    let whole = find_end(input, &mut 0, HEAD_BYTES_MAX);
    for ends in cuts::ways(input) {
        let mut scanned = 0;
        let pieces = ends.iter().map(|&end| find_end(&input[..end], &mut scanned, HEAD_BYTES_MAX));
        let found = pieces.into_iter().find(|found| *found != Ok(None)).unwrap_or(Ok(None));
        assert!(found == whole || (found.is_err() && whole.is_err()), "{found:?} in pieces, {whole:?} as a whole");
    }
    let Ok(Some(end)) = whole else { return };
    let mut wire = Vec::new();
    let Ok(request) = parse(&input[..end], FIELDS_MAX, CLIENT, &mut wire, |out| out.extend_from_slice(b"id")) else { return };
    let target = wire[request.target.clone()].to_vec();
    assert!(target.starts_with(b"/") || target == b"*", "an engine gets the origin form");
    decoded_path(std::str::from_utf8(&target).expect("a target is ASCII"));
    let request_id = wire[request.request_id.clone()].to_vec();
    finish(&mut wire, request.length, BODY_BYTES);
    check_wire(&wire, request.length);

    let mut again = Vec::new();
    let second = parse(&wire, FIELDS_CAP, CLIENT, &mut again, |_| panic!("the request id was lost"));
    let second = second.unwrap_or_else(|error| panic!("{error} in {:?}", String::from_utf8_lossy(&wire)));
    assert_eq!((second.method, second.session), (request.method, request.session));
    assert_eq!(again[second.target], target);
    assert_eq!(again[second.request_id], request_id);
    assert!(request.class.iter().chain(&request.require).all(|text| text.len() <= end), "own fields are parts of the head");
}

/// What an engine gets holds one head, whose fields no other parser can read in another way.
fn check_wire(wire: &[u8], length: Length) {
    assert_eq!(find_end(wire, &mut 0, usize::MAX), Ok(Some(wire.len())), "another head hides in this one");
    let text = &wire[..wire.len() - 4];
    assert!(!text.iter().zip(&text[1..]).any(|(&a, &b)| a == b'\r' && b != b'\n'), "a CR that ends no line");
    assert!(!text.contains(&0), "a NUL");
    let lines = text.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let (mut framing, mut hosts) = (0, 0);
    for line in lines.skip(1) {
        let colon = line.iter().position(|&byte| byte == b':').expect("a field has a colon");
        let name = line[..colon].to_ascii_lowercase();
        assert!(!name.is_empty() && name.iter().all(u8::is_ascii_graphic), "a field without a name");
        let hop_by_hop: [&[u8]; 6] = [b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade"];
        assert!(!hop_by_hop.contains(&name.as_slice()), "{:?} is for one hop", String::from_utf8_lossy(&name));
        assert_ne!(name, b"transfer-encoding", "framing of the client's");
        framing += usize::from(name == b"content-length");
        hosts += usize::from(name == b"host");
        let shadows: [&[u8]; 2] = [b"content_length", b"transfer_encoding"];
        assert!(!shadows.contains(&name.as_slice()), "an engine may read an underscore as a dash");
    }
    assert_eq!(hosts, 1, "host fields");
    assert_eq!(framing, usize::from(length != Length::Unknown), "content-length fields");
}
