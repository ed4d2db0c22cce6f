//! An engine dies with hundreds of requests on it: what is sent again stays within the retry
//! budget, whether its connections were new or kept.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::faults::analysis::Record;
use crate::faults::figures::{Figures, Limit};
use crate::faults::fleet::{Class, Fleet};
use crate::faults::rig::{self, Bed};
use crate::faults::traffic::{Flow, Tokens, Traffic};

const ENGINES: usize = 2;

/// Of each engine: what is tried is the budget, so nothing may wait in an engine.
const CAPACITY_RPS: f64 = 5000.0;

/// A burst: six hundred requests in a fifth of a second, half of them at the engine that dies.
const BURST_RPS: f64 = 3000.0;
const BURST_S: f64 = 0.2;

/// Answers come whole after three seconds.
const OUTPUT_TOKENS: u32 = 300;

/// The burst of kept connections comes while those of the burst before are still kept, in s.
const FIRST_S: f64 = 1.0;
const SECOND_S: f64 = 5.5;

/// The engine dies so long after the burst, in s, when all of it is being worked on.
const DEATH_S: f64 = 1.5;

/// Retries that a budget may allow: a fifth of all requests, and a start.
const BUDGET_FRAC: f64 = 0.2;
const BUDGET_START: f64 = 10.0;

pub(in crate::faults) async fn run(bed: &Bed) -> Result<Figures> {
    let mut found = Figures::default();
    let fresh = burst(bed, false).await?;
    found.note("cut on new connections", fresh.cut as f64);
    found.judge("sent again", fresh.again as f64, Limit::AtMost(fresh.allowed));
    // A world of its own: numbers of requests and journals begin anew.
    let kept = burst(&Bed::new(bed.front.clone(), bed.seed)?, true).await?;
    found.note("cut on kept connections", kept.cut as f64);
    found.judge("kept sent again", kept.again as f64, Limit::AtMost(kept.allowed));
    found.note("failed", (fresh.failed + kept.failed) as f64);
    Ok(found)
}

struct Cut {
    /// Requests that the engine had when it died.
    cut: usize,
    /// Sends beyond the first of each request.
    again: usize,
    allowed: f64,
    failed: usize,
}

async fn burst(bed: &Bed, is_kept: bool) -> Result<Cut> {
    let class = Class { output_tokens: OUTPUT_TOKENS, ..Class::chat(BURST_RPS) };
    let rig = bed.start(&Fleet::new(ENGINES, CAPACITY_RPS, vec![class])).await?;
    let flow = |from_s| Flow {
        from_s,
        until_s: from_s + BURST_S,
        stream_frac: 0.0,
        tokens: Tokens::Fixed(OUTPUT_TOKENS),
        ..Flow::chats(BURST_RPS)
    };
    let last_s = if is_kept { SECOND_S } else { FIRST_S };
    let flows = if is_kept { vec![flow(FIRST_S), flow(SECOND_S)] } else { vec![flow(FIRST_S)] };
    let traffic = Traffic::start(rig.front, &flows, bed.seed);
    traffic.until(last_s + BURST_S + DEATH_S).await;
    let before: BTreeSet<u64> = traffic.so_far().iter().map(|record| record.id).collect();
    let cut = rig.engines[0].arrivals()?.ids().difference(&before).count();
    rig.engines[0].kill();
    let records = traffic.finish().await;
    let sends = rig::sends(&rig.arrivals()?);
    rig.stop().await?;
    Ok(Cut {
        cut,
        again: sends.values().map(|sends| sends - 1).sum(),
        allowed: (BUDGET_FRAC * records.len() as f64 + BUDGET_START).floor(),
        failed: records.iter().filter(|record: &&Record| record.failure.is_some()).count(),
    })
}
