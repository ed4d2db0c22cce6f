//! Coarse deadlines of one worker.
//!
//! A deadline is one number in a list that is looked through every [`TICK`]: setting it costs a store, however many there are, and a
//! look through ten thousand of them costs some ten microseconds. Only this file of the data plane
//! asks the clock.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock::Clock;
use crate::policy::Millis;

/// How late a deadline may fire.
pub(super) const TICK: Duration = Duration::from_millis(25);

pub(super) struct Timers {
    clock: Clock,
    /// Time of the last look.
    coarse: Cell<Millis>,
    entries: RefCell<Vec<Entry>>,
    free: RefCell<Vec<usize>>,
}

struct Entry {
    at: Cell<Millis>,
    waker: RefCell<Option<Waker>>,
}

const NEVER: Millis = Millis::MAX;

impl Timers {
    pub(super) fn new() -> Self {
        Self { clock: Clock::start(), coarse: Cell::new(0), entries: RefCell::default(), free: RefCell::default() }
    }

    /// Time since the worker started.
    pub(super) fn elapsed(&self) -> Duration {
        self.clock.now()
    }

    pub(super) fn now(&self) -> Millis {
        self.elapsed().as_millis() as Millis
    }

    /// Time of the last look: at most a tick old, and free.
    pub(super) fn coarse(&self) -> Millis {
        self.coarse.get()
    }

    /// Wakes everyone whose deadline has passed.
    pub(super) fn look(&self) {
        let now = self.now();
        self.coarse.set(now);
        self.wake(|entry| entry.at.get() <= now);
    }

    /// Wakes everyone who holds a deadline, so that they look at the worker's state.
    pub(super) fn wake_all(&self) {
        self.wake(|_| true);
    }

    fn wake(&self, which: impl Fn(&Entry) -> bool) {
        for entry in self.entries.borrow().iter().filter(|e| which(e)) {
            // Taken first, so that nothing is borrowed while it runs.
            let waker = entry.waker.take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    pub(super) fn deadline(self: &Rc<Self>) -> Deadline {
        let index = self.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut entries = self.entries.borrow_mut();
            entries.push(Entry { at: Cell::new(NEVER), waker: RefCell::new(None) });
            entries.len() - 1
        });
        Deadline { timers: Rc::clone(self), index }
    }
}

/// One deadline at a time, for one task.
pub(super) struct Deadline {
    timers: Rc<Timers>,
    index: usize,
}

impl Deadline {
    pub(super) fn set(&self, from_now: Duration) {
        let at = self.timers.coarse().saturating_add(from_now.as_millis() as Millis).saturating_add(TICK.as_millis() as Millis);
        self.timers.entries.borrow()[self.index].at.set(at);
    }

    /// Ready once the deadline has passed; the task is woken then.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let entries = self.timers.entries.borrow();
        let entry = &entries[self.index];
        if entry.at.get() <= self.timers.coarse() {
            return Poll::Ready(());
        }
        let mut waker = entry.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        {
            let entries = self.timers.entries.borrow();
            entries[self.index].at.set(NEVER);
            entries[self.index].waker.borrow_mut().take();
        }
        self.timers.free.borrow_mut().push(self.index);
    }
}
