//! Whether the columns of a sample file agree with each other, and the unit mistake that explains
//! it where they do not. Pure.
//!
//! Three identities tie the columns together, whatever the engine:
//!
//! ```text
//! e2e_ms = ttft_ms + (output_tokens - 1) x tbot_ms    the first token, then each gap
//! running + waiting = served_rps x e2e_ms / 1000      Little's law
//! served_rps = load_rps                               in a steady window
//! ```
//!
//! A column in another unit breaks one of them by a factor of 60 or of 1,000. The mistake is found
//! by trying: the fewest columns whose conversion makes every identity hold.

use super::report::Refusal;
use crate::fit::input::samples::{Window, falls_short};
use crate::numeric::median;

/// Factor between `e2e_ms` and its parts, in the middle window. Both come from the same requests;
/// what is left for noise are requests that begin in one window and end in the next.
const PARTS_FACTOR: f64 = 1.25;

/// Factor between the gauges and Little's law over all windows, where nothing else confirms the
/// latencies. Gauges are read at moments: on real engines single windows are off by up to half.
const GAUGES_FACTOR: f64 = 1.5;

/// The same where `output_tokens` confirm `e2e_ms`: then the gauges only have to show that all
/// latencies, or the loads, are not in another unit.
const GAUGES_FACTOR_CONFIRMED: f64 = 4.0;

/// Factor between what arrived and what was served, over all windows. An overload of this size is
/// no unit.
const SERVED_FACTOR: f64 = 10.0;

/// A first token takes an iteration of the engine at least, as every other token does. Below this
/// part of `tbot_ms`, `ttft_ms` is in another unit.
const TTFT_PER_TBOT_MIN: f64 = 0.2;

/// Longest mean output, in tokens, that is believed where the file has neither `e2e_ms` nor
/// `output_tokens`, and the latencies and Little's law together imply one. Latencies in seconds
/// imply a thousand times the true length.
const IMPLIED_OUTPUT_TOKENS_MAX: f64 = 20_000.0;

/// Windows that keep up with their load, from which on those that do not are not looked at.
const STEADY_WINDOWS_MIN: usize = 3;

/// Units that a time may be in, and its factor to ms.
const TIMES: [(&str, f64); 3] = [("", 1.0), ("seconds", 1e3), ("microseconds", 1e-3)];

/// Units that a rate may be in, and its factor to requests/s.
const RATES: [(&str, f64); 2] = [("", 1.0), ("requests per minute", 1.0 / 60.0)];

/// Columns that may be in another unit, with the units to try.
const COLUMNS: [(&str, &[(&str, f64)]); 5] =
    [("ttft_ms", &TIMES), ("tbot_ms", &TIMES), ("e2e_ms", &TIMES), ("load_rps", &RATES), ("served_rps", &RATES)];

/// For each of [`COLUMNS`] the place of its unit in its list; 0 is the unit of its name.
type Units = [usize; COLUMNS.len()];

/// Looks for columns that contradict each other.
///
/// `windows` are all that had requests. Windows that could not keep up with their load count only
/// where there are no others. Says nothing for want of `e2e_ms` and `output_tokens` unless the
/// latencies are beyond belief. Errors: the contradiction, and the conversion that resolves it, if
/// there is one.
pub(super) fn check(windows: &[&Window]) -> Result<(), Refusal> {
    let steady: Vec<&Window> = windows.iter().copied().filter(|w| !falls_short(w)).collect();
    let windows = if steady.len() < STEADY_WINDOWS_MIN { windows } else { &steady };
    let Some(contradiction) = contradiction(windows, Units::default()) else { return Ok(()) };
    Err(Refusal::Units { contradiction, remedy: remedy(windows) })
}

