//! Memory for request bodies: one bound for all connections of a worker. Bytes count when they
//! arrive, not when they are announced.
//!
//! When the bound is reached, the incoming body that has stalled longest is evicted in favour of a
//! client that does send. If none has stalled, the newcomer is refused. So a client holds room only
//! with bytes that it has sent, and only while it goes on sending.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::timers::{Deadline, Timers};
use crate::policy::Millis;

/// Time, in ms, without [`PROGRESS_BYTES`] of progress after which a body has stalled. TCP repeats
/// a lost segment well within it.
const STALLED_AFTER: Millis = 1_000;
/// Bytes that count as progress. A client that sends single bytes to look alive makes no progress.
const PROGRESS_BYTES: usize = 4 << 10;

/// The room for all bodies of one worker.
pub(super) struct BodyPool {
    /// Bytes that may be held at one time.
    max: usize,
    held: Cell<usize>,
    /// Bodies that are still arriving.
    incoming: RefCell<Vec<Rc<Account>>>,
}

/// The room that one connection holds.
struct Account {
    held: Cell<usize>,
    /// Time of the body's last progress, and how many bytes it had then.
    progress_at: Cell<Millis>,
    progress_held: Cell<usize>,
    /// Index in the pool's list while the body is arriving.
    place: Cell<Option<usize>>,
    /// The room was given to another body.
    is_evicted: Cell<bool>,
    /// The connection's deadline, through which it is woken when it is evicted.
    deadline: usize,
}

impl BodyPool {
    pub(super) fn new(max: usize) -> Self {
        Self { max, held: Cell::new(0), incoming: RefCell::default() }
    }

    /// A connection's account, empty at first. Dropping it gives its room back.
    pub(super) fn join(self: &Rc<Self>, deadline: &Deadline) -> BodyRoom {
        let account = Account {
            held: Cell::new(0),
            progress_at: Cell::new(0),
            progress_held: Cell::new(0),
            place: Cell::new(None),
            is_evicted: Cell::new(false),
            deadline: deadline.index(),
        };
        BodyRoom { pool: Rc::clone(self), account: Rc::new(account) }
    }

    /// The arriving body with the longest time since its last progress, if it has stalled.
    fn stalled(&self, now: Millis, but: &Rc<Account>) -> Option<Rc<Account>> {
        let incoming = self.incoming.borrow();
        let others = incoming.iter().filter(|a| a.held.get() > 0 && !Rc::ptr_eq(a, but));
        let oldest = others.min_by_key(|a| a.progress_at.get())?;
        (now.saturating_sub(oldest.progress_at.get()) >= STALLED_AFTER).then(|| Rc::clone(oldest))
    }

    fn leave(&self, account: &Account) {
        if let Some(place) = account.place.take() {
            let mut incoming = self.incoming.borrow_mut();
            incoming.swap_remove(place);
            if let Some(moved) = incoming.get(place) {
                moved.place.set(Some(place));
            }
        }
    }

    fn give_back(&self, account: &Account) {
        self.leave(account);
        self.held.set(self.held.get() - account.held.take());
    }
}

/// The room that one connection's body takes.
pub(super) struct BodyRoom {
    pool: Rc<BodyPool>,
    account: Rc<Account>,
}

impl BodyRoom {
    /// Takes room for `bytes` more that have arrived. False when there is no room or the body was
    /// evicted; the caller then drops the body.
    pub(super) fn take(&self, bytes: usize, timers: &Timers) -> bool {
        let (pool, account, now) = (&self.pool, &self.account, timers.coarse());
        if account.is_evicted.get() || account.held.get().saturating_add(bytes) > pool.max {
            return false;
        }
        while pool.held.get() + bytes > pool.max {
            let Some(stalled) = pool.stalled(now, account) else { return false };
            pool.give_back(&stalled);
            stalled.is_evicted.set(true);
            timers.expire(stalled.deadline);
        }
        pool.held.set(pool.held.get() + bytes);
        let held = account.held.get() + bytes;
        account.held.set(held);
        if held >= account.progress_held.get() + PROGRESS_BYTES {
            account.progress_held.set(held);
            account.progress_at.set(now);
        }
        true
    }

