//! Whether an engine still answers as its profile says: docs/model.md, section 10. Pure.
//!
//! Each window of an engine's own histograms gives a load, and the mean time that its requests spent in the engine. The logarithm of that time
//! over the profile's at that load is summed up on both sides (CUSUM). A sum that crosses its bound is an alarm: from then on the plan takes the
//! engine for as slow as it is observed to be. Never for faster: that is only said.

use std::time::Duration;

use crate::model::Profile;
use crate::probe::{EngineSignals, Timings};

/// A window has at least so many requests and is at least so long; one that does not get there in time is left out.
const LEAST_REQUESTS: f64 = 30.0;
const LEAST_WINDOW: Duration = Duration::from_secs(5);
const LONGEST_WINDOW: Duration = Duration::from_secs(120);
/// Mean load, as a share of capacity, beyond which a queue may grow, and nothing is predicted.
const MOST_LOAD_FRAC: f64 = 0.9;
/// Difference, as a logarithm, that is left alone: a profile is hardly ever better than this.
const ALLOWANCE: f64 = 0.1;
/// Sum of what goes beyond it that is an alarm: one and a half minutes of 20 % more, less than half a minute of 50 % more, at windows of 5 s.
const BOUND: f64 = 1.0;
/// Largest difference of one window that counts, so that one strange window is no alarm.
const MOST_DIFFERENCE: f64 = 0.5;
/// Standard deviation at which a window counts half.
const NOISE: f64 = 0.15;
/// Part of a whole window in the running mean of differences, and of any window in that of loads.
const SMOOTHING: f64 = 0.2;
const LOAD_SMOOTHING: f64 = 0.05;
/// Largest slowdown that is planned with: beyond it the engine gets next to nothing already.
const MOST_SLOWDOWN: f64 = 4.0;
/// Steps of the slowdown, so that noise makes no new plan and no pool falls apart.
const STEP: f64 = 0.1;
/// An alarm ends when the running mean was within the allowance for so long.
const CALM: Duration = Duration::from_secs(600);

/// One engine against its profile.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drift {
    /// Where the present window began.
    start: Option<(Duration, Timings, Timings)>,
    /// Running mean of the load: that of single windows would pass over just those in which few came.
    load_rps: Option<f64>,
    /// Running mean of the difference, as a logarithm.
    mean: f64,
    /// Sums of what was slower and faster than allowed.
    slower: f64,
    faster: f64,
    alarm: Option<Alarm>,
    calm_since: Option<Duration>,
}

/// That an engine is not as its profile says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Alarm {
    /// Observed time over the profile's, in steps of [`STEP`]; below 1 for an engine that is faster.
    pub(crate) ratio: f64,
    pub(crate) since: Duration,
}

impl Drift {
    /// Takes what a whole engine said at `now`; a load on it is felt as `stretch` times as much on all its replicas.
    pub(crate) fn take(&mut self, now: Duration, signals: &EngineSignals, profile: &Profile, stretch: f64) {
        // An engine that shows no gaps is judged by its first tokens alone.
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
            // The load itself is a count, and the steeper the curve, the more its noise shows.
            let steepness = load_rps * (profile.ttft_ms.slope(load_rps) + tokens * profile.tbot_ms.slope(load_rps)) / wanted_ms;
            let noise = ((1.0 + steepness * steepness) / requests).sqrt();
            self.weigh(now, (observed_ms / wanted_ms).ln(), 1.0 / (1.0 + (noise / NOISE).powi(2)));
        }
    }

    /// Takes one difference, which counts as `weight` of a whole window.
    fn weigh(&mut self, now: Duration, difference: f64, weight: f64) {
        let bounded = difference.clamp(-MOST_DIFFERENCE, MOST_DIFFERENCE);
        self.mean += SMOOTHING * weight * (difference.clamp(-MOST_SLOWDOWN.ln(), MOST_SLOWDOWN.ln()) - self.mean);
        self.slower = (self.slower + weight * (bounded - ALLOWANCE)).clamp(0.0, BOUND);
        self.faster = (self.faster - weight * (bounded + ALLOWANCE)).clamp(0.0, BOUND);
        if self.alarm.is_none() && (self.slower >= BOUND || self.faster >= BOUND) {
            self.alarm = Some(Alarm { ratio: 1.0, since: now });
        }
        let Some(alarm) = &mut self.alarm else { return };
        let ratio = ((self.mean.exp() / STEP).round() * STEP).clamp(STEP, MOST_SLOWDOWN);
        // More is believed at once; less only when an engine is back for long.
        if ratio > alarm.ratio || (alarm.ratio <= 1.0 && ratio < alarm.ratio) {
            alarm.ratio = ratio;
        }
        if self.mean.abs() > ALLOWANCE {
            self.calm_since = None;
        } else if now.saturating_sub(*self.calm_since.get_or_insert(now)) >= CALM {
            *self = Self { start: self.start, load_rps: self.load_rps, mean: self.mean, ..Self::default() };
        }
    }

    /// How many times as slow as its profile the engine is planned to be; >= 1.
    pub(crate) fn slowdown(&self) -> f64 {
        self.alarm.map_or(1.0, |alarm| alarm.ratio.max(1.0))
    }

    /// The alarm in force, if it amounts to anything.
    pub(crate) fn alarm(&self) -> Option<Alarm> {
        self.alarm.filter(|alarm| (alarm.ratio - 1.0).abs() > STEP / 2.0)
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

        /// `windows` of 5 s at about `load_rps`, each with Poisson counts and latencies that vary by a tenth.
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
