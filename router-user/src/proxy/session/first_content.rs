//! Whether an event stream has begun to carry what the model generates.
//!
//! Before that an engine may send comments (`: ping`) and events that open an answer without a
//! token: the role of a chat, `message_start`, `response.created`. They say nothing of whether the
//! engine will answer, and another engine sends its own.

use serde_json::Value;

use crate::proxy::http1::chunk::{Decoder, Piece};
use crate::proxy::http1::response::Body;

/// Longest line that is kept until its end comes, in bytes; an opening event is far shorter.
const LINE_MAX: usize = 8 << 10;

/// Looks at the lines of a stream until one of them is content.
#[derive(Debug)]
pub(super) struct FirstContent {
    /// Takes the chunks apart; `None` where the body is not chunked.
    chunks: Option<Decoder>,
    /// A line whose end has not come.
    line: Vec<u8>,
}

impl FirstContent {
    pub(super) fn new(body: Body) -> Self {
        Self { chunks: (body == Body::Chunked).then(Decoder::default), line: Vec::new() }
    }

    /// Takes bytes of the body as framed by the engine, which follow those of the last call; true
    /// when there is content among them.
    pub(super) fn is_in(&mut self, framed: &[u8]) -> bool {
        let Some(mut decoder) = self.chunks else { return self.is_in_data(framed) };
        let (mut at, mut has_content) = (0, false);
        // Malformed chunks are found by whoever passes them on.
        while let Ok(piece) = decoder.step(&framed[at..]) {
            match piece {
                Piece::Framing(n) => at += n,
                Piece::Data(n) => {
                    has_content |= self.is_in_data(&framed[at..at + n]);
                    at += n;
                }
                Piece::Incomplete | Piece::Done => break,
            }
        }
        self.chunks = Some(decoder);
        has_content
    }

    fn is_in_data(&mut self, data: &[u8]) -> bool {
        for part in data.split_inclusive(|&byte| byte == b'\n' || byte == b'\r') {
            if !part.ends_with(b"\n") && !part.ends_with(b"\r") {
                self.line.extend_from_slice(part);
                return self.line.len() > LINE_MAX || !may_be_field(&self.line);
            }
            let has_content = if self.line.is_empty() {
                is_content(part)
            } else {
                self.line.extend_from_slice(part);
                is_content(&self.line)
            };
            self.line.clear();
            if has_content {
                return true;
            }
        }
        false
    }
}

/// Whether a line, or its beginning, is a field or a comment of an event stream. A compressed
/// stream has other lines.
fn may_be_field(line: &[u8]) -> bool {
    line.first().is_none_or(|byte| b":\r\n".contains(byte))
        || [&b"data"[..], b"event", b"id", b"retry"].iter().any(|name| line.starts_with(name) || name.starts_with(line))
}

/// Whether a line is data that a model generated. What is not understood counts as content, and is
/// passed on.
fn is_content(line: &[u8]) -> bool {
    let Some(payload) = line.strip_prefix(b"data:") else { return !may_be_field(line) };
    let payload = payload.trim_ascii();
    match serde_json::from_slice::<Value>(payload) {
        Ok(event @ Value::Object(_)) => !is_opening(&event),
        _ => !payload.is_empty(),
    }
}

/// Whether an event only opens an answer.
fn is_opening(event: &Value) -> bool {
    if !event["error"].is_null() {
        return false;
    }
    if let Some(choices) = event["choices"].as_array() {
        return choices.iter().all(is_empty_choice);
    }
    match event["type"].as_str() {
        Some("ping" | "message_start" | "response.created" | "response.queued" | "response.in_progress") => true,
        // A tool's name is generated; the beginning of a text is not.
        Some("content_block_start") => matches!(event["content_block"]["type"].as_str(), Some("text" | "thinking")),
        Some("response.output_item.added") => matches!(event["item"]["type"].as_str(), Some("message" | "reasoning")),
        Some("response.content_part.added" | "response.reasoning_summary_part.added") => true,
        _ => false,
    }
}

