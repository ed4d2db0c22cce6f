//! Measured windows of one engine, and which of them show its steady state.

use crate::fit::input::table;
use crate::fit::input::table::{Column, TableErrors};

/// Largest change of load within a steady window, or since the window before, as a share of the
/// load. A step of a tenth changes latencies by less than their noise.
const STEADY_CHANGE_MAX_FRAC: f64 = 0.1;

/// Standard deviations by which two counts of one Poisson process may differ before they are taken
/// for two loads: a steady load is taken for a step once in 370 windows.
const COUNTING_SIGMAS: f64 = 3.0;

/// Share of arrivals that a window serves at least unless its queue grows. Latencies of a growing
/// queue depend on the length of the window.
const SERVED_MIN_FRAC: f64 = 0.95;

/// Latest time in s, in the year 5138. Unix time in ms lies beyond it, and is refused.
const MAX_TIME_S: f64 = 1e11;

/// Largest value of any column, in its unit: more than any engine does or any client waits for.
const MAX_VALUE: f64 = 1e9;

/// The columns of a sample file. One row is one window of one engine with all its replicas ready.
pub const COLUMNS: [Column; 13] = [
    column("time_s", true, MAX_TIME_S, "the start of the window in s, Unix time or since any start"),
    column("load_rps", true, MAX_VALUE, "requests/s that arrived in the window"),
    column("running", true, MAX_VALUE, "the mean number of requests in the batch"),
    column("waiting", true, MAX_VALUE, "the mean number of requests in the engine's queue"),
    column("ttft_ms", true, MAX_VALUE, "the mean time to the first output token in ms"),
    column("tbot_ms", true, MAX_VALUE, "the mean time between output tokens in ms"),
    column("window_s", false, MAX_VALUE, "the length of the window in s"),
    column("served_rps", false, MAX_VALUE, "requests/s that ended in the window"),
    column("e2e_ms", false, MAX_VALUE, "the mean time from arrival to the last token in ms"),
    column("prompt_tokens", false, MAX_VALUE, "the mean length of a prompt in tokens"),
    column("output_tokens", false, MAX_VALUE, "the mean length of an output in tokens"),
    column("hit_frac", false, 1.0, "the share of prompt tokens found in the prefix cache"),
    column("load_change_frac", false, MAX_VALUE, "the change of load within the window as a share of its mean"),
];

const fn column(name: &'static str, required: bool, most: f64, wanted: &'static str) -> Column {
    Column { name, required, range: (0.0, most), wanted }
}

/// One window of measurement, in the units of [`COLUMNS`].
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    pub time_s: f64,
    pub load_rps: f64,
    /// Requests running and waiting, as the engine's gauges showed them when they were read.
    pub gauges: f64,
    pub ttft_ms: f64,
    pub tbot_ms: f64,
    pub window_s: Option<f64>,
    pub served_rps: Option<f64>,
    pub e2e_ms: Option<f64>,
    pub output_tokens: Option<f64>,
    pub prefix_hit_frac: Option<f64>,
    pub load_change_frac: Option<f64>,
}

impl Window {
    /// Time in the engine in ms by the first token and the gaps after it; `None` without the length
    /// of outputs.
    pub(crate) fn parts_ms(&self) -> Option<f64> {
        Some(self.ttft_ms + (self.output_tokens? - 1.0).max(0.0) * self.tbot_ms)
    }

    /// Mean requests in the engine by Little's law: the rate at which they end times the time they
    /// stay. `None` where the file has neither `e2e_ms` nor `output_tokens`.
    pub(crate) fn little(&self) -> Option<f64> {
        Some(self.served_rps.unwrap_or(self.load_rps) * self.e2e_ms.or_else(|| self.parts_ms())? / 1e3)
    }

    /// Mean requests in the engine. Little's law comes first: it averages over every request of the
    /// window, where gauges show the few moments at which they were read.
    pub(crate) fn in_engine(&self) -> f64 {
        self.little().unwrap_or(self.gauges)
    }
}

/// A whole sample file, in order of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    /// Name of the file.
    pub source: String,
    pub windows: Vec<Window>,
}

impl Samples {
    /// Reads the text of the sample file `source`.
    ///
    /// Errors: every mistake with its line and column.
    pub fn read(source: &str, text: &str) -> Result<Self, TableErrors> {
        let table = table::read(source, text, &COLUMNS)?;
        let mut windows: Vec<Window> = table.rows.iter().map(|row| window(row)).collect();
        windows.sort_by(|a, b| a.time_s.total_cmp(&b.time_s));
        Ok(Self { source: source.to_owned(), windows })
    }
}

fn window(row: &[Option<f64>]) -> Window {
    let required = |place: usize| row[place].expect("a table has no gap in a required column");
    Window {
        time_s: required(0),
        load_rps: required(1),
        gauges: required(2) + required(3),
        ttft_ms: required(4),
        tbot_ms: required(5),
        window_s: row[6],
        served_rps: row[7],
        e2e_ms: row[8],
        output_tokens: row[10],
        prefix_hit_frac: row[11],
        load_change_frac: row[12],
    }
}

/// Why a window is left out of the fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// No request arrived.
    Idle,
    /// Its load changed, or had just changed: it shows a transient.
    Changing,
    /// Its load was beyond capacity: its queue grew for as long as it lasted.
    Saturated,
}

