use proptest::prelude::*;

use super::*;
use crate::proxy::json::DEPTH_MAX;

fn check(body: &str, model: Option<&str>) {
    assert_eq!(scan(body.as_bytes()).unwrap().model.as_deref(), model, "{body}");
}

#[test]
fn models() {
    check(r#"{"model":"demo"}"#, Some("demo"));
    check("\r\n{ \"a\" : [1, {\"model\": \"x\"}, \"}\"] , \"model\"\t:\t\"demo\" }\n", Some("demo"));
    check(r#"{"m":"\"","model":"a\u0062\"c"}"#, Some("ab\"c"));
    check(r#"{"\u006dodel":"demo"}"#, Some("demo"));
    check(r#"{"model":"one","model":"two"}"#, Some("two"));
    check(r#"{"user":"\\","stream":true,"n":-1.5e3,"x":null}"#, None);
    check("{}", None);
}

#[test]
fn not_an_object() {
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(DEPTH_MAX + 1), "]".repeat(DEPTH_MAX + 1));
    for bad in [
        "",
        " ",
        "[]",
        "1",
        "{",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,}",
        "{\"a\" 1}",
        "{\"a\":1}x",
        "{a:1}",
        "{\"a\":[1}",
        "{\"a\":{]}}",
        "{\"a\":\"b}",
        "{\"a\":\"b\\\"}",
        "{\"a\":tru}",
        "{\"a\":nul,\"b\":1}",
        "{\"a\":,}",
        "{\"model\":1}",
        "{\"model\":null}",
        "{\"a\":1 \"b\":2}",
        "{\"a\":\"\\",
        &deep,
    ] {
        assert!(scan(bad.as_bytes()).is_err(), "{bad}");
    }
    let fits = format!("{{\"a\":{}1{}}}", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX));
    assert!(scan(fits.as_bytes()).is_ok());
}

#[test]
fn names_are_bounded_and_long_keys_and_ids_cost_no_more_than_short_ones() {
    let body = |model: usize| format!(r#"{{"model":"{}"}}"#, "m".repeat(model - 2));
    assert!(scan(body(MODEL_BYTES_MAX).as_bytes()).is_ok());
    assert_eq!(scan(body(MODEL_BYTES_MAX + 1).as_bytes()).unwrap_err().what, "model is longer than 4096 bytes");
    // Of repeated keys the last counts, so that a long one before it does no harm.
    let twice = format!(r#"{{"model":"{}","model":"demo"}}"#, "m".repeat(MODEL_BYTES_MAX));
    check(&twice, Some("demo"));
    let spelt_out: String = "prompt_cache_key".bytes().map(|b| format!("\\u{b:04x}")).collect();
    let key = |name: &str| scan(format!(r#"{{"{name}":"k"}}"#).as_bytes()).unwrap().affinity;
    assert_eq!(key(&spelt_out), key("prompt_cache_key"));
    assert_eq!(key(&format!("{spelt_out}\\u0061")), None);
    let user = |tail: &str| scan(format!(r#"{{"user":"{}{tail}"}}"#, "u".repeat(ID_BYTES_MAX)).as_bytes()).unwrap().affinity;
    assert_eq!(user("a"), user("b"));
}

/// Scans in slices of `bytes`, counting them.
fn slices(body: &[u8], bytes: usize) -> (Result<Payload<'_>, PayloadError>, usize) {
    let mut scan = Scan::new(body);
    for slice in 1.. {
        match scan.advance(bytes) {
            Ok(None) => {}
            Ok(Some(payload)) => return (Ok(payload), slice),
            Err(error) => return (Err(error), slice),
        }
    }
    unreachable!("the scan makes progress")
}

#[test]
fn a_scan_in_slices_of_any_size_reads_the_same() {
    for body in [
        r#"{"model":"demo"}"#,
        "\r\n{ \"a\" : [1, {\"model\": \"x\"}, \"}\"] , \"model\"\t:\t\"demo\" }\n  ",
        r#"{"m":"\"","\u006dodel":"a\u0062\"c","n":-1.5e3,"t":true,"f":false,"z":null,"e":{},"l":[]}"#,
        r#"{"messages":[{"role":"system","content":[{"text":"s\\"}]},"x",{},{"content":"first","role":"user"},{"role":"user"}],"model":"m"}"#,
        r#"{"input":"text","user":"u\"v","prompt_cache_key":""}"#,
        r#"{"a":{]}}"#,
        r#"{"a":"\"#,
        r#"{"a":tru}"#,
        r#"{"a":1}x"#,
        "",
    ] {
        let whole = scan(body.as_bytes());
        for bytes in 1..=body.len() {
            assert_eq!(slices(body.as_bytes(), bytes).0, whole, "{body:?} in slices of {bytes}");
        }
    }
}

/// Bodies made to be slow to read: no slice looks at more than its bytes, in any phase.
#[test]
fn every_slice_of_an_expensive_body_is_bounded() {
    const BYTES: usize = 1000;
    let messages = format!(r#"{{"messages":[{}{{}}],"model":"m"}}"#, "{},".repeat(20_000));
    let keys = format!(r#"{{{}"model":"m"}}"#, "\"\\u0061\":1,".repeat(5_000));
    let brackets = format!(r#"{{"a":[{}0],"model":"m"}}"#, "[[[[]]]],".repeat(5_000));
    let escapes = format!(r#"{{"a":"{}","model":"m"}}"#, "\\\\".repeat(30_000));
    let blanks = format!("{}{{\"model\":\"m\"}}{}", " ".repeat(30_000), " ".repeat(30_000));
    let digits = format!(r#"{{"a":{},"model":"m"}}"#, "1".repeat(60_000));
    for (body, passes) in [(messages, 3), (keys, 1), (brackets, 1), (escapes, 1), (blanks, 1), (digits, 1)] {
        let (payload, count) = slices(body.as_bytes(), BYTES);
        assert_eq!(payload.unwrap().model.as_deref(), Some("m"));
        let least = body.len() / (BYTES + 1);
        assert!((least..=passes * body.len() / BYTES + 2).contains(&count), "{count} slices of {} bytes", body.len());
    }
}

#[test]
fn affinity_prefers_cache_key_then_user_then_the_head_of_the_prompt() {
    let key = |body: &str| scan(body.as_bytes()).unwrap().affinity;
    let by_cache = key(r#"{"prompt_cache_key":"k","user":"u","messages":[]}"#);
    assert_eq!(by_cache, key(r#"{"messages":[{"role":"user","content":"x"}],"prompt_cache_key":"k"}"#));
    assert_ne!(by_cache, key(r#"{"user":"k"}"#));
    assert_eq!(key(r#"{"user":"u","prompt":"a"}"#), key(r#"{"user":"u","prompt":"b"}"#));
    assert_eq!(key(r#"{"user":"","prompt":"b"}"#), key(r#"{"prompt":"b"}"#));
    let turns = |more: &str| {
        key(&format!(r#"{{"messages":[{{"role":"system","content":"s"}},{{"role":"user","content":"first"}}{more}]}}"#))
    };
    let later = turns(r#",{"role":"assistant","content":"a"},{"role":"user","content":"second"}"#);
    assert!(turns("").is_some());
    assert_eq!(turns(""), later);
    assert_ne!(turns(""), key(r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"other"}]}"#));
    let long = |tail: &str| key(&format!(r#"{{"prompt":"{}{tail}"}}"#, "x".repeat(HEAD_BYTES)));
    assert_eq!(long("a"), long("b"));
    assert_eq!(key(r#"{"messages":[]}"#), None);
}

#[test]
fn the_stored_object_that_a_body_builds_on() {
    let named = |body: &str| scan(body.as_bytes()).unwrap().builds_on.map(|r| (r.field, r.id.into_owned()));
    for (body, expected) in [
        (r#"{"model":"m","previous_response_id":"resp_1","input":"x"}"#, Some(("previous_response_id", "resp_1"))),
        (r#"{"previous_response_\u0069d":"resp_\u0031"}"#, Some(("previous_response_id", "resp_1"))),
        (r#"{"input_file_id":"file-1","endpoint":"/v1/chat/completions"}"#, Some(("input_file_id", "file-1"))),
        (r#"{"conversation":"conv_1"}"#, Some(("conversation", "conv_1"))),
        (r#"{"conversation":{"id":"conv_1"}}"#, Some(("conversation", "conv_1"))),
        (r#"{"conversation":{"name":"conv_1"}}"#, None),
        (r#"{"previous_response_id":null}"#, None),
        (r#"{"previous_response_id":""}"#, None),
        (r#"{"previous_response_id":7}"#, None),
        (r#"{"metadata":{"previous_response_id":"resp_1"}}"#, None),
    ] {
        assert_eq!(named(body), expected.map(|(field, id)| (field, id.to_owned())), "{body}");
    }
    let long = |bytes: usize| named(&format!(r#"{{"conversation":"{}"}}"#, "c".repeat(bytes - 2))).is_some();
    assert!(long(ID_BYTES_MAX) && !long(ID_BYTES_MAX + 1));
}

proptest! {
    #[test]
    fn whatever_serde_reads_as_an_object_is_read_alike(
        model in ".{0,12}", key in ".{0,6}", text in ".{0,40}", number in any::<f64>(), pretty in any::<bool>(),
    ) {
        prop_assume!(key != "model");
        let value = serde_json::json!({ key: [text, number, { "model": 1 }], "model": model });
        let body = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) }.unwrap();
        let payload = scan(&body).unwrap();
        prop_assert_eq!(payload.model.as_deref(), Some(model.as_str()));
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(body in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = scan(&body);
    }
}
