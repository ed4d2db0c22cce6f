//! Arrivals at one data plane: two exponential moving averages of the reported rate, and checks of
//! the reports. Pure.

use std::time::Duration;

use crate::control::estimate::dispersion::Dispersion;
use crate::numeric::decay;

/// Time constants of the two exponential means: the fast one follows a step of demand within
/// seconds, the slow one averages bursts out.
pub(crate) const FAST: Duration = Duration::from_secs(10);
const SLOW: Duration = Duration::from_secs(120);
/// Largest rate that a report counts for: this many times the cluster's fast mean, or this many
/// standard deviations above it if that is more. A broken counter cannot do more at once.
const SPIKE_FACTOR: f64 = 4.0;
const SPIKE_DEVIATIONS: f64 = 6.0;
/// Number of requests in a report up to which it is never a spike: so few are chance.
const SPIKE_COUNT: f64 = 50.0;
/// Number of standard deviations by which the fast mean must leave the slow one before it moves the
/// demand: chance does that once in an hour.
const SIGNIFICANT_DEVIATIONS: f64 = 3.0;
/// Number of identical reports in a row that mean a stuck counter, and the smallest count per
/// report for which they do: smaller counts repeat by chance.
const FROZEN_REPORTS: u32 = 15;
const FROZEN_COUNT: u64 = 20;
/// Time over which the sum of report windows is compared with the time that passed here.
const CLOCK_SPAN: Duration = Duration::from_secs(60);
/// Allowed excess of the windows over the time that passed, as a factor and in seconds: delivery
/// bunches reports.
const CLOCK_EXCESS: f64 = 1.25;
const CLOCK_EXCESS_S: f64 = 10.0;
/// Time for which `ilb status` shows a spike or a wrong clock.
const SHOWN_FOR: Duration = Duration::from_secs(30);

/// Two means of a rate, and the smaller and the larger of the last two reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rate {
    pub(crate) fast_rps: f64,
    pub(crate) slow_rps: f64,
    pub(crate) low_rps: f64,
    pub(crate) high_rps: f64,
}

/// One data plane.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    /// By class.
    pub(crate) rates: Vec<Rate>,
    /// Time of the last report.
    pub(crate) seen: Duration,
    /// Rate by class that it started from when it was first heard of, and the fraction of that rate
    /// that the fast means still contain.
    start_rps: Vec<f64>,
    start_frac: f64,
    counts: Vec<u64>,
    repeated: u32,
    repeats_since: Duration,
    /// The last report, by class.
    last_rps: Vec<f64>,
    spike_at: Option<Duration>,
    clock: ClockCheck,
}

/// Compares the windows of the reports with the time in which they came.
#[derive(Clone, Copy, Debug)]
struct ClockCheck {
    since: Duration,
    covered: Duration,
    off_at: Option<Duration>,
}

impl Rate {
    fn take(&mut self, last_rps: f64, rate_rps: f64, window: Duration) {
        (self.low_rps, self.high_rps) = (last_rps.min(rate_rps), last_rps.max(rate_rps));
        self.fast_rps += (1.0 - decay(window, FAST)) * (rate_rps - self.fast_rps);
        self.slow_rps += (1.0 - decay(window, SLOW)) * (rate_rps - self.slow_rps);
    }

    /// Adds the rate of another data plane, decayed over a time without reports from it.
    pub(crate) fn add(&mut self, other: Self, silence: Duration) {
        let left = |constant: Duration| decay(silence, constant);
        self.fast_rps += other.fast_rps * left(FAST);
        self.slow_rps += other.slow_rps * left(SLOW);
        if silence.is_zero() {
            self.low_rps += other.low_rps;
            self.high_rps += other.high_rps;
        }
    }

    /// The rate to plan with: the slow mean, clamped to within [`SIGNIFICANT_DEVIATIONS`] standard
    /// deviations of the fast mean. The last two reports widen that range.
    pub(crate) fn planned_rps(self, dispersion: f64) -> f64 {
        let band = SIGNIFICANT_DEVIATIONS * Self::fast_deviation(self.fast_rps.max(self.slow_rps), dispersion);
        let least = (self.fast_rps - band).min(self.low_rps).max(0.0);
        self.slow_rps.clamp(least, (self.fast_rps + band).max(self.high_rps))
    }

    /// True if a stream of `rate_rps` with this index of dispersion can have a fast mean of
    /// `fast_rps` by chance.
    pub(crate) fn is_explained(rate_rps: f64, fast_rps: f64, dispersion: f64) -> bool {
        (fast_rps - rate_rps).abs() <= SIGNIFICANT_DEVIATIONS * Self::fast_deviation(fast_rps.max(rate_rps), dispersion)
    }

