//! Load curves from timings of single iterations, where nobody measured the engine under load.
//!
//! A benchmark gives the time of one decode iteration over the batch, `d(B)`, and of one prompt,
//! `P`. Prompts interrupt decoding, so at load `L` tokens come every `t = d(B) / (1 - L P)`, and by
//! Little's law the batch is `B = L o t` for outputs of `o` tokens. Hence
//!
//! ```text
//! L    = B / (o d(B) + B P)
//! TBOT = d(B) / (1 - L P)
//! TTFT = P + L P^2 / (2 (1 - L P)) + d(B) / 2
//! ```
//!
//! where TTFT is the prompt itself, the wait for other prompts (Pollaczek and Khinchine, equal
//! lengths) and for the iteration that runs. The largest batch measured bounds the load. The law
//! leaves out the wait for a free place in the batch, and the profile keeps headroom for it. It
//! leaves out whatever the timings lack: scheduling, chunked prompts, long contexts, other kernels.
//! Derived curves are shapes to start from.

use std::fmt::{self, Write};

use thiserror::Error;

use super::report::{Agreement, agreement, violations};
use super::types::{Capacity, CapacitySource, four_digits};
use crate::fit::input::table;
use crate::fit::input::table::{Column, TableErrors};
use crate::fit::regression::convex::{Basis, Fitted, Point, mean};
use crate::model::{Curve, Profile};

/// Share of the law's capacity that goes into the profile. Closer to it requests wait for a place
/// in the batch, which the law leaves out.
const CAPACITY_FRAC: f64 = 0.95;

/// Largest mean difference between timings and their curve, as a share. Timings that differ more
/// follow no convex curve.
const ERROR_MAX_FRAC: f64 = 0.15;

/// Number of points of the law that the curves are fitted to: enough for a smooth curve.
const LAW_POINTS: usize = 200;

/// Columns of a table of timings. A row may time a prompt, an iteration, or both.
const COLUMNS: [Column; 4] = [
    Column { name: "batch", required: true, range: (1.0, 1e6), wanted: "the number of sequences in the batch" },
    Column { name: "prompt_tokens", required: true, range: (1.0, 1e9), wanted: "the length of each prompt in tokens" },
    Column { name: "prefill_ms", required: false, range: (0.0, 1e9), wanted: "the time of all prompts of the batch in ms" },
    Column { name: "iteration_ms", required: false, range: (0.0, 1e9), wanted: "the time of one decode iteration in ms" },
];

/// Timings of iterations, `(batch, ms)`, and of single prompts, `(tokens, ms)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Iterations {
    pub decode: Vec<(f64, f64)>,
    pub prefill: Vec<(f64, f64)>,
}

impl Iterations {
    /// Reads the text of the table `file`.
    ///
    /// Errors: every mistake with its line and column.
    pub fn read(file: &str, text: &str) -> Result<Self, TableErrors> {
        let table = table::read(file, text, &COLUMNS)?;
        let cell = |row: &[Option<f64>], place: usize| row[place];
        let pairs = |x: usize, y: usize, alone: bool| {
            let rows = table.rows.iter().filter(move |row| !alone || row[0] == Some(1.0));
            rows.filter_map(|row| Some((cell(row, x)?, cell(row, y)?))).collect::<Vec<_>>()
        };
        Ok(Self { decode: pairs(0, 3, false), prefill: pairs(1, 2, true) })
    }
}

/// The requests that load curves are for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    pub prompt_tokens: f64,
    /// At least 1.
    pub output_tokens: f64,
    /// Share of prompt tokens found in the prefix cache, 0 to below 1.
    pub prefix_hit_frac: f64,
}

/// Why timings make no curves.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum IterationError {
    #[error("{column} is timed at {distinct} values of {over}, wanted {wanted} at least")]
    TooFew { column: &'static str, over: &'static str, distinct: usize, wanted: usize },
    #[error("{column} is off its curve by {:.1} % on average, wanted {:.0} % at most", 100.0 * error_frac, 100.0 * ERROR_MAX_FRAC)]
    Error { column: &'static str, error_frac: f64 },
    #[error("prompts of {tokens} tokens to compute are outside the timed lengths, {least} to {most}")]
    PromptLength { tokens: f64, least: f64, most: f64 },
}

/// Curves from timings.
#[derive(Clone, Debug, PartialEq)]
pub struct Derived {
    pub capacity: Capacity,
    pub workload: Workload,
    /// Time of an iteration in ms over the batch.
    pub decode: Curve,
    pub decode_points: Vec<(f64, f64)>,
    /// Time of one prompt in ms.
    pub prefill_ms: f64,
    pub in_engine: Curve,
    pub ttft_ms: Curve,
    pub tbot_ms: Curve,
    /// Points of the law, `(load, value)`, for the three curves.
    pub law: [Vec<(f64, f64)>; 3],
    decode_agreement: Agreement,
    prefill_agreement: Agreement,
    decode_violations: (f64, f64),
    largest_batch: f64,
    /// Largest difference between law and curve, as a share.
    bend_frac: f64,
}

