//! Clients: connect through the virtual address, learn which engine answered, leave without a
//! trace.

use std::{
    collections::BTreeMap,
    io::{self, Read as _},
    net::{SocketAddr, TcpStream},
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use socket2::{Domain, SockRef, Socket, Type};

/// Longer than anything on loopback takes; only a hang gets this far.
const PATIENCE: Duration = Duration::from_secs(5);

/// Outcomes of connections.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    /// Connections by the name of the engine that answered.
    pub(crate) by_engine: BTreeMap<char, u64>,
    /// Connections that could not be made.
    pub(crate) failed: Vec<String>,
    /// Connections that were made and then broke before the engine had said its name.
    pub(crate) broken: u64,
}

impl Tally {
    pub(crate) fn answered(&self) -> u64 {
        self.by_engine.values().sum()
    }

    pub(crate) fn share(&self, engine: char) -> f64 {
        self.by_engine.get(&engine).copied().unwrap_or(0) as f64 / self.answered() as f64
    }

    fn add(&mut self, connection: io::Result<TcpStream>) {
        match connection {
            Ok(stream) => match name(stream) {
                Ok(engine) => *self.by_engine.entry(engine).or_default() += 1,
                Err(_) => self.broken += 1,
            },
            Err(error) => self.failed.push(error.to_string()),
        }
    }

    fn merge(mut self, other: Self) -> Self {
        for (engine, count) in other.by_engine {
            *self.by_engine.entry(engine).or_default() += count;
        }
        self.failed.extend(other.failed);
        self.broken += other.broken;
        self
    }
}

/// Connects a number of times, one after the other.
pub(crate) fn connect_times(address: SocketAddr, times: u64) -> Tally {
    let mut tally = Tally::default();
    (0..times).for_each(|_| tally.add(connect(address)));
    tally
}

/// Connects once from each of the given ports. The kernel picks by the client's address and port,
/// so the result is always the same.
pub(crate) fn connect_from(address: SocketAddr, ports: Range<u16>) -> Tally {
    let connect = |port| {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.bind(&SocketAddr::new(address.ip(), port).into())?;
        socket.connect_timeout(&address.into(), PATIENCE)?;
        leave_no_trace(socket.into())
    };
    let mut tally = Tally::default();
    ports.for_each(|port| tally.add(connect(port)));
    tally
}

/// Connects from several threads for as long as `body` runs.
pub(crate) fn connect_while<T>(address: SocketAddr, threads: usize, body: impl FnOnce() -> T) -> (Tally, T) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let client = || {
            let mut tally = Tally::default();
            while !done.load(Ordering::Relaxed) {
                tally.add(connect(address));
            }
            tally
        };
        let clients: Vec<_> = (0..threads).map(|_| scope.spawn(client)).collect();
        let stop = StopOnDrop(&done);
        let result = body();
        drop(stop);
        let tallies = clients.into_iter().map(|client| client.join().expect("a client does not panic"));
        (tallies.fold(Tally::default(), Tally::merge), result)
    })
}

/// Ends the clients even if the body panics, so that the test fails instead of hanging.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    leave_no_trace(TcpStream::connect_timeout(&address, PATIENCE)?)
}

fn leave_no_trace(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_read_timeout(Some(PATIENCE))?;
    // Closed with a reset: ten thousand connections in TIME_WAIT would use the ports up.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    Ok(stream)
}

fn name(mut stream: TcpStream) -> io::Result<char> {
    let mut name = [0];
    stream.read_exact(&mut name)?;
    Ok(char::from(name[0]))
}
