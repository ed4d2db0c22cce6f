//! The retry budget and the failed requests of a data plane, and one worker's way to them.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::policy::Millis;
use crate::policy::budget::{Arrivals, RetryBudget};
use crate::policy::repeats::{Failures, digest};

/// What all workers share.
pub(super) struct SharedRetries {
    budget: Mutex<RetryBudget>,
    failures: Mutex<Failures>,
    /// Until when a failure is remembered: later nobody has to look.
    failures_until: AtomicU64,
    digest_key: OnceLock<u64>,
}

impl SharedRetries {
    pub(super) fn new(now: Millis) -> Self {
        Self {
            budget: Mutex::new(RetryBudget::new(now)),
            failures: Mutex::default(),
            failures_until: AtomicU64::new(0),
            digest_key: OnceLock::new(),
        }
    }
}

/// A worker's view of them. Arrivals are counted here, and earn their credit when the worker
/// settles with the others, so that a request touches nothing shared.
pub(super) struct Retries {
    shared: Arc<SharedRetries>,
    unsettled: Cell<Arrivals>,
    digest_key: u64,
}

impl Retries {
    /// `random` becomes the secret of the digests, unless another worker was first.
    pub(super) fn new(shared: &Arc<SharedRetries>, random: u64) -> Self {
        let digest_key = *shared.digest_key.get_or_init(|| random);
        Self { shared: Arc::clone(shared), unsettled: Cell::default(), digest_key }
    }

    /// Adds the credit of a request of `work` that has arrived for the first time.
    pub(super) fn earn(&self, work: f64) {
        let mut unsettled = self.unsettled.get();
        unsettled.add(work);
        self.unsettled.set(unsettled);
    }

    /// Adds to the common budget what this worker's arrivals have earned.
    pub(super) fn settle(&self, now: Millis) {
        self.shared.budget.lock().earn(now, self.unsettled.take());
    }

    /// Takes the price of sending a request of `work` again; false without the credit for it.
    pub(super) fn spend(&self, now: Millis, work: f64, utilisation: f64) -> bool {
        let mut budget = self.shared.budget.lock();
        budget.earn(now, self.unsettled.take());
        budget.spend(now, work, utilisation)
    }

    /// By which a request is known when it comes back.
    pub(super) fn digest(&self, parts: &[&[u8]]) -> u64 {
        digest(self.digest_key, parts)
    }

    /// Whether there are failures to look through.
    pub(super) fn remembers(&self, now: Millis) -> bool {
        now < self.shared.failures_until.load(Ordering::Relaxed)
    }

    /// Whether the client sends a request that was not served lately; it is forgotten with that.
    pub(super) fn take(&self, digest: u64, now: Millis) -> bool {
        self.shared.failures.lock().take(digest, now)
    }

    /// Remembers that a request was not served.
    pub(super) fn failed(&self, digest: u64, now: Millis) {
        self.shared.failures.lock().note(digest, now);
        self.shared.failures_until.fetch_max(Failures::until(now), Ordering::Relaxed);
    }
}
