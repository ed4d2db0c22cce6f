//! How good a fit is, in figures, and the bounds beyond which it is refused.

use std::fmt;

use thiserror::Error;

use super::types::{BANDS, Capacity, CapacitySource, Quantity};
use crate::fit::input::samples::Window;
use crate::fit::regression::convex::Point;
use crate::model::Curve;

/// Fewest steady windows: with fewer, noise cannot be told from a curve.
pub(super) const WINDOWS_MIN: usize = 12;

/// Share of capacity that the measured loads must reach. Below it, `--prior` lets physics fill the
/// gap.
pub(super) const COVERAGE_MIN_FRAC: f64 = 0.7;

/// Fewest windows below half of capacity. Most engines have little load most of the time, and
/// without such windows their latency is a guess.
const LOW_WINDOWS_MIN: usize = 3;

/// Largest mean error in the highest band of load that was measured. Plans are decided there: a
/// curve that is further off there is refused.
const TOP_ERROR_MAX_FRAC: f64 = 0.15;

/// Time in the engine at the largest load over that without load, below which the largest load is
/// not taken for the capacity. An engine that shares itself among its requests takes `1 / (1 -
/// utilisation)` times as long: below twice, less than half of it is in use.
const STAY_GROWTH_MIN: f64 = 2.0;

/// The same for TTFT: an engine of few places is full, and its requests wait, long before it gets
/// slower.
const TTFT_GROWTH_MIN: f64 = 4.0;

/// Why a fit must not be used.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Refusal {
    #[error(
        "{used} steady windows are left of {read} ({idle} are idle, {changing} changing, {saturated} saturated), wanted {WINDOWS_MIN} at least"
    )]
    TooFew { used: usize, read: usize, idle: usize, changing: usize, saturated: usize },
    #[error("{column} is {value} in all {windows} windows: a counter that stands still, not a measurement")]
    Frozen { column: &'static str, value: f64, windows: usize },
    #[error(
        "the largest steady load, {largest_rps:.4} requests/s, is {:.0} % of the capacity {capacity_rps}, wanted {:.0} % at least: measure higher loads, or let physics fill the gap with --prior",
        100.0 * largest_rps / capacity_rps,
        100.0 * COVERAGE_MIN_FRAC
    )]
    Coverage { largest_rps: f64, capacity_rps: f64 },
    #[error(
        "{low} of {used} windows are below half of the capacity {capacity_rps}, wanted {LOW_WINDOWS_MIN} at least: measure lower loads too"
    )]
    Spread { low: usize, used: usize, capacity_rps: f64 },
    #[error(
        "the {quantity} curve is off by {:.1} % on average in the band of {:.0} to {:.0} % of capacity, wanted {:.0} % at most: use longer windows, or see whether something other than load changes it",
        100.0 * error_frac,
        100.0 * band.0,
        100.0 * band.1,
        100.0 * TOP_ERROR_MAX_FRAC
    )]
    TopBand { quantity: Quantity, error_frac: f64, band: (f64, f64) },
    #[error(
        "at the largest load, {largest_rps:.4} requests/s, requests take {growth:.1} times as long as without load, wanted {STAY_GROWTH_MIN} at least, as no window is saturated: less than half of the engine was in use, and the file does not show its capacity; measure higher loads, or give --capacity-rps"
    )]
    HalfEmpty { largest_rps: f64, growth: f64 },
    #[error("the columns contradict each other: {contradiction}{}", remedy_text(remedy.as_deref()))]
    Units { contradiction: String, remedy: Option<String> },
}

fn remedy_text(remedy: Option<&str>) -> String {
    match remedy {
        Some(units) => format!("; they agree if the file has {units}: convert it, and give times in ms and rates per second"),
        None => "; one of them is not what its name says".to_owned(),
    }
}

/// Agreement of points and curve within a band of load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    pub points: usize,
    /// Share of the variance that the curve explains; `None` without variance.
    pub r2: Option<f64>,
    /// Mean of |measured - curve| / measured; `None` without points.
    pub error_frac: Option<f64>,
}

/// How good one curve is.
#[derive(Clone, Debug, PartialEq)]
pub struct CurveReport {
    pub quantity: Quantity,
    pub all: Agreement,
    /// By [`BANDS`].
    pub bands: [Agreement; 3],
    /// Largest fall from one of ten groups of points to the next in order of load, by their means,
    /// as a share of the mean before it. The curve cannot fall.
    pub fall_frac: f64,
    /// Largest rise of a group's mean above the line through its neighbours, as a share of it. The
    /// curve is convex.
    pub bulge_frac: f64,
    /// Mean error on windows that the curve was not fitted on.
    pub held_out_frac: f64,
}

