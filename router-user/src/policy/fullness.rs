//! Whether an engine is full, as its own answers show it. Pure.
//!
//! A planned capacity is a guess until the engine confirms it. An engine is full while the quickest
//! of its last first tokens came later than it should at capacity: with a queue in front of all of
//! them, none can be quick, while a long prompt delays only its own. An engine that refuses a
//! request has said so itself. Anything else, silence included, is no evidence.
//! Source: the minimum over an interval is the signal of CoDel (Nichols & Jacobson, "Controlling
//! Queue Delay", 2012).

use super::Millis;

/// First tokens that one look at an engine takes the quickest of. Too few would be all long prompts
/// too often.
const SAMPLES: u32 = 16;
/// Longest time, in ms, over which they are collected: a queue of half a minute is an old story.
const COLLECT_MAX_MS: Millis = 30_000;
/// Shortest time, in ms, between the first and the last of them: several iterations of an engine,
/// so that one pause is not taken for a queue.
const COLLECT_MIN_MS: Millis = 250;
/// Time, in ms, for which evidence holds: some looks at a busy engine. An engine from which nothing
/// has been heard for longer may have room again.
const EVIDENCE_MS: Millis = 2_000;
/// Time to the first token, as a multiple of the one expected at capacity, up to which an engine is
/// as quick as it should be. Profiles are means, and fit within a fifth or so.
const TOLERANCE: f64 = 1.25;

/// Longest time, in ms, that an answer may take to begin while its engine is not full, if
/// `expected_ms` is what it takes at capacity. `slack_ms` is a wait that nobody minds.
pub fn allowed_ms(expected_ms: f64, slack_ms: f64) -> f64 {
    TOLERANCE * expected_ms + slack_ms
}

/// What the last first tokens of an engine show together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    /// The least delay, as a multiple of what is allowed.
    pub least: f64,
    /// First tokens per second.
    pub rate: f64,
}

/// The evidence about one engine.
#[derive(Clone, Debug, Default)]
pub struct Fullness {
    /// When the first answer of this look came.
    since: Millis,
    count: u32,
    /// The least delay of this look, as a multiple of what is allowed.
    least: f64,
    full_until: Millis,
}

impl Fullness {
    /// Takes the time in which an answer began, as a multiple of [`allowed_ms`]; the look that it
    /// ends.
    pub fn answered(&mut self, now: Millis, delay: f64) -> Option<Look> {
        if self.count == 0 || now.saturating_sub(self.since) > COLLECT_MAX_MS {
            (self.since, self.count, self.least) = (now, 0, f64::INFINITY);
        }
        self.count += 1;
        self.least = self.least.min(delay);
        if self.count < SAMPLES || now.saturating_sub(self.since) < COLLECT_MIN_MS {
            return None;
        }
        self.full_until = if self.least > 1.0 { now + EVIDENCE_MS } else { 0 };
        let look = Look { least: self.least, rate: f64::from(self.count - 1) * 1e3 / now.saturating_sub(self.since) as f64 };
        self.count = 0;
        Some(look)
    }

    /// Takes the engine's own word: it refused a request for want of room.
    pub fn refused(&mut self, now: Millis) {
        self.full_until = now + EVIDENCE_MS;
    }

    /// When the evidence that the engine is full expires; 0 without any.
    pub fn full_until(&self) -> Millis {
        self.full_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One answer every `step` ms from `now` on, with these delays; the time after the last.
    fn answers(fullness: &mut Fullness, now: Millis, step: Millis, delays: &[f64]) -> Millis {
        delays.iter().fold(now, |at, &delay| {
            fullness.answered(at, delay);
            at + step
        })
    }

    #[test]
    fn an_engine_is_full_when_none_of_its_answers_is_quick_and_only_as_long_as_that_is_fresh() {
        let mut fullness = Fullness::default();
        let at = answers(&mut fullness, 1_000, 50, &[1.2; SAMPLES as usize]);
        assert_eq!(fullness.full_until(), at - 50 + EVIDENCE_MS);
        let at = answers(&mut fullness, at, 50, &[0.9; SAMPLES as usize]);
        assert!(fullness.full_until() <= at, "it is quick again");
    }

    #[test]
    fn long_prompts_beside_a_quick_answer_and_few_or_hurried_answers_are_no_evidence() {
        let mut long = [30.0; SAMPLES as usize];
        long[7] = 0.5;
        for (delays, step) in [(&long[..], 50), (&[30.0; 5][..], 50), (&[30.0; 20][..], 1)] {
            let mut fullness = Fullness::default();
            answers(&mut fullness, 1_000, step, delays);
            assert_eq!(fullness.full_until(), 0, "{delays:?}");
        }
    }

    #[test]
    fn old_answers_are_forgotten() {
        let mut fullness = Fullness::default();
        answers(&mut fullness, 0, 50, &[5.0; 15]);
        fullness.answered(COLLECT_MAX_MS + 1_000, 5.0);
        assert_eq!(fullness.full_until(), 0);
    }

    #[test]
    fn an_engine_that_refuses_is_full() {
        let mut fullness = Fullness::default();
        fullness.refused(7_000);
        assert_eq!(fullness.full_until(), 7_000 + EVIDENCE_MS);
    }

    #[test]
    fn what_is_allowed_grows_with_what_is_expected() {
        assert_eq!(allowed_ms(0.0, 100.0), 100.0);
        assert_eq!(allowed_ms(400.0, 100.0), 600.0);
    }
}
