//! From a plan to what data planes apply: the snapshot, its store, and the tables a pick reads.
//!
//! `build`, `snapshot`, `slots` and `routes` are pure; `store` holds the adapters that move
//! snapshots between processes.

pub mod build;
pub mod failover;
pub mod history;
pub mod routes;
pub mod slots;
pub mod snapshot;
pub mod store;

pub use crate::model::Generation;
