//! The io_uring driver: a tokio-uring runtime with operations of our own.
//!
//! tokio-uring cannot cancel: an operation whose future is dropped stays armed. A dropped read eats
//! the next bytes, a dropped accept swallows the next connection, and a stream dropped under either
//! keeps its descriptor for good. Hence the three rules of this file. A receive lives in its stream
//! together with the buffer it fills, until it completes. Accepting is a poll of the listener
//! followed by a direct `accept4`, and a dropped poll loses nothing. A stream that is dropped shuts
//! its socket down, which completes whatever is in flight; the descriptor is closed when the last
//! operation lets go of it.
//!
//! What it costs: tokio-uring sleeps in `epoll_wait` on the ring, and a completion is posted by
//! work that first interrupts that sleep, so a wake-up from sleep takes a second `epoll_wait` and
//! an empty `io_uring_enter`. At one connection that is 2.9 of each per proxied request where epoll
//! needs 2 `epoll_wait` and 2 `recv`; at 32 connections it is lost in the batch (0.12 of each).
//! Measured with `perf stat` on two cores, Linux 6.18.

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use io_uring::{cqueue, opcode, types};
use tokio_uring::{InFlightOneshot, OneshotOutputTransform, UnsubmittedOneshot};

use super::driver::{Driver, Listener, Stream};
use super::socket;

/// Submissions that can wait for one turn of the loop; more are flushed early.
const SUBMISSIONS: u32 = 1024;
/// Completions that can wait: two for each connection a worker may have, its engine's included, so
/// that the ring never overflows.
const COMPLETIONS: u32 = 32 << 10;

/// A worker on tokio-uring. Made by [`super::IoChoice::probe`] alone, since the runtime panics
/// where the kernel forbids io_uring.
#[derive(Clone, Copy, Debug)]
pub struct Uring(pub(super) ());

/// How each ring is set up: no interrupt for a completion, since the loop comes by anyway.
/// (`DEFER_TASKRUN` would hang this runtime.)
pub(super) fn ring() -> io_uring::Builder {
    let mut builder = tokio_uring::uring_builder();
    builder.setup_coop_taskrun().setup_cqsize(COMPLETIONS);
    builder
}

impl Driver for Uring {
    type Stream = UringStream;
    type Listener = UringListener;

    fn run<F: Future>(self, future: F) -> io::Result<F::Output> {
        let runtime = tokio_uring::Runtime::new(tokio_uring::builder().entries(SUBMISSIONS).uring_builder(&ring()))?;
        Ok(runtime.block_on(future))
    }
}

/// What an operation holds until it completes, whoever has stopped waiting for it.
struct Held {
    /// Never read: holding it is what keeps the descriptor open.
    _fd: Rc<OwnedFd>,
    buffer: Vec<u8>,
}

/// Keeps a receive's buffer and result together.
struct Received;

impl OneshotOutputTransform for Received {
    type Output = (io::Result<usize>, Vec<u8>);
    type StoredData = Held;

    fn transform_oneshot_output(self, mut data: Held, cqe: cqueue::Entry) -> Self::Output {
        let result = result_of(&cqe);
        if let Ok(n) = result {
            assert!(n <= data.buffer.capacity(), "the kernel received more than there was room for");
            // SAFETY: the buffer was empty and the kernel has written `n` bytes from its start,
            // within its capacity.
            unsafe { data.buffer.set_len(n) };
        }
        (result, data.buffer)
    }
}

/// The outcome of waiting for readiness.
struct Readiness;

impl OneshotOutputTransform for Readiness {
    type Output = io::Result<usize>;
    type StoredData = Held;

    fn transform_oneshot_output(self, _data: Held, cqe: cqueue::Entry) -> Self::Output {
        result_of(&cqe)
    }
}

fn result_of(cqe: &cqueue::Entry) -> io::Result<usize> {
    usize::try_from(cqe.result()).map_err(|_| io::Error::from_raw_os_error(-cqe.result()))
}