    /// Standard deviation of the fast mean of a stream of `rate_rps` with this index of dispersion,
    /// in requests/s.
    fn fast_deviation(rate_rps: f64, dispersion: f64) -> f64 {
        (dispersion * rate_rps / (2.0 * FAST.as_secs_f64())).sqrt()
    }
}

impl Instance {
    /// A data plane that is first heard of `now`, with the assumed rates `start_rps`, by class.
    pub(crate) fn new(now: Duration, start_rps: &[f64]) -> Self {
        Self {
            rates: start_rps.iter().map(|&rps| Rate { fast_rps: rps, slow_rps: rps, low_rps: rps, high_rps: rps }).collect(),
            seen: now,
            start_rps: start_rps.to_vec(),
            start_frac: 1.0,
            counts: Vec::new(),
            repeated: 0,
            repeats_since: now,
            last_rps: start_rps.to_vec(),
            spike_at: None,
            clock: ClockCheck { since: now, covered: Duration::ZERO, off_at: None },
        }
    }

    /// Takes a report that came `now`. By class, for the whole cluster: `usual_rps` is the fast
    /// mean, and `dispersion` the burstiness.
    pub(crate) fn take(&mut self, now: Duration, window: Duration, counts: &[u64], usual_rps: &[f64], dispersion: &[Dispersion]) {
        let passed = now.saturating_sub(self.seen);
        let window = if self.clock.fits(now, passed, window) { window } else { passed.clamp(Duration::from_millis(1), window) };
        let seconds = window.as_secs_f64();
        for (class, &count) in counts.iter().enumerate() {
            let usual = usual_rps[class];
            let by_chance = SPIKE_DEVIATIONS * (dispersion[class].index() * usual / seconds).sqrt();
            let most = (SPIKE_FACTOR * usual).max(usual + by_chance).max(SPIKE_COUNT / seconds);
            let rate_rps = count as f64 / seconds;
            if rate_rps > most {
                self.spike_at = Some(now);
            }
            let believed = rate_rps.min(most);
            let last = std::mem::replace(&mut self.last_rps[class], believed);
            self.rates[class].take(last, believed, window);
        }
        self.start_frac *= decay(window, FAST);
        let is_repeated = counts == self.counts && counts.iter().sum::<u64>() >= FROZEN_COUNT;
        if is_repeated {
            self.repeated = self.repeated.saturating_add(1);
        } else {
            (self.repeated, self.repeats_since) = (0, now);
            self.counts = counts.to_vec();
        }
        self.seen = now;
    }

    /// The fast mean of a class without the rate that it started from, in requests/s.
    pub(crate) fn measured_rps(&self, class: usize) -> f64 {
        let reported = self.rates[class].fast_rps - self.start_frac * self.start_rps[class];
        if self.start_frac < 1.0 { (reported / (1.0 - self.start_frac)).max(0.0) } else { self.rates[class].fast_rps }
    }

    /// True if the last report counted nothing.
    pub(crate) fn is_zero(&self) -> bool {
        self.counts.iter().all(|&count| count == 0)
    }

    /// Time for which the counters have been stuck, if they are.
    pub(crate) fn frozen(&self, now: Duration) -> Option<Duration> {
        (self.repeated >= FROZEN_REPORTS).then(|| now.saturating_sub(self.repeats_since))
    }

    /// The anomaly of its reports, in words.
    pub(crate) fn anomaly(&self, now: Duration) -> Option<String> {
        let is_shown = |at: Option<Duration>| at.is_some_and(|at| now.saturating_sub(at) < SHOWN_FOR);
        if self.frozen(now).is_some() {
            Some("the same counts again and again; planned with a little more".to_owned())
        } else if is_shown(self.clock.off_at) {
            Some("its reports cover more time than has passed; counted by the time between them".to_owned())
        } else if is_shown(self.spike_at) {
            Some("reports many times the usual arrivals; counted in part, and only if it goes on".to_owned())
        } else {
            None
        }
    }
}

impl ClockCheck {
    /// Takes a window that was reported `now`, `passed` after the last one; false if the windows
    /// cover more time than has passed.
    fn fits(&mut self, now: Duration, passed: Duration, window: Duration) -> bool {
        if now.saturating_sub(self.since) > CLOCK_SPAN {
            *self = Self { since: now, covered: Duration::ZERO, ..*self };
        }
        // The first window began before this data plane was heard of.
        if passed.is_zero() && self.covered.is_zero() || covers(window, passed) {
            self.covered += window.min(passed);
            return true;
        }
        self.covered += window;
        let fits = covers(self.covered, now.saturating_sub(self.since));
        if !fits {
            self.off_at = Some(now);
        }
        fits
    }
}

/// True if windows are no longer than the time in which they came, apart from the bunching of
/// delivery.
fn covers(windows: Duration, passed: Duration) -> bool {
    windows.as_secs_f64() <= CLOCK_EXCESS * passed.as_secs_f64() + CLOCK_EXCESS_S
}