/// Derives load curves for `workload`.
///
/// Errors: timings that are too few, that no convex curve describes, or that do not reach the
/// prompt length.
pub fn derive(iterations: &Iterations, workload: Workload) -> Result<Derived, IterationError> {
    let (decode, decode_agreement) = timing(&iterations.decode, ("iteration_ms", "batch", 4))?;
    let (prefill, prefill_agreement) = timing(&iterations.prefill, ("prefill_ms", "prompt_tokens, alone in the batch,", 3))?;
    let tokens = workload.prompt_tokens * (1.0 - workload.prefix_hit_frac);
    let range = |pairs: &[(f64, f64)]| pairs.iter().fold((f64::MAX, 0.0_f64), |(a, b), p| (a.min(p.0), b.max(p.0)));
    let (least, most) = range(&iterations.prefill);
    if !(least..=most).contains(&tokens) {
        return Err(IterationError::PromptLength { tokens, least, most });
    }
    let prefill_ms = prefill.value(tokens);
    let largest_batch = range(&iterations.decode).1;
    let decode_curve = decode.curve();
    let load = |batch: f64| batch / (workload.output_tokens * decode_curve.value(batch) + batch * prefill_ms);
    let capacity = CAPACITY_FRAC * load(largest_batch) * 1e3;
    let mut law: [Vec<(f64, f64)>; 3] = Default::default();
    for step in 1..=LAW_POINTS {
        let batch = largest_batch * step as f64 / LAW_POINTS as f64;
        let per_ms = load(batch);
        let iteration = decode_curve.value(batch);
        let busy = per_ms * prefill_ms;
        let tbot = iteration / (1.0 - busy);
        let ttft = prefill_ms + busy * prefill_ms / (2.0 * (1.0 - busy)) + iteration / 2.0;
        for (points, value) in law.iter_mut().zip([batch + per_ms * ttft, ttft, tbot]) {
            points.push((per_ms * 1e3, value));
        }
    }
    let capacity = Capacity { rps: four_digits(capacity, f64::floor), source: CapacitySource::IterationLaw };
    let mut bend_frac = 0.0_f64;
    let mut curve = |points: &[(f64, f64)], intercept: bool| {
        let points: Vec<Point> =
            points.iter().filter(|p| p.0 <= capacity.rps).map(|&(load, value)| Point { load, value }).collect();
        let curve = mean(&points, &Basis::new(&points, capacity.rps, intercept)).fitted.curve();
        bend_frac = points.iter().map(|p| (curve.value(p.load) / p.value - 1.0).abs()).fold(bend_frac, f64::max);
        curve
    };
    let (in_engine, ttft_ms, tbot_ms) = (curve(&law[0], false), curve(&law[1], true), curve(&law[2], true));
    Ok(Derived {
        capacity,
        workload,
        decode: decode_curve,
        decode_points: iterations.decode.clone(),
        prefill_ms,
        in_engine,
        ttft_ms,
        tbot_ms,
        law,
        decode_agreement,
        prefill_agreement,
        decode_violations: violations(&points(&iterations.decode)),
        largest_batch,
        bend_frac,
    })
}

fn points(pairs: &[(f64, f64)]) -> Vec<Point> {
    pairs.iter().map(|&(load, value)| Point { load, value }).collect()
}

/// A convex curve through timings that are at `wanted` different places at least.
fn timing(
    pairs: &[(f64, f64)],
    (column, over, wanted): (&'static str, &'static str, usize),
) -> Result<(Fitted, Agreement), IterationError> {
    let mut places: Vec<f64> = pairs.iter().map(|p| p.0).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    if places.len() < wanted {
        return Err(IterationError::TooFew { column, over, distinct: places.len(), wanted });
    }
    let points = points(pairs);
    let largest = places[places.len() - 1];
    let fitted = mean(&points, &Basis::at(&places, true)).fitted;
    let agreement = agreement(&points, &fitted.curve(), (0.0, largest));
    match agreement.error_frac.filter(|error| *error > ERROR_MAX_FRAC) {
        Some(error_frac) => Err(IterationError::Error { column, error_frac }),
        None => Ok((fitted, agreement)),
    }
}

impl Derived {
    pub fn profile(&self, name: &str) -> Profile {
        Profile {
            name: name.to_owned(),
            capacity_rps: self.capacity.rps,
            ttft_ms: self.ttft_ms.clone(),
            tbot_ms: self.tbot_ms.clone(),
            law: None,
            kv_tokens: None,
        }
    }
}