/// How good a fit is.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub read: usize,
    pub used: usize,
    pub idle: usize,
    pub changing: usize,
    pub saturated: usize,
    pub capacity: Capacity,
    /// Smallest, 95th percentile and largest steady load, in requests/s.
    pub loads_rps: (f64, f64, f64),
    /// Load above which the curves come from physics alone.
    pub prior_above_rps: Option<f64>,
    pub curves: Vec<CurveReport>,
    /// Requests in the engine by its gauges over those by Little's law, less 1, over all windows.
    /// `None` where the file has no time in the engine, and the gauges stand alone.
    pub gauges_off_frac: Option<f64>,
    /// Time in the engine, and TTFT, at the largest load over those without load, by the fitted
    /// curves.
    pub growth: (f64, f64),
    pub prefix_hit_frac: Option<(f64, f64)>,
    /// Start of the newest window, as in the file.
    pub newest_s: f64,
}

impl Report {
    /// All reasons against the fit.
    pub fn refusals(&self) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        let capacity_rps = self.capacity.rps;
        if self.loads_rps.2 < COVERAGE_MIN_FRAC * capacity_rps && self.prior_above_rps.is_none() {
            refusals.push(Refusal::Coverage { largest_rps: self.loads_rps.2, capacity_rps });
        }
        let low = self.curves.iter().map(|curve| curve.bands[0].points).min().unwrap_or(0);
        if low < LOW_WINDOWS_MIN {
            refusals.push(Refusal::Spread { low, used: self.used, capacity_rps });
        }
        for curve in &self.curves {
            let top = BANDS.into_iter().zip(curve.bands).rev().find_map(|(band, agreement)| Some((band, agreement.error_frac?)));
            if let Some((band, error_frac)) = top.filter(|(_, error)| *error > TOP_ERROR_MAX_FRAC) {
                refusals.push(Refusal::TopBand { quantity: curve.quantity, error_frac, band });
            }
        }
        let (growth, ttft_growth) = self.growth;
        let is_half_empty = growth < STAY_GROWTH_MIN && ttft_growth < TTFT_GROWTH_MIN;
        if self.capacity.source == CapacitySource::LargestLoad && is_half_empty {
            refusals.push(Refusal::HalfEmpty { largest_rps: self.loads_rps.2, growth });
        }
        refusals
    }
}

/// Agreement of the points with `lower < load <= upper`.
pub(super) fn agreement(points: &[Point], curve: &Curve, (lower, upper): (f64, f64)) -> Agreement {
    let points: Vec<&Point> = points.iter().filter(|p| lower < p.load && p.load <= upper).collect();
    let mean = points.iter().map(|p| p.value).sum::<f64>() / points.len() as f64;
    let total: f64 = points.iter().map(|p| (p.value - mean).powi(2)).sum();
    let left: f64 = points.iter().map(|p| (p.value - curve.value(p.load)).powi(2)).sum();
    let errors: Vec<f64> =
        points.iter().filter(|p| p.value > 0.0).map(|p| (p.value - curve.value(p.load)).abs() / p.value).collect();
    let error_frac = (!errors.is_empty()).then(|| errors.iter().sum::<f64>() / errors.len() as f64);
    Agreement { points: points.len(), r2: (total > 0.0).then(|| 1.0 - left / total), error_frac }
}

/// How far points are from rising, and from rising ever faster: [`CurveReport::fall_frac`] and
/// [`CurveReport::bulge_frac`].
pub(super) fn violations(points: &[Point]) -> (f64, f64) {
    const GROUPS: usize = 10;
    let mut points = points.to_vec();
    points.sort_by(|a, b| a.load.total_cmp(&b.load));
    let means: Vec<Point> = (points.chunks(points.len().div_ceil(GROUPS).max(1)))
        .map(|group| {
            let mean = |of: fn(&Point) -> f64| group.iter().map(of).sum::<f64>() / group.len() as f64;
            Point { load: mean(|p| p.load), value: mean(|p| p.value) }
        })
        .filter(|p| p.value > 0.0)
        .collect();
    let fall = means.windows(2).map(|m| (m[0].value - m[1].value) / m[0].value).fold(0.0, f64::max);
    let bulges = means.windows(3).filter(|m| m[2].load > m[0].load).map(|m| {
        let line = m[0].value + (m[2].value - m[0].value) * (m[1].load - m[0].load) / (m[2].load - m[0].load);
        (m[1].value - line) / m[1].value
    });
    (fall, bulges.fold(0.0, f64::max))
}

/// [`Report::gauges_off_frac`].
pub(super) fn gauges_off(windows: &[&Window]) -> Option<f64> {
    let known = windows.iter().filter_map(|w| Some((w.gauges, w.little()?)));
    let (gauges, law) = known.fold((0.0, 0.0), |(a, b), (gauges, law)| (a + gauges, b + law));
    (law > 0.0).then(|| gauges / law - 1.0)
}

