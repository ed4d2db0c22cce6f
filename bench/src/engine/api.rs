//! The part of OpenAI's API that decides what the engine does.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// Tokens when the request names no limit.
const DEFAULT_TOKENS: u32 = 16;

/// Longest answer: the context of current models.
const MAX_TOKENS: u32 = 1_000_000;

/// Bytes of a request per prompt token: what tokenizers reach on English text.
const BYTES_PER_TOKEN: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Chat,
    Completions,
}

/// A parsed request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) endpoint: Endpoint,
    /// Index into the engine's models.
    pub(super) model: usize,
    pub(super) is_stream: bool,
    pub(super) includes_usage: bool,
    pub(super) output_tokens: u32,
    pub(super) prompt_tokens: u32,
}

/// The error object of OpenAI's API for a request that the engine cannot serve.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) kind: &'static str,
    pub(super) code: Option<&'static str>,
    pub(super) message: String,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    messages: Option<IgnoredAny>,
    prompt: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

impl Call {
    pub(super) fn parse(endpoint: Endpoint, body: &[u8], models: &[String]) -> Result<Self, Refusal> {
        let bad = |message: String| Refusal { status: 400, kind: "invalid_request_error", code: None, message };
        let parsed: Body<'_> =
            serde_json::from_slice(body).map_err(|error| bad(format!("the body is no valid request: {error}")))?;
        let (field, is_there) = match endpoint {
            Endpoint::Chat => ("messages", parsed.messages.is_some()),
            Endpoint::Completions => ("prompt", parsed.prompt.is_some()),
        };
        if !is_there {
            return Err(bad(format!("the body has no {field:?}")));
        }
        let model = match &parsed.model {
            None => 0,
            Some(wanted) => models.iter().position(|m| m == wanted).ok_or_else(|| Refusal {
                status: 404,
                kind: "invalid_request_error",
                code: Some("model_not_found"),
                message: format!("the model {wanted:?} does not exist"),
            })?,
        };
        let output_tokens = parsed.max_completion_tokens.or(parsed.max_tokens).unwrap_or(DEFAULT_TOKENS);
        if !(1..=MAX_TOKENS).contains(&output_tokens) {
            return Err(bad(format!("max_tokens is {output_tokens}; wanted 1 to {MAX_TOKENS}")));
        }
        Ok(Self {
            endpoint,
            model,
            is_stream: parsed.stream.unwrap_or(false),
            includes_usage: parsed.stream_options.and_then(|o| o.include_usage).unwrap_or(false),
            output_tokens,
            prompt_tokens: u32::try_from(body.len() / BYTES_PER_TOKEN).unwrap_or(u32::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_stream_and_usage_are_read() {
        let models = ["demo".to_owned(), "other".to_owned()];
        let call = |body: &str| Call::parse(Endpoint::Chat, body.as_bytes(), &models);
        let found = call(
            r#"{"model":"other","messages":[],"stream":true,"max_tokens":9,"stream_options":{"include_usage":true},"x":[1]}"#,
        );
        let found = found.expect("good");
        assert_eq!((found.model, found.is_stream, found.includes_usage, found.output_tokens), (1, true, true, 9));
        let found = call(r#"{"messages":[],"max_tokens":9,"max_completion_tokens":3}"#).expect("good");
        assert_eq!((found.model, found.is_stream, found.output_tokens), (0, false, 3));
        assert_eq!(call(r#"{"messages":[]}"#).expect("good").output_tokens, DEFAULT_TOKENS);
    }

    #[test]
    fn bad_requests_are_refused_with_a_reason() {
        let check = |endpoint, body: &str, status: u16, wanted: &str| {
            let refusal = Call::parse(endpoint, body.as_bytes(), &["demo".to_owned()]).expect_err(body);
            assert_eq!(refusal.status, status, "{body}");
            assert!(refusal.message.contains(wanted), "{:?} lacks {wanted:?}", refusal.message);
        };
        check(Endpoint::Chat, "{", 400, "no valid request");
        check(Endpoint::Chat, r#"{"prompt":"x"}"#, 400, "no \"messages\"");
        check(Endpoint::Completions, r#"{"messages":[]}"#, 400, "no \"prompt\"");
        check(Endpoint::Chat, r#"{"messages":[],"max_tokens":0}"#, 400, "wanted 1 to");
        check(Endpoint::Chat, r#"{"messages":[],"model":"nope"}"#, 404, "\"nope\" does not exist");
    }
}
