//! The table and the samples behind it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use router_user::numeric;
use serde::Serialize;

use super::Args;
use super::closed::Run;
use super::latency::Latency;
use super::rival::{Kind, Rival};
use crate::origin::Origin;

/// Latency added by a proxy, against a direct measurement of the same minute, in us.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Added {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

impl Added {
    pub(super) fn of(with: &Latency, without: &Latency) -> Self {
        Self { p50_us: with.p50_us - without.p50_us, p99_us: with.p99_us - without.p99_us }
    }
}

/// One proxy in one round; values that a direct measurement lacks are `None`.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Sample {
    pub(super) latency: Latency,
    pub(super) added: Option<Added>,
    pub(super) cpu_us_one: Option<f64>,
    pub(super) rate_rps: f64,
    pub(super) latency_many: Latency,
    pub(super) cpu_us_many: Option<f64>,
    pub(super) event: Option<Latency>,
    pub(super) added_event: Option<Added>,
    pub(super) cpu_ms_per_1000_events: Option<f64>,
    pub(super) memory_mib: Option<f64>,
}

impl Sample {
    pub(super) fn direct(one: &Run, many: &Run, event: Option<Latency>) -> Self {
        Self {
            latency: one.latency,
            added: None,
            cpu_us_one: None,
            rate_rps: many.rate_rps,
            latency_many: many.latency,
            cpu_us_many: None,
            event,
            added_event: None,
            cpu_ms_per_1000_events: None,
            memory_mib: None,
        }
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { latency, rate_rps, .. } = self;
        write!(f, "p50 {:.0} us, {rate_rps:.0} requests/s", latency.p50_us)?;
        if let Some(cpu) = self.cpu_us_many {
            write!(f, ", {cpu:.1} us CPU/request")?;
        }
        if let Some(cpu) = self.cpu_ms_per_1000_events {
            write!(f, ", {cpu:.1} ms CPU/1000 events")?;
        }
        Ok(())
    }
}

/// The table, the samples behind it and the conditions of the run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    origin: Origin,
    placement: String,
    rounds: usize,
    connections: usize,
    streams: usize,
    events: u32,
    event_gap_ms: u32,
    versions: BTreeMap<String, String>,
    direct: Vec<Sample>,
    peers: Vec<Row>,
    /// This build over the baseline, where one was given.
    against_baseline: Vec<Ratio>,
}

/// Medians over the rounds of this build's figure over the baseline's of the same round; 1 is
/// equal.
#[derive(Debug, Serialize)]
struct Ratio {
    name: String,
    cpu_per_request: Option<f64>,
    cpu_per_1000_events: Option<f64>,
    requests_per_s: Option<f64>,
}

fn against_baseline(samples: &[(Rival, Vec<Sample>)]) -> Vec<Ratio> {
    let of =
        |kind: Kind, is_baseline: bool| samples.iter().find(|(rival, _)| rival.kind == kind && rival.is_baseline == is_baseline);
    let ratio = |kind: Kind| {
        let (new, old) = (of(kind, false)?, of(kind, true)?);
        let pairs: Vec<(&Sample, &Sample)> = new.1.iter().zip(&old.1).collect();
        let figure = |value: fn(&Sample) -> Option<f64>| {
            numeric::median(pairs.iter().filter_map(|(new, old)| Some(value(new)? / value(old)?)))
        };
        Some(Ratio {
            name: kind.to_string(),
            cpu_per_request: figure(|s| s.cpu_us_many),
            cpu_per_1000_events: figure(|s| s.cpu_ms_per_1000_events),
            requests_per_s: figure(|s| Some(s.rate_rps)),
        })
    };
    Kind::ALL.into_iter().filter_map(ratio).collect()
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    samples: Vec<Sample>,
}

impl Report {
    pub(super) fn new(
        args: &Args,
        direct: &[Sample],
        samples: &[(Rival, Vec<Sample>)],
        placement: String,
        origin: Origin,
    ) -> Result<Self> {
        let mut versions = BTreeMap::new();
        for (rival, _) in samples {
            versions.insert(rival.to_string(), rival.version()?);
        }
        Ok(Self {
            origin,
            placement,
            rounds: args.rounds,
            connections: args.connections,
            streams: args.streams,
            events: args.events,
            event_gap_ms: args.event_gap_ms,
            versions,
            direct: direct.to_vec(),
            peers: samples.iter().map(|(rival, samples)| Row { name: rival.to_string(), samples: samples.clone() }).collect(),
            against_baseline: against_baseline(samples),
        })
    }

