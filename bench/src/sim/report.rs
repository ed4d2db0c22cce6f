//! What a life came to, phase by phase.

use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::policy::Policy;
use super::scenario::Scenario;

/// Latencies are kept in tenths of a millisecond, to three digits, up to ten minutes.
const TENTHS: f64 = 10.0;
const MOST_TENTHS: u64 = 6_000_000;

/// A scenario and the lives that were led in it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub scenario: Scenario,
    pub lives: Vec<Life>,
}

/// A life under one policy.
#[derive(Clone, Debug, Serialize)]
pub struct Life {
    pub policy: Policy,
    /// Of every decision, in order, with the content of every snapshot: equal lives have equal
    /// ones.
    pub digest: String,
    /// Plans that were made and checked; other policies make none.
    pub plans: u32,
    /// Largest certified gap of all of them.
    pub gap_max: f64,
    /// Largest load by capacity that an engine could have had while data planes went over from one
    /// snapshot to the next.
    pub mixed_max: f64,
    /// What the control plane did not believe, each once.
    pub anomalies: Vec<String>,
    pub phases: Vec<Phase>,
    pub total: Phase,
}

/// A part of a life in which the same things went on. Latencies are the means at engines and on the
/// way that requests met, in ms: how much requests at one engine differ among themselves is not
/// simulated.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Phase {
    pub name: String,
    pub from_s: u32,
    pub to_s: u32,
    /// All that arrived: served, or refused in one of the three ways.
    pub requests: u64,
    pub served: u64,
    pub shed: u64,
    pub full: u64,
    pub unreachable: u64,
    /// Of those served: in flight at an engine when it went away, and sent elsewhere because their
    /// own could not be reached or was full.
    pub broken: f64,
    pub redirected: f64,
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub published: u32,
    /// Share of the demand that published weights moved, summed.
    pub moved: f64,
    /// Seconds that engines spent with more than they can serve, summed over engines; and the
    /// highest load by capacity.
    pub overload_s: u32,
    pub utilisation_max: f64,
}

/// Counts a life while it is led.
#[derive(Debug, Default)]
pub(super) struct Tally {
    phases: Vec<Open>,
}

#[derive(Clone, Debug)]
struct Open {
    phase: Phase,
    sum_ms: f64,
    latency: Histogram<u64>,
}

impl Open {
    fn new(name: &str, from_s: u32) -> Self {
        let latency = Histogram::new_with_bounds(1, MOST_TENTHS, 3).expect("the bounds are legal");
        Self { phase: Phase { name: name.to_owned(), from_s, ..Phase::default() }, sum_ms: 0.0, latency }
    }

    fn add(&mut self, other: &Self) {
        let (all, one) = (&mut self.phase, &other.phase);
        all.requests += one.requests;
        all.served += one.served;
        all.shed += one.shed;
        all.full += one.full;
        all.unreachable += one.unreachable;
        all.broken += one.broken;
        all.redirected += one.redirected;
        all.published += one.published;
        all.moved += one.moved;
        all.overload_s += one.overload_s;
        all.utilisation_max = all.utilisation_max.max(one.utilisation_max);
        self.sum_ms += other.sum_ms;
        self.latency.add(&other.latency).expect("the bounds are equal");
    }

    fn close(mut self, to_s: u32) -> Phase {
        self.phase.to_s = to_s;
        if self.phase.served > 0 {
            self.phase.mean_ms = self.sum_ms / self.phase.served as f64;
            let at = |share: f64| self.latency.value_at_quantile(share) as f64 / TENTHS;
            (self.phase.p50_ms, self.phase.p99_ms) = (at(0.5), at(0.99));
        }
        self.phase
    }
}

impl Tally {
    pub(super) fn enter(&mut self, name: &str, at_s: u32) {
        if self.phases.last().is_none_or(|last| last.phase.name != name) {
            self.phases.push(Open::new(name, at_s));
        }
    }

    fn now(&mut self) -> &mut Open {
        self.phases.last_mut().expect("a phase was entered")
    }

    pub(super) fn serve(&mut self, count: u64, latency_ms: f64) {
        let open = self.now();
        open.phase.requests += count;
        open.phase.served += count;
        open.sum_ms += count as f64 * latency_ms;
        open.latency.saturating_record_n((latency_ms * TENTHS).max(1.0) as u64, count);
    }

