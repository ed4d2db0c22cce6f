//! Drift detection: whether an engine still performs as its profile says; docs/model.md, section
//! 11. Pure.
//!
//! Each window of an engine's own histograms gives a load, and the mean time that its requests
//! spent in the engine. A two-sided CUSUM sums up the logarithm of that time over the profile's
//! time at that load. An alarm starts when one of the sums crosses its bound. From then on the plan
//! uses the observed slowdown. An engine faster than its profile is reported but not planned for.

use std::time::Duration;

use crate::model::Profile;
use crate::probe::{EngineSignals, Timings};

/// Smallest number of requests and shortest length of a window: fewer requests are noise. A longer
/// window than [`LONGEST_WINDOW`] is discarded, since the load may have changed within it.
const LEAST_REQUESTS: f64 = 30.0;
const LEAST_WINDOW: Duration = Duration::from_secs(5);
const LONGEST_WINDOW: Duration = Duration::from_secs(120);
/// Largest mean load, as a fraction of the profile's capacity, at which windows are judged: above
/// it queues may grow, which the profile does not describe.
const MOST_LOAD_FRAC: f64 = 0.9;
/// Allowance of the CUSUM, as a logarithm: few profiles are more accurate than 10 %.
const CUSUM_ALLOWANCE: f64 = 0.1;
/// Bound of the CUSUM. With windows of 5 s it is crossed after 1.5 minutes of 20 % more time, and
/// in less than half a minute of 50 % more.
const CUSUM_BOUND: f64 = 1.0;
/// Largest difference of one window that counts, as a logarithm, so that a single outlier is no
/// alarm.
const MOST_DIFFERENCE: f64 = 0.5;
/// Standard deviation of a window, as a logarithm, at which it has half the weight.
const HALF_WEIGHT_DEVIATION: f64 = 0.15;
/// Gain per window of the running mean of differences, for a window of full weight, and of the
/// running mean of loads.
const SMOOTHING: f64 = 0.2;
const LOAD_SMOOTHING: f64 = 0.05;
/// Largest slowdown that the plan uses, as a factor: beyond it the engine gets next to no load
/// anyway.
const MOST_SLOWDOWN: f64 = 4.0;
/// Step of the planned slowdown, as a factor, so that noise causes no new plan and pools of equal
/// engines stay together.
const SLOWDOWN_STEP: f64 = 0.1;
/// Time that the running mean must stay within the allowance before an alarm ends: an engine that
/// was slow must prove itself for long.
const ALARM_CLEAR_AFTER: Duration = Duration::from_secs(600);

/// One engine against its profile.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drift {
    /// Start of the current window: time, and the histograms' totals for TTFT and TBOT.
    start: Option<(Duration, Timings, Timings)>,
    /// Running mean of the load, in requests/s. Single windows would be a biased limit: it would
    /// skip just the windows with many requests.
    load_rps: Option<f64>,
    /// Running mean of the difference, as a logarithm.
    mean: f64,
    /// CUSUM of slower and of faster windows.
    slower: f64,
    faster: f64,
    alarm: Option<Alarm>,
    calm_since: Option<Duration>,
}

/// An engine that differs from its profile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Alarm {
    /// Observed time divided by the profile's, in steps of [`SLOWDOWN_STEP`]; below 1 for an engine
    /// that is faster.
    pub(crate) ratio: f64,
    pub(crate) since: Duration,
}

