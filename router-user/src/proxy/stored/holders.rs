//! Which engine holds which object, as far as the answers have shown.
//!
//! Bounded in entries and age; the id that was seen first goes first. An id is kept as a digest, so
//! that an entry has one size whatever an engine calls its objects: some 150 bytes with all that
//! belongs to it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::policy::Millis;

/// Bytes of an id. vLLM's and SGLang's have 37, OpenAI's 53.
pub(in crate::proxy) const ID_BYTES_MAX: usize = 256;
/// Entries beyond their age that one new entry removes: more than one, so that they end, and few,
/// so that nobody waits for them.
const EXPIRED_PER_NOTE: usize = 4;

/// The front half of an id's SHA-256. Clients may choose ids (vLLM's `request_id`), and none may
/// choose one that stands for another.
type Digest = [u8; 16];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) struct Bounds {
    /// Ids that are remembered; 0 remembers none.
    pub(in crate::proxy) max: usize,
    pub(in crate::proxy) age: Millis,
}

/// Where an object is, and for which class it was made, by their names: numbers change with the
/// snapshot.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(in crate::proxy) struct Holder {
    pub(in crate::proxy) engine: String,
    pub(in crate::proxy) class: String,
}

#[derive(Debug, Default)]
pub(in crate::proxy) struct Holders {
    by_id: HashMap<Digest, Entry>,
    /// Ids by their age, forgotten and renewed ones included, with the number of their entry.
    order: VecDeque<(Digest, u64)>,
    /// One copy of each holder that an entry names.
    holders: HashSet<Arc<Holder>>,
    /// Number of the next entry.
    next: u64,
    evicted: u64,
}

#[derive(Debug)]
struct Entry {
    holder: Arc<Holder>,
    at: Millis,
    number: u64,
}

impl Holders {
    /// Remembers that `holder` has the object `id`.
    pub(in crate::proxy) fn note(&mut self, id: &str, holder: Holder, now: Millis, bounds: Bounds) {
        if bounds.max == 0 || id.len() > ID_BYTES_MAX {
            return;
        }
        let key = digest(id);
        if self.by_id.get(&key).is_some_and(|known| *known.holder == holder && is_fresh(known, now, bounds)) {
            return;
        }
        self.expire(now, bounds);
        let entry = Entry { holder: self.shared(holder), at: now, number: self.next };
        self.order.push_back((key, entry.number));
        self.by_id.insert(key, entry);
        self.next += 1;
        while self.order.len() > bounds.max {
            self.evicted += u64::from(self.remove_oldest());
        }
    }

    /// The holder of an object, if its id was seen and is not too old.
    pub(in crate::proxy) fn find(&self, id: &str, now: Millis, bounds: Bounds) -> Option<Arc<Holder>> {
        let known = self.by_id.get(&digest(id)).filter(|known| is_fresh(known, now, bounds))?;
        Some(Arc::clone(&known.holder))
    }

    /// Forgets an object that its holder has deleted.
    pub(in crate::proxy) fn forget(&mut self, id: &str) {
        self.by_id.remove(&digest(id));
    }

    pub(in crate::proxy) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Ids that were forgotten before their age because there were too many.
    pub(in crate::proxy) fn evicted(&self) -> u64 {
        self.evicted
    }

    fn expire(&mut self, now: Millis, bounds: Bounds) {
        for _ in 0..EXPIRED_PER_NOTE {
            let Some((key, number)) = self.order.front() else { return };
            let oldest = self.by_id.get(key).filter(|entry| entry.number == *number);
            if oldest.is_some_and(|entry| is_fresh(entry, now, bounds)) {
                return;
            }
            self.remove_oldest();
        }
    }

    /// Takes the oldest out of the order; true when it still stood for an entry.
    fn remove_oldest(&mut self) -> bool {
        let Some((key, number)) = self.order.pop_front() else { return false };
        let is_current = self.by_id.get(&key).is_some_and(|entry| entry.number == number);
        is_current && self.by_id.remove(&key).is_some()
    }

