//! The scan of a JSON body for its model: it reads every object that serde_json reads, and finds
//! the same model.

use router_user::proxy::payload::scan;
use serde_json::Value;

pub(crate) fn run(input: &[u8]) {
    let scanned = scan(input);
    if let Err(error) = &scanned {
        assert!(error.at <= input.len(), "a place outside the body");
    }
    // The scan checks less than serde_json does, so only this direction holds.
    let Ok(Value::Object(object)) = serde_json::from_slice::<Value>(input) else { return };
    match object.get("model") {
        Some(Value::String(model)) => {
            assert_eq!(scanned.expect("a legal body").model.as_deref(), Some(model.as_str()));
        }
        Some(_) => assert!(scanned.is_err(), "a model that is not text was let through"),
        None => assert_eq!(scanned.expect("a legal body").model, None),
    }
}
