//! The requests of one worker that wait for the beginning of an answer of one engine.

use std::cell::{Cell, RefCell};

use slab::Slab;

use crate::policy::Millis;
use crate::policy::silence::{self, Wait};

#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Places are used again, so that a request allocates nothing.
    waits: RefCell<Slab<Wait>>,
    /// When something came from the engine last.
    heard: Cell<Millis>,
    /// What was told of them last.
    pub(super) told: Cell<f64>,
}

impl Waits {
    /// Notes a wait; returns its place.
    pub(super) fn begin(&self, wait: Wait) -> usize {
        self.waits.borrow_mut().insert(wait)
    }

    /// Ends the wait at a place.
    pub(super) fn end(&self, place: usize) {
        self.waits.borrow_mut().remove(place);
    }

    #[inline]
    pub(super) fn hear(&self, now: Millis) {
        self.heard.set(now);
    }

    pub(super) fn heard(&self) -> Millis {
        self.heard.get()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waits.borrow().is_empty()
    }

    pub(super) fn suspicion(&self, heard: Millis, now: Millis) -> f64 {
        silence::suspicion(self.waits.borrow().iter().map(|(_, wait)| *wait), heard, now)
    }
}