impl Drift {
    /// Takes the engine's signals at `now`. `stretch` is its number of replicas per ready replica:
    /// the load on the ready replicas times `stretch` is the load that the profile describes.
    pub(crate) fn take(&mut self, now: Duration, signals: &EngineSignals, profile: &Profile, stretch: f64) {
        // An engine without a histogram of TBOT is judged by its TTFT alone.
        let Some(ttft) = signals.ttft else { return };
        let itl = signals.itl.unwrap_or(Timings { sum_s: 0.0, count: 0.0 });
        let Some((since, first_ttft, first_itl)) = self.start else { return self.start = Some((now, ttft, itl)) };
        let (length, requests) = (now.saturating_sub(since), ttft.count - first_ttft.count);
        let (gaps, first_s, gaps_s) = (itl.count - first_itl.count, ttft.sum_s - first_ttft.sum_s, itl.sum_s - first_itl.sum_s);
        if requests < 0.0 || gaps < 0.0 || first_s < 0.0 || gaps_s < 0.0 || length > LONGEST_WINDOW {
            return self.start = Some((now, ttft, itl));
        }
        if requests < LEAST_REQUESTS || length < LEAST_WINDOW {
            return;
        }
        self.start = Some((now, ttft, itl));
        let load_rps = requests / length.as_secs_f64() * stretch;
        let mean_rps = self.load_rps.get_or_insert(load_rps);
        *mean_rps += LOAD_SMOOTHING * (load_rps - *mean_rps);
        if *mean_rps > MOST_LOAD_FRAC * profile.capacity_rps {
            return;
        }
        let tokens = gaps / requests;
        let wanted_ms = profile.latency_ms(load_rps, tokens);
        let observed_ms = (first_s + gaps_s) / requests * 1e3;
        if wanted_ms > 0.0 && observed_ms > 0.0 {
            // The load is itself a count, and its noise matters more the steeper the curve is.
            let steepness = load_rps * (profile.ttft_ms.slope(load_rps) + tokens * profile.tbot_ms.slope(load_rps)) / wanted_ms;
            let noise = ((1.0 + steepness * steepness) / requests).sqrt();
            self.weigh(now, (observed_ms / wanted_ms).ln(), 1.0 / (1.0 + (noise / HALF_WEIGHT_DEVIATION).powi(2)));
        }
    }

    /// Adds one difference, with `weight` as a fraction of a whole window.
    fn weigh(&mut self, now: Duration, difference: f64, weight: f64) {
        let bounded = difference.clamp(-MOST_DIFFERENCE, MOST_DIFFERENCE);
        self.mean += SMOOTHING * weight * (difference.clamp(-MOST_SLOWDOWN.ln(), MOST_SLOWDOWN.ln()) - self.mean);
        self.slower = (self.slower + weight * (bounded - CUSUM_ALLOWANCE)).clamp(0.0, CUSUM_BOUND);
        self.faster = (self.faster - weight * (bounded + CUSUM_ALLOWANCE)).clamp(0.0, CUSUM_BOUND);
        if self.alarm.is_none() && (self.slower >= CUSUM_BOUND || self.faster >= CUSUM_BOUND) {
            self.alarm = Some(Alarm { ratio: 1.0, since: now });
        }
        let Some(alarm) = &mut self.alarm else { return };
        let ratio = ((self.mean.exp() / SLOWDOWN_STEP).round() * SLOWDOWN_STEP).clamp(SLOWDOWN_STEP, MOST_SLOWDOWN);
        // During an alarm a slowdown only grows; it ends with the alarm. A ratio of at most 1
        // follows the mean both ways.
        if ratio > alarm.ratio || (alarm.ratio <= 1.0 && ratio < alarm.ratio) {
            alarm.ratio = ratio;
        }
        if self.mean.abs() > CUSUM_ALLOWANCE {
            self.calm_since = None;
        } else if now.saturating_sub(*self.calm_since.get_or_insert(now)) >= ALARM_CLEAR_AFTER {
            *self = Self { start: self.start, load_rps: self.load_rps, mean: self.mean, ..Self::default() };
        }
    }

    /// Slowdown that the plan uses, as a factor on the profile's times; >= 1.
    pub(crate) fn slowdown(&self) -> f64 {
        self.alarm.map_or(1.0, |alarm| alarm.ratio.max(1.0))
    }

