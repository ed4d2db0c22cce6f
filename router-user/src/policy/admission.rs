//! Who is served next when requests have to wait for an engine. Pure.
//!
//! The queue is bounded, and fair at three levels. Requests of a higher priority go first, except
//! for every tenth place, which is reserved for the others. Classes of one priority share by plan.
//! Users of one class share equally, in expected work, so that a user's flood waits behind itself
//! and is what a full queue refuses. This is start-time fair queueing (Goyal, Vin & Cheng, 1996).
//!
//! A user's requests are served in order, until the queue has stood for a while. Then the newest
//! goes first: serving the oldest would make all of them late, and a client that has waited long
//! gives up first (adaptive LIFO: Maurer, "Fail at Scale", 2015).

mod class_queue;

use std::collections::{HashMap, VecDeque};

use self::class_queue::ClassQueue;
pub use self::class_queue::{Ejection, Place, Reach, Waiter};
use super::Millis;

/// Priorities in the queue; 0 goes first.
pub const LEVELS: usize = 4;
/// One of so many places at engines, and in the queue for each, is reserved for lower priorities,
/// which therefore never starve.
const RESERVED_EVERY: u32 = 10;
/// Time, in ms, that a queue is not empty after which it stands. A burst is over by then.
const STANDS_AFTER_MS: Millis = 500;
/// Part of its patience that a request has in a queue that stands. It will hardly be served later,
/// and its client learns it sooner.
const PATIENCE_STANDING: f64 = 0.25;
/// Time, in ms, in which the weight of a place in the mean time between two of them halves.
const PACE_HALF_MS: f64 = 2_000.0;
/// Longest time, in ms, between two places that counts in full: an engine that hung for longer says
/// nothing about the next places, and too short a mean refuses nobody.
const PACE_MAX_MS: f64 = 2_000.0;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The queue has no room for it.
    QueueFull,
    /// It could not be served before its deadline.
    Deadline,
    /// The queue has no room, and its user has the most requests in it.
    OverShare,
}

impl Refusal {
    pub const ALL: [Self; 3] = [Self::QueueFull, Self::Deadline, Self::OverShare];

    /// As it is called in metrics and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Deadline => "queue_deadline",
            Self::OverShare => "user_over_share",
        }
    }
}

/// A request that has entered the queue, and the one that has lost its place for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    pub id: u64,
    /// Time for which it may wait.
    pub patience_ms: Millis,
    pub evicted: Option<(u64, Refusal)>,
}

/// The queue of a data plane.
#[derive(Debug)]
pub struct FairQueue {
    max: usize,
    levels: [Vec<ClassQueue>; LEVELS],
    /// Requests that wait, by level.
    lengths: [usize; LEVELS],
    /// Virtual times of the classes, by level.
    clocks: [f64; LEVELS],
    /// Where each request waits.
    waiting: HashMap<u64, Address>,
    next_id: u64,
    turn: u32,
    /// Since when it is not empty.
    busy_since: Millis,
    /// When the last place was given while others waited.
    served_at: Millis,
    pace: Pace,
}

/// Mean time between two places, over the last of them.
#[derive(Debug, Default)]
struct Pace {
    sum_ms: f64,
    count: f64,
}

impl Pace {
    fn take(&mut self, ms: f64) {
        let (ms, kept) = (ms.min(PACE_MAX_MS), 0.5_f64.powf(ms / PACE_HALF_MS));
        (self.sum_ms, self.count) = (self.sum_ms * kept + ms, self.count * kept + 1.0);
    }

    /// In ms; 0 before the first two places.
    fn mean_ms(&self) -> f64 {
        if self.count > 0.0 { self.sum_ms / self.count } else { 0.0 }
    }
}

#[derive(Clone, Copy, Debug)]
struct Address {
    level: usize,
    class: u64,
    user: u64,
}