/// The identity that does not hold, in words.
fn contradiction(windows: &[&Window], units: Units) -> Option<String> {
    let converted: Vec<Window> = windows.iter().map(|w| convert(w, units)).collect();
    let windows = &converted[..];
    let of = |read: fn(&Window) -> Option<f64>| windows.iter().filter_map(read).filter(|r| r.is_finite());
    let outside = |ratio: f64, factor: f64| !(1.0 / factor..=factor).contains(&ratio);

    let parts = median(of(|w| Some(w.parts_ms()? / w.e2e_ms?)));
    if let Some(ratio) = parts.filter(|&ratio| outside(ratio, PARTS_FACTOR)) {
        return Some(format!(
            "ttft_ms + (output_tokens - 1) x tbot_ms is {} of e2e_ms in the middle window, wanted {:.0} to {:.0} %",
            percent(ratio),
            100.0 / PARTS_FACTOR,
            100.0 * PARTS_FACTOR
        ));
    }
    let firsts = median(of(|w| (w.tbot_ms > 0.0 && w.ttft_ms > 0.0).then(|| w.ttft_ms / w.tbot_ms)));
    if let Some(ratio) = firsts.filter(|&ratio| ratio < TTFT_PER_TBOT_MIN) {
        return Some(format!(
            "ttft_ms is {} of tbot_ms in the middle window, though a first token takes as long as any other at least",
            percent(ratio)
        ));
    }
    let (load, served) = sum(windows, |w| w.served_rps.map(|served| (w.load_rps, served)));
    if load > 0.0 && served > 0.0 && outside(served / load, SERVED_FACTOR) {
        return Some(format!("served_rps is {} of load_rps over all windows", percent(served / load)));
    }
    let (gauges, law) = sum(windows, |w| w.little().map(|law| (w.gauges, law)));
    let factor = if parts.is_some() { GAUGES_FACTOR_CONFIRMED } else { GAUGES_FACTOR };
    if law > 0.0 && outside(gauges / law, factor) {
        return Some(format!(
            "running + waiting is {} of load_rps x the time in the engine (Little's law) over all windows, wanted {:.0} to {:.0} %",
            percent(gauges / law),
            100.0 / factor,
            100.0 * factor
        ));
    }
    if law == 0.0 { implied_length(windows) } else { None }
}

/// Without a measured time in the engine, the gauges imply one, and with it the length of outputs.
fn implied_length(windows: &[Window]) -> Option<String> {
    let (gauges, load) = sum(windows, |w| Some((w.gauges, w.load_rps)));
    let stay_ms = 1e3 * gauges / load;
    let (ttft_ms, tbot_ms) = sum(windows, |w| Some((w.load_rps * w.ttft_ms / load, w.load_rps * w.tbot_ms / load)));
    let tokens = 1.0 + (stay_ms - ttft_ms) / tbot_ms;
    let is_short = stay_ms < ttft_ms / GAUGES_FACTOR;
    (stay_ms > 0.0 && tbot_ms > 0.0 && (is_short || tokens > IMPLIED_OUTPUT_TOKENS_MAX)).then(|| {
        format!(
            "running + waiting over load_rps is {stay_ms:.0} ms in the engine (Little's law), which ttft_ms and tbot_ms make \
             only with {tokens:.0} output tokens per request"
        )
    })
}

/// The fewest columns whose conversion resolves every contradiction, in words.
fn remedy(windows: &[&Window]) -> Option<String> {
    let is_known = |column: usize| match column {
        2 => windows.iter().any(|w| w.e2e_ms.is_some()),
        4 => windows.iter().any(|w| w.served_rps.is_some()),
        _ => true,
    };
    let mut hypotheses: Vec<Units> = vec![Units::default()];
    for (column, (_, units)) in COLUMNS.iter().enumerate().filter(|(column, _)| is_known(*column)) {
        let others = hypotheses.iter().flat_map(|known| (1..units.len()).map(move |unit| (known, unit)));
        let others: Vec<Units> = others.map(|(known, unit)| with(*known, column, unit)).collect();
        hypotheses.extend(others);
    }
    hypotheses.sort_by_key(|units| units.iter().filter(|unit| **unit > 0).count());
    let found = hypotheses.into_iter().skip(1).find(|units| contradiction(windows, *units).is_none())?;
    let changes = COLUMNS.iter().zip(found).filter(|(_, unit)| *unit > 0);
    let named: Vec<String> = changes.map(|((name, units), unit)| format!("{name} in {}", units[unit].0)).collect();
    Some(named.join(", "))
}

fn with(mut units: Units, column: usize, unit: usize) -> Units {
    units[column] = unit;
    units
}

fn convert(window: &Window, units: Units) -> Window {
    let factor = |column: usize| COLUMNS[column].1[units[column]].1;
    Window {
        ttft_ms: window.ttft_ms * factor(0),
        tbot_ms: window.tbot_ms * factor(1),
        e2e_ms: window.e2e_ms.map(|ms| ms * factor(2)),
        load_rps: window.load_rps * factor(3),
        served_rps: window.served_rps.map(|rps| rps * factor(4)),
        ..window.clone()
    }
}

fn sum(windows: &[Window], read: impl Fn(&Window) -> Option<(f64, f64)>) -> (f64, f64) {
    windows.iter().filter_map(read).fold((0.0, 0.0), |(a, b), (more_a, more_b)| (a + more_a, b + more_b))
}

