//! Sockets of the data plane's workers: the traits of a driver, and two drivers.
//!
//! A worker is one thread with one runtime, and everything in it is `!Send`. `uring` completes
//! reads in the kernel through tokio-uring; `epoll` is plain tokio. Both keep an operation in
//! flight inside the stream itself, so that a caller may stop polling at any time and loses
//! nothing: no bytes, no connection, no descriptor. The operations of tokio-uring do not promise
//! this, so none of them is visible outside `uring`.

mod choice;
mod connection;
mod driver;
mod epoll;
mod socket;
mod uring;

pub use choice::{DriverKind, IoChoice, Probe};
pub use connection::Connection;
pub use driver::{Driver, Listener, Stream};
pub use epoll::Epoll;
pub use socket::{PortShare, listen, raise_descriptor_limit};
pub use uring::Uring;
