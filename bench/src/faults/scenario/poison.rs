//! A request that kills every engine that takes it: two at most, then its client gets 502.

use std::time::Duration;

use anyhow::Result;

use crate::faults::analysis::{self, Record};
use crate::faults::figures::{Figures, Limit};
use crate::faults::fleet::{Class, Fleet};
use crate::faults::rig::Bed;
use crate::faults::traffic::{Flow, Traffic};
use crate::load::Failure;

const ENGINES: usize = 4;

/// Of each engine.
const CAPACITY_RPS: f64 = 50.0;

/// Usual traffic, which leaves connections to every engine and carries on afterwards.
const USUAL_RPS: f64 = 20.0;

/// The deadly request is sent after so long, in s.
const SENT_S: f64 = 5.0;

/// The usual traffic goes on for so long after it, unless `--time` says otherwise.
const AFTER: Duration = Duration::from_secs(15);

const TEXT: &str = "[poison]";
const COMMAND: &str = r#"{"kind":"deadly","text":"[poison]"}"#;

pub(in crate::faults) async fn run(bed: &Bed, time: Option<Duration>) -> Result<Figures> {
    let mut rig = bed.start(&Fleet::new(ENGINES, CAPACITY_RPS, vec![Class::chat(USUAL_RPS)])).await?;
    for engine in &rig.engines {
        engine.command(COMMAND).await?;
    }
    let end_s = SENT_S + time.unwrap_or(AFTER).as_secs_f64();
    let traffic = Traffic::start(rig.front, &[Flow::chats(USUAL_RPS)], bed.seed);
    traffic.until(SENT_S).await;
    let deadly = Traffic::once(rig.front, &Flow { text: TEXT, ..Flow::chats(0.0) }, bed.seed).await;
    traffic.until(end_s).await;
    let records = traffic.finish().await;
    let ended = rig.engines.iter_mut().map(|engine| usize::from(!engine.child.is_running())).sum::<usize>();
    rig.stop().await?;

    let is_502 = deadly.failure == Some(Failure::Status(502));
    let after = analysis::within(&records, SENT_S, end_s);
    let mut found = Figures::default();
    found.judge("engines ended", ended as f64, Limit::AtMost(2.0));
    found.judge("answered 502", f64::from(u8::from(is_502)), Limit::AtLeast(1.0));
    found.note("after s", deadly.total_s);
    found.note("others' requests", after.len() as f64);
    found.note("others failed %", analysis::percent(&after, |record: &Record| record.failure.is_some()));
    Ok(found)
}
