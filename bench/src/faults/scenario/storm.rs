//! Half of the engines fail at once while the fleet is nearly full: retries must not add load to
//! engines that have none to spare.

use std::time::Duration;

use anyhow::Result;

use crate::faults::analysis;
use crate::faults::figures::{Figures, Limit};
use crate::faults::fleet::{Class, Fleet};
use crate::faults::misbehaviour::Misbehaviour;
use crate::faults::rig::{self, Bed};
use crate::faults::traffic::{Flow, Traffic};

const ENGINES: usize = 4;
const FAILING: usize = 2;

/// Of each engine.
const CAPACITY_RPS: f64 = 50.0;

/// Offered load, as a part of the fleet's capacity.
const LOAD_FRAC: f64 = 0.95;

/// The fault begins so long after the traffic, in s.
const CALM_S: f64 = 10.0;

/// Goodput counts from so long after the beginning of the fault, in s.
const NOTICE_S: f64 = 5.0;

/// An answer that comes later, in s, is no use to its client.
const USEFUL_S: f64 = 10.0;

/// Length of the fault unless `--time` says otherwise.
const FAULT: Duration = Duration::from_secs(30);

pub(in crate::faults) async fn run(bed: &Bed, time: Option<Duration>) -> Result<Figures> {
    let offered_rps = LOAD_FRAC * CAPACITY_RPS * ENGINES as f64;
    let fleet = Fleet::new(ENGINES, CAPACITY_RPS, vec![Class::chat(offered_rps)]);
    let rig = bed.start(&fleet).await?;
    let traffic = Traffic::start(rig.front, &[Flow::chats(offered_rps)], bed.seed);
    traffic.until(CALM_S).await;
    for engine in &rig.engines[..FAILING] {
        engine.begin(Misbehaviour::Error).await?;
    }
    let begin_s = traffic.at_s();
    traffic.until(begin_s + time.unwrap_or(FAULT).as_secs_f64()).await;
    let end_s = traffic.at_s();
    let records = traffic.finish().await;
    let sends = rig::sends(&rig.arrivals()?);
    rig.stop().await?;

    let during = analysis::within(&records, begin_s, end_s);
    let sent: usize = during.iter().filter_map(|record| sends.get(&record.id)).sum();
    let living_rps = CAPACITY_RPS * (ENGINES - FAILING) as f64;
    let goodput_rps = analysis::goodput_rps(&records, begin_s + NOTICE_S, end_s, USEFUL_S);
    let mut found = Figures::default();
    found.note("requests", during.len() as f64);
    let added = (!during.is_empty()).then(|| (sent as f64 / during.len() as f64 - 1.0) * 100.0);
    found.judge("added load %", added, Limit::AtMost(5.0));
    found.judge("goodput of living %", goodput_rps / living_rps * 100.0, Limit::AtLeast(90.0));
    found.note("failed %", analysis::percent(&during, |record| record.failure.is_some()));
    found.note("longest s", analysis::longest_s(&during));
    found.note("fault TTFT p50 ms", analysis::ttft_ms(&during, 0.5));
    found.note("fault p99", analysis::ttft_ms(&during, 0.99));
    Ok(found)
}
