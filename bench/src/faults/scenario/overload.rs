//! Three times more than the fleet can carry: as much as it can carry is served, the first priority
//! soon enough, and all is normal when it is over.

use std::time::Duration;

use anyhow::Result;

use crate::faults::analysis::{self, Record};
use crate::faults::figures::{Figures, Limit};
use crate::faults::fleet::{Class, Fleet};
use crate::faults::rig::Bed;
use crate::faults::traffic::{Flow, Traffic};

const ENGINES: usize = 2;

/// Of each engine.
const CAPACITY_RPS: f64 = 20.0;

/// Classes in the order of their priority, and what each offers in the overload as a part of the
/// fleet's capacity: three times the capacity together, and the first priority fits.
const CLASSES: [(&str, f64); 4] = [("first", 0.4), ("second", 0.6), ("third", 1.0), ("fourth", 1.0)];

/// Calm before and after, in s, with half of the fleet's capacity offered.
const CALM_S: f64 = 20.0;
const CALM_FACTOR: f64 = 1.0 / 6.0;

/// Length of the overload unless `--time` says otherwise.
const OVERLOAD: Duration = Duration::from_secs(300);

/// Goodput counts from so long after the beginning, in s: engines serve their reserve for bursts
/// first.
const SETTLE_S: f64 = 10.0;

/// An answer that comes later, in s, is no use to its client: the default of `ttft_budget_ms`.
const USEFUL_S: f64 = 10.0;

/// A time to first token beyond so many times the calm's p99 is not normal.
const NORMAL_FACTOR: f64 = 2.0;

pub(in crate::faults) async fn run(bed: &Bed, time: Option<Duration>) -> Result<Figures> {
    let capacity_rps = CAPACITY_RPS * ENGINES as f64;
    let class = |(number, &(name, part)): (usize, &(&'static str, f64))| {
        let priority = u8::try_from(number).unwrap_or(u8::MAX);
        Class { name, priority, ..Class::chat(part * CALM_FACTOR * capacity_rps) }
    };
    let fleet = Fleet::new(ENGINES, CAPACITY_RPS, CLASSES.iter().enumerate().map(class).collect());
    let end_s = CALM_S + time.unwrap_or(OVERLOAD).as_secs_f64();
    let flow = |&(name, part): &(&'static str, f64), factor: f64, from_s, until_s| {
        let rate_rps = part * factor * capacity_rps;
        Flow { class: Some(name), from_s, until_s, stream_frac: 1.0, ..Flow::chats(rate_rps) }
    };
    // The flows of one phase lie together, in the order of the classes.
    let phases = [(CALM_FACTOR, 0.0, CALM_S), (1.0, CALM_S, end_s), (CALM_FACTOR, end_s, end_s + CALM_S)];
    let flows: Vec<Flow> = phases
        .iter()
        .flat_map(|&(factor, from_s, until_s)| CLASSES.iter().map(move |class| flow(class, factor, from_s, until_s)))
        .collect();
    let rig = bed.start(&fleet).await?;
    let traffic = Traffic::start(rig.front, &flows, bed.seed);
    traffic.until(end_s + CALM_S).await;
    let records = traffic.finish().await;
    rig.stop().await?;
    Ok(figures(&records, capacity_rps, end_s))
}

fn figures(records: &[Record], capacity_rps: f64, end_s: f64) -> Figures {
    let answered = |record: &Record| record.failure.is_none();
    let calm = analysis::within(records, 0.0, CALM_S);
    let settled = analysis::within(records, CALM_S + SETTLE_S, end_s);
    let first: Vec<&Record> = settled.iter().copied().filter(|record| record.flow % CLASSES.len() == 0).collect();
    let last: Vec<&Record> = settled.iter().copied().filter(|record| record.flow % CLASSES.len() == CLASSES.len() - 1).collect();
    let calm_ms = analysis::ttft_ms(&calm, 0.99);
    let goodput_rps = analysis::goodput_rps(records, CALM_S + SETTLE_S, end_s, USEFUL_S);
    let mut found = Figures::default();
    found.note("requests", records.len() as f64);
    found.judge("goodput of capacity %", goodput_rps / capacity_rps * 100.0, Limit::AtLeast(95.0));
    found.note("first served %", analysis::percent(&first, answered));
    found.note("first TTFT p50 ms", analysis::ttft_ms(&first, 0.5));
    found.judge("first p99", analysis::ttft_ms(&first, 0.99), Limit::AtMost(USEFUL_S * 1e3));
    found.note("last served %", analysis::percent(&last, answered));
    found.note("all p99", analysis::ttft_ms(&settled, 0.99));
    found.note("calm p99", calm_ms);
    let normal_after_s = calm_ms.map(|calm_ms| normal_after_s(records, end_s, calm_ms / 1e3));
    found.judge("normal after s", normal_after_s, Limit::AtMost(10.0));
    found
}

/// Time from `end_s` until the last request was due that failed or was slower than normal.
fn normal_after_s(records: &[Record], end_s: f64, calm_s: f64) -> f64 {
    let after = analysis::within(records, end_s, f64::INFINITY);
    let is_normal =
        |record: &Record| record.failure.is_none() && record.ttft_s.is_none_or(|ttft_s| ttft_s <= NORMAL_FACTOR * calm_s);
    let last = after.iter().filter(|record| !is_normal(record)).map(|record| record.due_s - end_s).reduce(f64::max);
    last.unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Failure;

    #[test]
    fn it_is_normal_after_the_last_slow_or_failed_request() {
        let record = |due_s: f64, failure, ttft_s| Record { due_s, failure, ttft_s, has_begun: true, ..Record::default() };
        let records = [
            record(9.0, Some(Failure::Status(429)), None),
            record(11.0, None, Some(0.5)),
            record(13.0, Some(Failure::Status(429)), None),
            record(14.0, None, Some(0.2)),
        ];
        assert_eq!(normal_after_s(&records, 10.0, 0.1), 3.0);
        assert_eq!(normal_after_s(&records[3..], 10.0, 0.1), 0.0, "twice the calm is normal");
    }
}
