//! The parts of a request's JSON body that routing needs, read in one pass without building a tree.
//!
//! The top level is checked in full. Below it only brackets and strings are followed, which is
//! enough to find the end of a value; deeper mistakes are the engine's to report. A scan stops and
//! goes on after any byte, so that a large body never holds a worker's loop.

use std::borrow::Cow;

pub use super::json::PayloadError;
use super::json::{Step, Walker};
use crate::policy::affinity::{self, HEAD_BYTES, KeyBuilder, Source};

/// Bytes of a model's name as the body spells it. Longer than any real name, and cheap to decode.
pub(super) const MODEL_BYTES_MAX: usize = 4 << 10;
/// Bytes of `user` and `prompt_cache_key` that make the affinity key, and of an object's id: more
/// than anybody uses, and cheap to hash.
const ID_BYTES_MAX: usize = 4 << 10;
/// Bytes of a key that is decoded where it has escapes: `previous_response_id`, the longest that is
/// looked for, with every letter written as `\uXXXX`.
const ESCAPED_KEY_MAX: usize = 6 * 20;

/// The values that matter of the top-level object. Of repeated keys the last counts, as with most
/// parsers of the engines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Payload<'a> {
    pub model: Option<Cow<'a, str>>,
    /// Affinity key, from the best source that the body has.
    pub affinity: Option<u64>,
    /// The affinity key of `user`.
    pub user: Option<u64>,
    /// The stored object that the body builds on.
    pub builds_on: Option<Reference<'a>>,
    /// The answer is asked for as a stream.
    pub is_stream: bool,
}

/// An object that an engine holds, as a body names it.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference<'a> {
    pub field: &'static str,
    pub id: Cow<'a, str>,
}

/// Scans a whole body at once.
///
/// Errors: the body is not one JSON object, or `model` is not text or longer than 4,096 bytes.
pub fn scan(body: &[u8]) -> Result<Payload<'_>, PayloadError> {
    let mut scan = Scan::new(body);
    loop {
        if let Some(payload) = scan.advance(usize::MAX)? {
            return Ok(payload);
        }
    }
}

/// A scan in slices.
#[derive(Debug)]
pub struct Scan<'a> {
    walker: Walker<'a>,
    phase: Phase<'a>,
    /// The value of `model` as it stands, and its place.
    model: Option<(&'a [u8], usize)>,
    cache_key: Option<&'a [u8]>,
    user: Option<&'a [u8]>,
    prompt: Option<&'a [u8]>,
    is_stream: bool,
    /// The field that names a stored object, and its value as it stands.
    builds_on: Option<(&'static str, &'a [u8])>,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would be one more allocation for most requests")]
enum Phase<'a> {
    /// Walking the top-level object.
    Object,
    /// Behind the object, where only blanks may be.
    Tail,
    /// Making the affinity key of the prompt.
    Prompt(PromptKey<'a>),
}

impl<'a> Scan<'a> {
    pub fn new(body: &'a [u8]) -> Self {
        let walker = Walker::new(body, b'{');
        Self {
            walker,
            phase: Phase::Object,
            model: None,
            cache_key: None,
            user: None,
            prompt: None,
            is_stream: false,
            builds_on: None,
        }
    }

    /// Goes on for about `bytes` of the body; `None` while there is more to scan. Not to be called
    /// again after a result.
    ///
    /// Errors: as [`scan`].
    pub fn advance(&mut self, bytes: usize) -> Result<Option<Payload<'a>>, PayloadError> {
        let mut budget = bytes;
        loop {
            match &mut self.phase {
                Phase::Object => match self.walker.next(&mut budget)? {
                    Step::Entry { key, value, at } => self.take(key, value, at)?,
                    Step::End => self.phase = Phase::Tail,
                    Step::Paused => return Ok(None),
                },
                Phase::Tail => {
                    if !self.walker.skip_blanks(&mut budget) {
                        return Ok(None);
                    }
                    if !self.walker.is_at_end() {
                        return Err(self.walker.wrong("something follows the object"));
                    }
                    let own = (self.cache_key.map(|id| id_key(Source::CacheKey, id)))
                        .or_else(|| self.user.map(|id| id_key(Source::User, id)));
                    match (own, self.prompt) {
                        (None, Some(prompt)) => self.phase = Phase::Prompt(PromptKey::new(prompt)),
                        (affinity, _) => return self.payload(affinity).map(Some),
                    }
                }
                Phase::Prompt(prompt) => match prompt.advance(&mut budget) {
                    Some(affinity) => return self.payload(affinity).map(Some),
                    None => return Ok(None),
                },
            }
        }
    }

    /// Takes one entry of the top-level object.
    fn take(&mut self, key: &'a [u8], value: &'a [u8], at: usize) -> Result<(), PayloadError> {
        match &*plain_key(key).ok_or(PayloadError { what: "malformed key", at })? {
            b"model" => self.model = Some((value, at)),
            b"prompt_cache_key" => self.cache_key = non_empty(value),
            b"stream" => self.is_stream = value == b"true",
            b"user" => self.user = non_empty(value),
            b"messages" | b"prompt" | b"input" => self.prompt = Some(value),
            b"previous_response_id" => self.builds_on = Some(("previous_response_id", value)),
            b"conversation" => self.builds_on = Some(("conversation", value)),
            b"input_file_id" => self.builds_on = Some(("input_file_id", value)),
            _ => {}
        }
        Ok(())
    }

    fn payload(&self, affinity: Option<u64>) -> Result<Payload<'a>, PayloadError> {
        let model = match self.model {
            None => None,
            Some((value, at)) if value.len() > MODEL_BYTES_MAX => {
                return Err(PayloadError { what: "model is longer than 4096 bytes", at });
            }
            Some((value, at)) => Some(text(value).ok_or(PayloadError { what: "model is not a string", at })?),
        };
        let builds_on = self.builds_on.and_then(|(field, value)| Some(Reference { field, id: object_id(value)? }));
        let user = self.user.map(|id| id_key(Source::User, id));
        Ok(Payload { model, affinity, user, builds_on, is_stream: self.is_stream })
    }
}

