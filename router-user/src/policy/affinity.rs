//! Affinity keys tie a conversation to an engine.
//!
//! A conversation has the same key in every worker, process and version, so the hash is our own: a
//! folded 128-bit multiplication per 8 bytes, then the full mix that [`router_common::slot`] asks
//! for. It does not resist an adversary: a client that can choose session names can also send all
//! requests under one name.

use router_common::slot::mix64;

/// The source of a key. Equal bytes from different sources give different keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Session,
    CacheKey,
    User,
    /// The head of the prompt.
    Prompt,
    /// A client's own key of a request, which ties nothing to an engine.
    Idempotency,
    /// An API key; tells users apart, and ties nothing to an engine.
    Credential,
    /// A client's address, likewise.
    Address,
    /// The name of a class, likewise.
    Class,
}

/// Bytes of a prompt, or of each message, that are hashed: enough to tell system prompts apart, and
/// little work.
pub const HEAD_BYTES: usize = 1024;

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Builds a key from parts. Their order and their borders count.
#[derive(Clone, Copy, Debug)]
pub struct KeyBuilder(u64);

impl KeyBuilder {
    pub fn new(source: Source) -> Self {
        Self(mix64(match source {
            Source::Session => 1,
            Source::CacheKey => 2,
            Source::User => 3,
            Source::Prompt => 4,
            Source::Idempotency => 5,
            Source::Credential => 6,
            Source::Address => 7,
            Source::Class => 8,
        }))
    }

    pub fn absorb(&mut self, part: &[u8]) {
        let mut state = self.0;
        let mut words = part.chunks_exact(8);
        for word in &mut words {
            let word = u64::from_le_bytes(word.try_into().expect("the chunk has 8 bytes"));
            state = fold(state ^ word, MULTIPLIER ^ state.rotate_left(23));
        }
        let mut last = [0u8; 8];
        last[..words.remainder().len()].copy_from_slice(words.remainder());
        self.0 = fold(state ^ u64::from_le_bytes(last), MULTIPLIER ^ state.rotate_left(23)) ^ mix64(part.len() as u64);
    }

    /// The mixed key.
    pub fn finish(self) -> u64 {
        mix64(self.0)
    }
}

/// The mixed key of one part.
pub fn key(source: Source, part: &[u8]) -> u64 {
    let mut key = KeyBuilder::new(source);
    key.absorb(part);
    key.finish()
}

/// Whether a planned shed of `shed_frac` (0 to 1) refuses this key. The same fraction refuses the
/// same keys; a larger one refuses those and more.
pub fn is_shed(key: u64, shed_frac: f64) -> bool {
    // Mixed once more than the slot, so that shedding does not empty the slots of one engine first.
    let place = (mix64(key ^ MULTIPLIER) >> 11) as f64 / (1u64 << 53) as f64;
    place < shed_frac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_sources_parts_and_bytes_apart_and_never_change() {
        let parts = |parts: &[&[u8]]| {
            let mut key = KeyBuilder::new(Source::Session);
            parts.iter().for_each(|p| key.absorb(p));
            key.finish()
        };
        let keys = [
            key(Source::Session, b"a"),
            key(Source::User, b"a"),
            key(Source::Session, b"b"),
            parts(&[b"a", b""]),
            key(Source::Session, b"a\0"),
            parts(&[b"12345678", b"9"]),
            key(Source::Session, b"123456789"),
        ];
        for (i, a) in keys.iter().enumerate() {
            assert!(keys[..i].iter().all(|b| a != b), "key {i} collides");
        }
        // A rolling upgrade must not move sessions, so this value never changes.
        assert_eq!(format!("{:016x}", key(Source::Session, b"session-1")), SESSION_1);
    }

    const SESSION_1: &str = "32a897ea7563cc39";

    #[test]
    fn slots_of_numbered_sessions_spread_evenly() {
        let mut quarters = [0u32; 4];
        for i in 0..40_000 {
            quarters[router_common::slot::slot_of(key(Source::Session, format!("s{i}").as_bytes())) >> 14] += 1;
        }
        // Five standard deviations of a binomial with p = 1/4.
        assert!(quarters.iter().all(|&n| (f64::from(n) - 10_000.0).abs() < 5.0 * 87.0), "{quarters:?}");
    }

    #[test]
    fn shedding_is_sticky_grows_by_inclusion_and_hits_its_fraction() {
        let keys: Vec<u64> = (0..20_000u32).map(|i| key(Source::User, &i.to_le_bytes())).collect();
        let shed = |fraction: f64| keys.iter().map(|&k| is_shed(k, fraction)).collect::<Vec<_>>();
        let (some, more) = (shed(0.1), shed(0.3));
        assert!(some.iter().zip(&more).all(|(&s, &m)| !s || m));
        let share = some.iter().filter(|&&s| s).count() as f64 / keys.len() as f64;
        assert!((share - 0.1).abs() < 0.011, "{share}");
        assert!(shed(0.0).iter().all(|s| !s) && shed(1.0).iter().all(|&s| s));
    }
}