    pub(super) fn refuse(&mut self, shed: u64, full: u64, unreachable: u64) {
        let phase = &mut self.now().phase;
        phase.requests += shed + full + unreachable;
        phase.shed += shed;
        phase.full += full;
        phase.unreachable += unreachable;
    }

    pub(super) fn broken(&mut self, count: f64) {
        self.now().phase.broken += count;
    }

    pub(super) fn redirected(&mut self, count: f64) {
        self.now().phase.redirected += count;
    }

    pub(super) fn second(&mut self, overloaded: u32, utilisation_max: f64) {
        let phase = &mut self.now().phase;
        phase.overload_s += overloaded;
        phase.utilisation_max = phase.utilisation_max.max(utilisation_max);
    }

    pub(super) fn step(&mut self, has_published: bool, moved_frac: f64) {
        let phase = &mut self.now().phase;
        phase.published += u32::from(has_published);
        phase.moved += moved_frac;
    }

    pub(super) fn end(self, to_s: u32) -> (Vec<Phase>, Phase) {
        let mut total = Open::new("all", 0);
        self.phases.iter().for_each(|phase| total.add(phase));
        let ends: Vec<u32> = self.phases.iter().skip(1).map(|next| next.phase.from_s).chain([to_s]).collect();
        let phases = self.phases.into_iter().zip(ends).map(|(open, end)| open.close(end)).collect();
        (phases, total.close(to_s))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scenario { name, seed, duration_s, fleet, .. } = &self.scenario;
        writeln!(
            f,
            "{name}, seed {seed}: {duration_s} s of {} clusters x {} engines x {} classes, mean load {}",
            fleet.clusters, fleet.engines, fleet.classes, fleet.load_frac
        )?;
        for life in &self.lives {
            writeln!(f, "\n{}", life.policy.name())?;
            writeln!(
                f,
                "{:>6} {:34} {:>9} {:>9} {:>9} {:>7} {:>9} {:>7} {:>7} {:>9} {:>8}",
                "from", "", "mean ms", "p50 ms", "p99 ms", "shed %", "refused %", "publ.", "moved %", "overload", "max load"
            )?;
            for phase in life.phases.iter().chain([&life.total]) {
                writeln!(f, "{phase}")?;
            }
            let Phase { requests, served, shed, full, unreachable, broken, redirected, .. } = &life.total;
            writeln!(
                f,
                "{requests} requests: {served} served, {shed} shed by plan, {full} found all full, {unreachable} nothing to reach; {broken:.0} \
                 broken off, {redirected:.0} went elsewhere than they belong"
            )?;
            if life.policy == Policy::Optimiser {
                writeln!(
                    f,
                    "{} plans, all certified: largest gap {:.1e}; at most {:.2} of capacity while going over; decisions {}",
                    life.plans, life.gap_max, life.mixed_max, life.digest
                )?;
            }
            for anomaly in &life.anomalies {
                writeln!(f, "anomaly: {anomaly}")?;
            }
        }
        if self.lives.len() > 1 {
            writeln!(f, "\n{:14} {:>9} {:>9} {:>9} {:>9}", "all of it", "mean ms", "p99 ms", "refused %", "overload")?;
            for Life { policy, total, .. } in &self.lives {
                let refused = percent(total.shed + total.full + total.unreachable, total.requests);
                let name = policy.name();
                writeln!(f, "{name:14} {:9.0} {:9.0} {refused:9.3} {:7} s", total.mean_ms, total.p99_ms, total.overload_s)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name: String = self.name.chars().take(34).collect();
        write!(
            f,
            "{:6} {name:34} {:9.0} {:9.0} {:9.0} {:7.2} {:9.3} {:7} {:7.1} {:7} s {:8.2}",
            self.from_s,
            self.mean_ms,
            self.p50_ms,
            self.p99_ms,
            percent(self.shed, self.requests),
            percent(self.full + self.unreachable, self.requests),
            self.published,
            100.0 * self.moved,
            self.overload_s,
            self.utilisation_max
        )
    }
}

fn percent(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { 100.0 * part as f64 / all as f64 }
}