/// The id of an object that is named by its id or, as conversations may be, by an object with its
/// id. What is no id is the engine's to refuse.
fn object_id(value: &[u8]) -> Option<Cow<'_, str>> {
    #[derive(serde::Deserialize)]
    struct Named {
        id: String,
    }
    match value.first()? {
        _ if value.len() > ID_BYTES_MAX => None,
        b'{' => serde_json::from_slice::<Named>(value).ok().map(|named| Cow::Owned(named.id)),
        _ => text(non_empty(value)?),
    }
}

/// A string that is not empty, with its quotes.
fn non_empty(value: &[u8]) -> Option<&[u8]> {
    (value.len() > 2 && value[0] == b'"').then_some(value)
}

fn id_key(source: Source, id: &[u8]) -> u64 {
    affinity::key(source, &id[..id.len().min(ID_BYTES_MAX)])
}

/// The text of a JSON string.
fn text(value: &[u8]) -> Option<Cow<'_, str>> {
    let inner = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if memchr::memchr(b'\\', inner).is_none() {
        return std::str::from_utf8(inner).ok().map(Cow::Borrowed);
    }
    serde_json::from_slice(value).ok().map(Cow::Owned)
}

/// A key without its quotes and escapes; `None` for malformed escapes. A long key keeps its
/// escapes, since it is none of those that are looked for.
fn plain_key(key: &[u8]) -> Option<Cow<'_, [u8]>> {
    let inner = &key[1..key.len() - 1];
    if memchr::memchr(b'\\', inner).is_none() || inner.len() > ESCAPED_KEY_MAX {
        return Some(Cow::Borrowed(inner));
    }
    text(key).map(|text| Cow::Owned(text.into_owned().into_bytes()))
}

/// The affinity key of a prompt's head. Of messages the head is everything up to the first of a
/// user, which all later turns of a conversation repeat.
#[derive(Debug)]
struct PromptKey<'a> {
    value: &'a [u8],
    messages: Walker<'a>,
    /// The fields of the message at hand.
    message: Option<Walker<'a>>,
    is_user: bool,
    is_empty: bool,
    key: KeyBuilder,
    absorbed: usize,
}

impl<'a> PromptKey<'a> {
    fn new(value: &'a [u8]) -> Self {
        Self {
            value,
            messages: Walker::new(value, b'['),
            message: None,
            is_user: false,
            is_empty: true,
            key: KeyBuilder::new(Source::Prompt),
            absorbed: 0,
        }
    }

    /// Goes on; the outer `None` says that there is more to look at, the inner one that the prompt
    /// is empty.
    fn advance(&mut self, budget: &mut usize) -> Option<Option<u64>> {
        if self.value.first() != Some(&b'[') {
            // Nothing to hold on to in `null` or an empty string.
            self.is_empty = non_empty(self.value).is_none();
            self.absorb(self.value);
            return Some(self.finish());
        }
        // The walk over the body has found the value well formed, so that an error is only an end.
        loop {
            let (fields, in_message) = match &mut self.message {
                Some(fields) => (fields, true),
                None => (&mut self.messages, false),
            };
            match fields.next(budget) {
                Ok(Step::Paused) => return None,
                Ok(Step::Entry { key, value, .. }) if in_message => self.take(key, value),
                Ok(Step::Entry { value, .. }) if value.first() == Some(&b'{') => {
                    self.is_empty = false;
                    self.message = Some(Walker::new(value, b'{'));
                }
                Ok(Step::Entry { value, .. }) => {
                    self.is_empty = false;
                    self.absorb(value);
                }
                Ok(Step::End) | Err(_) if in_message => self.message = None,
                Ok(Step::End) | Err(_) => return Some(self.finish()),
            }
            if self.message.is_none() && (self.is_user || self.absorbed >= 4 * HEAD_BYTES) {
                return Some(self.finish());
            }
        }
    }

    /// Takes one field of a message.
    fn take(&mut self, key: &[u8], value: &[u8]) {
        let is_role = key == b"\"role\"";
        self.is_user |= is_role && value == b"\"user\"";
        if is_role || key == b"\"content\"" {
            self.absorb(value);
        }
    }

    fn absorb(&mut self, part: &[u8]) {
        let head = &part[..part.len().min(HEAD_BYTES)];
        self.key.absorb(head);
        self.absorbed += head.len();
    }

    fn finish(&self) -> Option<u64> {
        (!self.is_empty).then(|| self.key.finish())
    }
}

#[cfg(test)]
mod tests;
