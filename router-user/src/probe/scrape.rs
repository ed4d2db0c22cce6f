//! Scrapes one engine periodically, with one request at a time: an engine that hangs is not asked
//! again meanwhile.

use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::mpsc;

use super::signals::EngineSignals;
use super::{from_loads, from_metrics};
use crate::model::EngineId;
use crate::rng::Rng;
use crate::shortage;

/// Longest time for one request. An engine that takes longer is busy, and its answer would be old.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest answer that is read, in bytes. A page of vLLM has some hundred KiB.
const ANSWER_MAX_BYTES: usize = 4 << 20;
/// Longest pause between two scrapes, in periods. Each failure in a row doubles the pause up to
/// here.
const PAUSE_MAX_PERIODS: u32 = 16;
/// Share of a pause by which it varies at random: engines are not scraped all at once, nor by
/// several controllers in step.
const JITTER_FRAC: f64 = 0.1;

/// Paths of metrics, in the order in which they are tried.
const PATHS: [Path; 4] = [
    Path { path: "/metrics", read: from_metrics },
    // trtllm-serve has something else at /metrics.
    Path { path: "/prometheus/metrics", read: from_metrics },
    // SGLang without --enable-metrics, and of old.
    Path { path: "/v1/loads?include=core", read: from_loads },
    Path { path: "/get_load", read: from_loads },
];

struct Path {
    path: &'static str,
    read: fn(&[u8]) -> Option<EngineSignals>,
}

/// The outcome of one scrape.
#[derive(Debug)]
pub struct Scrape {
    pub engine: EngineId,
    pub outcome: Result<EngineSignals, ScrapeError>,
}

/// Why a scrape gave no signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ScrapeError {
    #[error("no answer within {} s", SCRAPE_TIMEOUT.as_secs())]
    TimedOut,
    #[error("the connection is refused or broken")]
    Refused,
    #[error("this machine has no descriptors, ports or memory left to ask it")]
    Untried,
    #[error("an answer of more than {ANSWER_MAX_BYTES} bytes")]
    TooLarge,
    #[error("no known metrics at {}", PATHS.iter().map(|p| p.path).collect::<Vec<_>>().join(", "))]
    NoSignals,
}

/// A client for [`watch`]. One client serves any number of engines.
pub fn client() -> reqwest::Client {
    let client = reqwest::Client::builder().timeout(SCRAPE_TIMEOUT).no_proxy().pool_max_idle_per_host(0);
    let client = client.redirect(reqwest::redirect::Policy::none()).build();
    client.expect("a client without TLS needs nothing that can be missing")
}

/// Scrapes one engine about every `period`, until the receiver is gone. At most one request is in
/// flight, and each failure in a row doubles the pause.
pub async fn watch(
    client: reqwest::Client,
    engine: EngineId,
    address: SocketAddr,
    period: Duration,
    scrapes: mpsc::Sender<Scrape>,
    mut rng: Rng,
) {
    let mut place = 0;
    let mut failures = 0_u32;
    // The first scrape comes at any time within a period.
    tokio::time::sleep(period.mul_f64(rng.unit())).await;
    loop {
        let outcome = ask(&client, address, &mut place).await;
        failures = if outcome.is_ok() { 0 } else { failures.saturating_add(1) };
        if scrapes.send(Scrape { engine, outcome }).await.is_err() {
            return;
        }
        tokio::time::sleep(pause(period, failures, rng.unit())).await;
    }
}

/// The pause after a number of failures in a row; `unit` is a random number from 0 to 1.
fn pause(period: Duration, failures: u32, unit: f64) -> Duration {
    let periods = 1_u32.checked_shl(failures).unwrap_or(PAUSE_MAX_PERIODS).min(PAUSE_MAX_PERIODS);
    (period * periods).mul_f64(1.0 + JITTER_FRAC * (2.0 * unit - 1.0))
}

/// Requests the `place` in [`PATHS`] that had signals last, and then the others.
async fn ask(client: &reqwest::Client, address: SocketAddr, place: &mut usize) -> Result<EngineSignals, ScrapeError> {
    let first = *place;
    for index in std::iter::once(first).chain((0..PATHS.len()).filter(|&other| other != first)) {
        let Path { path, read } = &PATHS[index];
        let Some(body) = fetch(client, &format!("http://{address}{path}")).await? else { continue };
        if let Some(signals) = read(&body) {
            *place = index;
            return Ok(signals);
        }
    }
    Err(ScrapeError::NoSignals)
}

/// The body of a good answer; `None` for any other status.
async fn fetch(client: &reqwest::Client, url: &str) -> Result<Option<Vec<u8>>, ScrapeError> {
    let failed = |error: reqwest::Error| match error.is_timeout() {
        true => ScrapeError::TimedOut,
        false if shortage::is_ours(&error) => ScrapeError::Untried,
        false => ScrapeError::Refused,
    };
    let mut response = client.get(url).send().await.map_err(failed)?;
    if !response.status().is_success() {
        return Ok(None);
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if body.len() + chunk.len() > ANSWER_MAX_BYTES {
            return Err(ScrapeError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_failures_and_stay_within_their_jitter() {
        let period = Duration::from_secs(5);
        for (failures, unit, wanted_s) in
            [(0, 0.5, 5.0), (0, 0.0, 4.5), (0, 1.0, 5.5), (1, 0.5, 10.0), (4, 0.5, 80.0), (40, 0.5, 80.0)]
        {
            let found = pause(period, failures, unit).as_secs_f64();
            assert!((found - wanted_s).abs() < 1e-9, "{found} s after {failures} failures");
        }
    }
}
