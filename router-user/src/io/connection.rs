//! A stream with the bytes it has received and nobody has used yet.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::task::{Context, Poll, Waker, ready};

use super::driver::Stream;
use super::socket;

/// First size of a read: a request or an event of a stream fits, and an idle connection costs
/// little.
const ROOM_MIN: usize = 4 << 10;
/// Largest size of a read: it doubles while reads come back full, and halves while they come back
/// nearly empty, so that a connection that once carried a large body does not hold a large buffer
/// for ever.
const ROOM_MAX: usize = 64 << 10;
/// Parts of one send: a head, a chunk's size line, its bytes and its end.
const PARTS: usize = 4;

pub struct Connection<S: Stream> {
    stream: S,
    input: Vec<u8>,
    /// How much of the front of `input` has been used.
    start: usize,
    room: usize,
}

impl<S: Stream> Connection<S> {
    pub fn adopt(socket: std::net::TcpStream) -> io::Result<Self> {
        Ok(Self { stream: S::adopt(socket)?, input: Vec::new(), start: 0, room: ROOM_MIN })
    }

    /// Starts to connect; [`Self::poll_connected`] tells the outcome.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::adopt(socket::start_connect(address)?)
    }

    pub fn poll_connected(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_connected(cx)
    }

    /// Received bytes that are not used yet.
    #[inline]
    pub fn input(&self) -> &[u8] {
        &self.input[self.start..]
    }

    /// Marks the first `n` bytes of the input as used.
    #[inline]
    pub fn consume(&mut self, n: usize) {
        self.start += n;
        assert!(self.start <= self.input.len(), "consumed more than was received");
        if self.start == self.input.len() {
            self.start = 0;
            self.input.clear();
            if self.input.capacity() > 2 * ROOM_MAX {
                self.input = Vec::new();
            }
        }
    }

    /// Receives more input; `Ready(Ok(0))` is the end of the stream. May be dropped and called
    /// again at any time.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.start > 0 && self.start >= self.input.len() - self.start {
            // What is moved is no more than what was used since the last move.
            self.input.drain(..self.start);
            self.start = 0;
        }
        let n = ready!(self.stream.poll_recv(cx, &mut self.input, self.room))?;
        if n >= self.room {
            self.room = (2 * self.room).min(ROOM_MAX);
        } else if n < self.room / 4 {
            self.room = (self.room / 2).max(ROOM_MIN);
        }
        Poll::Ready(Ok(n))
    }

    /// Waits until the peer has ended or broken the connection, even while input is left unread.
    pub fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.poll_hangup(cx)
    }

    /// Bytes that were sent and that the peer's kernel has not acknowledged; `None` when this
    /// kernel does not say.
    pub fn untaken(&self) -> Option<u64> {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the request writes one `int` to the pointer, which is valid for writing during
        // the call.
        let done = unsafe { libc::ioctl(self.stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        (done == 0).then(|| u64::try_from(bytes).unwrap_or(0))
    }

    /// Whether an idle connection can be used again: nothing has come, neither bytes nor the end.
    pub fn is_quiet(&mut self) -> bool {
        self.input().is_empty() && self.poll_fill(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Sends all of `parts`, counting in `sent` what is done, so that the same call goes on where
    /// the last one stopped.
    pub fn poll_send(&mut self, cx: &mut Context<'_>, parts: [&[u8]; PARTS], sent: &mut usize) -> Poll<io::Result<()>> {
        loop {
            let mut slices = [IoSlice::new(&[]); PARTS];
            let (mut used, mut skip) = (0, *sent);
            for part in parts {
                if skip >= part.len() {
                    skip -= part.len();
                } else {
                    slices[used] = IoSlice::new(&part[skip..]);
                    (used, skip) = (used + 1, 0);
                }
            }
            if used == 0 {
                return Poll::Ready(Ok(()));
            }
            *sent += ready!(self.stream.poll_send(cx, &slices[..used]))?;
        }
    }

    /// Ends our half of the connection: the peer sees the end after all that was sent.
    pub fn finish(&self) {
        self.shutdown(libc::SHUT_WR);
    }

    /// Resets the connection now, which no peer can take for the regular end of what was sent.
    ///
    /// Connecting to no address does it on both drivers alike; a close without lingering would come
    /// too late where a receive in flight has to be ended by a shutdown first, since that is a
    /// regular end.
    pub fn reset(&self) {
        let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
        // SAFETY: the address lives through the call, and its size is given. A socket that is gone
        // makes the call fail, which then changes nothing.
        unsafe {
            libc::connect(self.stream.as_raw_fd(), &raw const nowhere, size_of::<libc::sockaddr>() as libc::socklen_t);
        }
    }

    fn shutdown(&self, how: i32) {
        // SAFETY: no memory is involved. A socket that is gone already makes the call fail, which
        // is what was wanted.
        unsafe { libc::shutdown(self.stream.as_raw_fd(), how) };
    }
}
