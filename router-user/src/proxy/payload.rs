//! What routing needs to know of a request's JSON body, read in one pass without building a tree.
//!
//! The top level is checked in full; below it only that brackets match and strings end, which is what finding the end of a value
//! takes. Deeper mistakes are the engine's to report.

use std::borrow::Cow;

use thiserror::Error;

use crate::policy::affinity::{self, HEAD_BYTES, KeyBuilder, Source};

/// Levels of nesting that are followed. Anything deeper is an attack on some parser.
const DEPTH_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the body is not a JSON object: {what} at byte {at}")]
pub struct PayloadError {
    pub what: &'static str,
    pub at: usize,
}

/// The interesting keys of the top-level object; of repeated keys the last counts, as with most parsers of the engines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Payload<'a> {
    pub model: Option<Cow<'a, str>>,
    /// From the best source the body has.
    pub affinity: Option<u64>,
    pub stream: bool,
    pub priority: Option<i64>,
}

/// Scans a body.
///
/// Errors: it is not one JSON object, or `model` is not text.
pub fn scan(body: &[u8]) -> Result<Payload<'_>, PayloadError> {
    let mut scanner = Scanner { input: body, at: 0 };
    let mut payload = Payload::default();
    let (mut cache_key, mut user, mut prompt) = (None, None, None);
    scanner.object(|key, value, at| {
        match key {
            b"model" => {
                payload.model = Some(text(value).ok_or(PayloadError { what: "model is not a string", at })?);
            }
            b"stream" => payload.stream = value == b"true",
            b"priority" => payload.priority = std::str::from_utf8(value).ok().and_then(|v| v.parse().ok()),
            b"prompt_cache_key" => cache_key = non_empty(value),
            b"user" => user = non_empty(value),
            b"messages" | b"prompt" | b"input" => prompt = Some(value),
            _ => {}
        }
        Ok(())
    })?;
    scanner.blank();
    if scanner.at < body.len() {
        return Err(scanner.wrong("something follows the object"));
    }
    payload.affinity = (cache_key.map(|v| affinity::key(Source::CacheKey, v)))
        .or_else(|| user.map(|v| affinity::key(Source::User, v)))
        .or_else(|| prompt.and_then(prompt_key));
    Ok(payload)
}

/// A string that is not empty, with its quotes.
fn non_empty(value: &[u8]) -> Option<&[u8]> {
    (value.len() > 2 && value[0] == b'"').then_some(value)
}

/// The text of a JSON string.
fn text(value: &[u8]) -> Option<Cow<'_, str>> {
    let inner = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if memchr::memchr(b'\\', inner).is_none() {
        return std::str::from_utf8(inner).ok().map(Cow::Borrowed);
    }
    serde_json::from_slice(value).ok().map(Cow::Owned)
}

/// The key of a prompt's head: of messages everything up to the first of a user, which all later turns of a conversation repeat.
fn prompt_key(value: &[u8]) -> Option<u64> {
    let mut key = KeyBuilder::new(Source::Prompt);
    let mut used = 0;
    let mut absorb = |part: &[u8]| {
        let head = &part[..part.len().min(HEAD_BYTES)];
        key.absorb(head);
        used += head.len();
        used
    };
    if value.first() == Some(&b'[') {
        let mut scanner = Scanner { input: value, at: 0 };
        let mut is_empty = true;
        // The value has been scanned before, so the only error is the one made here to stop.
        let _stopped: Result<(), PayloadError> = scanner.array(|element, at| {
            is_empty = false;
            let (mut is_user, mut used) = (false, 0);
            if element.first() == Some(&b'{') {
                let mut fields = Scanner { input: element, at: 0 };
                fields.object(|name, value, _| {
                    if name == b"role" || name == b"content" {
                        is_user |= value == b"\"user\"";
                        used = absorb(value);
                    }
                    Ok(())
                })?;
            } else {
                used = absorb(element);
            }
            if is_user || used >= 4 * HEAD_BYTES { Err(PayloadError { what: "enough", at }) } else { Ok(()) }
        });
        return (!is_empty).then(|| key.finish());
    }
    // Nothing to hold on to in `null` or an empty string.
    (absorb(value) > 2 && value[0] == b'"').then(|| key.finish())
}

