//! The published snapshot: its types, its rules and its digest.

mod types;

pub use types::*;
