//! A number that one thread writes and others read.

use std::sync::atomic::{AtomicU64, Ordering};

/// Written by the worker that owns it, with plain loads and stores: no locked instruction, no
/// shared cache line.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    /// Only the owning worker may call this: it is not an atomic addition, and need not be.
    #[inline]
    pub(super) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn subtract(&self, n: u64) {
        self.add(n.wrapping_neg());
    }

    pub(super) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
