//! Healthy engines that look odd: heavy-tailed answers near capacity, prefills of half a minute,
//! clients that leave, requests that are wrong. No engine may be ejected for it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::faults::analysis::{self, Record};
use crate::faults::figures::{Figures, Limit};
use crate::faults::fleet::{Class, Fleet};
use crate::faults::rig::Bed;
use crate::faults::traffic::{Flow, Tokens, Traffic};
use crate::process;

const ENGINES: usize = 3;

/// Of each engine.
const CAPACITY_RPS: f64 = 20.0;

/// Offered load of all flows, as a part of the fleet's capacity.
const LOAD_FRAC: f64 = 0.9;

/// Part of the requests that the engine refuses with 400, that their clients give up on, and that
/// have long prompts.
const WRONG_FRAC: f64 = 0.05;
const LEAVING_FRAC: f64 = 0.05;
const LONG_FRAC: f64 = 0.005;

/// A long prompt, in bytes, and the time that each of its tokens takes: 100,000 tokens, 30 s.
const LONG_BYTES: usize = 400_000;
const PROMPT_TOKEN_MS: f64 = 0.3;

/// Patience of clients that leave: many of them before the first token.
const IMPATIENCE: Duration = Duration::from_millis(100);

/// Patience of all others: the longest sound answer takes a minute.
const PATIENCE: Duration = Duration::from_secs(120);

/// Length unless `--time` says otherwise.
const LENGTH: Duration = Duration::from_secs(3600);

/// Time between two looks at ilb's metrics: shorter than the shortest ejection.
const LOOK_S: f64 = 0.25;

/// Flows in the order of [`flows`].
const LEAVING: usize = 2;
const WRONG: usize = 3;

fn flows(rate_rps: f64) -> [Flow; 4] {
    let usual = Flow {
        // Their mean is three times the smallest, 24 tokens.
        tokens: Tokens::HeavyTailed { min: 8, max: 2000 },
        patience: PATIENCE,
        ..Flow::chats(rate_rps * (1.0 - WRONG_FRAC - LEAVING_FRAC - LONG_FRAC))
    };
    let long = Flow { rate_rps: rate_rps * LONG_FRAC, prompt_bytes: LONG_BYTES, ..usual };
    let leaving = Flow { rate_rps: rate_rps * LEAVING_FRAC, patience: IMPATIENCE, ..usual };
    // No engine generates nothing: 400.
    let wrong = Flow { rate_rps: rate_rps * WRONG_FRAC, tokens: Tokens::Fixed(0), ..usual };
    [usual, long, leaving, wrong]
}

pub(in crate::faults) async fn run(bed: &Bed, time: Option<Duration>) -> Result<Figures> {
    let rate_rps = CAPACITY_RPS * ENGINES as f64 * LOAD_FRAC;
    let class = Class { output_tokens: 24, ..Class::chat(rate_rps) };
    let mut fleet = Fleet::new(ENGINES, CAPACITY_RPS, vec![class]);
    fleet.prompt_token_ms = PROMPT_TOKEN_MS;
    let rig = bed.start(&fleet).await?;
    let admin = rig.admin.context("false alarms are read from ilb's metrics")?;
    let traffic = Traffic::start(rig.front, &flows(rate_rps), bed.seed);
    let mut watch = Watch::default();
    let length_s = time.unwrap_or(LENGTH).as_secs_f64();
    while traffic.at_s() < length_s {
        watch.look(admin).await?;
        traffic.until((traffic.at_s() + LOOK_S).min(length_s)).await;
    }
    let records = traffic.finish().await;
    rig.stop().await?;

    let sound: Vec<&Record> = records.iter().filter(|record| record.flow != LEAVING && record.flow != WRONG).collect();
    let mut found = Figures::default();
    found.note("requests", records.len() as f64);
    found.judge("ejections", watch.ejections as f64, Limit::AtMost(0.0));
    found.note("largest penalty", watch.penalty);
    found.note("failed %", analysis::percent(&sound, |record| record.failure.is_some()));
    found.note("longest s", analysis::longest_s(&sound));
    found.note("TTFT p50 ms", analysis::ttft_ms(&sound, 0.5));
    found.note("p99", analysis::ttft_ms(&sound, 0.99));
    Ok(found)
}

/// What ilb's metrics said of its engines.
#[derive(Debug, Default)]
struct Watch {
    /// Times that an engine was not ejected at one look and was at the next.
    ejections: u64,
    /// Largest part of its share that an engine has lost.
    penalty: f64,
    down: BTreeMap<String, bool>,
}

impl Watch {
    async fn look(&mut self, admin: SocketAddr) -> Result<()> {
        let (_, text) = process::get(admin, "/metrics").await.context("failed to read ilb's metrics")?;
        self.read(&String::from_utf8_lossy(&text));
        Ok(())
    }

    fn read(&mut self, text: &str) {
        for line in text.lines() {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            if series.starts_with("ilb_proxy_engine_down{") {
                let was_down = self.down.insert(series.to_owned(), value > 0.0).unwrap_or(false);
                self.ejections += u64::from(value > 0.0 && !was_down);
            } else if series.starts_with("ilb_proxy_engine_penalty_ratio{") {
                self.penalty = self.penalty.max(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ejection_counts_once_however_long_it_lasts() {
        let mut watch = Watch::default();
        for (down, penalty) in [(0, 0.0), (1, 0.5), (1, 1.0), (0, 0.3), (1, 0.2)] {
            watch.read(&format!(
                "# TYPE ilb_proxy_engine_down gauge\nilb_proxy_engine_down{{engine=\"e0\"}} {down}\nilb_proxy_engine_down{{engine=\"e1\"}} 0\nilb_proxy_engine_penalty_ratio{{engine=\"e0\",reason=\"slow\"}} {penalty}\n"
            ));
        }
        assert_eq!((watch.ejections, watch.penalty), (2, 1.0));
    }
}