struct Scanner<'a> {
    input: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn wrong(&self, what: &'static str) -> PayloadError {
        PayloadError { what, at: self.at }
    }

    fn blank(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.input.get(self.at) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.input.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), PayloadError> {
        self.blank();
        if self.peek() != Some(byte) {
            return Err(self.wrong(what));
        }
        self.at += 1;
        Ok(())
    }

    /// Walks an object; `each` gets the key without quotes, unescaped where needed, the value as it stands, and its place.
    fn object(&mut self, mut each: impl FnMut(&[u8], &'a [u8], usize) -> Result<(), PayloadError>) -> Result<(), PayloadError> {
        self.expect(b'{', "wanted {")?;
        self.blank();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.blank();
            let key = self.string()?;
            self.expect(b':', "wanted :")?;
            self.blank();
            let at = self.at;
            let value = self.value()?;
            let inner = &key[1..key.len() - 1];
            if memchr::memchr(b'\\', inner).is_some() {
                let key = text(key).ok_or(PayloadError { what: "malformed key", at })?;
                each(key.as_bytes(), value, at)?;
            } else {
                each(inner, value, at)?;
            }
            self.blank();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.wrong("wanted , or }")),
            }
        }
    }

    /// Walks an array; `each` gets the element as it stands.
    fn array(&mut self, mut each: impl FnMut(&'a [u8], usize) -> Result<(), PayloadError>) -> Result<(), PayloadError> {
        self.expect(b'[', "wanted [")?;
        self.blank();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.blank();
            let at = self.at;
            let element = self.value()?;
            each(element, at)?;
            self.blank();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.wrong("wanted , or ]")),
            }
        }
    }

    /// A string, with its quotes.
    fn string(&mut self) -> Result<&'a [u8], PayloadError> {
        let start = self.at;
        if self.peek() != Some(b'"') {
            return Err(self.wrong("wanted a string"));
        }
        self.at += 1;
        loop {
            let Some(ahead) = memchr::memchr2(b'"', b'\\', &self.input[self.at..]) else {
                return Err(self.wrong("string does not end"));
            };
            self.at += ahead;
            if self.input[self.at] == b'"' {
                self.at += 1;
                return Ok(&self.input[start..self.at]);
            }
            // The byte behind a backslash cannot end the string.
            self.at += 2;
            if self.at > self.input.len() {
                self.at = self.input.len();
                return Err(self.wrong("string does not end"));
            }
        }
    }

    /// Any value, as it stands.
    fn value(&mut self) -> Result<&'a [u8], PayloadError> {
        let start = self.at;
        match self.peek() {
            Some(b'"') => return self.string(),
            Some(b'{' | b'[') => self.nested()?,
            Some(b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => {
                let is_end = |b: &u8| matches!(b, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n');
                let rest = &self.input[start..];
                let length = rest.iter().position(is_end).unwrap_or(rest.len());
                let word = &rest[..length];
                let is_number = || word.iter().all(|b| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'));
                if !matches!(word, b"true" | b"false" | b"null") && !is_number() {
                    return Err(self.wrong("unknown word"));
                }
                self.at += length;
            }
            _ => return Err(self.wrong("wanted a value")),
        }
        Ok(&self.input[start..self.at])
    }

    /// Skips an object or array by its brackets.
    fn nested(&mut self) -> Result<(), PayloadError> {
        // One bit per level: set for an object.
        let (mut kinds, mut depth) = (0u128, 0usize);
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.string()?;
                    continue;
                }
                Some(open @ (b'{' | b'[')) => {
                    if depth == DEPTH_MAX {
                        return Err(self.wrong("nested too deep"));
                    }
                    kinds = kinds << 1 | u128::from(open == b'{');
                    depth += 1;
                }
                Some(close @ (b'}' | b']')) => {
                    if (kinds & 1 == 1) != (close == b'}') {
                        return Err(self.wrong("brackets do not match"));
                    }
                    kinds >>= 1;
                    depth -= 1;
                }
                Some(_) => {}
                None => return Err(self.wrong("brackets do not close")),
            }
            self.at += 1;
            if depth == 0 {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
    fn other_keys() {
        let payload = scan(br#"{"model":"m","stream":true,"priority":-3}"#).unwrap();
        assert_eq!((payload.stream, payload.priority, payload.affinity), (true, Some(-3), None));
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
}