/// Whether a choice of a chat or a completion has no text, no call and no end: at most a role.
fn is_empty_choice(choice: &Value) -> bool {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    let has_delta =
        choice["delta"].as_object().is_some_and(|delta| delta.iter().any(|(name, value)| name != "role" && !is_empty(value)));
    !has_delta && is_empty(&choice["text"]) && is_empty(&choice["finish_reason"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::http1::chunk::put_chunk;

    const OPENING: [&str; 14] = [
        ": ping",
        "",
        "event: ping",
        "retry: 100",
        "data:",
        r#"data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
        r#"data: {"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":[]}},{"delta":{"role":"assistant"}}]}"#,
        r#"data: {"choices":[{"text":"","index":0,"logprobs":null,"finish_reason":null}]}"#,
        r#"data: {"choices":[],"prompt_filter_results":[{"prompt_index":0}]}"#,
        r#"data: {"type":"response.created","response":{"status":"in_progress"}}"#,
        r#"data: {"type":"response.output_item.added","item":{"type":"message","content":[]}}"#,
        r#"data: {"type":"message_start","message":{"content":[]}}"#,
        r#"data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        r#"data: {"type":"ping"}"#,
    ];
    const CONTENT: [&str; 11] = [
        "data: hello",
        "data: [DONE]",
        "data: {not json",
        r#"data: {"choices":[{"delta":{"content":"Hi"}}]}"#,
        r#"data: {"choices":[{"delta":{"role":"assistant","content":""}},{"delta":{"content":"Hi"}}]}"#,
        r#"data: {"choices":[{"delta":{"role":"assistant","reasoning_content":"Hm"}}]}"#,
        r#"data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
        r#"data: {"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
        r#"data:{"choices":[{"text":"Hi"}]}"#,
        r#"data: {"type":"content_block_start","content_block":{"type":"tool_use","name":"f"}}"#,
        r#"data: {"error":{"message":"no"},"choices":[]}"#,
    ];

    #[test]
    fn openings_are_told_from_content() {
        for line in OPENING {
            assert!(!is_content(line.as_bytes()), "{line}");
        }
        for line in CONTENT {
            assert!(is_content(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn content_is_found_at_any_split_and_line_end() {
        for end in ["\n", "\r", "\r\n"] {
            let opening: String = OPENING.iter().map(|line| format!("{line}{end}{end}")).collect();
            let stream = format!("{opening}{}{end}", CONTENT[3]);
            for split in 0..stream.len() {
                let mut content = FirstContent::new(Body::UntilClose);
                let first = content.is_in(&stream.as_bytes()[..split]);
                // The line ends with its first CR.
                assert!(!first || (end == "\r\n" && split == stream.len() - 1), "split at {split}");
                assert!(first || content.is_in(&stream.as_bytes()[split..]), "split at {split}");
                let mut framed = Vec::new();
                put_chunk(&mut framed, &stream.as_bytes()[..split.max(1)]);
                let whole = framed.len();
                put_chunk(&mut framed, &stream.as_bytes()[split.max(1)..]);
                let mut content = FirstContent::new(Body::Chunked);
                let first = content.is_in(&framed[..whole]);
                assert!(first || content.is_in(&framed[whole..]), "chunk of {split}");
            }
        }
    }

    #[test]
    fn a_line_without_end_is_content_when_it_is_long() {
        let mut content = FirstContent::new(Body::UntilClose);
        let mut long = b"event: ".to_vec();
        long.resize(LINE_MAX, b'x');
        assert!(!content.is_in(&long));
        assert!(content.is_in(b"x"));
    }

    #[test]
    fn a_compressed_stream_is_not_held_back() {
        for magic in [&b"\x1f\x8b\x08\0"[..], b"\x28\xb5\x2f\xfd", b"\x78\x9c", b"\x1f"] {
            assert!(FirstContent::new(Body::UntilClose).is_in(magic), "{magic:?}");
        }
        // The names of fields may come in pieces.
        let mut content = FirstContent::new(Body::UntilClose);
        let found: Vec<bool> =
            [&b"e"[..], b"vent: x\r", b"\nda", b"ta: x", b"\n"].iter().map(|part| content.is_in(part)).collect();
        assert_eq!(found, [false, false, false, false, true]);
    }
}
