//! HTTP/1.1 without IO: heads, framing and chunks as pure functions over received bytes.
//!
//! Strict on what comes in: whatever two parsers could read in two ways is refused, not repaired. Framing is rebuilt on the way out.
//! Source: RFC 9110, RFC 9112.

pub mod chunk;
pub mod head;
pub mod request;
pub mod response;
pub mod target;
