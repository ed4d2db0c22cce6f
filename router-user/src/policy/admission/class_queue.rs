//! The requests of one class that wait, fair among its users. Pure.

use std::collections::{BTreeMap, VecDeque};

/// Work, in requests, by which users differ who have been given about the same.
const EQUAL_WORK: f64 = 0.5;

/// An engine, in the numbering of the caller.
pub type Place = u32;

/// A request that has to wait.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// Its priority, below [`super::LEVELS`].
    pub level: usize,
    pub class: u64,
    /// The class's share of the places that classes of its priority get, in any unit; > 0.
    pub share: f64,
    pub user: u64,
    /// Expected work, in requests; > 0.
    pub work: f64,
    /// The engine that its conversation is tied to.
    pub home: Place,
    /// No other engine may serve it.
    pub is_bound: bool,
}

/// The engines that may serve a class at present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    pub places: Vec<Place>,
    /// So many of them are ejected that a soft ejection does not count.
    pub in_panic: bool,
}

/// Whether an engine is ejected, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ejection {
    None,
    /// For a reason that may as well be load.
    Soft,
    Hard,
}

impl Reach {
    pub(super) fn has(&self, place: Place, ejection: Ejection) -> bool {
        let is_in = match ejection {
            Ejection::None => true,
            Ejection::Soft => self.in_panic,
            Ejection::Hard => false,
        };
        is_in && self.places.contains(&place)
    }
}

/// Requests of one class, by user.
#[derive(Debug)]
pub(super) struct ClassQueue {
    pub(super) class: u64,
    pub(super) share: f64,
    pub(super) reach: Reach,
    /// Work that the class has been given, over its share; its virtual time.
    pub(super) tag: f64,
    /// Virtual time of the users.
    clock: f64,
    users: BTreeMap<u64, UserQueue>,
    /// Requests that wait.
    pub(super) length: usize,
    /// How many users have more than so many requests here, by that number.
    with_more: Vec<usize>,
}

#[derive(Debug)]
struct UserQueue {
    /// Work that the user has been given.
    tag: f64,
    requests: VecDeque<(u64, Waiter)>,
}

impl UserQueue {
    /// Index of the request that an engine is to serve next.
    fn next(&self, place: Place, newest_first: bool) -> Option<usize> {
        let may = |(_, waiter): &(u64, Waiter)| !waiter.is_bound || waiter.home == place;
        if newest_first { self.requests.iter().rposition(may) } else { self.requests.iter().position(may) }
    }
}

impl ClassQueue {
    pub(super) fn new(class: u64, share: f64, reach: Reach, tag: f64) -> Self {
        Self { class, share, reach, tag, clock: 0.0, users: BTreeMap::new(), length: 0, with_more: Vec::new() }
    }

    /// The user whose turn it is at an engine, and the index of the request.
    ///
    /// It is the turn of those that have been given least. Of these one goes first whose
    /// conversation is at that engine.
    pub(super) fn next(&self, place: Place, newest_first: bool) -> Option<(u64, usize)> {
        let next = |(&user, of): (&u64, &UserQueue)| Some((user, of.next(place, newest_first)?, of.tag));
        let candidates = || self.users.iter().filter_map(next);
        let least = candidates().map(|(.., tag)| tag).min_by(f64::total_cmp)?;
        let rank = |&(user, request, _): &(u64, usize, f64)| {
            let (id, waiter) = &self.users[&user].requests[request];
            (waiter.home != place, if newest_first { u64::MAX - id } else { *id })
        };
        let equals = candidates().filter(|&(.., tag)| tag <= least + EQUAL_WORK);
        equals.min_by_key(rank).map(|(user, request, _)| (user, request))
    }

    pub(super) fn push(&mut self, id: u64, waiter: Waiter) {
        let new = || UserQueue { tag: self.clock, requests: VecDeque::new() };
        let of = self.users.entry(waiter.user).or_insert_with(new);
        let before = of.requests.len();
        of.requests.push_back((id, waiter));
        if before == self.with_more.len() {
            self.with_more.push(0);
        }
        self.with_more[before] += 1;
        self.length += 1;
    }

    /// Takes out a request of a user that is served, and charges the user and the class.
    pub(super) fn serve(&mut self, user: u64, request: usize) -> Option<u64> {
        let of = self.users.get_mut(&user)?;
        let work = of.requests.get(request)?.1.work;
        self.clock = self.clock.max(of.tag);
        of.tag += work;
        self.tag += work / self.share;
        self.remove(user, request)
    }

    /// Takes out a request of a user.
    pub(super) fn remove(&mut self, user: u64, request: usize) -> Option<u64> {
        let of = self.users.get_mut(&user)?;
        let (id, _) = of.requests.remove(request)?;
        let left = of.requests.len();
        self.with_more[left] -= 1;
        if self.with_more[left] == 0 {
            self.with_more.truncate(left);
        }
        self.length -= 1;
        if left == 0 {
            self.users.remove(&user);
        }
        Some(id)
    }

    /// The requests of a user, the oldest first.
    pub(super) fn of_user(&self, user: u64) -> Option<&VecDeque<(u64, Waiter)>> {
        self.users.get(&user).map(|of| &of.requests)
    }

    /// Requests of the class that go before the `nth` of a user: of each user no more than that.
    pub(super) fn ahead(&self, nth: usize) -> usize {
        self.with_more.iter().take(nth).sum()
    }

    /// Most requests that a user has here.
    pub(super) fn longest(&self) -> usize {
        self.with_more.len()
    }

    /// Of a user with the most requests, the one that would be served last.
    pub(super) fn last_of_the_longest(&self, newest_first: bool) -> Option<u64> {
        let of = self.users.values().find(|of| of.requests.len() == self.longest())?;
        let last = if newest_first { of.requests.front() } else { of.requests.back() };
        last.map(|&(id, _)| id)
    }
}
