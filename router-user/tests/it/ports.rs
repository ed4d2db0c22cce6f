//! Ports that belong to one test, whatever else runs on the machine.

use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

/// An address on the loopback that nobody else is given while this lives; nobody listens on it yet.
///
/// A socket is bound to it and does not listen. As long as it is there, the kernel gives the port
/// to no listener that asks for any port, and to no connection. The test's own process or child can
/// still listen on the port by its number, once and again, because both sockets have SO_REUSEADDR
/// (Linux, net/ipv4/inet_connection_sock.c, `inet_csk_bind_conflict`).
pub(crate) struct Reserved {
    pub(crate) address: SocketAddr,
    _socket: Socket,
}

impl Reserved {
    pub(crate) fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP)).expect("a socket");
        socket.set_reuse_address(true).expect("set");
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a free port");
        let address = socket.local_addr().expect("bound").as_socket().expect("an IP address");
        Self { address, _socket: socket }
    }
}
