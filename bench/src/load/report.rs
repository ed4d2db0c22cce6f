//! The report, as a table or as JSON lines.

use std::collections::BTreeMap;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::record::{Record, Summary};
use super::{Args, Stream};

/// One line of the JSON report.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    pub kind: Kind,
    /// Time since the start.
    pub at_s: f64,
    /// Time the report covers.
    pub seconds: f64,
    pub targets: Vec<Row>,
    /// All targets together; in the summary alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<Row>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Interval,
    Summary,
}

/// One target. A request counts when it ends; an open one is in `in_flight` alone.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    /// The configured rate.
    pub rate_rps: f64,
    /// Requests that ended, however they did.
    pub ended: u64,
    /// Requests that got a whole answer.
    pub answered: u64,
    pub in_flight: usize,
    /// Requests that left late.
    pub late: u64,
    pub lateness: Summary,
    pub reconnects: u64,
    pub failures: BTreeMap<String, u64>,
    pub engines: BTreeMap<String, Share>,
    pub ttft: Summary,
    pub tbot: Summary,
    pub total: Summary,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Share {
    pub requests: u64,
    pub share_frac: f64,
}

impl Row {
    fn new(name: &str, rate_rps: f64, in_flight: usize, record: &Record) -> Self {
        let named: u64 = record.engines.values().sum();
        let share = |&requests: &u64| Share { requests, share_frac: requests as f64 / named.max(1) as f64 };
        Self {
            name: name.to_owned(),
            rate_rps,
            ended: record.ended,
            answered: record.answered,
            in_flight,
            late: record.late,
            lateness: record.lateness.summary(),
            reconnects: record.reconnects,
            failures: record.failures.iter().map(|(failure, count)| (failure.to_string(), *count)).collect(),
            engines: record.engines.iter().map(|(engine, requests)| (engine.clone(), share(requests))).collect(),
            ttft: record.ttft.summary(),
            tbot: record.tbot.summary(),
            total: record.total.summary(),
        }
    }
}

/// Reports the interval that ends now, and begins the next.
pub(super) fn interval(args: &Args, streams: &[Rc<Stream>], at: Duration, length: Duration) -> Result<()> {
    let records: Vec<_> = streams.iter().map(|stream| stream.interval.borrow()).collect();
    let targets = rows(streams, records.iter().map(|record| &**record));
    print(args, &Report { kind: Kind::Interval, at_s: at.as_secs_f64(), seconds: length.as_secs_f64(), targets, all: None })?;
    drop(records);
    for stream in streams {
        stream.interval.borrow_mut().clear();
    }
    Ok(())
}

/// Reports the whole run.
pub(super) fn summary(args: &Args, streams: &[Rc<Stream>], length: Duration) -> Result<()> {
    let records: Vec<_> = streams.iter().map(|stream| stream.total.borrow()).collect();
    let mut sum = Record::new(args.late_after);
    records.iter().for_each(|record| sum.merge(record));
    let targets = rows(streams, records.iter().map(|record| &**record));
    let rate_rps = targets.iter().map(|row| row.rate_rps).sum();
    let in_flight = targets.iter().map(|row| row.in_flight).sum();
    let all = Some(Row::new("all", rate_rps, in_flight, &sum));
    let seconds = length.as_secs_f64();
    print(args, &Report { kind: Kind::Summary, at_s: seconds, seconds, targets, all })
}

fn rows<'a>(streams: &[Rc<Stream>], records: impl Iterator<Item = &'a Record>) -> Vec<Row> {
    let row = |(stream, record): (&Rc<Stream>, &Record)| {
        Row::new(&stream.target.name, stream.target.rate_rps, stream.in_flight.get(), record)
    };
    streams.iter().zip(records).map(row).collect()
}

fn print(args: &Args, report: &Report) -> Result<()> {
    let text = if args.is_json { serde_json::to_string(report)? } else { table(report) };
    writeln!(std::io::stdout(), "{text}").context("failed to write the report")
}

fn table(report: &Report) -> String {
    let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
    let three = |summary: &Summary| format!("{} / {} / {}", ms(summary.mean_ms), ms(summary.p50_ms), ms(summary.p99_ms));
    let mut lines = vec![format!(
        "{} after {:.1} s; latencies in ms from when each request was due: mean / p50 / p99\n{:<10} {:>8} {:>8} {:>6} {:>6}  {:<24} {:<22} {:<26} {:<28} errors",
        if report.kind == Kind::Interval { "interval" } else { "summary" },
        report.at_s,
        "target",
        "rps",
        "answered",
        "failed",
        "late",
        "TTFT",
        "TBOT",
        "total",
        "engines"
    )];
    for row in report.targets.iter().chain(&report.all) {
        let engines = row.engines.iter().map(|(name, share)| format!("{name} {:.1} %", share.share_frac * 100.0));
        let failures: Vec<_> = row.failures.iter().map(|(failure, count)| format!("{failure} {count}")).collect();
        lines.push(format!(
            "{:<10} {:>8.1} {:>8} {:>6} {:>6}  {:<24} {:<22} {:<26} {:<28} {}",
            row.name,
            row.rate_rps,
            row.answered,
            row.failures.values().sum::<u64>(),
            row.late,
            three(&row.ttft),
            three(&row.tbot),
            three(&row.total),
            engines.collect::<Vec<_>>().join(" "),
            if failures.is_empty() { "none".to_owned() } else { failures.join(" ") },
        ));
    }
    lines.join("\n")
}
