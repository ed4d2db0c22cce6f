//! Whether an engine has fallen silent: requests wait, and none of them gets anything. Pure.
//!
//! A frozen engine accepts connections and answers nothing, and each of its requests alone could be
//! a slow one. Together they tell: the chance that a sound engine keeps a request waiting for w,
//! when e is usual, falls as (1 + w/e)^-k, and the chances of several requests multiply. The
//! logarithm of that is the suspicion. A wait counts from the last time that anything came from
//! the engine, whoever got it.

use super::Millis;

/// Suspicion at which an engine has fallen silent: one chance in nine million.
const SILENT_AT: f64 = 16.0;
/// Shortest silence, in ms, that is judged: a pause of an engine delays all of its requests at
/// once, and a long prefill is one.
const SILENCE_MIN_MS: f64 = 1_500.0;
/// Waits of one look that count, the longest ones: they are not independent.
const WAITS_MOST: usize = 8;
/// Tail index k of the time to a first token, and of the time of a whole answer: answers vary far
/// more.
const TAIL_STREAM: f64 = 3.0;
const TAIL_WHOLE: f64 = 1.5;
/// Shortest time that is ever expected, in ms.
const EXPECTED_MIN_MS: f64 = 50.0;
/// Bytes of a request up to which it is as any other, and prefill of each further one, in ms: a
/// prompt of 100,000 tokens takes up to 40 s, and delays what waits beside it.
const USUAL_BYTES: usize = 16 << 10;
const PREFILL_MS_PER_BYTE: f64 = 0.1;

/// A request that waits for the beginning of its answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wait {
    pub since: Millis,
    /// Usual time to what it waits for, in ms.
    pub usual_ms: f64,
    /// It waits for a first token, and not for a whole answer.
    pub is_stream: bool,
    pub bytes: usize,
}

/// The suspicion that `waits` raise against an engine of which something was `heard` last.
pub fn suspicion(waits: impl Iterator<Item = Wait> + Clone, heard: Millis, now: Millis) -> f64 {
    let prefill_ms: f64 = waits.clone().map(|wait| wait.bytes.saturating_sub(USUAL_BYTES) as f64 * PREFILL_MS_PER_BYTE).sum();
    let mut longest = [0.0_f64; WAITS_MOST];
    for wait in waits {
        let waited_ms = now.saturating_sub(wait.since.max(heard)) as f64;
        let tail = if wait.is_stream { TAIL_STREAM } else { TAIL_WHOLE };
        let mut weight = if waited_ms < SILENCE_MIN_MS {
            0.0
        } else {
            tail * (1.0 + waited_ms / (wait.usual_ms.max(EXPECTED_MIN_MS) + prefill_ms)).ln()
        };
        for place in &mut longest {
            if weight > *place {
                std::mem::swap(place, &mut weight);
            }
        }
    }
    longest.iter().sum()
}

/// Whether the suspicion of all workers together is enough.
pub fn is_silent(suspicion: f64) -> bool {
    suspicion >= SILENT_AT
}

/// Longest wait, in ms, of a request that tests an engine: many times the usual, since a sound
/// engine must not fail it.
pub fn test_patience_ms(wait: Wait) -> f64 {
    let times = if wait.is_stream { 5.0 } else { 10.0 };
    let prefill_ms = wait.bytes.saturating_sub(USUAL_BYTES) as f64 * PREFILL_MS_PER_BYTE;
    (times * wait.usual_ms).max(2.0 * SILENCE_MIN_MS) + prefill_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(since: Millis, usual_ms: f64) -> Wait {
        Wait { since, usual_ms, is_stream: true, bytes: 2_000 }
    }

    fn whole(since: Millis, usual_ms: f64) -> Wait {
        Wait { is_stream: false, ..stream(since, usual_ms) }
    }

    /// When an engine that hears nothing more is found to be silent, in ms, if a request comes
    /// every `gap`.
    fn found_after(gap: Millis, wait: impl Fn(Millis) -> Wait) -> Option<Millis> {
        (0..600_000).step_by(100).find(|&now| {
            let waits = (0..=now / gap).map(|nth| wait(nth * gap));
            is_silent(suspicion(waits, 0, now))
        })
    }

    #[test]
    fn a_frozen_engine_is_found_in_seconds_and_with_little_traffic_in_a_minute() {
        for (gap, wait, most) in [
            (50, stream as fn(Millis, f64) -> Wait, 2_500),
            (500, stream, 4_000),
            (5_000, stream, 16_000),
            (50, whole, 5_000),
            (500, whole, 8_000),
            (5_000, whole, 30_000),
        ] {
            let found = found_after(gap, |since| wait(since, 700.0)).expect("found");
            assert!((SILENCE_MIN_MS as Millis..=most).contains(&found), "{found} ms with one request every {gap} ms");
        }
    }

    #[test]
    fn a_sign_of_life_ends_the_suspicion() {
        let waits = || (0..20).map(|nth| stream(100 * nth, 200.0));
        assert!(is_silent(suspicion(waits(), 0, 4_000)));
        assert_eq!(suspicion(waits(), 3_000, 4_000), 0.0);
    }

    #[test]
    fn long_answers_and_long_prompts_are_no_silence() {
        // Two long answers beside each other, thirty times the usual.
        let long = [whole(0, 2_000.0), whole(500, 2_000.0)];
        assert!(!is_silent(suspicion(long.into_iter(), 0, 60_000)));
        // Thirty seconds of prefill, and all that waits behind it.
        let behind =
            std::iter::once(Wait { bytes: 400_000, ..stream(0, 300.0) }).chain((1..40).map(|nth| stream(100 * nth, 300.0)));
        assert!(!is_silent(suspicion(behind, 0, 30_000)));
        // One request alone may take a hundred times the usual.
        assert!(!is_silent(suspicion([stream(0, 300.0)].into_iter(), 0, 30_000)));
        assert_eq!(suspicion(std::iter::empty(), 0, 1_000_000), 0.0);
    }
}
