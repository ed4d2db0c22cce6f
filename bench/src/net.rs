//! Sockets and signals.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

/// Connections that may wait to be accepted: a load step opens hundreds at once, and an overflow would cost a second of retransmission.
const BACKLOG: i32 = 4096;

/// A listener that can be started again at once on the same port.
pub fn listen(address: SocketAddr) -> Result<TcpListener> {
    let open = || -> std::io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    };
    open().with_context(|| format!("failed to listen on {address}"))
}

/// Makes the coming close of `stream` a reset.
pub fn reset_on_close(stream: &TcpStream) -> std::io::Result<()> {
    SockRef::from(stream).set_linger(Some(std::time::Duration::ZERO))
}

/// Returns on SIGINT or SIGTERM.
pub async fn stop_signal() -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to wait for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("failed to wait for SIGTERM")?;
    tokio::select! {
        _ = interrupt.recv() => (),
        _ = terminate.recv() => (),
    }
    Ok(())
}
