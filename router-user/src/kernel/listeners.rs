//! Engines that were listening before the programs were attached: their sockets are found in
//! `/proc` and borrowed by descriptor.
//!
//! The program `register` sees a socket only at the moment when it starts to listen, so older
//! sockets are entered from here. A borrowed descriptor is closed again at once, and the map keeps
//! no socket open.

use std::{
    collections::HashMap,
    fs,
    io::{self, BufRead as _},
    os::fd::{OwnedFd, RawFd},
};

use procfs::process::{FDTarget, all_processes};
use router_common::engine::Endpoint;
use rustix::{
    net::sockopt::socket_acceptconn,
    process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open},
};

use super::namespace::cookie_of;

/// A listening socket that could not be taken, and why.
#[derive(Debug)]
pub(super) struct Untaken {
    pub(super) inode: u64,
    pub(super) error: io::Error,
}

/// Address and inode of the listening TCP sockets in the calling thread's network namespace.
/// Wildcards of both families have their common form. Of several sockets at one address
/// (`SO_REUSEPORT`) each is listed.
pub(super) fn listening_sockets() -> io::Result<Vec<(Endpoint, u64)>> {
    let mut sockets = Vec::new();
    for path in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        let file = match fs::File::open(path) {
            Ok(file) => file,
            // A kernel without IPv6 has no such table.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        // Listeners come first (`tcp_get_idx` in net/ipv4/tcp_ipv4.c). The connections behind them,
        // perhaps many thousands, are not read, as `procfs` would.
        let lines = io::BufReader::new(file).lines().skip(1);
        for line in lines {
            let Some(socket) = parse_line(&line?) else { break };
            sockets.push(socket);
        }
    }
    Ok(sockets)
}

/// Address and inode of a line of `/proc/net/tcp` or `tcp6`; `None` unless it is a listener's.
fn parse_line(line: &str) -> Option<(Endpoint, u64)> {
    const LISTEN: &str = "0A";
    let mut fields = line.split_ascii_whitespace();
    let (address, port) = fields.nth(1)?.split_once(':')?;
    if fields.nth(1)? != LISTEN {
        return None;
    }
    let inode = fields.nth(5)?.parse().ok()?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // The kernel prints each word of the address as a number, as it lies in memory.
    let word = |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok();
    let endpoint = match address.len() {
        8 => Endpoint::v4(word(0)?, port),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            if words == [0; 4] { Endpoint::wildcard(port) } else { Endpoint::v6(words, port) }
        }
        _ => return None,
    };
    Some((endpoint, inode))
}

/// Borrows the sockets with the inodes `wanted` from the processes that hold them, and hands each
/// with its endpoint ids to `enter`. A socket must still listen, in the namespace with this cookie.
/// Returns the sockets that could not be taken or entered.
pub(super) fn borrow(
    wanted: &HashMap<u64, Vec<u16>>,
    netns_cookie: u64,
    mut enter: impl FnMut(&OwnedFd, &[u16]) -> io::Result<()>,
) -> Vec<Untaken> {
    let mut open: HashMap<u64, io::Error> =
        wanted.keys().map(|inode| (*inode, io::Error::other("no process in sight has it open"))).collect();
    let processes = match all_processes() {
        Ok(processes) => processes,
        Err(error) => {
            tracing::warn!(%error, "cannot list processes");
            return open.into_iter().map(|(inode, error)| Untaken { inode, error }).collect();
        }
    };
    // Processes end and close files while they are looked at: what cannot be read any more is left
    // out.
    for process in processes.flatten() {
        if open.is_empty() {
            break;
        }
        let Ok(files) = process.fd() else { continue };
        for file in files.flatten() {
            let FDTarget::Socket(inode) = file.target else { continue };
            if !open.contains_key(&inode) {
                continue;
            }
            match take(process.pid(), file.fd, netns_cookie).and_then(|socket| enter(&socket, &wanted[&inode])) {
                Ok(()) => drop(open.remove(&inode)),
                Err(error) => drop(open.insert(inode, error)),
            }
        }
    }
    open.into_iter().map(|(inode, error)| Untaken { inode, error }).collect()
}

/// A duplicate of another process's descriptor.
///
/// Errors: the process or the descriptor is gone, or the socket no longer listens in the namespace
/// with this cookie.
fn take(pid: i32, fd: RawFd, netns_cookie: u64) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("its process has no number"))?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let socket = pidfd_getfd(&process, fd, PidfdGetfdFlags::empty())?;
    if !socket_acceptconn(&socket)? {
        return Err(io::Error::other("it no longer listens"));
    }
    if cookie_of(&socket)? != netns_cookie {
        return Err(io::Error::other("it belongs to another network namespace"));
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, TcpListener};

    use super::*;
    use crate::kernel::endpoints::endpoint;

    #[test]
    fn a_listener_of_this_process_is_found_and_borrowed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sockets = listening_sockets().unwrap();
        let (_, inode) = *sockets.iter().find(|(found, _)| *found == endpoint(address)).expect("the listener is listed");
        let mut entered = Vec::new();
        let untaken = borrow(&HashMap::from([(inode, vec![3])]), cookie_of(&listener).unwrap(), |_, ids| {
            entered.extend_from_slice(ids);
            Ok(())
        });
        assert!(untaken.is_empty(), "{untaken:?}");
        assert_eq!(entered, [3]);
    }

    #[test]
    fn lines_of_the_kernels_tables() {
        let line = |address: &str, state: &str| {
            format!(
                "   0: {address} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0"
            )
        };
        let loopback = u32::from_str_radix("0100007F", 16).unwrap();
        assert_eq!(parse_line(&line("0100007F:1F90", "0A")), Some((Endpoint::v4(loopback, 8080), 4711)));
        assert_eq!(parse_line(&line("0100007F:1F90", "01")), None);
        let any = "00000000000000000000000000000000:1F90";
        assert_eq!(parse_line(&line(any, "0A")), Some((Endpoint::wildcard(8080), 4711)));
        let last = u32::from_ne_bytes([0, 0, 0, 1]);
        let localhost = format!("000000000000000000000000{last:08X}:0050");
        assert_eq!(parse_line(&line(&localhost, "0A")), Some((endpoint((Ipv6Addr::LOCALHOST, 80).into()), 4711)));
        assert_eq!(
            parse_line("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"),
            None
        );
    }

    #[test]
    fn a_socket_nobody_has_is_reported() {
        let untaken = borrow(&HashMap::from([(u64::MAX, vec![0])]), 0, |_, _| unreachable!("there is no such socket"));
        assert_eq!(untaken.len(), 1);
    }
}
