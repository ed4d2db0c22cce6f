//! System calls that both drivers share.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

/// Connections the kernel keeps ready for a worker that is busy. The kernel cuts it to
/// `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Silence after which the kernel asks whether the other side is still there, and the time between
/// two such questions. A reasoning model may be silent for many minutes, so a machine that is gone
/// has to be told from one that thinks.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Questions without an answer after which the connection ends: one minute after the last sign of
/// life.
const KEEPALIVE_RETRIES: u32 = 3;
/// Time in which an engine's machine must acknowledge what it is sent. Alone the kernel would
/// repeat it for a quarter of an hour.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(60);

fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_RETRIES)
}

/// How a listening socket shares its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortShare {
    /// With nobody.
    Alone,
    /// With [`Self::Next`] sockets that follow, and with nobody who was there before.
    First,
    /// With the socket that was the first.
    Next,
}

/// Opens a listening socket. `only_v6` keeps a socket on `[::]` from taking the connections of IPv4
/// too, which it does otherwise, whatever `net.ipv6.bindv6only` says.
///
/// Errors: the address is not of this machine, or somebody listens there already.
pub fn listen(address: SocketAddr, share: PortShare, only_v6: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.cloexec(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(only_v6)?;
    }
    if share == PortShare::Next {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(address))?;
    // Two sockets share a port if both have this set when the second is bound. The first has it set
    // after it was bound, so that it is refused a port that another process would share.
    if share == PortShare::First {
        socket.set_reuse_port(true)?;
    }
    // Connections inherit both from the socket that accepts them, which saves their system calls.
    // Without the first, the head of an answer would wait for the acknowledgement of the last one.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&keepalive())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Raises this process's limit of open files to what it is allowed, and returns the limit now in
/// force.
///
/// The usual soft limit of 1024 is a relic of `select(2)`; every request here takes two
/// descriptors.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing during the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if limit.rlim_cur < limit.rlim_max {
        let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
        // SAFETY: `raised` is valid for reading during the call.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(limit.rlim_max)
}

/// Starts to connect and does not wait for the outcome.
pub(super) fn start_connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.cloexec().nonblocking(), Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&keepalive())?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    match socket.connect(&SockAddr::from(address)) {
        Ok(()) => {}
        Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(e) => return Err(e),
    }
    Ok(socket.into())
}

/// Sends without ever blocking, whatever the mode of the descriptor.
pub(super) fn send_now(fd: RawFd, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    loop {
        let sent = match parts {
            [part] => {
                // SAFETY: the slice is valid for its length during the call, and the kernel only
                // reads it.
                unsafe { libc::send(fd, part.as_ptr().cast(), part.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) }
            }
            _ => {
                // SAFETY: an all-zero `msghdr` is valid: no name, no control data, no parts.
                let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
                // `IoSlice` is ABI compatible with `iovec` on Unix; the kernel does not write
                // through it.
                message.msg_iov = parts.as_ptr().cast_mut().cast();
                message.msg_iovlen = parts.len() as _;
                // SAFETY: `message` and the slices it points at outlive the call, and the kernel
                // only reads them.
                unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) }
            }
        };
        if sent >= 0 {
            return Ok(sent.unsigned_abs());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Accepts without blocking from a non-blocking listener; the new socket is in blocking mode unless
/// `nonblocking`.
pub(super) fn accept_now(listener: &TcpListener, nonblocking: bool) -> io::Result<(TcpStream, SocketAddr)> {
    let flags = libc::SOCK_CLOEXEC | if nonblocking { libc::SOCK_NONBLOCK } else { 0 };
    // SAFETY: `try_init` hands out storage that is large enough for any address, with its true
    // length.
    let (fd, address) = unsafe {
        SockAddr::try_init(|storage, length| {
            let fd = libc::accept4(listener.as_raw_fd(), storage.cast(), length, flags);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(fd) }
        })
    }?;
    // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
    let stream = unsafe { <TcpStream as std::os::fd::FromRawFd>::from_raw_fd(fd) };
    let address = address.as_socket().ok_or_else(|| io::Error::other("accepted a connection that is not IP"))?;
    Ok((stream, address))
}

#[cfg(test)]
mod tests {
    use socket2::SockRef;

    use super::*;

    #[test]
    fn both_sides_are_asked_whether_they_are_still_there() {
        let listener = listen("127.0.0.1:0".parse().unwrap(), PortShare::Alone, false).unwrap();
        let to_engine = start_connect(listener.local_addr().unwrap()).unwrap();
        let from_client = loop {
            match accept_now(&listener, true) {
                Ok((socket, _)) => break socket,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        };
        for socket in [SockRef::from(&to_engine), SockRef::from(&from_client)] {
            assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_AFTER);
            assert_eq!(socket.tcp_keepalive_interval().unwrap(), KEEPALIVE_INTERVAL);
            assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEPALIVE_RETRIES);
        }
        assert_eq!(SockRef::from(&to_engine).tcp_user_timeout().unwrap(), Some(UNACKNOWLEDGED_MAX));
    }

    #[test]
    fn workers_share_a_port_that_nobody_else_may_take() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let first = listen(address.parse().unwrap(), PortShare::First, false).unwrap();
            let address = first.local_addr().unwrap();
            let second = listen(address, PortShare::Next, false).unwrap();
            let third = listen(address, PortShare::Next, false).unwrap();
            for share in [PortShare::Alone, PortShare::First] {
                let error = listen(address, share, false).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{share:?} at {address}");
            }
            // The kernel spreads connections over all three, by the ports that they come from.
            let sockets = [&first, &second, &third];
            let clients: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
            let counts = sockets.map(|socket| std::iter::from_fn(|| accept_now(socket, true).ok()).count());
            assert!(counts.iter().sum::<usize>() == clients.len() && counts.iter().all(|&n| n > 0), "{counts:?}");
        }
        let alone = listen("127.0.0.1:0".parse().unwrap(), PortShare::Alone, false).unwrap();
        for share in [PortShare::Alone, PortShare::First, PortShare::Next] {
            let error = listen(alone.local_addr().unwrap(), share, false).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{share:?}");
        }
    }
}