    /// The one copy of a holder. Copies that no entry names are dropped when a new one is made, so
    /// that names that come and go cost nothing.
    fn shared(&mut self, holder: Holder) -> Arc<Holder> {
        if let Some(known) = self.holders.get(&holder) {
            return Arc::clone(known);
        }
        self.holders.retain(|known| Arc::strong_count(known) > 1);
        let new = Arc::new(holder);
        self.holders.insert(Arc::clone(&new));
        new
    }
}

fn is_fresh(entry: &Entry, now: Millis, bounds: Bounds) -> bool {
    now.saturating_sub(entry.at) < bounds.age
}

fn digest(id: &str) -> Digest {
    let whole = Sha256::digest(id);
    std::array::from_fn(|place| whole[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { max: 3, age: 1_000 };

    fn at(engine: &str) -> Holder {
        Holder { engine: engine.to_owned(), class: "chat".to_owned() }
    }

    fn engine(holders: &Holders, id: &str, now: Millis) -> Option<String> {
        holders.find(id, now, BOUNDS).map(|holder| holder.engine.clone())
    }

    #[test]
    fn the_id_seen_first_makes_room_for_the_newest() {
        let mut holders = Holders::default();
        for (now, id) in ["a", "b", "c"].into_iter().enumerate() {
            holders.note(id, at("e0"), now as Millis, BOUNDS);
        }
        // What is seen again from the same engine keeps its place.
        holders.note("a", at("e0"), 5, BOUNDS);
        holders.note("d", at("e1"), 6, BOUNDS);
        let known = ["a", "b", "c", "d"].map(|id| engine(&holders, id, 7));
        assert_eq!(known, [None, Some("e0".into()), Some("e0".into()), Some("e1".into())]);
        assert_eq!((holders.len(), holders.evicted()), (3, 1));
    }

    #[test]
    fn an_id_is_forgotten_with_its_age_and_removed_by_those_that_follow() {
        let mut holders = Holders::default();
        holders.note("a", at("e0"), 0, BOUNDS);
        holders.note("b", at("e0"), 10, BOUNDS);
        assert_eq!(engine(&holders, "a", 999), Some("e0".into()));
        assert_eq!(engine(&holders, "a", 1_000), None);
        holders.note("c", at("e0"), 1_005, BOUNDS);
        assert_eq!((holders.len(), holders.evicted()), (2, 0));
        // Seen again after its age, it is as new.
        holders.note("b", at("e0"), 1_500, BOUNDS);
        assert_eq!(engine(&holders, "b", 2_400), Some("e0".into()));
    }

    #[test]
    fn the_last_engine_to_answer_with_an_id_holds_it() {
        let mut holders = Holders::default();
        holders.note("a", at("e0"), 0, BOUNDS);
        holders.note("a", at("e1"), 1, BOUNDS);
        assert_eq!(engine(&holders, "a", 2), Some("e1".into()));
        // The place of the first entry goes, and the second stays.
        holders.note("b", at("e0"), 3, BOUNDS);
        holders.note("c", at("e0"), 4, BOUNDS);
        assert_eq!(engine(&holders, "a", 5), Some("e1".into()));
        assert_eq!((holders.len(), holders.evicted()), (3, 0));
    }

    #[test]
    fn ids_that_come_and_go_take_no_more_than_the_bound() {
        let mut holders = Holders::default();
        for n in 0..1_000 {
            let id = n.to_string();
            holders.note(&id, at(&format!("engine-{}", n % 100)), n, BOUNDS);
            assert!(engine(&holders, &id, n).is_some());
            if n % 3 > 0 {
                holders.forget(&id);
                assert_eq!(engine(&holders, &id, n), None);
            }
            assert!(holders.order.len() <= BOUNDS.max && holders.len() <= BOUNDS.max);
            assert!(holders.holders.len() <= BOUNDS.max + 1, "{}", holders.holders.len());
        }
    }

    #[test]
    fn neither_long_ids_nor_any_without_room_are_remembered() {
        let mut holders = Holders::default();
        holders.note(&"x".repeat(ID_BYTES_MAX + 1), at("e0"), 0, BOUNDS);
        holders.note("a", at("e0"), 0, Bounds { max: 0, ..BOUNDS });
        assert_eq!(holders.len(), 0);
        holders.note(&"x".repeat(ID_BYTES_MAX), at("e0"), 0, BOUNDS);
        assert_eq!(holders.len(), 1);
    }
}
