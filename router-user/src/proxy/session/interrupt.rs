//! Waits that end early when the client leaves or a deadline passes.

use std::future::poll_fn;
use std::task::{Context, Poll};

use crate::io::{Connection, Stream};
use crate::proxy::timers::Deadline;

/// Bytes that a client may send ahead while its request is answered. They are read to see the end
/// of the connection behind them; more stay in the kernel.
const AHEAD_MAX: usize = 64 << 10;

/// Why a wait ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupted {
    ClientGone,
    Late,
}

/// Polls `poll` until it is ready, the client leaves or the deadline passes.
///
/// The first `held` bytes of the client's input belong to the current request.
pub(super) async fn until<S: Stream, T>(
    client: &mut Connection<S>,
    deadline: &Deadline,
    held: usize,
    mut poll: impl FnMut(&mut Context<'_>, &mut Connection<S>) -> Poll<T>,
) -> Result<T, Interrupted> {
    poll_fn(|cx| {
        if let Poll::Ready(result) = poll(cx, client) {
            return Poll::Ready(Ok(result));
        }
        if is_gone(client, cx, held) {
            return Poll::Ready(Err(Interrupted::ClientGone));
        }
        deadline.poll(cx).map(|()| Err(Interrupted::Late))
    })
    .await
}

/// Whether the client has left. Bytes that it sends ahead stay in its input.
fn is_gone<S: Stream>(client: &mut Connection<S>, cx: &mut Context<'_>, held: usize) -> bool {
    while client.input().len() < held + AHEAD_MAX {
        match client.poll_fill(cx) {
            Poll::Ready(Ok(1..)) => {}
            Poll::Ready(_) => return true,
            Poll::Pending => return false,
        }
    }
    // The buffer ahead is full, so no more is read, but the end must still be seen.
    client.poll_hangup(cx).is_ready()
}