fn submit_recv(fd: &Rc<OwnedFd>, mut buffer: Vec<u8>, room: usize) -> InFlightOneshot<Held, Received> {
    buffer.clear();
    // A buffer that grew with an earlier body is not held while the connection idles.
    buffer.shrink_to(room);
    buffer.reserve(room);
    let length = u32::try_from(buffer.capacity()).unwrap_or(u32::MAX);
    let entry = opcode::Recv::new(types::Fd(fd.as_raw_fd()), buffer.as_mut_ptr(), length).build();
    // The operation owns the buffer and a share of the descriptor, so both outlive what the kernel
    // does with them.
    UnsubmittedOneshot::new(Held { _fd: Rc::clone(fd), buffer }, Received, entry).submit()
}

fn submit_poll(fd: &Rc<OwnedFd>, events: i16) -> InFlightOneshot<Held, Readiness> {
    let entry = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), u32::from(events.unsigned_abs())).build();
    UnsubmittedOneshot::new(Held { _fd: Rc::clone(fd), buffer: Vec::new() }, Readiness, entry).submit()
}

pub struct UringStream {
    fd: Rc<OwnedFd>,
    recv: Option<InFlightOneshot<Held, Received>>,
    writable: Option<InFlightOneshot<Held, Readiness>>,
    /// A poll for the peer's end, from when somebody first asks.
    hangup: Option<InFlightOneshot<Held, Readiness>>,
    /// A buffer for the next receive.
    spare: Vec<u8>,
}

impl AsRawFd for UringStream {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl UringStream {
    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let fd = &self.fd;
        let poll = self.writable.get_or_insert_with(|| submit_poll(fd, libc::POLLOUT));
        let outcome = ready!(Pin::new(poll).poll(cx));
        self.writable = None;
        Poll::Ready(outcome.map(drop))
    }
}

impl Stream for UringStream {
    fn adopt(socket: TcpStream) -> io::Result<Self> {
        // On a non-blocking socket the kernel would answer "would block" instead of waiting.
        socket.set_nonblocking(false)?;
        Ok(Self { fd: Rc::new(socket.into()), recv: None, writable: None, hangup: None, spare: Vec::new() })
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>, input: &mut Vec<u8>, room: usize) -> Poll<io::Result<usize>> {
        let (fd, spare) = (&self.fd, &mut self.spare);
        let recv = self.recv.get_or_insert_with(|| submit_recv(fd, std::mem::take(spare), room));
        let (outcome, mut buffer) = ready!(Pin::new(recv).poll(cx));
        self.recv = None;
        if outcome.is_ok() {
            if input.is_empty() {
                std::mem::swap(input, &mut buffer);
            } else {
                input.extend_from_slice(&buffer);
            }
        }
        self.spare = buffer;
        Poll::Ready(outcome)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            match socket::send_now(self.as_raw_fd(), parts) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => ready!(self.poll_writable(cx))?,
                outcome => return Poll::Ready(outcome),
            }
        }
    }

    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let fd = &self.fd;
        let poll = self.hangup.get_or_insert_with(|| submit_poll(fd, libc::POLLRDHUP));
        // Errors and broken connections complete the poll too. A poll that failed tells nothing,
        // and what it was for is over.
        let _outcome = ready!(Pin::new(poll).poll(cx));
        self.hangup = None;
        Poll::Ready(())
    }

    fn poll_connected(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_writable(cx))?;
        let error = socket2::SockRef::from(&self.fd.as_fd()).take_error()?;
        Poll::Ready(error.map_or(Ok(()), Err))
    }
}

impl Drop for UringStream {
    fn drop(&mut self) {
        if self.recv.is_some() || self.writable.is_some() || self.hangup.is_some() {
            // SAFETY: no memory is involved; the descriptor is open because `self.fd` still holds
            // it.
            unsafe { libc::shutdown(self.as_raw_fd(), libc::SHUT_RDWR) };
        }
    }
}

pub struct UringListener {
    socket: TcpListener,
    /// The same socket, shared with the poll in flight.
    fd: Rc<OwnedFd>,
    readable: Option<InFlightOneshot<Held, Readiness>>,
}

impl Listener for UringListener {
    fn adopt(socket: TcpListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let fd = Rc::new(socket.as_fd().try_clone_to_owned()?);
        Ok(Self { socket, fd, readable: None })
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        loop {
            match socket::accept_now(&self.socket, false) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return Poll::Ready(outcome),
            }
            let fd = &self.fd;
            let poll = self.readable.get_or_insert_with(|| submit_poll(fd, libc::POLLIN));
            let outcome = ready!(Pin::new(poll).poll(cx));
            self.readable = None;
            outcome?;
        }
    }
}