    /// Marks the body as still arriving: from now on it may be evicted.
    pub(super) fn expect_more(&self, now: Millis) {
        let account = &self.account;
        if account.place.get().is_none() && !account.is_evicted.get() {
            let mut incoming = self.pool.incoming.borrow_mut();
            account.place.set(Some(incoming.len()));
            account.progress_at.set(now);
            account.progress_held.set(account.held.get());
            incoming.push(Rc::clone(account));
        }
    }

    /// Marks the body as whole: it is not evicted any more.
    pub(super) fn settle(&self) {
        self.pool.leave(&self.account);
    }

    /// Whether the body was evicted.
    pub(super) fn is_evicted(&self) -> bool {
        self.account.is_evicted.get()
    }

    /// Gives all of the room back, so that the connection's next body can take some.
    pub(super) fn release(&self) {
        self.pool.give_back(&self.account);
        self.account.is_evicted.set(false);
        self.account.progress_held.set(0);
    }
}

impl Drop for BodyRoom {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    struct Bench {
        timers: Rc<Timers>,
        pool: Rc<BodyPool>,
    }

    impl Bench {
        fn new(max: usize) -> Self {
            Self { timers: Rc::new(Timers::new(Clock::start())), pool: Rc::new(BodyPool::new(max)) }
        }

        fn body(&self) -> (BodyRoom, Deadline) {
            let deadline = self.timers.deadline();
            deadline.set(std::time::Duration::from_secs(3600));
            (self.pool.join(&deadline), deadline)
        }

        fn is_woken(deadline: &Deadline) -> bool {
            deadline.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_ready()
        }
    }

    #[test]
    fn the_body_that_stalled_longest_gives_up_its_place() {
        let bench = Bench::new(100);
        let bodies: Vec<_> = (0..3).map(|_| bench.body()).collect();
        for (age, (room, _)) in bodies.iter().enumerate() {
            bench.timers.pretend(100 * age as Millis);
            room.expect_more(bench.timers.coarse());
            assert!(room.take(30, &bench.timers));
        }
        let (newcomer, _deadline) = bench.body();
        // Nobody has stalled yet.
        bench.timers.pretend(STALLED_AFTER - 1);
        assert!(!newcomer.take(20, &bench.timers));
        bench.timers.pretend(STALLED_AFTER + 300);
        assert!(newcomer.take(20, &bench.timers));
        let evicted: Vec<bool> = bodies.iter().map(|(room, _)| room.is_evicted()).collect();
        assert_eq!(evicted, [true, false, false]);
        let woken: Vec<bool> = bodies.iter().map(|(_, deadline)| Bench::is_woken(deadline)).collect();
        assert_eq!(woken, evicted);
        assert_eq!(bench.pool.held.get(), 80);
        assert!(!bodies[0].0.take(1, &bench.timers), "a body that gave up its place gets no more room");
        // Its connection may go on with another body.
        bodies[0].0.release();
        assert!(bodies[0].0.take(20, &bench.timers));
    }

    #[test]
    fn single_bytes_are_no_progress() {
        let bench = Bench::new(3 * PROGRESS_BYTES);
        let ((dripping, _), (sending, _)) = (bench.body(), bench.body());
        dripping.expect_more(0);
        sending.expect_more(0);
        assert!(dripping.take(PROGRESS_BYTES, &bench.timers));
        for second in 0..20 {
            bench.timers.pretend(100 * second);
            assert!(dripping.take(1, &bench.timers));
        }
        assert!(sending.take(PROGRESS_BYTES, &bench.timers));
        assert!(bench.body().0.take(PROGRESS_BYTES, &bench.timers));
        assert!(dripping.is_evicted() && !sending.is_evicted());
    }

    #[test]
    fn whole_bodies_keep_their_place_and_all_room_comes_back() {
        let bench = Bench::new(100);
        let (whole, _deadline) = bench.body();
        whole.expect_more(0);
        assert!(whole.take(90, &bench.timers));
        whole.settle();
        bench.timers.pretend(10 * STALLED_AFTER);
        let (other, _deadline) = bench.body();
        assert!(!other.take(20, &bench.timers) && !whole.is_evicted());
        assert!(!other.take(101, &bench.timers), "more than there is at all");
        drop(whole);
        assert!(other.take(100, &bench.timers));
        drop(other);
        assert_eq!((bench.pool.held.get(), bench.pool.incoming.borrow().len()), (0, 0));
    }
}
