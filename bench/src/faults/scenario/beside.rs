//! A small model on the same engines as a flooded one: its requests must not notice.

use std::time::Duration;

use anyhow::Result;

use crate::faults::analysis::{self, Record};
use crate::faults::figures::{Figures, Limit};
use crate::faults::fleet::{Class, Fleet};
use crate::faults::rig::Bed;
use crate::faults::traffic::{Flow, Traffic};

const ENGINES: usize = 2;

/// Of each engine, both models together.
const CAPACITY_RPS: f64 = 10.0;

const SMALL_RPS: f64 = 2.0;
const FLOOD_RPS: f64 = 60.0;

/// The large model is usually offered so much, as planned for.
const LARGE_RPS: f64 = 10.0;

/// Length of the calm before the flood, in s.
const CALM_S: f64 = 20.0;

/// Length of the flood unless `--time` says otherwise.
const FLOOD: Duration = Duration::from_secs(30);

pub(in crate::faults) async fn run(bed: &Bed, time: Option<Duration>) -> Result<Figures> {
    let end_s = CALM_S + time.unwrap_or(FLOOD).as_secs_f64();
    let class = |name, model, demand_rps| Class { name, model, ..Class::chat(demand_rps) };
    let classes = vec![class("large", "large", LARGE_RPS), class("small", "small", SMALL_RPS)];
    let rig = bed.start(&Fleet::new(ENGINES, CAPACITY_RPS, classes)).await?;
    let small = Flow { model: "small", stream_frac: 1.0, ..Flow::chats(SMALL_RPS) };
    let calm = Flow { model: "large", until_s: CALM_S, ..Flow::chats(LARGE_RPS) };
    let flood = Flow { model: "large", from_s: CALM_S, until_s: end_s, ..Flow::chats(FLOOD_RPS) };
    let traffic = Traffic::start(rig.front, &[small, calm, flood], bed.seed);
    traffic.until(end_s).await;
    let records = traffic.finish().await;
    rig.stop().await?;

    let failed = |record: &Record| record.failure.is_some();
    let (small, large): (Vec<Record>, Vec<Record>) = records.into_iter().partition(|record| record.flow == 0);
    let calm = analysis::within(&small, 0.0, CALM_S);
    let during = analysis::within(&small, CALM_S, end_s);
    let goodput_rps = analysis::goodput_rps(&large, CALM_S, end_s, f64::INFINITY);
    let mut found = Figures::default();
    found.note("small requests", during.len() as f64);
    found.note("failed in calm %", analysis::percent(&calm, failed));
    found.judge("failed in flood %", analysis::percent(&during, failed), Limit::AtMost(1.0));
    found.note("calm TTFT p99 ms", analysis::ttft_ms(&calm, 0.99));
    found.note("flood p99", analysis::ttft_ms(&during, 0.99));
    found.note("large served /s", goodput_rps);
    Ok(found)
}
