//! What a driver gives a worker: a runtime, streams and listeners.

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::task::{Context, Poll};

/// A runtime for one worker thread, and the sockets that work in it.
pub trait Driver: Copy + Send + 'static {
    type Stream: Stream;
    type Listener: Listener;

    /// Runs `future` to its end on this thread. Tasks it spawned with `tokio::task::spawn_local`
    /// are dropped when it ends.
    ///
    /// Errors: the runtime cannot be made.
    fn run<F: Future>(self, future: F) -> io::Result<F::Output>;
}

/// A connected TCP stream.
pub trait Stream: AsRawFd + Sized + 'static {
    /// Takes over a socket that is connected or still connecting.
    fn adopt(socket: TcpStream) -> io::Result<Self>;

    /// Appends at most about `room` bytes to `input`; `Ready(Ok(0))` is the end of the stream.
    ///
    /// A caller that stops polling loses nothing: the next call gives the bytes that came
    /// meanwhile.
    fn poll_recv(&mut self, cx: &mut Context<'_>, input: &mut Vec<u8>, room: usize) -> Poll<io::Result<usize>>;

    /// Sends a prefix of `parts`, at once where the socket has room; the bytes that were sent, > 0.
    fn poll_send(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;

    /// Waits until the peer has ended its half of the connection, or broken it, whether or not
    /// there are bytes left to receive.
    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Waits until a connecting socket has an outcome.
    fn poll_connected(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// A listening TCP socket. After `shutdown(2)` on the same socket [`Listener::poll_accept`] fails.
pub trait Listener: Sized + 'static {
    fn adopt(socket: TcpListener) -> io::Result<Self>;

    /// The next connection. A caller that stops polling loses none: a connection is accepted inside
    /// the call that returns it.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>>;
}
