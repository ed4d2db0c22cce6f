//! The bytes of replies.

use std::io::Write;

use super::api::{Call, Endpoint, Refusal};

/// Words of the generated text. Token i is word i modulo their number, so the length alone
/// determines an answer.
const WORDS: [&str; 16] = [
    "the", "river", "runs", "past", "seven", "old", "mills", "and", "each", "wheel", "turns", "at", "its", "own", "slow", "pace",
];

/// The fields of an answer that identify it.
#[derive(Clone, Copy)]
pub(super) struct Voice<'a> {
    pub(super) number: u64,
    pub(super) created: u64,
    /// Model and engine are JSON strings, quotes included.
    pub(super) model: &'a str,
    pub(super) engine: &'a str,
}

/// Text of token `index`; with `stamp`, the time of its writing instead of a word.
pub(super) fn word(out: &mut Vec<u8>, index: u32, stamp: Option<u64>) {
    match stamp {
        Some(nanos) => put(out, format_args!("@@{nanos:019}")),
        None => put(out, format_args!(" {}", WORDS[index as usize % WORDS.len()])),
    }
}

/// Head of a reply with a body of `length` bytes.
pub(super) fn head(out: &mut Vec<u8>, status: u16, content_type: &str, length: usize, engine: &str, retry_after_s: Option<u64>) {
    put(
        out,
        format_args!("HTTP/1.1 {status} {}\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n", reason(status)),
    );
    put(out, format_args!("x-engine: {engine}\r\n"));
    if let Some(seconds) = retry_after_s {
        put(out, format_args!("retry-after: {seconds}\r\n"));
    }
    out.extend_from_slice(b"\r\n");
}

/// Head of a stream.
pub(super) fn stream_head(out: &mut Vec<u8>, engine: &str) {
    out.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n");
    put(out, format_args!("transfer-encoding: chunked\r\nx-engine: {engine}\r\n\r\n"));
}

/// OpenAI's error object.
pub(super) fn refusal(out: &mut Vec<u8>, refusal: &Refusal, engine: &str, retry_after_s: Option<u64>) {
    let body = serde_json::json!({
        "error": { "message": refusal.message, "type": refusal.kind, "param": null, "code": refusal.code }
    });
    let body = body.to_string();
    head(out, refusal.status, "application/json", body.len(), engine, retry_after_s);
    out.extend_from_slice(body.as_bytes());
}

/// A whole answer.
pub(super) fn answer(out: &mut Vec<u8>, engine: &str, call: &Call, voice: Voice<'_>, stamp: Option<u64>) {
    let Voice { number, created, model, engine: fingerprint } = voice;
    let (id, object, open, close) = match call.endpoint {
        Endpoint::Chat => ("chatcmpl", "chat.completion", "\"message\":{\"role\":\"assistant\",\"content\":\"", "\"}"),
        Endpoint::Completions => ("cmpl", "text_completion", "\"text\":\"", "\""),
    };
    let mut body = Vec::with_capacity(256 + 8 * call.output_tokens as usize);
    put(&mut body, format_args!("{{\"id\":\"{id}-{number}\",\"object\":\"{object}\",\"created\":{created},\"model\":{model},"));
    put(&mut body, format_args!("\"system_fingerprint\":{fingerprint},\"choices\":[{{\"index\":0,{open}"));
    for index in 0..call.output_tokens {
        word(&mut body, index, stamp);
    }
    put(&mut body, format_args!("{close},\"logprobs\":null,\"finish_reason\":\"length\"}}],{}}}", usage(call)));
    head(out, 200, "application/json", body.len(), engine, None);
    out.extend_from_slice(&body);
}

/// Writes the events of one stream, each as a chunk of its own.
pub(super) struct Events {
    prefix: Vec<u8>,
    endpoint: Endpoint,
    event: Vec<u8>,
}

impl Events {
    pub(super) fn new(endpoint: Endpoint, voice: Voice<'_>) -> Self {
        let (id, object) = match endpoint {
            Endpoint::Chat => ("chatcmpl", "chat.completion.chunk"),
            Endpoint::Completions => ("cmpl", "text_completion"),
        };
        let Voice { number, created, model, engine } = voice;
        let mut prefix = Vec::with_capacity(192);
        put(&mut prefix, format_args!("data: {{\"id\":\"{id}-{number}\",\"object\":\"{object}\",\"created\":{created},"));
        put(&mut prefix, format_args!("\"model\":{model},\"system_fingerprint\":{engine},\"choices\":["));
        Self { prefix, endpoint, event: Vec::with_capacity(512) }
    }

    /// The opening event of a chat, which carries a role and no token; completions have none.
    pub(super) fn role(&mut self, out: &mut Vec<u8>) {
        if self.endpoint == Endpoint::Chat {
            self.choice(out, |event| {
                event.extend_from_slice(b"\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null")
            });
        }
    }

