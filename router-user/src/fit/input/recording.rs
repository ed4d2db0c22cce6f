//! Windows from counters: what `ilb profile record` writes and `ilb profile fit` reads. Pure.

use crate::probe::{EngineSignals, PrefixCache, Timings};

/// Header of the file. The column `engine` names the engine of a row, and is not fitted.
pub const HEADER: &str =
    "time_s,engine,load_rps,running,waiting,ttft_ms,tbot_ms,window_s,served_rps,e2e_ms,output_tokens,hit_frac,load_change_frac";

/// Standard deviations by which two counts of one Poisson process may differ before they are taken
/// for two loads.
const COUNTING_SIGMAS: f64 = 3.0;

/// Longest pause between two moments, as a share of a window. During a longer one the gauges are
/// not known, and the window is left out.
const PAUSE_MAX_FRAC: f64 = 0.6;

/// The counters of one engine at one moment.
///
/// `ttft`, `tokens` and `e2e` are counters as their owner keeps them. Each only grows, so that a
/// counter that falls shows a restart. The difference of two counters may fall at any time, and is
/// taken over whole windows only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// Time in s, by any clock that does not jump.
    pub at_s: f64,
    pub running: f64,
    pub waiting: f64,
    pub arrivals: f64,
    pub ttft: Timings,
    pub tokens: Tokens,
    pub e2e: Option<Timings>,
    pub prefix: Option<PrefixCache>,
}

/// Counters of output tokens. Counters of different owners are not compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tokens {
    /// The engine times each gap between two tokens of a request.
    Gaps(Timings),
    /// The engine adds the mean gap of each request that ended. The number of tokens is not known.
    MeanGaps(Timings),
    /// The data plane counts events, one for each token, the first included. The gaps fill the time
    /// between the first token and the end.
    Events { count: f64, e2e: Timings },
}

/// One window, as a row of the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recorded {
    pub window_s: f64,
    pub load_rps: f64,
    pub running: f64,
    pub waiting: f64,
    pub ttft_ms: f64,
    pub tbot_ms: f64,
    pub output_tokens: Option<f64>,
    pub served_rps: Option<f64>,
    pub e2e_ms: Option<f64>,
    pub prefix_hit_frac: Option<f64>,
    /// Change of the load within the window, or since the one right before it, beyond what counting
    /// a steady load shows.
    pub load_change_frac: f64,
}

/// One engine's windows, one after another.
#[derive(Clone, Debug)]
pub struct Recording {
    window_s: f64,
    open: Option<Open>,
    /// Arrivals and length of the window right before.
    before: Option<(f64, f64)>,
}

/// A window that is being filled.
#[derive(Clone, Copy, Debug)]
struct Open {
    first: Moment,
    middle: Option<Moment>,
    last: Moment,
    running: f64,
    waiting: f64,
    gauges: f64,
}

impl Moment {
    /// The moment by the engine's own metrics; `None` if they lack something that a window needs.
    pub fn of(at_s: f64, signals: &EngineSignals) -> Option<Self> {
        let (running, waiting, ttft, gaps) = (signals.running?, signals.waiting?, signals.ttft?, signals.itl?);
        let tokens = if signals.family.times_requests() { Tokens::MeanGaps(gaps) } else { Tokens::Gaps(gaps) };
        // A request that waits has arrived and has no token yet.
        let arrivals = ttft.count + waiting;
        Some(Self { at_s, running, waiting, arrivals, ttft, tokens, e2e: signals.e2e, prefix: signals.prefix })
    }

    /// Whether nothing began anew since `before`, and both are counted by the same owner.
    fn follows(&self, before: &Self) -> bool {
        let has_grown = |now: Timings, then: Timings| now.count >= then.count && now.sum_s >= then.sum_s;
        let tokens = match (self.tokens, before.tokens) {
            (Tokens::Gaps(now), Tokens::Gaps(then)) | (Tokens::MeanGaps(now), Tokens::MeanGaps(then)) => has_grown(now, then),
            (Tokens::Events { count, e2e }, Tokens::Events { count: count_then, e2e: e2e_then }) => {
                count >= count_then && has_grown(e2e, e2e_then)
            }
            _ => false,
        };
        self.at_s > before.at_s && has_grown(self.ttft, before.ttft) && tokens
    }

