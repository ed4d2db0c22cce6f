//! Reads the ids of objects from the first bytes of an answer, before the client gets them. No IO.

use std::fmt;

use memchr::memmem;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::path::StoredPath;
use crate::proxy::http1::chunk::{Decoder, Piece};
use crate::proxy::http1::request::Method;

/// Bytes of an answer's body that are looked at, with its framing. Engines write an id first; a
/// batch is some 800 bytes, and its errors come late.
const LOOKED_AT_MAX: usize = 4 << 10;
/// Ids of one answer that are taken: a batch has three.
const IDS_MAX: usize = 8;

/// What a part of an answer has shown.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Seen {
    Nothing,
    /// The engine holds these objects.
    Made(Vec<String>),
    /// The engine has deleted this object.
    Deleted(String),
}

/// How an answer is put together for the client.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct Form {
    pub(in crate::proxy) status: u16,
    pub(in crate::proxy) is_event_stream: bool,
    pub(in crate::proxy) is_chunked: bool,
}

/// Follows one answer on its way to the client.
#[derive(Debug)]
pub(in crate::proxy) struct AnswerWatch {
    /// Class that the request was routed by.
    pub(in crate::proxy) class: String,
    /// The object that a successful answer ends.
    deletes: Option<String>,
    /// Whether ids are looked for.
    looks: bool,
    ids_wanted: usize,
    has_head: bool,
    /// First bytes of the body, as framed for the client.
    body: Vec<u8>,
    found: Vec<String>,
}

impl AnswerWatch {
    /// `class` is the name of the request's class.
    pub(in crate::proxy) fn new(path: StoredPath<'_>, method: Method, class: String) -> Self {
        let deletes = match path {
            StoredPath::Object { id, below: "", .. } if method == Method::Delete => Some(id.to_owned()),
            _ => None,
        };
        Self {
            class,
            deletes,
            looks: path.shows_ids(method),
            ids_wanted: if path.names_others() { IDS_MAX } else { 1 },
            has_head: false,
            body: Vec::new(),
            found: Vec::new(),
        }
    }

    /// Looks at the next bytes that the client is about to get. The first ones are the whole head
    /// and what follows it.
    pub(in crate::proxy) fn look(&mut self, parts: [&[u8]; 3], form: Form) -> Seen {
        if !(200..300).contains(&form.status) {
            return Seen::Nothing;
        }
        if let Some(id) = self.deletes.take() {
            return Seen::Deleted(id);
        }
        if !self.looks {
            return Seen::Nothing;
        }
        let head = if self.has_head { 0 } else { memmem::find(parts[0], b"\r\n\r\n").map_or(parts[0].len(), |at| at + 4) };
        self.has_head = true;
        for part in [&parts[0][head..], parts[1], parts[2]] {
            let room = LOOKED_AT_MAX - self.body.len();
            self.body.extend_from_slice(&part[..part.len().min(room)]);
        }
        let mut new = if form.is_chunked { ids(&unchunked(&self.body), form) } else { ids(&self.body, form) };
        new.retain(|id| !self.found.contains(id));
        new.truncate(self.ids_wanted - self.found.len());
        self.found.extend_from_slice(&new);
        self.looks = self.body.len() < LOOKED_AT_MAX && self.found.len() < self.ids_wanted;
        if new.is_empty() { Seen::Nothing } else { Seen::Made(new) }
    }
}

/// The data of a chunked body that may be cut anywhere.
fn unchunked(body: &[u8]) -> Vec<u8> {
    let (mut decoder, mut at, mut data) = (Decoder::default(), 0, Vec::new());
    loop {
        match decoder.step(&body[at..]) {
            Ok(Piece::Framing(n)) => at += n,
            Ok(Piece::Data(n)) => {
                data.extend_from_slice(&body[at..at + n]);
                at += n;
            }
            Ok(Piece::Incomplete | Piece::Done) | Err(_) => return data,
        }
    }
}

/// The ids in the beginning of a body: of an object, or of the objects in a stream's events.
fn ids(body: &[u8], form: Form) -> Vec<String> {
    let mut found = Vec::new();
    if form.is_event_stream {
        let lines = body.split(|&byte| byte == b'\n' || byte == b'\r');
        lines.filter_map(|line| line.strip_prefix(b"data:")).for_each(|data| read(data, &mut found));
    } else {
        read(body, &mut found);
    }
    found
}

/// Adds the ids of one JSON object, of which the end may be missing.
fn read(object: &[u8], found: &mut Vec<String>) {
    let mut json = serde_json::Deserializer::from_slice(object);
    // An error is where the object is cut or malformed; what stands before it counts.
    let _end = Ids { found, is_inner: false }.deserialize(&mut json);
}

/// Collects ids while an object is read.
struct Ids<'f> {
    found: &'f mut Vec<String>,
    /// Inside `response` or `file`.
    is_inner: bool,
}

