//! Asks one engine for its signals, slowly and one question at a time: an engine that hangs over it must not be asked again meanwhile.

use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::mpsc;

use super::signals::EngineSignals;
use super::{from_loads, from_metrics};
use crate::model::EngineId;
use crate::rng::Rng;

/// An engine that takes longer is busy, and what it would say is old.
const PATIENCE: Duration = Duration::from_secs(2);
/// Largest answer that is read: a page of vLLM has some hundred KiB.
const MAX_BYTES: usize = 4 << 20;
/// Each failure in a row doubles the pause, up to so many periods.
const MOST_PERIODS: u32 = 16;
/// Part of a period by which a pause varies, so that engines are not asked all at once, nor by several controllers in step.
const JITTER_FRAC: f64 = 0.1;

/// Where engines keep their signals, in the order in which they are tried.
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

/// What came of asking one engine.
#[derive(Debug)]
pub struct Scrape {
    pub engine: EngineId,
    pub outcome: Result<EngineSignals, ScrapeError>,
}

/// Why an engine's signals are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ScrapeError {
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Silent,
    #[error("the connection is refused or broken")]
    Refused,
    #[error("an answer of more than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("no known metrics at {}", PATHS.iter().map(|p| p.path).collect::<Vec<_>>().join(", "))]
    NoSignals,
}

/// A client for [`watch`]; one serves any number of engines.
pub fn client() -> reqwest::Client {
    let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy().pool_max_idle_per_host(0);
    let client = client.redirect(reqwest::redirect::Policy::none()).build();
    client.expect("a client without TLS needs nothing that can be missing")
}

/// Asks one engine about every `period`, until the receiver is gone. There is never more than one question in flight, and an engine that
/// does not answer is asked less and less often.
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
    // The first question comes at any time within a period.
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

/// The pause after so many failures in a row; `unit` is a random number from 0 to 1.
fn pause(period: Duration, failures: u32, unit: f64) -> Duration {
    let periods = 1_u32.checked_shl(failures).unwrap_or(MOST_PERIODS).min(MOST_PERIODS);
    (period * periods).mul_f64(1.0 + JITTER_FRAC * (2.0 * unit - 1.0))
}

/// Asks at the `place` in [`PATHS`] that answered last, and where that has nothing, at the others.
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
    let failed = |error: reqwest::Error| if error.is_timeout() { ScrapeError::Silent } else { ScrapeError::Refused };
    let mut response = client.get(url).send().await.map_err(failed)?;
    if !response.status().is_success() {
        return Ok(None);
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if body.len() + chunk.len() > MAX_BYTES {
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