    /// Mean time between tokens in s, and mean tokens of a request, since `before`; `None` without
    /// tokens.
    fn tokens_since(&self, before: &Self) -> Option<(f64, Option<f64>)> {
        let requests = self.ttft.count - before.ttft.count;
        match (self.tokens, before.tokens) {
            (Tokens::Gaps(now), Tokens::Gaps(then)) => {
                Some((now.mean_since(&then)?, (requests > 0.0).then(|| (now.count - then.count) / requests + 1.0)))
            }
            (Tokens::MeanGaps(now), Tokens::MeanGaps(then)) => Some((now.mean_since(&then)?, None)),
            (Tokens::Events { count, e2e }, Tokens::Events { count: count_then, e2e: e2e_then }) => {
                // First tokens and ends are of different requests, so their sums have no
                // difference; their means do.
                let stream_s = e2e.mean_since(&e2e_then)? - self.ttft.mean_since(&before.ttft)?;
                let ended = e2e.count - e2e_then.count;
                let tokens = (count - count_then) / f64::midpoint(requests, ended);
                (stream_s > 0.0 && tokens > 1.0).then(|| (stream_s / (tokens - 1.0), Some(tokens)))
            }
            _ => None,
        }
    }
}

impl Recording {
    pub fn new(window_s: f64) -> Self {
        Self { window_s, open: None, before: None }
    }

    /// Adds a moment. Returns the window that it ends, if requests ended in it.
    ///
    /// A window that contains a restart or a pause of the engine is left out.
    pub fn take(&mut self, moment: Moment) -> Option<Recorded> {
        let Some(open) = &mut self.open else {
            self.open = Some(Open::begin(moment));
            return None;
        };
        if moment == open.last || moment.at_s == open.last.at_s {
            return None;
        }
        if !moment.follows(&open.last) || moment.at_s - open.last.at_s > PAUSE_MAX_FRAC * self.window_s {
            *self = Self { open: Some(Open::begin(moment)), ..Self::new(self.window_s) };
            return None;
        }
        let elapsed_s = moment.at_s - open.first.at_s;
        open.running += moment.running;
        open.waiting += moment.waiting;
        open.gauges += 1.0;
        open.last = moment;
        if open.middle.is_none() && elapsed_s >= 0.5 * self.window_s {
            open.middle = Some(moment);
        }
        if elapsed_s < self.window_s {
            return None;
        }
        let window = open.row(self.before);
        self.before = Some(open.arrivals());
        self.open = Some(Open::begin(moment));
        window
    }
}

impl Open {
    fn begin(first: Moment) -> Self {
        Self { first, middle: None, last: first, running: 0.0, waiting: 0.0, gauges: 0.0 }
    }

    fn arrivals(&self) -> (f64, f64) {
        ((self.last.arrivals - self.first.arrivals).max(0.0), self.last.at_s - self.first.at_s)
    }

    fn row(&self, before: Option<(f64, f64)>) -> Option<Recorded> {
        let (first, last) = (&self.first, &self.last);
        let (arrivals, window_s) = self.arrivals();
        let (gap_s, output_tokens) = last.tokens_since(first)?;
        let within = self.middle.map_or(0.0, |middle| {
            let half = |from: &Moment, to: &Moment| ((to.arrivals - from.arrivals).max(0.0), to.at_s - from.at_s);
            change(half(first, &middle), half(&middle, last))
        });
        let e2e = last.e2e.zip(first.e2e);
        Some(Recorded {
            window_s,
            load_rps: arrivals / window_s,
            running: self.running / self.gauges,
            waiting: self.waiting / self.gauges,
            ttft_ms: last.ttft.mean_since(&first.ttft)? * 1e3,
            tbot_ms: gap_s * 1e3,
            output_tokens,
            served_rps: e2e.map(|(last, first)| (last.count - first.count).max(0.0) / window_s),
            e2e_ms: e2e.and_then(|(last, first)| Some(last.mean_since(&first)? * 1e3)),
            prefix_hit_frac: last.prefix.zip(first.prefix).and_then(|(last, first)| last.hit_frac_since(&first)),
            load_change_frac: before.map_or(within, |before| within.max(change(before, (arrivals, window_s)))),
        })
    }
}

/// Difference of two rates, each a count and a length in s, as a share of their mean. Differences
/// that counting can show are 0.
fn change(a: (f64, f64), b: (f64, f64)) -> f64 {
    let ((a, a_s), (b, b_s)) = (a, b);
    if a_s <= 0.0 || b_s <= 0.0 || a + b <= 0.0 {
        return 0.0;
    }
    let counting = COUNTING_SIGMAS * (a / (a_s * a_s) + b / (b_s * b_s)).sqrt();
    ((a / a_s - b / b_s).abs() - counting).max(0.0) / ((a + b) / (a_s + b_s))
}

