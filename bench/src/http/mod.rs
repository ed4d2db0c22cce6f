//! The parts of HTTP/1.1 and server-sent events that a false engine and a measuring client need. No
//! IO: bytes in, messages out.

mod body;
mod head;
mod sse;

pub use body::{BodyDecoder, Framing};
pub use head::{MAX_HEAD_BYTES, Method, RequestHead, ResponseHead, parse_request, parse_response};
pub use sse::{Event, SseReader};

use thiserror::Error;

/// The reason why bytes are no HTTP/1.1 message.
#[derive(Debug, Error)]
pub enum HttpError {
    #[error("malformed head: {0}")]
    Head(#[from] httparse::Error),
    #[error("head is longer than {MAX_HEAD_BYTES} bytes")]
    HeadTooLong,
    #[error("content-length is {found:?}; wanted a decimal number")]
    ContentLength { found: String },
    #[error("chunk size line is {found:?}; wanted a hexadecimal number and a line end")]
    ChunkSize { found: String },
    #[error("a chunk does not end with a line end")]
    ChunkEnd,
    #[error("the connection closed inside a message")]
    Cut,
}
