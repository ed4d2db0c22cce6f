//! The epoll driver: tokio's own sockets on a current-thread runtime.

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::task::LocalSet;

use super::driver::{Driver, Listener, Stream};
use super::socket;

#[derive(Clone, Copy, Debug)]
pub struct Epoll;

impl Driver for Epoll {
    type Stream = EpollStream;
    type Listener = EpollListener;

    fn run<F: Future>(self, future: F) -> io::Result<F::Output> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(LocalSet::new().block_on(&runtime, future))
    }
}

pub struct EpollStream {
    socket: tokio::net::TcpStream,
    /// A second descriptor of the socket that is watched for its end alone; made when somebody
    /// first asks.
    hangup: Option<AsyncFd<OwnedFd>>,
}

impl AsRawFd for EpollStream {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl EpollStream {
    fn hangup(&mut self) -> io::Result<&AsyncFd<OwnedFd>> {
        if self.hangup.is_none() {
            let second = self.socket.as_fd().try_clone_to_owned()?;
            // SAFETY: an `OwnedFd` owns one descriptor, always reports the same one, and closes it
            // only when it is dropped.
            self.hangup = Some(unsafe { AsyncFd::register_with_interest(second, Interest::READABLE) }?);
        }
        Ok(self.hangup.as_ref().expect("set above"))
    }
}

impl Stream for EpollStream {
    fn adopt(socket: TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket: tokio::net::TcpStream::from_std(socket)?, hangup: None })
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>, input: &mut Vec<u8>, room: usize) -> Poll<io::Result<usize>> {
        input.reserve(room);
        let mut buffer = ReadBuf::uninit(&mut input.spare_capacity_mut()[..room]);
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buffer))?;
        let n = buffer.filled().len();
        // SAFETY: `filled` says that this many bytes behind the length have been initialised.
        unsafe { input.set_len(input.len() + n) };
        Poll::Ready(Ok(n))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let fd = self.as_raw_fd();
        // Nearly every send has room, so it is tried before the runtime is asked.
        match socket::send_now(fd, parts) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            outcome => return Poll::Ready(outcome),
        }
        loop {
            ready!(self.socket.poll_write_ready(cx))?;
            // `try_io` takes the readiness back when the socket has no room after all.
            match self.socket.try_io(Interest::WRITABLE, || socket::send_now(fd, parts)) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return Poll::Ready(outcome),
            }
        }
    }

    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // A socket that cannot be watched still ends when its request does.
        let Ok(watched) = self.hangup() else { return Poll::Pending };
        loop {
            match watched.poll_read_ready(cx) {
                Poll::Ready(Ok(guard)) if guard.ready().is_read_closed() => return Poll::Ready(()),
                // Bytes have come, which nobody has asked for. The next arrival wakes again, and so
                // does the end.
                Poll::Ready(Ok(mut guard)) => guard.clear_ready(),
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn poll_connected(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.socket.poll_write_ready(cx))?;
        Poll::Ready(self.socket.take_error()?.map_or(Ok(()), Err))
    }
}

pub struct EpollListener(AsyncFd<TcpListener>);

impl Listener for EpollListener {
    fn adopt(socket: TcpListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        // SAFETY: a `TcpListener` owns one descriptor, always reports the same one, and closes it
        // only when it is dropped.
        Ok(Self(unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?))
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(cx))?;
            if let Ok(outcome) = guard.try_io(|listener| socket::accept_now(listener.get_ref(), true)) {
                return Poll::Ready(outcome);
            }
        }
    }
}
