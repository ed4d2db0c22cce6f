//! The data plane: from a client's request to an engine's answer.
//!
//! Everything a request needs is read once from one immutable [`crate::publish::routes::Routes`].
//! Workers share counters that each writes alone, and, through `plane`, what they have learnt of
//! engines and of stored objects and what pays for sending requests again. `http1`, `json`,
//! `payload`, `form`, `route`, `stored` and [`crate::policy`] decide without IO; `session` moves
//! the bytes.

mod admission;
mod bodies;
mod bounded;
mod counter;
mod engine_load;
mod form;
mod histogram;
pub mod http1;
mod json;
mod outliers;
pub mod payload;
mod plane;
mod reply;
mod retries;
mod route;
mod session;
mod start;
mod stats;
mod stored;
mod timers;
mod upstream;
mod waits;
mod worker;
mod worker_routes;

pub use crate::config::ProxyConfig;
pub use admission::QueueView;
pub use histogram::Latencies;
pub use plane::DataPlane;
pub use start::{ProxyError, ProxyHandle, start};
pub use stats::{ClassStats, DataPlaneStats, EngineStats, Outcome, Retry};
