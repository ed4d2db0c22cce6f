//! The published snapshot: its types, its rules and its digest.

mod digest;
mod order;
mod types;
mod validate;

pub use order::{EngineOrder, OrderKind};
pub use types::*;
pub use validate::SnapshotError;
