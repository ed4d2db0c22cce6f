//! Where the body of the request at hand is.

use crate::io::{Connection, Stream};
use crate::proxy::reply::ErrorReply;

/// Bodies up to this size are copied behind the head: one copy is cheaper than a second part in a
/// send.
pub(super) const JOIN_MAX: usize = 4 << 10;

/// Where the body of the request at hand is.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyAt {
    /// Bytes of the client's input that belong to the request.
    pub(super) held: usize,
    /// Of those, where the body starts; the whole input up to `held` from there is the body.
    pub(super) start: usize,
    /// The body was chunked and is in a buffer of its own.
    pub(super) is_own: bool,
}

impl BodyAt {
    /// A body that is empty, or was let go.
    pub(super) const NONE: Self = Self { held: 0, start: 0, is_own: false };

    pub(super) fn is_empty(self) -> bool {
        self.held == 0 && !self.is_own
    }

    /// The request as it is sent: `wire`, and the body where it was not joined to the head there.
    /// `own` is the buffer of chunked bodies.
    pub(super) fn parts<'b, S: Stream>(self, wire: &'b [u8], client: &'b Connection<S>, own: &'b [u8]) -> [&'b [u8]; 4] {
        let body = if self.is_own { own } else { &client.input()[self.start..self.held] };
        [wire, if body.len() <= JOIN_MAX { b"" } else { body }, b"", b""]
    }
}

/// Why there is no whole body.
pub(super) enum NoBody {
    Gone,
    Refused(ErrorReply),
}
