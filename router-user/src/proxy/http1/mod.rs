//! HTTP/1.1 without IO: heads, framing and chunks as pure functions over received bytes.
//!
//! Input that two parsers could read in two ways is refused, not repaired. Framing is rebuilt on
//! the way out. `head` finds the end of a head and classifies fields; `request`, `target` and
//! `response` rewrite heads; `chunk` takes bodies apart; `events` counts the events of a stream.
//! Source: RFC 9110, RFC 9112.

pub mod chunk;
pub mod events;
pub mod head;
pub mod request;
pub mod response;
pub mod target;
