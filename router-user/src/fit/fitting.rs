//! From windows to curves: capacity, choice of windows, mean and quantiles, report.

use thiserror::Error;

use super::profile_text::knots;
use super::report::{self, COVERAGE_MIN_FRAC, CurveReport, Refusal, Report, WINDOWS_MIN};
use super::types::{BANDS, Capacity, CapacitySource, Quantity, four_digits};
use super::units;
use crate::fit::input::samples::{Dropped, Samples, Window, saturated, sort_out};
use crate::fit::regression::convex::{Basis, Mean, Point, floor, mean};
use crate::fit::regression::prior::Prior;
use crate::fit::regression::quantile::{QuantileError, quantile};
use crate::model::{Curve, Profile};
use crate::numeric::median;

/// Parts of the windows, interleaved in order of load. Each part is held out in turn where the file
/// spans less than two days: five leave four fifths to fit on.
const HELD_OUT_FOLDS: usize = 5;

/// Seconds of a day.
const DAY_S: f64 = 86_400.0;

/// The user's choices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    pub capacity_rps: Option<f64>,
    /// Share of windows below the upper quantile; the lower one mirrors it. Between 0.5 and 1.
    pub quantile: f64,
    /// Whether physics may fill the loads above what was measured, where that is too little.
    pub prior: bool,
}

/// One quantity over load.
#[derive(Clone, Debug, PartialEq)]
pub struct FittedCurve {
    pub quantity: Quantity,
    pub mean: Curve,
    pub low: Curve,
    pub high: Curve,
    /// The windows that were fitted, `(load, value)`.
    pub points: Vec<(f64, f64)>,
    /// The windows that were left out, `(load, value)`.
    pub dropped: Vec<(f64, f64)>,
}

/// A fit, good or not: see [`Report::refusals`].
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    pub capacity: Capacity,
    /// Requests in the engine, TTFT, TBOT.
    pub curves: [FittedCurve; 3],
    pub quantile: f64,
    pub report: Report,
}

impl Fit {
    /// The profile that the curves make.
    pub fn profile(&self, name: &str) -> Profile {
        let [_, ttft, tbot] = &self.curves;
        Profile {
            name: name.to_owned(),
            capacity_rps: self.capacity.rps,
            ttft_ms: ttft.mean.clone(),
            tbot_ms: tbot.mean.clone(),
            law: None,
            kv_tokens: None,
        }
    }

    /// Mean requests in the engine over load, as knots, for the comment above a profile.
    pub fn in_engine_text(&self) -> String {
        knots(&self.curves[0].mean)
    }
}

/// Why there is no fit to judge.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum FitError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Quantile(#[from] QuantileError),
}

