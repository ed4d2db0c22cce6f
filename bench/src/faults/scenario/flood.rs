//! One user floods the fleet: the others must not notice.

use std::time::Duration;

use anyhow::Result;

use crate::faults::analysis::{self, Record};
use crate::faults::figures::{Figures, Limit};
use crate::faults::fleet::{Class, Fleet};
use crate::faults::rig::Bed;
use crate::faults::traffic::{Flow, Traffic, User};

const ENGINES: usize = 2;

/// Of each engine.
const CAPACITY_RPS: f64 = 10.0;

/// Users beside the flood, and what they send together.
const OTHERS: u64 = 20;
const OTHERS_RPS: f64 = 5.0;

/// Rate of the flood in times of the fleet's capacity.
const FLOOD_FACTOR: f64 = 15.0;

/// The flooding user gives up on a request after this long; it has thousands of others.
const FLOOD_PATIENCE: Duration = Duration::from_secs(10);

/// The others are measured for so long before the flood, in s.
const CALM_S: f64 = 30.0;

/// Length of the flood unless `--time` says otherwise.
const FLOOD: Duration = Duration::from_secs(30);

pub(in crate::faults) async fn run(bed: &Bed, time: Option<Duration>) -> Result<Figures> {
    let flood_s = time.unwrap_or(FLOOD).as_secs_f64();
    let fleet = Fleet::new(ENGINES, CAPACITY_RPS, vec![Class::chat(OTHERS_RPS)]);
    let rig = bed.start(&fleet).await?;
    // All streams, so that each says how long its first token took.
    let others = Flow { user: User::OneOf(OTHERS), stream_frac: 1.0, ..Flow::chats(OTHERS_RPS) };
    let flood = Flow {
        user: User::Same("flood"),
        from_s: CALM_S,
        until_s: CALM_S + flood_s,
        patience: FLOOD_PATIENCE,
        ..Flow::chats(FLOOD_FACTOR * CAPACITY_RPS * ENGINES as f64)
    };
    let traffic = Traffic::start(rig.front, &[others, flood], bed.seed);
    traffic.until(CALM_S + flood_s).await;
    let records = traffic.finish().await;
    rig.stop().await?;

    let answered = |record: &Record| record.failure.is_none();
    let (others, flood): (Vec<Record>, Vec<Record>) = records.into_iter().partition(|record| record.flow == 0);
    let calm = analysis::within(&others, 0.0, CALM_S);
    let during = analysis::within(&others, CALM_S, CALM_S + flood_s);
    let flood = analysis::within(&flood, 0.0, f64::INFINITY);
    let (calm_ms, flood_ms) = (analysis::ttft_ms(&calm, 0.99), analysis::ttft_ms(&during, 0.99));
    let mut found = Figures::default();
    found.note("others' requests", during.len() as f64);
    found.note("served in calm %", analysis::percent(&calm, answered));
    found.judge("served in flood %", analysis::percent(&during, answered), Limit::AtLeast(99.0));
    found.note("calm TTFT p99 ms", calm_ms);
    found.note("flood p99", flood_ms);
    found.judge("times calm", calm_ms.zip(flood_ms).map(|(calm, flood)| flood / calm), Limit::AtMost(2.0));
    found.note("flood served %", analysis::percent(&flood, answered));
    Ok(found)
}
