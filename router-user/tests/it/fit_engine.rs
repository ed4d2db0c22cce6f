//! A continuous-batching engine under virtual time, to measure windows of and to know the truth
//! about.

use std::collections::VecDeque;
use std::f64::consts::TAU;

/// Law of an iteration, in ms: constant, per prompt token, per sequence.
const LAW_MS: (f64, f64, f64) = (29.5, 0.065, 0.30);
const BATCH: usize = 128;
const TOKENS_PER_ITERATION: f64 = 2_048.0;
/// Mean lengths; both are exponential.
const PROMPT_TOKENS: f64 = 800.0;
const OUTPUT_TOKENS: f64 = 120.0;

/// Load at which the batch is full, in requests/s: docs/model.md, section 9.
pub(crate) fn capacity_rps() -> f64 {
    let (constant, prompt, sequence) = LAW_MS;
    1e3 / (prompt * PROMPT_TOKENS + OUTPUT_TOKENS * (constant / BATCH as f64 + sequence))
}

/// The same numbers from the same seed (splitmix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// Evenly spread over 0 to 1, both excluded.
    pub(crate) fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.share().ln()
    }

    pub(crate) fn normal(&mut self) -> f64 {
        (-2.0 * self.share().ln()).sqrt() * (TAU * self.share()).cos()
    }
}

/// One window, in the units of a sample file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) load_rps: f64,
    pub(crate) served_rps: f64,
    pub(crate) running: f64,
    pub(crate) waiting: f64,
    pub(crate) ttft_ms: f64,
    pub(crate) tbot_ms: f64,
    pub(crate) e2e_ms: f64,
}

struct Sequence {
    arrived_ms: f64,
    prompt_left: f64,
    output_left: f64,
}

/// Runs the engine at `load_rps` for `warm_s` and then measures for `window_s`.
pub(crate) fn measure(load_rps: f64, warm_s: f64, window_s: f64, dice: &mut Dice) -> Measured {
    let (constant, prompt_ms, sequence_ms) = LAW_MS;
    let (start, end) = (warm_s * 1e3, (warm_s + window_s) * 1e3);
    let gap_ms = 1e3 / load_rps;
    let (mut now, mut next) = (0.0, dice.exponential(gap_ms));
    let (mut queue, mut batch): (VecDeque<Sequence>, Vec<Sequence>) = (VecDeque::new(), Vec::new());
    let mut sums = Measured::default();
    let (mut first, mut tokens, mut ended) = (0.0, 0.0, 0.0);
    while now < end {
        while next <= now {
            let (prompt_left, output_left) = (dice.exponential(PROMPT_TOKENS).ceil(), dice.exponential(OUTPUT_TOKENS).ceil());
            queue.push_back(Sequence { arrived_ms: next, prompt_left, output_left });
            sums.load_rps += f64::from(next >= start);
            next += dice.exponential(gap_ms);
        }
        while batch.len() < BATCH {
            let Some(sequence) = queue.pop_front() else { break };
            batch.push(sequence);
        }
        if batch.is_empty() {
            now = next;
            continue;
        }
        let decoding = batch.iter().filter(|s| s.prompt_left == 0.0).count() as f64;
        let mut budget = TOKENS_PER_ITERATION - decoding;
        let mut read = 0.0;
        let is_reading: Vec<bool> = batch.iter().map(|s| s.prompt_left > 0.0).collect();
        for sequence in batch.iter_mut().filter(|s| s.prompt_left > 0.0) {
            let part = sequence.prompt_left.min(budget);
            sequence.prompt_left -= part;
            budget -= part;
            read += part;
        }
        let length = constant + prompt_ms * read + sequence_ms * batch.len() as f64;
        let before = now;
        now += length;
        // The part of the iteration that lies in the window.
        let inside = (now.min(end) - before.max(start)).max(0.0);
        sums.running += inside * batch.len() as f64;
        sums.waiting += inside * queue.len() as f64;
        let is_inside = now >= start && now < end;
        for (sequence, was_reading) in batch.iter_mut().zip(is_reading) {
            if sequence.prompt_left > 0.0 {
                continue;
            }
            sequence.output_left -= 1.0;
            if is_inside && was_reading {
                sums.ttft_ms += now - sequence.arrived_ms;
                first += 1.0;
            } else if is_inside {
                sums.tbot_ms += length;
                tokens += 1.0;
            }
            if is_inside && sequence.output_left <= 0.0 {
                sums.e2e_ms += now - sequence.arrived_ms;
                ended += 1.0;
            }
        }
        batch.retain(|s| s.prompt_left > 0.0 || s.output_left > 0.0);
    }
    Measured {
        load_rps: sums.load_rps / window_s,
        served_rps: ended / window_s,
        running: sums.running / (window_s * 1e3),
        waiting: sums.waiting / (window_s * 1e3),
        ttft_ms: sums.ttft_ms / f64::max(first, 1.0),
        tbot_ms: sums.tbot_ms / f64::max(tokens, 1.0),
        e2e_ms: sums.e2e_ms / f64::max(ended, 1.0),
    }
}
