//! The configured capacity is a third of the true one: nobody is refused while engines idle.

use std::time::Duration;

use anyhow::Result;

use crate::faults::analysis::{self, Record};
use crate::faults::figures::{Figures, Limit};
use crate::faults::fleet::{Class, Fleet};
use crate::faults::rig::Bed;
use crate::faults::traffic::{Flow, Traffic};

const ENGINES: usize = 2;

/// Of each engine.
const CAPACITY_RPS: f64 = 60.0;

/// The true capacity in times of the configured one.
const GUESS_FACTOR: f64 = 3.0;

/// Offered load, as a part of the true capacity: far beyond the configured one.
const LOAD_FRAC: f64 = 0.5;

/// Length unless `--time` says otherwise.
const LENGTH: Duration = Duration::from_secs(40);

pub(in crate::faults) async fn run(bed: &Bed, time: Option<Duration>) -> Result<Figures> {
    let offered_rps = LOAD_FRAC * CAPACITY_RPS * ENGINES as f64;
    let mut fleet = Fleet::new(ENGINES, CAPACITY_RPS, vec![Class::chat(offered_rps)]);
    fleet.believed_rps = CAPACITY_RPS / GUESS_FACTOR;
    let rig = bed.start(&fleet).await?;
    let traffic = Traffic::start(rig.front, &[Flow::chats(offered_rps)], bed.seed);
    traffic.until(time.unwrap_or(LENGTH).as_secs_f64()).await;
    let records = traffic.finish().await;
    rig.stop().await?;

    let all: Vec<&Record> = records.iter().collect();
    let mut found = Figures::default();
    found.note("requests", records.len() as f64);
    found.judge("refused", all.iter().filter(|record| record.is_refused()).count() as f64, Limit::AtMost(0.0));
    found.note("failed %", analysis::percent(&all, |record| record.failure.is_some()));
    found.note("TTFT p50 ms", analysis::ttft_ms(&all, 0.5));
    found.note("p99", analysis::ttft_ms(&all, 0.99));
    Ok(found)
}