/// For each window, why it is left out of the fit, or `None`. Windows above `capacity_rps` are
/// saturated.
pub(crate) fn sort_out(windows: &[Window], capacity_rps: Option<f64>) -> Vec<Option<Dropped>> {
    let before = std::iter::once(None).chain(windows.iter().map(Some));
    let sort = |((window, before), is_saturated): ((&Window, Option<&Window>), bool)| {
        if window.load_rps <= 0.0 {
            Some(Dropped::Idle)
        } else if is_saturated || capacity_rps.is_some_and(|capacity| window.load_rps > capacity) {
            Some(Dropped::Saturated)
        } else if falls_short(window)
            || before
                .map_or_else(|| window.load_change_frac.is_some_and(|c| c > STEADY_CHANGE_MAX_FRAC), |b| is_changing(window, b))
        {
            Some(Dropped::Changing)
        } else {
            None
        }
    };
    windows.iter().zip(before).zip(saturated(windows)).map(sort).collect()
}

/// For each window, whether its load was beyond capacity: more arrived than was served, and more
/// than was ever served in full.
pub(crate) fn saturated(windows: &[Window]) -> Vec<bool> {
    let full = windows.iter().filter(|window| !falls_short(window)).filter_map(|window| window.served_rps).fold(0.0, f64::max);
    windows.iter().map(|window| falls_short(window) && window.load_rps > full).collect()
}

/// Whether more arrived than was served, and that by more than a steady number of requests in the
/// engine varies.
pub(crate) fn falls_short(window: &Window) -> bool {
    let Some(served) = window.served_rps else { return false };
    let varies = COUNTING_SIGMAS * (2.0 * window.in_engine()).sqrt();
    served < SERVED_MIN_FRAC * window.load_rps && window.window_s.is_none_or(|s| (window.load_rps - served) * s > varies)
}

/// Whether the load of a window had just changed.
///
/// A window that measured its own change is believed. Otherwise it is compared with a window that
/// ended right before it: a step of load is a transient in the window after it. Differences that
/// counting a steady load can show do not count as a step.
fn is_changing(window: &Window, before: &Window) -> bool {
    if let Some(change) = window.load_change_frac {
        return change > STEADY_CHANGE_MAX_FRAC;
    }
    let (Some(length), Some(before_length)) = (window.window_s, before.window_s) else { return false };
    let pause = window.time_s - (before.time_s + before_length);
    if pause > 0.5 * length || length <= 0.0 {
        return false;
    }
    let step = (window.load_rps - before.load_rps).abs();
    let counting = (window.load_rps / length + before.load_rps / before_length.max(length * 1e-3)).sqrt();
    step > STEADY_CHANGE_MAX_FRAC * window.load_rps.max(before.load_rps) && step > COUNTING_SIGMAS * counting
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "time_s,load_rps,running,waiting,ttft_ms,tbot_ms,window_s,served_rps,load_change_frac\n";

    #[track_caller]
    fn check(rows: &str, capacity_rps: Option<f64>, wanted: &[Option<Dropped>]) {
        let samples = Samples::read("s.csv", &format!("{HEADER}{rows}")).expect("samples");
        assert_eq!(sort_out(&samples.windows, capacity_rps), wanted);
    }

    #[test]
    fn windows_without_a_steady_state_are_left_out() {
        check("0,0,0,0,1,1,60,0,\n", None, &[Some(Dropped::Idle)]);
        check("0,9,1,1,1,1,60,8,\n", None, &[Some(Dropped::Saturated)]);
        check("0,9,59,1,1,1,60,8.5,\n", None, &[None]);
        // The load has just risen: a rate that was served in full in another window is below
        // capacity.
        check("0,9,1,1,1,1,60,8,\n60,20,1,1,1,1,60,20,\n", None, &[Some(Dropped::Changing), Some(Dropped::Changing)]);
        check("0,9,1,1,1,1,60,9,\n60,9,1,1,1,1,60,9,\n", Some(8.5), &[Some(Dropped::Saturated); 2]);
        check("0,9,1,1,1,1,60,9,0.2\n", None, &[Some(Dropped::Changing)]);
        // A step right after another window; the same step after a pause; a step that is within
        // counting noise.
        check("0,50,1,1,1,1,60,,\n60,70,1,1,1,1,60,,\n", None, &[None, Some(Dropped::Changing)]);
        check("0,50,1,1,1,1,60,,\n120,70,1,1,1,1,60,,\n", None, &[None, None]);
        check("0,1,1,1,1,1,60,,\n60,1.3,1,1,1,1,60,,\n", None, &[None, None]);
        // A window that says how much its own load changed is not compared.
        check("0,50,1,1,1,1,60,,\n60,70,1,1,1,1,60,,0.02\n", None, &[None, None]);
    }

    #[test]
    fn windows_come_in_order_of_time() {
        let rows = "60,2,1,0,1,1,,,\n0,1,1,0,1,1,,,\n";
        let samples = Samples::read("s.csv", &format!("{HEADER}{rows}")).expect("samples");
        assert_eq!(samples.windows.iter().map(|w| w.load_rps).collect::<Vec<_>>(), [1.0, 2.0]);
    }
}
