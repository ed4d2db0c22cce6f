//! The published snapshot: its types, its rules and its digest.

mod digest;
mod types;
mod validate;

pub use types::*;
pub use validate::SnapshotError;