    pub(super) fn token(&mut self, out: &mut Vec<u8>, index: u32, stamp: Option<u64>) {
        let (open, close) = match self.endpoint {
            Endpoint::Chat => ("\"delta\":{\"content\":\"", "\"}"),
            Endpoint::Completions => ("\"text\":\"", "\""),
        };
        self.choice(out, |event| {
            event.extend_from_slice(open.as_bytes());
            word(event, index, stamp);
            event.extend_from_slice(close.as_bytes());
            event.extend_from_slice(b",\"finish_reason\":null");
        });
    }

    /// Everything after the last token, the end of the body included.
    pub(super) fn end(&mut self, out: &mut Vec<u8>, call: &Call) {
        let empty = match self.endpoint {
            Endpoint::Chat => "\"delta\":{}",
            Endpoint::Completions => "\"text\":\"\"",
        };
        self.choice(out, |event| put(event, format_args!("{empty},\"finish_reason\":\"length\"")));
        if call.includes_usage {
            self.event.clear();
            self.event.extend_from_slice(&self.prefix);
            put(&mut self.event, format_args!("],{}}}\n\n", usage(call)));
            chunk(out, &self.event);
        }
        chunk(out, b"data: [DONE]\n\n");
        out.extend_from_slice(b"0\r\n\r\n");
    }

    fn choice(&mut self, out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
        self.event.clear();
        self.event.extend_from_slice(&self.prefix);
        self.event.extend_from_slice(b"{\"index\":0,");
        fill(&mut self.event);
        self.event.extend_from_slice(b"}]}\n\n");
        chunk(out, &self.event);
    }
}

fn usage(call: &Call) -> String {
    let (prompt, output) = (call.prompt_tokens, call.output_tokens);
    let total = u64::from(prompt) + u64::from(output);
    format!("\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{output},\"total_tokens\":{total}}}")
}

fn chunk(out: &mut Vec<u8>, data: &[u8]) {
    put(out, format_args!("{:x}\r\n", data.len()));
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a Vec takes every write");
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{BodyDecoder, Framing, SseReader, parse_response};
    use bytes::BytesMut;

    fn call(endpoint: Endpoint, includes_usage: bool) -> Call {
        Call { endpoint, model: 0, is_stream: true, includes_usage, output_tokens: 2, prompt_tokens: 5 }
    }

    const VOICE: Voice<'static> = Voice { number: 7, created: 1, model: "\"demo\"", engine: "\"e1\"" };

    #[test]
    fn a_chat_stream_has_a_role_then_tokens_then_a_reason_then_usage() {
        let call = call(Endpoint::Chat, true);
        let (mut events, mut out) = (Events::new(call.endpoint, VOICE), Vec::new());
        events.role(&mut out);
        events.token(&mut out, 0, None);
        events.token(&mut out, 1, None);
        events.end(&mut out, &call);
        let (mut body, mut texts) = (BytesMut::new(), Vec::new());
        let is_whole = BodyDecoder::new(Framing::Chunked).decode(&mut BytesMut::from(&out[..]), &mut body).expect("well formed");
        assert!(is_whole);
        SseReader::default().read(&mut body, |event| texts.push(String::from_utf8(event.data.to_vec()).expect("utf-8")));
        assert_eq!(texts.pop().as_deref(), Some("[DONE]"));
        let chunks: Vec<serde_json::Value> = texts.iter().map(|text| serde_json::from_str(text).expect(text)).collect();
        assert_eq!(chunks.len(), 5);
        assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(chunks[1]["choices"][0]["delta"]["content"], " the");
        assert_eq!(chunks[2]["choices"][0]["delta"]["content"], " river");
        assert_eq!(chunks[3]["choices"][0]["finish_reason"], "length");
        assert_eq!((&chunks[4]["choices"], &chunks[4]["usage"]["total_tokens"]), (&serde_json::json!([]), &serde_json::json!(7)));
    }

    #[test]
    fn answers_and_errors_are_whole_json() {
        let mut out = Vec::new();
        answer(&mut out, "e1", &call(Endpoint::Completions, false), VOICE, None);
        let (head, length) = parse_response(&out, |_, _| ()).expect("good").expect("complete");
        assert_eq!(head.framing, Framing::Length((out.len() - length) as u64));
        let body: serde_json::Value = serde_json::from_slice(&out[length..]).expect("JSON");
        assert_eq!((&body["choices"][0]["text"], &body["system_fingerprint"]), (&" the river".into(), &"e1".into()));

        out.clear();
        let busy = Refusal { status: 503, kind: "overloaded_error", code: None, message: "a \"fault\"".to_owned() };
        refusal(&mut out, &busy, "e1", Some(7));
        let mut retry_after = None;
        let (head, length) = parse_response(&out, |name, value| {
            if name == "retry-after" {
                retry_after = Some(value.to_vec());
            }
        })
        .expect("good")
        .expect("complete");
        assert_eq!((head.status, retry_after.as_deref()), (503, Some(&b"7"[..])));
        let body: serde_json::Value = serde_json::from_slice(&out[length..]).expect("JSON");
        assert_eq!(body["error"]["message"], "a \"fault\"");
    }
}