/// Fits the curves of one engine kind.
///
/// Errors: too few windows, a frozen column, columns that contradict each other, or the solver of
/// the quantiles. Other reasons against a fit are in its report. Source: docs/model.md, section 9.
pub fn fit(samples: &Samples, options: &Options) -> Result<Fit, FitError> {
    let windows = &samples.windows;
    let busy: Vec<&Window> = windows.iter().filter(|w| w.load_rps > 0.0).collect();
    if busy.len() >= WINDOWS_MIN {
        report::frozen(&busy).map_or(Ok(()), Err)?;
        units::check(&busy)?;
    }
    let given = options.capacity_rps.map(|rps| Capacity { rps, source: CapacitySource::Given });
    let known = given.or_else(|| saturation(windows));
    let drops = sort_out(windows, known.map(|c| c.rps));
    let (used, dropped): (Vec<_>, Vec<_>) = windows.iter().zip(&drops).partition(|(_, drop)| drop.is_none());
    let [used, dropped] = [used, dropped].map(|part| part.into_iter().map(|(window, _)| window).collect::<Vec<_>>());
    let [idle, changing, saturated] = [Dropped::Idle, Dropped::Changing, Dropped::Saturated]
        .map(|reason| drops.iter().filter(|drop| **drop == Some(reason)).count());
    if used.len() < WINDOWS_MIN {
        return Err(Refusal::TooFew { used: used.len(), read: windows.len(), idle, changing, saturated }.into());
    }
    if let Some(refusal) = report::frozen(&used) {
        return Err(refusal.into());
    }
    let mut loads: Vec<f64> = used.iter().map(|w| w.load_rps).collect();
    loads.sort_by(f64::total_cmp);
    let largest = loads[loads.len() - 1];
    let largest_load = || Capacity { rps: four_digits(largest, f64::ceil), source: CapacitySource::LargestLoad };
    let capacity = known.unwrap_or_else(largest_load);
    let wants_prior = options.prior && largest < COVERAGE_MIN_FRAC * capacity.rps;
    let tasks = tasks(&used, capacity.rps, wants_prior.then_some(largest));
    let mut curves = Vec::new();
    for task in &tasks {
        let mut curve = task.curve(options.quantile)?;
        curve.dropped = dropped.iter().map(|w| (w.load_rps, task.quantity.of(w))).collect();
        curves.push(curve);
    }
    let curves: [FittedCurve; 3] = curves.try_into().expect("three quantities give three curves");
    let report = Report {
        read: windows.len(),
        used: used.len(),
        idle,
        changing,
        saturated,
        capacity,
        loads_rps: (loads[0], loads[(loads.len() - 1) * 95 / 100], largest),
        prior_above_rps: wants_prior.then_some(largest),
        curves: tasks.iter().zip(&curves).map(|(task, curve)| task.report(&curve.mean, &used)).collect(),
        gauges_off_frac: report::gauges_off(&used),
        growth: growth(&curves, largest),
        prefix_hit_frac: range(used.iter().filter_map(|w| w.prefix_hit_frac)),
        newest_s: used.iter().map(|w| w.time_s).fold(0.0, f64::max),
    };
    Ok(Fit { capacity, curves, quantile: options.quantile, report })
}

/// The curves to fit, with physics above `prior_above_rps`.
fn tasks(windows: &[&Window], capacity: f64, prior_above_rps: Option<f64>) -> [Task; 3] {
    let quantities = [Quantity::InEngine, Quantity::Ttft, Quantity::Tbot];
    let [in_engine, ttft, tbot] = quantities.map(|quantity| points(windows, quantity));
    let prior = prior_above_rps.map(|known| Prior::new(&in_engine, &ttft, &tbot, known, capacity));
    let [prior_in_engine, prior_ttft, prior_tbot] =
        prior.map_or_else(Default::default, |prior| [prior.in_engine, prior.ttft, prior.tbot]);
    [
        Task { quantity: Quantity::InEngine, measured: in_engine, prior: prior_in_engine, capacity },
        Task { quantity: Quantity::Ttft, measured: ttft, prior: prior_ttft, capacity },
        Task { quantity: Quantity::Tbot, measured: tbot, prior: prior_tbot, capacity },
    ]
}

/// Time in the engine, and TTFT, at the load `largest` over those without load.
fn growth([in_engine, ttft, _]: &[FittedCurve; 3], largest: f64) -> (f64, f64) {
    // Requests in the engine per load are the time in it, and their slope at no load is the time
    // without load.
    let stay = in_engine.mean.value(largest) / largest / in_engine.mean.slope(0.0);
    (stay, ttft.mean.value(largest) / ttft.mean.value(0.0))
}

/// Smallest and largest of `values`.
fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| {
        let (least, most) = range.unwrap_or((value, value));
        Some((least.min(value), most.max(value)))
    })
}

/// The capacity that saturated windows show: the rate at which they served.
fn saturation(windows: &[Window]) -> Option<Capacity> {
    let full = windows.iter().zip(saturated(windows)).filter(|(window, is_saturated)| *is_saturated && window.load_rps > 0.0);
    let rps = median(full.filter_map(|(window, _)| window.served_rps)).filter(|rps| *rps > 0.0);
    rps.map(|rps| Capacity { rps: four_digits(rps, f64::floor), source: CapacitySource::Saturation })
}

