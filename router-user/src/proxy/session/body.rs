//! Where the body of the current request lies.

use crate::io::{Connection, Stream};
use crate::proxy::reply::ErrorReply;

/// Bodies up to this size, in bytes, are copied behind the head: the copy is cheaper than a second
/// part in a send.
pub(super) const JOIN_MAX: usize = 4 << 10;

/// Where the body of the request at hand is.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyAt {
    /// Bytes of the client's input that belong to the request.
    pub(super) held: usize,
    /// Start of the body in the client's input; it ends at `held`.
    pub(super) start: usize,
    /// The body was chunked and lies in a buffer of its own.
    pub(super) is_own: bool,
}

impl BodyAt {
    /// No body, or one that was freed.
    pub(super) const NONE: Self = Self { held: 0, start: 0, is_own: false };

    pub(super) fn is_empty(self) -> bool {
        self.held == 0 && !self.is_own
    }

    /// The body.
    pub(super) fn bytes<'b, S: Stream>(self, client: &'b Connection<S>, own: &'b [u8]) -> &'b [u8] {
        if self.is_own { own } else { &client.input()[self.start..self.held] }
    }

    /// The parts of the request to send: `wire`, and the body unless it was joined to `wire`. `own`
    /// is the buffer of chunked bodies.
    pub(super) fn parts<'b, S: Stream>(self, wire: &'b [u8], client: &'b Connection<S>, own: &'b [u8]) -> [&'b [u8]; 4] {
        let body = self.bytes(client, own);
        [wire, if body.len() <= JOIN_MAX { b"" } else { body }, b"", b""]
    }
}

/// Why a body did not arrive whole.
pub(super) enum NoBody {
    Gone,
    Refused(ErrorReply),
}