    /// Writes `compare-DATE.json` and `compare-DATE.md`.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))?;
        let stem = format!("compare-{}", self.origin.date.replace(':', ""));
        let json = serde_json::to_string_pretty(self)? + "\n";
        for (ending, text) in [("json", json), ("md", self.markdown() + "\n")] {
            let path = folder.join(format!("{stem}.{ending}"));
            std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
        }
        Ok(())
    }

    pub(super) fn markdown(&self) -> String {
        let direct = |value: fn(&Sample) -> Option<f64>| median(&self.direct, value);
        let mut lines = vec![
            format!("{} {}.\nMedians of {} alternated rounds; one worker each.", self.origin, self.placement, self.rounds),
            String::new(),
            format!(
                "Without a proxy: p50 {} us, p99 {} us at 1 connection; {} requests/s at {}; {} us p50, {} us p99 an event.",
                show(direct(|s| Some(s.latency.p50_us)), 0),
                show(direct(|s| Some(s.latency.p99_us)), 0),
                show(direct(|s| Some(s.rate_rps)), 0),
                self.connections,
                show(direct(|s| s.event.map(|e| e.p50_us)), 0),
                show(direct(|s| s.event.map(|e| e.p99_us)), 0),
            ),
            String::new(),
            format!(
                "| proxy | version | added p50, 1 connection (us) | added p99 (us) | CPU/request (us) | requests/s, {} connections | CPU/request (us) | p99 (us) | CPU/1000 events, {} streams (ms) | added p50 an event (us) | added p99 (us) | memory (MiB) |",
                self.connections, self.streams
            ),
            "|---|---|---|---|---|---|---|---|---|---|---|---|".to_owned(),
        ];
        for Row { name, samples } in &self.peers {
            let value = |value: fn(&Sample) -> Option<f64>, digits| show(median(samples, value), digits);
            lines.push(format!(
                "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                self.versions.get(name).map_or("unknown", String::as_str),
                value(|s| s.added.map(|a| a.p50_us), 0),
                value(|s| s.added.map(|a| a.p99_us), 0),
                value(|s| s.cpu_us_one, 1),
                value(|s| Some(s.rate_rps), 0),
                value(|s| s.cpu_us_many, 1),
                value(|s| Some(s.latency_many.p99_us), 0),
                value(|s| s.cpu_ms_per_1000_events, 1),
                value(|s| s.added_event.map(|a| a.p50_us), 0),
                value(|s| s.added_event.map(|a| a.p99_us), 0),
                value(|s| s.memory_mib, 0),
            ));
        }
        for Ratio { name, cpu_per_request, cpu_per_1000_events, requests_per_s } in &self.against_baseline {
            lines.push(String::new());
            lines.push(format!(
                "{name} over its baseline, median of the rounds' ratios: CPU/request {}, CPU/1000 events {}, requests/s {}.",
                show(*cpu_per_request, 3),
                show(*cpu_per_1000_events, 3),
                show(*requests_per_s, 3),
            ));
        }
        lines.join("\n")
    }
}

fn show(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

/// Median over the samples that have a value.
fn median(samples: &[Sample], value: fn(&Sample) -> Option<f64>) -> Option<f64> {
    numeric::median(samples.iter().filter_map(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_ignore_order_and_outliers() {
        let sample = |rate_rps: f64| {
            let latency = Latency { count: 1, p50_us: 1.0, p99_us: 2.0 };
            let run = Run { requests: 1, rate_rps, latency };
            Sample::direct(&run, &run, None)
        };
        let rate = |rates: &[f64]| median(&rates.iter().map(|&r| sample(r)).collect::<Vec<_>>(), |s| Some(s.rate_rps));
        assert_eq!(rate(&[3.0, 1.0, 900.0]), Some(3.0));
        assert_eq!(rate(&[3.0, 1.0, 900.0, 2.0]), Some(2.5));
        assert_eq!(median(&[sample(1.0)], |s| s.cpu_us_one), None);
    }
}
