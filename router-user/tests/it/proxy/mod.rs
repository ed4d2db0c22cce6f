//! The data plane over real sockets, every test on both IO drivers.

mod bounded;
mod descriptors;
mod engines;
mod errors;
mod fields;
mod guardrails;
mod http;
mod listening;
mod payloads;
mod queueing;
mod retries;
mod routing;
mod shedding;
mod slow_clients;
mod stored;
mod streaming;
mod targets;
mod uploads;
pub(crate) mod world;
