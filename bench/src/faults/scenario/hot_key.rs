//! One affinity key is most of the traffic: the fleet shares it, and a session alone keeps its
//! engine.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use crate::faults::analysis::{self, Record};
use crate::faults::figures::{Figures, Limit};
use crate::faults::fleet::{Class, Fleet};
use crate::faults::rig::{Arrivals, Bed};
use crate::faults::traffic::{Flow, Tokens, Traffic, User};

const ENGINES: usize = 4;

/// Of each engine: far from full, so that only the key's own bound spreads it.
const CAPACITY_RPS: f64 = 100.0;

/// Requests of the hot key that are open at any time.
const AT_ONCE: usize = 32;

/// Peaks count from so long after the start, in s: the first requests all come at once.
const WARM_UP_S: f64 = 3.0;

/// Length of the hot key's traffic unless `--time` says otherwise.
const HOT: Duration = Duration::from_secs(20);

/// Then one session sends one request after the other for so long, in s: more than a hundred.
const SESSION_S: f64 = 15.0;

pub(in crate::faults) async fn run(bed: &Bed, time: Option<Duration>) -> Result<Figures> {
    let hot_s = time.unwrap_or(HOT).as_secs_f64();
    let fleet = Fleet::new(ENGINES, CAPACITY_RPS, vec![Class::chat(AT_ONCE as f64)]);
    let rig = bed.start(&fleet).await?;
    let hot = Flow {
        user: User::Same("everybody"),
        at_once: AT_ONCE,
        until_s: hot_s,
        // About a second, so that the open requests are spread over it.
        tokens: Tokens::Fixed(64),
        ..Flow::chats(0.0)
    };
    // A pause between the two lets the last hot requests end.
    let session = Flow {
        user: User::Same("alone"),
        at_once: 1,
        from_s: hot_s + 3.0,
        until_s: hot_s + 3.0 + SESSION_S,
        tokens: Tokens::Fixed(4),
        ..Flow::chats(0.0)
    };
    let traffic = Traffic::start(rig.front, &[hot, session], bed.seed);
    traffic.until(session.until_s).await;
    let records = traffic.finish().await;
    let arrivals = rig.arrivals()?;
    rig.stop().await?;

    let hot: Vec<&Record> = records.iter().filter(|record| record.flow == 0 && record.due_s >= WARM_UP_S).collect();
    let session: Vec<&Record> = records.iter().filter(|record| record.flow == 1).collect();
    let mean = AT_ONCE as f64 / ENGINES as f64;
    let mut found = Figures::default();
    found.note("requests", hot.len() as f64);
    found.judge("peak of mean in flight", peak(&arrivals, &hot).map(|peak| peak as f64 / mean), Limit::AtMost(1.25));
    found.note("largest share %", largest_share_percent(&hot));
    found.note("failed %", analysis::percent(&hot, |record| record.failure.is_some()));
    found.note("session requests", session.len() as f64);
    found.judge("session on one engine %", largest_share_percent(&session), Limit::AtLeast(100.0));
    Ok(found)
}

/// Most of these requests that an engine had at a time, the arriving one included.
fn peak(arrivals: &[Arrivals], of: &[&Record]) -> Option<u64> {
    let ids: std::collections::BTreeSet<u64> = of.iter().map(|record| record.id).collect();
    let all = arrivals.iter().flat_map(|arrivals| &arrivals.list);
    all.filter(|(id, _)| ids.contains(id)).map(|(_, before)| before + 1).max()
}

/// Share of the engine that answered most of these requests.
fn largest_share_percent(of: &[&Record]) -> Option<f64> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for engine in of.iter().filter_map(|record| record.engine.as_deref()) {
        *counts.entry(engine).or_default() += 1;
    }
    let most = *counts.values().max()?;
    Some(most as f64 / of.len() as f64 * 100.0)
}