impl fmt::Display for Derived {
    /// Lines without a line break at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Workload { prompt_tokens, output_tokens, prefix_hit_frac } = self.workload;
        let percent = |share: Option<f64>| share.map_or(0.0, |share| 100.0 * share);
        writeln!(f, "DERIVED, not measured under load: iteration timings and the iteration law (docs/model.md, section 9)")?;
        writeln!(
            f,
            "requests: {prompt_tokens} prompt tokens, {output_tokens} output tokens, {:.0} % prefix hits",
            100.0 * prefix_hit_frac
        )?;
        writeln!(
            f,
            "capacity: {} requests/s, {:.0} % of the law's at the largest batch timed, {}",
            self.capacity.rps,
            100.0 * CAPACITY_FRAC,
            self.largest_batch
        )?;
        let mut line = String::new();
        for (name, agreement) in [("iteration", self.decode_agreement), ("prompt", self.prefill_agreement)] {
            let (n, error) = (agreement.points, percent(agreement.error_frac));
            write!(line, "{name} timings: {n}, error {error:.1} %, R2 {:.3}; ", agreement.r2.unwrap_or(1.0))?;
        }
        writeln!(f, "{}", line.trim_end_matches("; "))?;
        let (fall, bulge) = self.decode_violations;
        writeln!(f, "before the fit, iteration timings fall by {:.1} % and bulge by {:.1} %", 100.0 * fall, 100.0 * bulge)?;
        writeln!(
            f,
            "one prompt: {:.1} ms; iteration over batch, ms: {}",
            self.prefill_ms,
            super::profile_text::knots(&self.decode)
        )?;
        write!(f, "largest difference between law and curves: {:.1} %", 100.0 * self.bend_frac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Workload = Workload { prompt_tokens: 1_000.0, output_tokens: 200.0, prefix_hit_frac: 0.0 };

    fn affine() -> Iterations {
        let decode = [1.0, 2.0, 8.0, 16.0, 32.0, 64.0].map(|b| (b, 30.0 + 0.3 * b)).to_vec();
        let prefill = [128.0, 512.0, 1_024.0, 4_096.0].map(|p| (p, 0.065 * p)).to_vec();
        Iterations { decode, prefill }
    }

    #[test]
    fn an_affine_law_gives_the_closed_form() {
        let derived = derive(&affine(), WORK).expect("curves");
        // t = a / (1 - L (b p + c o)), and the capacity where the batch is full.
        let work_s = 0.065 + 200.0 * (0.030 / 64.0 + 0.000_3);
        assert!((derived.capacity.rps / (0.95 / work_s) - 1.0).abs() < 2e-3, "{} of {}", derived.capacity.rps, 1.0 / work_s);
        for share in [0.1, 0.5, 0.9, 1.0] {
            let load = share * derived.capacity.rps;
            let wanted = 30.0 / (1.0 - load * (0.065 + 200.0 * 0.000_3));
            let value = derived.tbot_ms.value(load);
            assert!((value / wanted - 1.0).abs() < 0.01, "{value} at {load}, wanted {wanted}");
        }
    }

    #[test]
    fn timings_that_tell_nothing_are_refused() {
        let check = |iterations: &Iterations, work: Workload, wanted: &str| {
            let error = derive(iterations, work).expect_err(wanted).to_string();
            assert!(error.contains(wanted), "{error:?} lacks {wanted:?}");
        };
        let few = Iterations { decode: vec![(1.0, 30.0); 9], ..affine() };
        check(&few, WORK, "iteration_ms is timed at 1 values of batch, wanted 4");
        check(&Iterations { prefill: vec![], ..affine() }, WORK, "prefill_ms is timed at 0 values");
        check(
            &affine(),
            Workload { prompt_tokens: 9_000.0, ..WORK },
            "9000 tokens to compute are outside the timed lengths, 128 to 4096",
        );
        let falling = Iterations { decode: [(1.0, 90.0), (8.0, 60.0), (32.0, 40.0), (64.0, 20.0)].to_vec(), ..affine() };
        check(&falling, WORK, "iteration_ms is off its curve by");
    }

    #[test]
    fn a_table_may_leave_out_what_it_did_not_time() {
        let text = "batch,prompt_tokens,prefill_ms,iteration_ms\n1,128,20,30\n8,512,,33\n8,512,90,\n";
        let iterations = Iterations::read("t.csv", text).expect("a table");
        assert_eq!(iterations, Iterations { decode: vec![(1.0, 30.0), (8.0, 33.0)], prefill: vec![(128.0, 20.0)] });
        assert!(Iterations::read("t.csv", "batch\n1\n").is_err());
    }
}
