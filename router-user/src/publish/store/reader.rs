//! The reader's side of every store.

use std::sync::Arc;

use super::error::StoreError;
use crate::model::Generation;
use crate::publish::snapshot::Snapshot;

/// The reader's side of a store. A snapshot that comes out of it is whole (its digest was checked)
/// and legal.
pub trait Store {
    /// Waits for a snapshot above the one `held`; `None` when there was none within
    /// [`LONG_POLL`](crate::protocol::LONG_POLL).
    ///
    /// Errors: the store cannot be reached, or what it gave is no legal snapshot or not above
    /// `held`.
    fn newer_than(&self, held: Held) -> impl Future<Output = Result<Option<Arc<Snapshot>>, StoreError>> + Send;

    /// Reads one generation.
    ///
    /// Errors: it is not there any more, the store cannot be reached, or it is no legal snapshot.
    fn read(&self, generation: Generation) -> impl Future<Output = Result<Snapshot, StoreError>> + Send;

    /// Generations that are kept, lowest first.
    ///
    /// Errors: the store cannot be reached.
    fn generations(&self) -> impl Future<Output = Result<Vec<Generation>, StoreError>> + Send;
}

/// The snapshot that a reader has already: its generation, and the digest that tells whether it is
/// the same content under that number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub generation: Generation,
    pub digest: String,
}

impl Held {
    pub fn of(snapshot: &Snapshot) -> Self {
        Self { generation: Generation(snapshot.generation), digest: snapshot.digest.clone() }
    }
}