impl Recorded {
    /// A line of the file with its line end; `time_s` is the start of the window in Unix time.
    pub fn line(&self, time_s: f64, engine: &str) -> String {
        let Self { window_s, load_rps, running, waiting, ttft_ms, tbot_ms, load_change_frac, .. } = self;
        let maybe = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.4}"));
        let [served_rps, e2e_ms, output_tokens, prefix_hit_frac] =
            [self.served_rps, self.e2e_ms, self.output_tokens, self.prefix_hit_frac].map(maybe);
        format!(
            "{time_s:.1},{engine},{load_rps:.4},{running:.3},{waiting:.3},{ttft_ms:.3},{tbot_ms:.4},{window_s:.2},{served_rps},{e2e_ms},\
             {output_tokens},{prefix_hit_frac},{load_change_frac:.3}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::Samples;

    /// An engine with counters: `rps` requests/s of 11 tokens each, 100 ms to the first and 20 ms
    /// between two.
    struct Engine(Moment);

    impl Engine {
        fn new() -> Self {
            let zero = Timings { sum_s: 0.0, count: 0.0 };
            let prefix = Some(PrefixCache { queries: 0.0, hits: 0.0 });
            let (running, waiting, arrivals) = (3.0, 1.0, 0.0);
            let tokens = Tokens::Gaps(zero);
            Self(Moment { at_s: 0.0, running, waiting, arrivals, ttft: zero, tokens, e2e: Some(zero), prefix })
        }

        /// The same, seen by a data plane that counts events, without the engine's own gaps.
        fn behind_a_data_plane() -> Self {
            let zero = Timings { sum_s: 0.0, count: 0.0 };
            Self(Moment { tokens: Tokens::Events { count: 0.0, e2e: zero }, ..Self::new().0 })
        }

        fn after(&mut self, seconds: f64, rps: f64) -> Moment {
            let requests = seconds * rps;
            let grow = |timings: &mut Timings, count: f64, each_s: f64| {
                timings.count += count;
                timings.sum_s += count * each_s;
            };
            self.0.at_s += seconds;
            self.0.arrivals += requests;
            grow(&mut self.0.ttft, requests, 0.1);
            match &mut self.0.tokens {
                Tokens::Gaps(gaps) => grow(gaps, 10.0 * requests, 0.02),
                Tokens::MeanGaps(gaps) => grow(gaps, requests, 0.02),
                Tokens::Events { count, e2e } => {
                    *count += 11.0 * requests;
                    grow(e2e, requests, 0.3);
                }
            }
            grow(self.0.e2e.as_mut().expect("set"), requests, 0.3);
            let prefix = self.0.prefix.as_mut().expect("set");
            (prefix.queries, prefix.hits) = (prefix.queries + 100.0 * requests, prefix.hits + 25.0 * requests);
            self.0
        }
    }

    fn run(recording: &mut Recording, engine: &mut Engine, seconds: usize, rps: f64) -> Vec<Recorded> {
        (0..seconds).filter_map(|_| recording.take(engine.after(1.0, rps))).collect()
    }

    #[test]
    fn windows_hold_rates_means_and_gauges() {
        let (mut recording, mut engine) = (Recording::new(10.0), Engine::new());
        let windows = run(&mut recording, &mut engine, 21, 8.0);
        assert_eq!(windows.len(), 2);
        let close = |found: f64, wanted: f64| assert!((found - wanted).abs() < 1e-6, "{found}, wanted {wanted}");
        let window = windows[1];
        close(window.load_rps, 8.0);
        close(window.running + window.waiting, 4.0);
        close(window.ttft_ms, 100.0);
        close(window.tbot_ms, 20.0);
        close(window.output_tokens.expect("counted"), 11.0);
        close(window.window_s, 10.0);
        assert_eq!((window.served_rps, window.prefix_hit_frac, window.load_change_frac), (Some(8.0), Some(0.25), 0.0));
        let text = format!("{HEADER}\n{}", window.line(1_700_000_000.0, "e1"));
        let read = Samples::read("s.csv", &text).expect("what is written is read");
        assert!((read.windows[0].load_rps - 8.0).abs() < 1e-9 && (read.windows[0].gauges - 4.0).abs() < 1e-9);
        assert!((read.windows[0].e2e_ms.expect("measured") - 300.0).abs() < 1e-6);
    }

    #[test]
    fn a_step_of_load_shows_within_the_window_and_in_the_next_and_noise_does_not() {
        let (mut recording, mut engine) = (Recording::new(10.0), Engine::new());
        run(&mut recording, &mut engine, 17, 100.0);
        let windows = run(&mut recording, &mut engine, 24, 150.0);
        let changes: Vec<bool> = windows.iter().map(|w| w.load_change_frac > 0.1).collect();
        assert_eq!(changes, [true, true, false], "the step is in the first, and the second begins at another load");
        let windows = run(&mut recording, &mut engine, 10, 154.0);
        assert!(windows.iter().all(|w| w.load_change_frac == 0.0), "{windows:?}");
    }

    #[test]
    fn restarts_pauses_and_idle_windows_give_no_row() {
        let (mut recording, mut engine) = (Recording::new(10.0), Engine::new());
        assert_eq!(run(&mut recording, &mut engine, 8, 5.0).len(), 0);
        engine.0 = Moment { at_s: engine.0.at_s, ..Engine::new().0 };
        assert_eq!(run(&mut recording, &mut engine, 8, 5.0).len(), 0, "it began anew");
        engine.0.at_s += 60.0;
        assert_eq!(run(&mut recording, &mut engine, 8, 5.0).len(), 0, "nobody knows what was in between");
        assert_eq!(run(&mut recording, &mut engine, 5, 5.0).len(), 1);
        assert_eq!(run(&mut recording, &mut engine, 30, 0.0).len(), 1, "the rest is idle");
    }

    #[test]
    fn an_engine_without_histograms_loses_no_window_while_requests_begin_before_others_end() {
        let zero = Timings { sum_s: 0.0, count: 0.0 };
        let (mut recording, mut moment) = (Recording::new(10.0), Engine::behind_a_data_plane().0);
        let (mut ends, mut events, mut windows) = (zero, 0.0, Vec::new());
        for second in 0..61 {
            moment.at_s += 1.0;
            // Eight requests get their first token in one second and end in the next.
            if second % 2 == 0 {
                moment.ttft = Timings { sum_s: moment.ttft.sum_s + 0.8, count: moment.ttft.count + 8.0 };
                events += 8.0;
            } else {
                ends = Timings { sum_s: ends.sum_s + 2.4, count: ends.count + 8.0 };
                events += 80.0;
            }
            moment.arrivals = moment.ttft.count;
            moment.tokens = Tokens::Events { count: events, e2e: ends };
            moment.e2e = Some(ends);
            windows.extend(recording.take(moment));
        }
        assert_eq!(windows.len(), 6);
        for window in windows {
            assert!((window.tbot_ms - 20.0).abs() < 1e-6 && (window.load_rps - 4.0).abs() < 1e-6, "{window:?}");
        }
    }

    #[test]
    fn a_data_plane_measures_the_gaps_that_the_engine_has() {
        let (mut recording, mut engine) = (Recording::new(10.0), Engine::behind_a_data_plane());
        let windows = run(&mut recording, &mut engine, 11, 8.0);
        let (tbot_ms, tokens) = (windows[0].tbot_ms, windows[0].output_tokens.expect("counted"));
        assert!((tbot_ms - 20.0).abs() < 1e-6 && (tokens - 11.0).abs() < 1e-6, "{tbot_ms} ms, {tokens} tokens");
    }

    #[test]
    fn counters_of_two_owners_are_not_compared() {
        let (mut recording, mut own, mut seen) = (Recording::new(10.0), Engine::new(), Engine::behind_a_data_plane());
        seen.0.ttft = Timings { sum_s: 1e4, count: 1e5 };
        assert_eq!(run(&mut recording, &mut own, 8, 5.0).len(), 0);
        seen.0.at_s = own.0.at_s;
        assert_eq!(run(&mut recording, &mut seen, 8, 5.0).len(), 0, "the engine's own histograms are gone");
        assert_eq!(run(&mut recording, &mut seen, 3, 5.0).len(), 1);
    }

    #[test]
    fn a_mean_gap_per_request_tells_no_length_of_outputs() {
        let page = "trtllm_num_requests_running 3\ntrtllm_num_requests_waiting 1\n\
                    trtllm_time_to_first_token_seconds_sum 9\ntrtllm_time_to_first_token_seconds_count 90\n\
                    trtllm_time_per_output_token_seconds_sum 2\ntrtllm_time_per_output_token_seconds_count 90\n";
        let signals = crate::probe::from_metrics(page.as_bytes()).expect("known");
        let moment = Moment::of(0.0, &signals).expect("all that a window needs");
        let (mut recording, mut engine) = (Recording::new(10.0), Engine(moment));
        engine.0.e2e = Some(Timings { sum_s: 0.0, count: 0.0 });
        engine.0.prefix = Some(PrefixCache { queries: 0.0, hits: 0.0 });
        let windows = run(&mut recording, &mut engine, 11, 8.0);
        assert_eq!(windows[0].output_tokens, None);
        assert!((windows[0].tbot_ms - 20.0).abs() < 1e-6);
        assert!(windows[0].line(0.0, "e1").contains(",300.0000,,0.2500,"), "{}", windows[0].line(0.0, "e1"));
    }
}