/// A ratio in percent, with as many digits as a factor of 1,000 leaves it.
fn percent(ratio: f64) -> String {
    if ratio < 0.01 { format!("{:.3} %", 100.0 * ratio) } else { format!("{:.0} %", 100.0 * ratio) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT_TOKENS: f64 = 150.0;

    /// Windows of an engine at rising loads; gauges are off by up to half, now to one side and now
    /// to the other.
    fn windows(change: impl Fn(&mut Window)) -> Vec<Window> {
        let window = |index: u32| {
            let load_rps = 0.5 * f64::from(index + 1);
            let (ttft_ms, tbot_ms) = (100.0 + 10.0 * load_rps, 20.0 + 2.0 * load_rps);
            let e2e_ms = ttft_ms + (OUTPUT_TOKENS - 1.0) * tbot_ms;
            let gauges = load_rps * e2e_ms / 1e3 * if index.is_multiple_of(2) { 0.55 } else { 1.45 };
            let (served_rps, e2e_ms) = (Some(load_rps), Some(e2e_ms));
            let (time_s, window_s, output_tokens) = (60.0 * f64::from(index), Some(60.0), Some(OUTPUT_TOKENS));
            let (prefix_hit_frac, load_change_frac) = (None, None);
            let mut window = Window {
                time_s,
                load_rps,
                gauges,
                ttft_ms,
                tbot_ms,
                window_s,
                served_rps,
                e2e_ms,
                output_tokens,
                prefix_hit_frac,
                load_change_frac,
            };
            change(&mut window);
            window
        };
        (0..20).map(window).collect()
    }

    #[track_caller]
    fn check_remedy(wanted: &str, change: impl Fn(&mut Window)) {
        let windows = windows(change);
        match check(&windows.iter().collect::<Vec<_>>()) {
            Err(Refusal::Units { remedy: Some(found), .. }) => assert_eq!(found, wanted),
            other => panic!("{other:?}, wanted {wanted}"),
        }
    }

    #[test]
    fn columns_that_agree_pass_with_gauges_that_were_read_at_moments() {
        for change in [
            |_: &mut Window| (),
            |w: &mut Window| w.e2e_ms = None,
            |w: &mut Window| w.output_tokens = None,
            |w: &mut Window| (w.e2e_ms, w.output_tokens) = (None, None),
            |w: &mut Window| w.served_rps = None,
        ] {
            let windows = windows(change);
            assert_eq!(check(&windows.iter().collect::<Vec<_>>()), Ok(()));
        }
    }

    #[test]
    fn each_column_in_another_unit_is_named() {
        check_remedy("ttft_ms in seconds, tbot_ms in seconds", |w| {
            w.ttft_ms /= 1e3;
            w.tbot_ms /= 1e3;
        });
        check_remedy("ttft_ms in seconds", |w| w.ttft_ms /= 1e3);
        check_remedy("tbot_ms in seconds", |w| w.tbot_ms /= 1e3);
        check_remedy("e2e_ms in seconds", |w| w.e2e_ms = w.e2e_ms.map(|ms| ms / 1e3));
        check_remedy("ttft_ms in microseconds", |w| w.ttft_ms *= 1e3);
        check_remedy("tbot_ms in microseconds", |w| w.tbot_ms *= 1e3);
        check_remedy("e2e_ms in microseconds", |w| w.e2e_ms = w.e2e_ms.map(|ms| ms * 1e3));
        check_remedy("load_rps in requests per minute", |w| w.load_rps *= 60.0);
        check_remedy("served_rps in requests per minute", |w| w.served_rps = w.served_rps.map(|rps| rps * 60.0));
        check_remedy("load_rps in requests per minute, served_rps in requests per minute", |w| {
            w.load_rps *= 60.0;
            w.served_rps = w.served_rps.map(|rps| rps * 60.0);
        });
    }

    #[test]
    fn latencies_that_are_all_in_another_unit_are_found_by_the_gauges() {
        let scale = |factor: f64| {
            move |w: &mut Window| {
                (w.ttft_ms, w.tbot_ms) = (factor * w.ttft_ms, factor * w.tbot_ms);
                w.e2e_ms = w.e2e_ms.map(|ms| factor * ms);
            }
        };
        check_remedy("ttft_ms in seconds, tbot_ms in seconds, e2e_ms in seconds", scale(1e-3));
        check_remedy("ttft_ms in microseconds, tbot_ms in microseconds, e2e_ms in microseconds", scale(1e3));
        for (factor, unit) in [(1e-3, "seconds"), (1e3, "microseconds")] {
            let wanted = format!("ttft_ms in {unit}, tbot_ms in {unit}");
            let latencies = scale(factor);
            check_remedy(&wanted, |w| (latencies(w), w.e2e_ms = None).0);
            check_remedy(&wanted, |w| (latencies(w), w.e2e_ms = None, w.output_tokens = None).0);
        }
    }

    #[test]
    fn a_contradiction_that_no_unit_explains_is_told_as_it_is() {
        let windows = windows(|w| w.tbot_ms *= 2.0);
        let error = check(&windows.iter().collect::<Vec<_>>()).expect_err("no engine does this").to_string();
        assert!(error.contains("is 197 % of e2e_ms in the middle window, wanted 80 to 125 %"), "{error}");
    }
}