impl<'de> DeserializeSeed<'de> for Ids<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Ids<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or null")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "id" => self.take(map.next_value()?),
                "output_file_id" | "error_file_id" if !self.is_inner => self.take(map.next_value()?),
                "response" | "file" if !self.is_inner => {
                    map.next_value_seed(Ids { found: &mut *self.found, is_inner: true })?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

impl Ids<'_> {
    fn take(&mut self, value: Value) {
        match value {
            Value::String(id) if !id.is_empty() && !self.found.contains(&id) => self.found.push(id),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEAD: &str = "HTTP/1.1 200 OK\r\nx: y\r\n\r\n";
    const PLAIN: Form = Form { status: 200, is_event_stream: false, is_chunked: false };

    fn watch(method: Method, path: &str) -> AnswerWatch {
        AnswerWatch::new(StoredPath::of(path).unwrap(), method, "chat".to_owned())
    }

    /// Every id that is seen of a body which comes in two parts, split at each byte in turn.
    #[track_caller]
    fn check(path: &str, form: Form, body: &str, expected: &[&str]) {
        for split in 0..=body.len() {
            let mut watch = watch(Method::Post, path);
            let (first, last) = body.as_bytes().split_at(split);
            let mut seen = Vec::new();
            for parts in [[HEAD.as_bytes(), first, b""], [b"".as_slice(), last, b""]] {
                if let Seen::Made(ids) = watch.look(parts, form) {
                    seen.extend(ids);
                }
            }
            assert_eq!(seen, expected, "{body:?} split at {split}");
        }
    }

    fn chunks(parts: &[&str]) -> String {
        parts.iter().map(|part| format!("{:x}\r\n{part}\r\n", part.len())).collect::<String>() + "0\r\n\r\n"
    }

    #[test]
    fn the_id_of_an_object_is_found_wherever_the_reads_cut_it() {
        let nested = r#"{"object":"response","output":[{"id":"msg_1"}],"x":{"id":"no"},"id":"resp_\u0031"}"#;
        check("/v1/responses", PLAIN, r#"{"id":"resp_1","object":"response"}"#, &["resp_1"]);
        check("/v1/responses", PLAIN, nested, &["resp_1"]);
        check("/v1/responses", Form { is_chunked: true, ..PLAIN }, &chunks(&[&nested[..70], &nested[70..]]), &["resp_1"]);
        check("/v1/files", PLAIN, r#" { "id" : "file-1" }"#, &["file-1"]);
        check("/v1/uploads", PLAIN, r#"{"file":null,"id":"upload_1"}"#, &["upload_1"]);
        for none in [r#"{"id":7}"#, r#"{"id":""}"#, r#"[{"id":"a"}]"#, r#"{"data":[{"id":"a"}]}"#, "", "id", r#"{"id":"cut"#] {
            check("/v1/responses", PLAIN, none, &[]);
        }
    }

    #[test]
    fn the_first_event_of_a_stream_has_the_id() {
        let created = "event: response.created\ndata: {\"response\":{\"id\":\"resp_1\",\"tools\":[";
        let rest =
            "]},\"type\":\"response.created\"}\n\nevent: response.output_item.added\ndata: {\"item\":{\"id\":\"msg_1\"}}\n\n";
        let stream = Form { is_event_stream: true, ..PLAIN };
        check("/v1/responses", stream, &format!(": ping\n\n{created}{rest}"), &["resp_1"]);
        check("/v1/responses", stream, &format!("{created}{}", "1,".repeat(LOOKED_AT_MAX)), &["resp_1"]);
        let chunked = Form { is_chunked: true, ..stream };
        check("/v1/responses", chunked, &chunks(&[created, rest, "data: {\"id\":\"chatcmpl-1\"}\n\n"]), &["resp_1"]);
    }

    #[test]
    fn a_batch_and_an_upload_name_the_files_that_they_make() {
        let batch =
            r#"{"id":"batch_1","input_file_id":"file-in","errors":null,"output_file_id":"file-out","error_file_id":null}"#;
        check("/v1/batches/batch_1", PLAIN, batch, &["batch_1", "file-out"]);
        check("/v1/uploads/upload_1/complete", PLAIN, r#"{"id":"upload_1","file":{"id":"file-1"}}"#, &["upload_1", "file-1"]);
    }

    #[test]
    fn nothing_is_read_behind_the_bound_or_from_an_error() {
        let late = format!(r#"{{"x":"{}","id":"resp_1"}}"#, "x".repeat(LOOKED_AT_MAX));
        let mut reader = watch(Method::Post, "/v1/responses");
        assert_eq!(reader.look([HEAD.as_bytes(), b"", b""], PLAIN), Seen::Nothing);
        for byte in late.bytes() {
            assert_eq!(reader.look([b"", &[byte], b""], PLAIN), Seen::Nothing);
        }
        assert!(reader.body.len() <= LOOKED_AT_MAX);
        check("/v1/responses", Form { status: 404, ..PLAIN }, r#"{"id":"resp_1"}"#, &[]);
        check("/v1/files/file-1/content", PLAIN, r#"{"id":"resp_of_somebody_else"}"#, &[]);
    }

    #[test]
    fn a_deleted_object_is_named_once_and_only_after_success() {
        let parts = [HEAD.as_bytes(), br#"{"id":"resp_1","deleted":true}"#, b""];
        let mut deletion = watch(Method::Delete, "/v1/responses/resp_1");
        assert_eq!(deletion.look(parts, Form { status: 404, ..PLAIN }), Seen::Nothing);
        assert_eq!(deletion.look(parts, PLAIN), Seen::Deleted("resp_1".to_owned()));
        assert_eq!(deletion.look(parts, PLAIN), Seen::Nothing);
        assert_eq!(watch(Method::Delete, "/v1/vector_stores/vs_1/files/file-1").look(parts, PLAIN), Seen::Nothing);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_no_harm(body in prop::collection::vec(any::<u8>(), 0..200), flags in any::<[bool; 2]>()) {
            let form = Form { status: 200, is_event_stream: flags[0], is_chunked: flags[1] };
            let mut reader = watch(Method::Post, "/v1/batches");
            for part in body.chunks(7) {
                reader.look([b"\r\n\r\n", part, b""], form);
            }
        }
    }
}
