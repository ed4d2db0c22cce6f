//! Which driver to use, and why.

use std::fmt;
use std::io;
use std::str::FromStr;

use io_uring::{IoUring, Probe as Opcodes, opcode};

use super::uring::{self, Uring};

/// The driver that the operator asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoChoice {
    /// io_uring where the kernel allows it, else epoll.
    #[default]
    Auto,
    Uring,
    Epoll,
}

impl FromStr for IoChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "uring" => Ok(Self::Uring),
            "epoll" => Ok(Self::Epoll),
            _ => Err(format!("io driver {text:?}; wanted auto, uring or epoll")),
        }
    }
}

impl fmt::Display for IoChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Epoll => "epoll",
        })
    }
}

/// The driver in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DriverKind {
    Uring,
    Epoll,
}

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uring => "uring",
            Self::Epoll => "epoll",
        })
    }
}

/// The outcome of a choice.
#[derive(Debug)]
pub enum Probe {
    Uring(Uring),
    /// With the reason against io_uring.
    Epoll(String),
}

impl IoChoice {
    /// Settles the choice: runs an operation on a ring.
    ///
    /// Errors: io_uring was asked for and does not work.
    pub fn probe(self) -> io::Result<Probe> {
        match self {
            Self::Epoll => Ok(Probe::Epoll("asked for".to_owned())),
            Self::Uring => try_elsewhere().map(|()| Probe::Uring(Uring(()))),
            Self::Auto => Ok(match try_elsewhere() {
                Ok(()) => Probe::Uring(Uring(())),
                Err(e) => Probe::Epoll(format!("io_uring does not work here: {e}")),
            }),
        }
    }
}

/// Tries in a thread of its own. The end of a ring notifies the thread that made it, which would
/// interrupt a system call of that thread some milliseconds later; not all code repeats such a
/// call.
fn try_elsewhere() -> io::Result<()> {
    std::thread::spawn(try_ring).join().unwrap_or_else(|_| Err(io::Error::other("the probe panicked")))
}

/// Sets up a ring like a worker's, asks for the operations in use, and runs one.
fn try_ring() -> io::Result<()> {
    let mut ring: IoUring = uring::ring().build(8)?;
    let mut opcodes = Opcodes::new();
    ring.submitter().register_probe(&mut opcodes)?;
    for (name, code) in [("recv", opcode::Recv::CODE), ("poll", opcode::PollAdd::CODE), ("no-op", opcode::Nop::CODE)] {
        if !opcodes.is_supported(code) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, format!("the kernel's io_uring lacks {name}")));
        }
    }
    // SAFETY: a no-op refers to no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    match ring.completion().next() {
        Some(done) if done.result() >= 0 => Ok(()),
        Some(done) => Err(io::Error::from_raw_os_error(-done.result())),
        None => Err(io::Error::other("the ring completed nothing")),
    }
}
