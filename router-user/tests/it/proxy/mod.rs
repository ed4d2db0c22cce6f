//! The data plane over real sockets, every test on both IO drivers.

mod descriptors;
mod engines;
mod errors;
mod http;
mod routing;
mod streaming;
pub(crate) mod world;
