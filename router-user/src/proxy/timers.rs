//! Coarse deadlines of one worker.
//!
//! A deadline is one number in a list, which is scanned every [`TICK`]. Setting one costs a store,
//! however many there are; scanning ten thousand takes about ten microseconds. In the data plane,
//! only this file reads the clock.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock::{self, Clock};
use crate::policy::Millis;

/// Time between two scans, and so how late a deadline may fire. Short beside every timeout, and 40
/// wake-ups a second cost an idle worker next to nothing.
pub(super) const TICK: Duration = Duration::from_millis(25);

pub(super) struct Timers {
    clock: Clock,
    /// Time of the last scan.
    coarse: Cell<Millis>,
    entries: RefCell<Vec<Entry>>,
    free: RefCell<Vec<usize>>,
}

struct Entry {
    at: Cell<Millis>,
    /// The deadline bounds the wait for a client's next request, and nothing of it has come.
    is_idle: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

const NEVER: Millis = Millis::MAX;

impl Timers {
    /// Timers on the clock of the data plane.
    pub(super) fn new(clock: Clock) -> Self {
        let coarse = Cell::new(clock.now().as_millis() as Millis);
        Self { clock, coarse, entries: RefCell::default(), free: RefCell::default() }
    }

    /// Time since the data plane started.
    pub(super) fn elapsed(&self) -> Duration {
        self.clock.now()
    }

    pub(super) fn now(&self) -> Millis {
        self.elapsed().as_millis() as Millis
    }

    /// Time of the last scan: at most one tick old. Reading it costs no system call.
    pub(super) fn coarse(&self) -> Millis {
        self.coarse.get()
    }

    /// Seconds since the Unix epoch by the wall clock, for what engines say in dates.
    pub(super) fn unix_s(&self) -> u64 {
        clock::unix_ms() / 1000
    }

    /// Wakes each task whose deadline has passed.
    pub(super) fn look(&self) {
        let now = self.now();
        self.coarse.set(now);
        self.wake(|entry| entry.at.get() <= now);
    }

    /// Lets a deadline pass now, and wakes its task.
    pub(super) fn expire(&self, index: usize) {
        let entries = self.entries.borrow();
        entries[index].at.set(0);
        // Taken first, so that nothing is borrowed while it runs.
        let waker = entries[index].waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Lets the deadline of the longest idle connection pass; false when none is idle.
    pub(super) fn expire_longest_idle(&self) -> bool {
        let longest = {
            let entries = self.entries.borrow();
            let idle = entries.iter().enumerate().filter(|(_, entry)| entry.is_idle.get() && entry.at.get() > self.coarse());
            idle.min_by_key(|(_, entry)| entry.at.get()).map(|(index, _)| index)
        };
        longest.inspect(|&index| self.expire(index)).is_some()
    }

    /// Sets the time of the last look.
    #[cfg(test)]
    pub(super) fn pretend(&self, now: Millis) {
        self.coarse.set(now);
    }

    /// Wakes each task that holds a deadline, so that it looks at the worker's state.
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
            entries.push(Entry { at: Cell::new(NEVER), is_idle: Cell::new(false), waker: RefCell::new(None) });
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
        self.set_as(from_now, false);
    }

    /// Like [`Self::set`], for the wait for a client's next request:
    /// [`Timers::expire_longest_idle`] may end it early.
    pub(super) fn set_idle(&self, from_now: Duration) {
        self.set_as(from_now, true);
    }

    #[inline]
    fn set_as(&self, from_now: Duration, is_idle: bool) {
        let at = self.timers.coarse().saturating_add(from_now.as_millis() as Millis).saturating_add(TICK.as_millis() as Millis);
        let entry = &self.timers.entries.borrow()[self.index];
        entry.at.set(at);
        entry.is_idle.set(is_idle);
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Ready once the deadline has passed. Wakes the task then.
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
            entries[self.index].is_idle.set(false);
            entries[self.index].waker.borrow_mut().take();
        }
        self.timers.free.borrow_mut().push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_wait_is_ended_first_and_others_never() {
        let timers = Rc::new(Timers::new(Clock::start()));
        let deadlines: Vec<Deadline> = (0..4).map(|_| timers.deadline()).collect();
        for (number, deadline) in deadlines.iter().enumerate() {
            timers.pretend(100 - 10 * number as Millis);
            match number {
                3 => deadline.set(Duration::from_secs(10)),
                _ => deadline.set_idle(Duration::from_secs(10)),
            }
        }
        timers.pretend(200);
        let passed = || -> Vec<usize> {
            let cx = &mut Context::from_waker(Waker::noop());
            (0..4).filter(|&n| deadlines[n].poll(cx).is_ready()).collect()
        };
        for expected in [vec![2], vec![1, 2], vec![0, 1, 2]] {
            assert!(timers.expire_longest_idle());
            assert_eq!(passed(), expected);
        }
        assert!(!timers.expire_longest_idle());
        // A wait that has become another is not idle any more.
        deadlines[0].set_idle(Duration::from_secs(10));
        deadlines[0].set(Duration::from_secs(10));
        assert!(!timers.expire_longest_idle());
    }
}
