//! Tells requests that their clients send again after a failure from new ones.
//!
//! A client's own retries are load that failures have made. They earn no credit for retries of
//! ours, or a storm of theirs would pay for one of ours.

use router_common::slot::mix64;

use super::Millis;

/// Failed requests that are remembered; a power of two. A failure beyond them takes the place of
/// an older one. 8,192 are 128 KiB, and several seconds of failures of a busy data plane.
const PLACES: usize = 8_192;
/// Time in which a request that comes back is one that failed, in ms: above the 60 s that the usual
/// client libraries wait at most, as `Retry-After` asks for.
const WINDOW_MS: Millis = 75_000;
/// Bytes of a body that are read at either end. Requests of one client that agree there and in
/// length are one request; a conversation grows at its end.
const END_BYTES: usize = 32 << 10;

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The requests that have failed lately, by their digests.
#[derive(Debug)]
pub struct Failures {
    places: Box<[(u64, Millis)]>,
}

impl Default for Failures {
    fn default() -> Self {
        Self { places: vec![(0, 0); PLACES].into_boxed_slice() }
    }
}

impl Failures {
    /// Remembers that a request was not served.
    pub fn note(&mut self, digest: u64, now: Millis) {
        self.places[digest as usize % PLACES] = (digest, now.saturating_add(WINDOW_MS));
    }

    /// Whether a request is one that was not served lately. A failure excuses one request.
    pub fn take(&mut self, digest: u64, now: Millis) -> bool {
        let place = &mut self.places[digest as usize % PLACES];
        let is_known = place.0 == digest && now < place.1;
        if is_known {
            *place = (0, 0);
        }
        is_known
    }

    /// Until when failures are remembered that were noted at `at`.
    pub fn until(at: Millis) -> Millis {
        at.saturating_add(WINDOW_MS)
    }
}

/// The digest of a request by its parts, such as the client's address, the target and the body.
/// Their order and their borders count. `key` is secret, so that nobody can make two that agree.
pub fn digest(key: u64, parts: &[&[u8]]) -> u64 {
    parts.iter().fold(key, |state, part| {
        let (front, back) = part.split_at(part.len().min(END_BYTES));
        let back = &back[back.len().saturating_sub(END_BYTES)..];
        mix64(absorb(absorb(state, front), back) ^ part.len() as u64)
    })
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Mixes bytes into a state: four lanes, so that their multiplications overlap.
fn absorb(state: u64, bytes: &[u8]) -> u64 {
    let word = |chunk: &[u8], at: usize| u64::from_le_bytes(chunk[at..at + 8].try_into().expect("the chunk has 32 bytes"));
    let mut lanes = [1, 2, 3, 4].map(|lane| mix64(state.wrapping_add(lane)));
    let mut chunks = bytes.chunks_exact(32);
    for chunk in &mut chunks {
        for (place, lane) in lanes.iter_mut().enumerate() {
            *lane = fold(*lane ^ word(chunk, 8 * place), MULTIPLIER ^ lane.rotate_left(23));
        }
    }
    let mut last = [0u8; 32];
    last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    (lanes.iter().enumerate())
        .fold(state, |all, (place, lane)| fold(all ^ lane ^ word(&last, 8 * place), MULTIPLIER ^ all.rotate_left(23)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_tell_parts_borders_places_and_keys_apart() {
        let long: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
        let changed = |at: usize| {
            let mut body = long.clone();
            body[at] ^= 1;
            digest(1, &[&body])
        };
        let mut digests = vec![
            digest(1, &[b"ab", b"c"]),
            digest(1, &[b"a", b"bc"]),
            digest(1, &[b"abc"]),
            digest(1, &[b"abc", b""]),
            digest(1, &[b"abc\0"]),
            digest(2, &[b"abc"]),
            digest(1, &[&long]),
            digest(1, &[&long[1..]]),
        ];
        digests.extend([0, 31, 32, END_BYTES - 1, long.len() - END_BYTES, long.len() - 33, long.len() - 1].map(changed));
        // Each lane, and each place of the last piece.
        digests.extend((0..64).map(|length| digest(1, &[&long[..length]])));
        for (i, a) in digests.iter().enumerate() {
            assert!(digests[..i].iter().all(|b| a != b), "digest {i} collides");
        }
        assert_eq!(digest(1, &[&long]), digest(1, &[&long.clone()]));
    }

    #[test]
    fn a_failure_excuses_one_request_within_the_window() {
        let mut failures = Failures::default();
        let request = digest(1, &[b"body"]);
        assert!(!failures.take(request, 0));
        failures.note(request, 1000);
        assert!(failures.take(request, 2000));
        assert!(!failures.take(request, 2000));
        failures.note(request, 1000);
        assert!(!failures.take(request, Failures::until(1000)));
        assert!(!failures.take(digest(1, &[b"another"]), 1000));
    }

    #[test]
    fn failures_are_bounded_and_most_of_a_burst_are_known() {
        let mut failures = Failures::default();
        let burst: Vec<u64> = (0..1000u32).map(|n| digest(7, &[&n.to_le_bytes()])).collect();
        burst.iter().for_each(|&request| failures.note(request, 0));
        let known = burst.iter().filter(|&&request| failures.take(request, 1)).count();
        assert!(known > 900, "{known} of 1000");
        (0..100_000u32).for_each(|n| failures.note(digest(7, &[&n.to_le_bytes()]), 0));
        assert_eq!(failures.places.len(), PLACES);
    }
}