fn points(windows: &[&Window], quantity: Quantity) -> Vec<Point> {
    windows.iter().map(|w| Point { load: w.load_rps, value: quantity.of(w) }).collect()
}

/// One curve to fit.
struct Task {
    quantity: Quantity,
    measured: Vec<Point>,
    prior: Vec<Point>,
    capacity: f64,
}

impl Task {
    fn mean(&self, measured: &[Point]) -> (Mean, Basis, Vec<Point>) {
        let points: Vec<Point> = measured.iter().chain(&self.prior).copied().collect();
        // An engine without load holds no request, but has a latency.
        let basis = Basis::new(&points, self.capacity, self.quantity != Quantity::InEngine).with_smooth();
        (mean(&points, &basis), basis, points)
    }

    fn curve(&self, share: f64) -> Result<FittedCurve, QuantileError> {
        let (mean, basis, points) = self.mean(&self.measured);
        let floor = floor(&points);
        let scales: Vec<f64> = points.iter().map(|p| mean.fitted.value(p.load).max(floor).powf(-mean.power / 2.0)).collect();
        let curve = |share| Ok(quantile(&points, &scales, &basis, share)?.curve());
        let points = self.measured.iter().map(|p| (p.load, p.value)).collect();
        let (low, high) = (curve(1.0 - share)?, curve(share)?);
        Ok(FittedCurve { quantity: self.quantity, mean: mean.fitted.curve(), low, high, points, dropped: Vec::new() })
    }

    fn report(&self, curve: &Curve, windows: &[&Window]) -> CurveReport {
        let band =
            |(low, high): (f64, f64)| report::agreement(&self.measured, curve, (low * self.capacity, high * self.capacity));
        let (fall_frac, bulge_frac) = report::violations(&self.measured);
        CurveReport {
            quantity: self.quantity,
            all: band((0.0, 1.0)),
            bands: BANDS.map(band),
            fall_frac,
            bulge_frac,
            held_out_frac: self.held_out(windows),
        }
    }

    /// Mean error on windows left out of the fit: the last day, if the file spans two, or every
    /// fifth in turn.
    fn held_out(&self, windows: &[&Window]) -> f64 {
        let first = windows.iter().map(|w| w.time_s).fold(f64::MAX, f64::min);
        let last = windows.iter().map(|w| w.time_s).fold(0.0, f64::max);
        let mut by_load: Vec<usize> = (0..windows.len()).collect();
        by_load.sort_by(|&a, &b| windows[a].load_rps.total_cmp(&windows[b].load_rps));
        let folds: Vec<Vec<usize>> = if last - first >= 2.0 * DAY_S {
            vec![(0..windows.len()).filter(|&i| windows[i].time_s > last - DAY_S).collect()]
        } else {
            (0..HELD_OUT_FOLDS).map(|fold| by_load.iter().copied().skip(fold).step_by(HELD_OUT_FOLDS).collect()).collect()
        };
        let mut errors = Vec::new();
        for fold in folds {
            let mut is_held = vec![false; windows.len()];
            fold.iter().for_each(|&i| is_held[i] = true);
            let rest: Vec<Point> = self.measured.iter().zip(&is_held).filter(|(_, held)| !**held).map(|(p, _)| *p).collect();
            if rest.is_empty() {
                continue;
            }
            let curve = self.mean(&rest).0.fitted.curve();
            let held = fold.iter().map(|&i| self.measured[i]).filter(|p| p.value > 0.0);
            errors.extend(held.map(|p| (p.value - curve.value(p.load)).abs() / p.value));
        }
        errors.iter().sum::<f64>() / errors.len().max(1) as f64
    }
}