/// The refusal for a column with the same value in every window, if there is one.
pub(super) fn frozen(windows: &[&Window]) -> Option<Refusal> {
    type Column = (&'static str, fn(&Window) -> f64);
    let stands = |(column, read): Column| {
        let value = read(windows.first()?);
        let frozen = windows.iter().all(|w| read(w) == value);
        frozen.then_some(Refusal::Frozen { column, value, windows: windows.len() })
    };
    let columns: [Column; 3] = [("running + waiting", |w| w.gauges), ("ttft_ms", |w| w.ttft_ms), ("tbot_ms", |w| w.tbot_ms)];
    columns.into_iter().find_map(stands)
}

/// A share in percent, or a dash.
fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", 100.0 * share))
}

impl fmt::Display for Report {
    /// Lines of at most 100 characters, without a line break at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { read, used, idle, changing, saturated, capacity, loads_rps: (least, p95, most), .. } = self;
        writeln!(f, "windows: {read} read, {used} used; left out: {idle} idle, {changing} changing, {saturated} saturated")?;
        writeln!(f, "capacity: {} requests/s, {}", capacity.rps, capacity.source)?;
        let share = |load: &f64| format!("{:.0}", 100.0 * load / capacity.rps);
        writeln!(f, "coverage: loads from {} to {} % of capacity, 95th percentile {} %", share(least), share(most), share(p95))?;
        match self.prior_above_rps {
            Some(load) => writeln!(f, "PRIOR: above {load:.4} requests/s the curves are physics, not measurement")?,
            None if *most < 0.999 * capacity.rps => writeln!(f, "above {most:.4} requests/s the last slopes are continued")?,
            None => {}
        }
        writeln!(f, "{:<10}{:>18}{:>18}{:>18}{:>18}{:>10}", "error, R2", "< 50 %", "50-80 %", "> 80 %", "all", "held out")?;
        for curve in &self.curves {
            write!(f, "{:<10}", curve.quantity.name())?;
            for agreement in curve.bands.iter().chain([&curve.all]) {
                let r2 = agreement.r2.map_or_else(|| "-".to_owned(), |r2| format!("{r2:.3}"));
                write!(f, "{:>18}", format!("{}, {r2}", percent(agreement.error_frac)))?;
            }
            writeln!(f, "{:>10}", percent(Some(curve.held_out_frac)))?;
        }
        write!(f, "before the fit, falls and bulges of group means:")?;
        for (index, curve) in self.curves.iter().enumerate() {
            let comma = if index > 0 { ";" } else { "" };
            let (fall, bulge) = (percent(Some(curve.fall_frac)), percent(Some(curve.bulge_frac)));
            write!(f, "{comma} {} {fall}, {bulge}", curve.quantity.name())?;
        }
        match self.gauges_off_frac {
            Some(off) => write!(f, "\nin engine: by Little's law; running + waiting differ by {:+.1} %", 100.0 * off)?,
            None => write!(f, "\nin engine: by running + waiting, which nothing confirms for want of e2e_ms or output_tokens")?,
        }
        match self.prefix_hit_frac {
            Some((least, most)) => write!(f, "\nprefix hits: {:.0} to {:.0} % of prompt tokens", 100.0 * least, 100.0 * most),
            None => write!(f, "\nprefix hits: not recorded"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn falls_and_bulges_are_measured_on_group_means() {
        let points = |values: &[f64]| -> Vec<Point> {
            values.iter().zip(1..).map(|(&value, load)| Point { load: f64::from(load), value }).collect()
        };
        assert_eq!(violations(&points(&[1.0, 2.0, 4.0, 8.0])), (0.0, 0.0));
        let (fall, bulge) = violations(&points(&[4.0, 10.0, 8.0]));
        assert!((fall - 0.2).abs() < 1e-12 && (bulge - 0.4).abs() < 1e-12, "{fall}, {bulge}");
    }

    #[test]
    fn agreement_is_by_band() {
        let points: Vec<Point> = [(1.0, 10.0), (2.0, 11.0), (9.0, 20.0)].map(|(load, value)| Point { load, value }).to_vec();
        let curve = Curve::new(vec![(0.0, 10.0), (10.0, 20.0)]).expect("a curve");
        let low = agreement(&points, &curve, (0.0, 5.0));
        assert_eq!(low.points, 2);
        assert!((low.error_frac.expect("points") - (0.1 + 1.0 / 11.0) / 2.0).abs() < 1e-12, "{low:?}");
        let none = agreement(&points, &curve, (5.0, 8.0));
        assert_eq!((none.points, none.r2, none.error_frac), (0, None, None));
    }
}