impl FairQueue {
    /// A queue of at most `max` requests.
    pub fn new(max: usize) -> Self {
        Self {
            max,
            levels: Default::default(),
            lengths: [0; LEVELS],
            clocks: [0.0; LEVELS],
            waiting: HashMap::new(),
            next_id: 0,
            turn: 0,
            busy_since: 0,
            served_at: 0,
            pace: Pace::default(),
        }
    }

    pub fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Requests that wait, by priority.
    pub fn lengths(&self) -> [usize; LEVELS] {
        self.lengths
    }

    /// Takes which engines may serve each class now; a class of which nothing is known keeps its
    /// own.
    pub fn set_reach(&mut self, reach: impl Fn(u64) -> Option<Reach>) {
        for queue in self.levels.iter_mut().flatten() {
            if let Some(reach) = reach(queue.class) {
                queue.reach = reach;
            }
        }
    }

    /// Takes a request that can wait for `patience_ms`. `reach` tells which engines may serve its
    /// class, and is called only while the class has nobody here.
    ///
    /// Errors: the queue is full of others, or the request would wait longer than that.
    pub fn enter(
        &mut self,
        now: Millis,
        waiter: Waiter,
        patience_ms: f64,
        reach: impl FnOnce() -> Reach,
    ) -> Result<Entered, Refusal> {
        let of_user = self.levels[waiter.level].iter().find(|class| class.class == waiter.class);
        let of_user = of_user.and_then(|class| class.of_user(waiter.user));
        let own = of_user.map_or(0, VecDeque::len);
        let stands = self.stands(now);
        let patience_ms = if stands { PATIENCE_STANDING * patience_ms } else { patience_ms };
        let is_hopeless = self.pace.mean_ms() * self.ahead(&waiter, own + 1) > patience_ms;
        let mut evicted = None;
        if is_hopeless && !stands {
            return Err(Refusal::Deadline);
        } else if is_hopeless && own > 0 {
            // The newest goes first, so it is the user's oldest request that would wait too long.
            evicted = of_user.and_then(VecDeque::front).map(|&(id, _)| (id, Refusal::Deadline));
        } else if self.len() >= self.max {
            evicted = Some(self.evict_for(waiter.level, own, stands)?);
        }
        if let Some((id, _)) = evicted {
            self.leave(id);
        }
        Ok(Entered { id: self.push(now, waiter, reach), patience_ms: patience_ms as Millis, evicted })
    }

    /// Whom a full queue refuses for a newcomer of a priority, whose user has `own` requests in it.
    ///
    /// Errors: the newcomer itself.
    fn evict_for(&self, level: usize, own: usize, stands: bool) -> Result<(u64, Refusal), Refusal> {
        let reserve = |level: usize| if level == 0 { 0 } else { self.max / RESERVED_EVERY as usize };
        let of_level = (0..LEVELS).rev().find(|&level| self.lengths[level] > reserve(level)).ok_or(Refusal::QueueFull)?;
        let class = self.levels[of_level].iter().max_by_key(|class| class.longest()).ok_or(Refusal::QueueFull)?;
        let is_reserved = self.lengths[level] < reserve(level);
        if (of_level < level && !is_reserved) || (of_level == level && class.longest() <= own + 1) {
            return Err(if own > 1 { Refusal::OverShare } else { Refusal::QueueFull });
        }
        let last = class.last_of_the_longest(stands).ok_or(Refusal::QueueFull)?;
        Ok((last, if class.longest() > 1 { Refusal::OverShare } else { Refusal::QueueFull }))
    }

