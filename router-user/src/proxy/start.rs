//! Starting and ending the workers.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use thiserror::Error;

use super::http1::request::FIELDS_CAP;
use super::plane::DataPlane;
use super::session::client;
use super::worker::{self, Stop};
use crate::config::ProxyConfig;
use crate::io::{Driver, DriverKind, Epoll, IoChoice, PortShare, Probe, listen, raise_descriptor_limit};
use crate::rng::Rng;

#[derive(Debug, Error)]
pub enum ProxyError {
    #[error("proxy.listen: failed to listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("failed to share a listening socket: {0}")]
    Share(io::Error),
    #[error("proxy has no address to listen on")]
    NoAddress,
    #[error("max_head_fields is {found}; wanted 1 to {FIELDS_CAP}")]
    FieldsMax { found: usize },
    #[error("io driver uring was asked for and does not work here: {0}")]
    Uring(io::Error),
    #[error("failed to start a worker thread: {0}")]
    Thread(io::Error),
}

/// The running workers. Dropping it stops them at once.
pub struct ProxyHandle {
    addresses: Vec<SocketAddr>,
    io: DriverKind,
    /// Copies of the listening sockets, to shut them down.
    listeners: Vec<TcpListener>,
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
}

/// Starts the workers. They serve at once, and answer "not ready" until `plane` has routes. Raises
/// the process's limit of open files. `seed` starts the workers' random numbers: request ids, and
/// the keys of requests without an affinity of their own.
///
/// Errors: an address cannot be listened on, io_uring was asked for and does not work, or a limit
/// is out of range.
pub fn start(config: &ProxyConfig, io: IoChoice, plane: Arc<DataPlane>, seed: u64) -> Result<ProxyHandle, ProxyError> {
    if config.listen.is_empty() {
        return Err(ProxyError::NoAddress);
    }
    if !(1..=FIELDS_CAP).contains(&config.max_head_fields) {
        return Err(ProxyError::FieldsMax { found: config.max_head_fields });
    }
    let probe = io.probe().map_err(ProxyError::Uring)?;
    let workers = match config.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    let needed = 2 * (workers as u64) * (config.max_connections as u64);
    match raise_descriptor_limit() {
        Ok(limit) if limit >= needed => {}
        Ok(limit) => tracing::warn!(limit, needed, "the limit of open files is below what max_connections can take"),
        Err(error) => tracing::warn!(%error, "failed to raise the limit of open files"),
    }
    let (addresses, sockets) = open_listeners(&config.listen, workers)?;
    let listeners = sockets.iter().flatten().map(TcpListener::try_clone).collect::<io::Result<_>>().map_err(ProxyError::Share)?;
    let kind = match &probe {
        Probe::Uring(_) => DriverKind::Uring,
        Probe::Epoll(_) => DriverKind::Epoll,
    };
    let reason = match &probe {
        Probe::Uring(_) => "the kernel runs it",
        Probe::Epoll(reason) => reason.as_str(),
    };
    tracing::info!(%kind, reason, workers, ?addresses, "proxy starts");
    let mut handle = ProxyHandle { addresses, io: kind, listeners, stop: Arc::new(Stop::new(0)), threads: Vec::new() };
    let config = Arc::new(config.clone());
    for (number, sockets) in sockets.into_iter().enumerate() {
        let thread = match probe {
            Probe::Uring(driver) => spawn(driver, number, seed, &config, &plane, sockets, &handle.stop),
            Probe::Epoll(_) => spawn(Epoll, number, seed, &config, &plane, sockets, &handle.stop),
        };
        handle.threads.push(thread.map_err(ProxyError::Thread)?);
    }
    Ok(handle)
}

/// One socket for each worker and address, by worker; and the addresses with real ports.
fn open_listeners(listen_at: &[SocketAddr], workers: usize) -> Result<(Vec<SocketAddr>, Vec<Vec<TcpListener>>), ProxyError> {
    let mut addresses = listen_at.to_vec();
    let mut sockets = Vec::new();
    for worker in 0..workers {
        let share = match worker {
            _ if workers == 1 => PortShare::Alone,
            0 => PortShare::First,
            _ => PortShare::Next,
        };
        let mut of_worker = Vec::new();
        for (place, listed) in listen_at.iter().enumerate() {
            let address = addresses[place];
            // `[::]` takes connections of IPv4 too, unless an address of IPv4 is listed for them.
            let only_v6 = listed.port() != 0 && listen_at.iter().any(|other| other.is_ipv4() && other.port() == listed.port());
            let fail = |source| ProxyError::Listen { address, source };
            let socket = listen(address, share, only_v6).map_err(fail)?;
            // Port 0 becomes a real one with the first worker, and the others follow it.
            addresses[place] = socket.local_addr().map_err(fail)?;
            of_worker.push(socket);
        }
        sockets.push(of_worker);
    }
    Ok((addresses, sockets))
}

fn spawn<D: Driver>(
    driver: D,
    number: usize,
    seed: u64,
    config: &Arc<ProxyConfig>,
    plane: &Arc<DataPlane>,
    sockets: Vec<TcpListener>,
    stop: &Arc<Stop>,
) -> io::Result<JoinHandle<()>> {
    let (config, plane, stop) = (Arc::clone(config), Arc::clone(plane), Arc::clone(stop));
    std::thread::Builder::new().name(format!("ilb-proxy-{number}")).spawn(move || {
        let rng = Rng::stream(seed, number as u64);
        if let Err(error) = worker::run(driver, rng, config, plane, sockets, &stop, client::serve) {
            tracing::error!(number, %error, "proxy worker failed");
        }
    })
}

impl ProxyHandle {
    /// The addresses in use, with real ports.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The driver in use.
    pub fn io(&self) -> DriverKind {
        self.io
    }

    /// Stops accepting, and blocks until the workers have ended, which finish their requests for up
    /// to `grace`.
    pub fn shutdown(mut self, grace: Duration) {
        self.stop(grace);
    }

    fn stop(&mut self, grace: Duration) {
        for listener in &self.listeners {
            // SAFETY: no memory is involved; the descriptor is ours and open.
            unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
        }
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX - 1).min(u64::MAX - 1);
        self.stop.store(grace_ms + 1, Ordering::Release);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("proxy worker panicked");
            }
        }
    }
}

impl Drop for ProxyHandle {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}
