//! Sockets and signals.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

/// Connections that may wait to be accepted: a load step opens hundreds at once, and an overflow
/// would cost a second of retransmission.
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

/// Addresses on the loopback for the children of this process: nobody else is given one while this
/// lives.
///
/// A socket is bound to each and does not listen. As long as it is there, the kernel gives its port
/// to no listener that asks for any port, and to no connection. A child can still listen on the
/// port by its number, once and again, because both sockets have SO_REUSEADDR (Linux,
/// net/ipv4/inet_connection_sock.c, `inet_csk_bind_conflict`).
#[derive(Debug)]
pub struct Reserved {
    addresses: Vec<SocketAddr>,
    _sockets: Vec<Socket>,
}

impl Reserved {
    pub fn new(count: usize) -> Result<Self> {
        let reserve = || -> std::io::Result<(SocketAddr, Socket)> {
            let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP))?;
            socket.set_reuse_address(true)?;
            socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
            let address = socket.local_addr()?.as_socket().ok_or(std::io::ErrorKind::AddrNotAvailable)?;
            Ok((address, socket))
        };
        let reserved = (0..count).map(|_| reserve()).collect::<std::io::Result<Vec<_>>>();
        let (addresses, sockets) = reserved.context("failed to find a free port")?.into_iter().unzip();
        Ok(Self { addresses, _sockets: sockets })
    }
}

impl Deref for Reserved {
    type Target = [SocketAddr];

    fn deref(&self) -> &[SocketAddr] {
        &self.addresses
    }
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

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};

    use super::Reserved;

    #[test]
    fn a_reserved_port_takes_one_listener_after_another_and_is_given_to_nobody_else() {
        let reserved = Reserved::new(2).expect("two ports");
        assert_ne!(reserved[0], reserved[1]);
        for _ in 0..2 {
            let listener = TcpListener::bind(reserved[0]).expect("the port is ours");
            let mut client = TcpStream::connect(reserved[0]).expect("connects");
            // Closed by the listener's side first: the port then waits for stray packets, as after
            // a killed server.
            drop(listener.accept().expect("accepted"));
            assert_eq!(client.read(&mut [0]).expect("an end"), 0);
            assert!(TcpListener::bind(reserved[0]).is_err(), "two listeners at once");
        }
        // More than any machine has left if it gave them out by turns.
        let others: Vec<TcpListener> = (0..500).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        assert!(others.iter().all(|other| !reserved.contains(&other.local_addr().expect("bound"))));
    }
}