    fn push(&mut self, now: Millis, waiter: Waiter, reach: impl FnOnce() -> Reach) -> u64 {
        if self.is_empty() {
            (self.busy_since, self.served_at) = (now, now);
        }
        let id = self.next_id;
        self.next_id += 1;
        let Waiter { level, class, share, user, .. } = waiter;
        self.waiting.insert(id, Address { level, class, user });
        self.lengths[level] += 1;
        let classes = &mut self.levels[level];
        let at = classes.iter().position(|c| c.class == class).unwrap_or_else(|| {
            // A newcomer is as far as the one that was served last: it owes nothing and has saved
            // up nothing.
            classes.push(ClassQueue::new(class, share, reach(), self.clocks[level]));
            classes.len() - 1
        });
        classes[at].share = share;
        classes[at].push(id, waiter);
        id
    }

    /// Takes a request out that does not wait any longer.
    pub fn leave(&mut self, id: u64) {
        let Some(&Address { level, class, user }) = self.waiting.get(&id) else { return };
        let Some(at) = self.levels[level].iter().position(|c| c.class == class) else { return };
        let queue = &mut self.levels[level][at];
        let request = queue.of_user(user).and_then(|of| of.iter().position(|&(other, _)| other == id));
        if let Some(request) = request {
            queue.remove(user, request);
            self.has_left(id, level, at);
        }
    }

    fn has_left(&mut self, id: u64, level: usize, at: usize) {
        if self.levels[level][at].length == 0 {
            self.levels[level].swap_remove(at);
        }
        self.lengths[level] -= 1;
        self.waiting.remove(&id);
    }

    /// The request that the engine `place`, which has room for one more, is to serve next.
    pub fn pop(&mut self, now: Millis, place: Place, ejection: Ejection) -> Option<u64> {
        let newest_first = self.stands(now);
        let reserved = (self.turn % RESERVED_EVERY == RESERVED_EVERY - 1)
            .then(|| 1 + (self.turn / RESERVED_EVERY) as usize % (LEVELS - 1))
            .into_iter()
            .flat_map(|first| (first..LEVELS).chain(1..first));
        let (level, at, user, request) =
            reserved.chain(0..LEVELS).find_map(|level| self.next_of_level(level, place, ejection, newest_first))?;
        self.turn = self.turn.wrapping_add(1);
        let queue = &mut self.levels[level][at];
        self.clocks[level] = self.clocks[level].max(queue.tag);
        let id = queue.serve(user, request)?;
        self.has_left(id, level, at);
        self.pace.take(now.saturating_sub(self.served_at) as f64);
        self.served_at = now;
        Some(id)
    }

    fn next_of_level(
        &self,
        level: usize,
        place: Place,
        ejection: Ejection,
        newest_first: bool,
    ) -> Option<(usize, usize, u64, usize)> {
        let classes = self.levels[level].iter().enumerate().filter(|(_, class)| class.reach.has(place, ejection));
        let next = |(at, class): (usize, &ClassQueue)| {
            let (user, request) = class.next(place, newest_first)?;
            Some((class.tag, (level, at, user, request)))
        };
        classes.filter_map(next).min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, next)| next)
    }

    /// Whether the queue has not been empty for long.
    pub fn stands(&self, now: Millis) -> bool {
        !self.is_empty() && now.saturating_sub(self.busy_since) >= STANDS_AFTER_MS
    }

    /// Time, in ms, until all that wait now are served, at the present pace.
    pub fn drain_ms(&self) -> f64 {
        self.pace.mean_ms() * self.len() as f64
    }

    /// Places that are given until it is the turn of a user's `nth` request: all of higher
    /// priorities, and of its own either all or as many as its class's share lets go before.
    fn ahead(&self, waiter: &Waiter, nth: usize) -> f64 {
        let higher: usize = self.lengths[..waiter.level].iter().sum();
        let (mut of_class, mut others, mut shares) = (0, 0, waiter.share);
        for class in &self.levels[waiter.level] {
            if class.class == waiter.class {
                of_class = class.ahead(nth);
            } else {
                (others, shares) = (others + class.length, shares + class.share);
            }
        }
        let by_share = of_class as f64 * shares / waiter.share;
        higher as f64 + by_share.min((of_class + others) as f64)
    }
}

#[cfg(test)]
mod tests;
