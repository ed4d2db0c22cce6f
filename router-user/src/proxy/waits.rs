//! The requests of one worker that wait for the beginning of an answer of one engine.

use std::cell::{Cell, RefCell};

use crate::policy::Millis;
use crate::policy::silence::{self, Wait};

#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Places are used again, so that a request allocates nothing.
    places: RefCell<Vec<Option<Wait>>>,
    free: RefCell<Vec<usize>>,
    /// When something came from the engine last.
    heard: Cell<Millis>,
    /// What was told of them last.
    pub(super) told: Cell<f64>,
}

impl Waits {
    /// Notes a wait; returns its place.
    pub(super) fn begin(&self, wait: Wait) -> usize {
        let mut places = self.places.borrow_mut();
        match self.free.borrow_mut().pop() {
            Some(free) => {
                places[free] = Some(wait);
                free
            }
            None => {
                places.push(Some(wait));
                places.len() - 1
            }
        }
    }

    /// Ends the wait at a place, which may have ended before.
    pub(super) fn end(&self, place: usize) {
        if self.places.borrow_mut()[place].take().is_some() {
            self.free.borrow_mut().push(place);
        }
    }

    #[inline]
    pub(super) fn hear(&self, now: Millis) {
        self.heard.set(now);
    }

    pub(super) fn heard(&self) -> Millis {
        self.heard.get()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.borrow().len() == self.free.borrow().len()
    }

    pub(super) fn suspicion(&self, heard: Millis, now: Millis) -> f64 {
        silence::suspicion(self.places.borrow().iter().flatten().copied(), heard, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_end_once() {
        let waits = Waits::default();
        let wait = Wait { since: 0, usual_ms: 100.0, is_stream: true, bytes: 0 };
        let (first, second) = (waits.begin(wait), waits.begin(wait));
        assert!(first != second && !waits.is_empty());
        waits.end(first);
        waits.end(first);
        assert_eq!(waits.begin(wait), first);
        assert_ne!(waits.begin(wait), first);
        (0..3).for_each(|place| waits.end(place));
        assert!(waits.is_empty());
        assert_eq!(waits.suspicion(0, 10_000), 0.0);
    }
}