    /// The current alarm, if its ratio differs from 1 by more than half a step.
    pub(crate) fn alarm(&self) -> Option<Alarm> {
        self.alarm.filter(|alarm| (alarm.ratio - 1.0).abs() > SLOWDOWN_STEP / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Curve;

    fn profile() -> Profile {
        Profile {
            name: "p".to_owned(),
            capacity_rps: 100.0,
            ttft_ms: Curve::new(vec![(0.0, 120.0), (50.0, 150.0), (90.0, 400.0), (100.0, 900.0)]).expect("convex"),
            tbot_ms: Curve::new(vec![(0.0, 8.0), (100.0, 20.0)]).expect("convex"),
            law: None,
            kv_tokens: None,
        }
    }

    /// An engine that is `ratio` times as slow as its profile, and asked every 5 s.
    struct Engine {
        drift: Drift,
        signals: EngineSignals,
        now_s: u64,
        random: u64,
    }

    impl Engine {
        fn new() -> Self {
            let zero = Some(Timings { sum_s: 0.0, count: 0.0 });
            let mut signals = crate::probe::from_metrics(b"vllm:num_requests_running 1\n").expect("known");
            (signals.ttft, signals.itl) = (zero, zero);
            Self { drift: Drift::default(), signals, now_s: 0, random: 7 }
        }

        /// Nearly normal, mean 0, standard deviation 1.
        fn noise(&mut self) -> f64 {
            let mut sum = -6.0;
            for _ in 0..12 {
                self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                sum += (self.random >> 11) as f64 / (1_u64 << 53) as f64;
            }
            sum
        }

        /// `windows` of 5 s at about `load_rps`, each with Poisson counts and latencies that vary
        /// by a tenth.
        fn run(&mut self, windows: usize, load_rps: f64, ratio: f64) {
            for _ in 0..windows {
                let requests = (5.0 * load_rps + (5.0 * load_rps).sqrt() * self.noise()).round().max(0.0);
                let scale = ratio * (1.0 + 0.1 * self.noise()) * requests / 1e3;
                let (ttft, itl) = (self.signals.ttft.as_mut().expect("set"), self.signals.itl.as_mut().expect("set"));
                ttft.sum_s += scale * profile().ttft_ms.value(load_rps);
                itl.sum_s += 50.0 * scale * profile().tbot_ms.value(load_rps);
                ttft.count += requests;
                itl.count += 50.0 * requests;
                self.now_s += 5;
                self.drift.take(Duration::from_secs(self.now_s), &self.signals, &profile(), 1.0);
            }
        }
    }

    #[test]
    fn a_day_at_any_load_gives_no_alarm() {
        for load_rps in [1.0, 20.0, 60.0, 85.0, 92.0, 99.0] {
            let mut engine = Engine::new();
            engine.run(17_280, load_rps, 1.0);
            assert_eq!(engine.drift.alarm(), None, "at {load_rps}/s");
        }
    }

    #[test]
    fn a_slower_engine_is_planned_as_such_within_a_minute_and_for_long() {
        for (load_rps, ratio) in [(20.0, 1.4), (60.0, 1.4), (85.0, 1.5), (60.0, 2.5)] {
            let mut engine = Engine::new();
            engine.run(500, load_rps, 1.0);
            engine.run(12, load_rps, ratio);
            assert!(engine.drift.alarm().is_some(), "{ratio} at {load_rps}/s: {:?}", engine.drift);
            engine.run(20, load_rps, ratio);
            let slowdown = engine.drift.slowdown();
            assert!((slowdown / ratio - 1.0).abs() < 0.15, "{slowdown}, wanted {ratio} at {load_rps}/s");
            let since = engine.drift.alarm().expect("still").since;
            assert!((2_500..=2_560).contains(&since.as_secs()));
            engine.run(60, load_rps, 1.0);
            assert_eq!(engine.drift.slowdown(), slowdown, "not so soon");
            engine.run(150, load_rps, 1.0);
            assert_eq!((engine.drift.slowdown(), engine.drift.alarm()), (1.0, None), "it is back for ten minutes");
        }
    }

    #[test]
    fn a_faster_engine_is_said_to_be_so_and_not_planned_as_such() {
        let mut engine = Engine::new();
        engine.run(40, 60.0, 0.6);
        let ratio = engine.drift.alarm().expect("an alarm").ratio;
        assert!((0.55..0.75).contains(&ratio), "{ratio}");
        assert_eq!(engine.drift.slowdown(), 1.0);
    }

    #[test]
    fn one_strange_window_a_restart_or_a_handful_of_requests_are_no_alarm() {
        let mut engine = Engine::new();
        engine.run(20, 60.0, 1.0);
        engine.run(1, 60.0, 50.0);
        engine.run(20, 60.0, 1.0);
        engine.signals.ttft = Some(Timings { sum_s: 0.0, count: 0.0 });
        engine.signals.itl = Some(Timings { sum_s: 0.0, count: 0.0 });
        engine.run(20, 60.0, 1.0);
        engine.run(500, 0.1, 9.0);
        assert_eq!(engine.drift.alarm(), None);
        engine.run(400, 60.0, 40.0);
        assert_eq!(engine.drift.slowdown(), MOST_SLOWDOWN);
    }
}
