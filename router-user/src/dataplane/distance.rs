//! Measures how far engines are, off the path of requests.
//!
//! A distance is what a small request costs on a connection that is open already: the least of a few, since everything that disturbs a
//! measurement makes it longer. The kernel's own estimate (`TCP_INFO`) would cost nothing, but it ends at the first thing on the way
//! that ends TCP, such as a mesh's sidecar or a relay, where requests do not.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::dataplane::DataRole;

/// Pause between two rounds over all engines: distances change when routes do, and a change is believed after three rounds.
const PERIOD: Duration = Duration::from_secs(5);
/// Requests that are timed, after one that opens the connection.
const TIMED: usize = 3;
/// An engine that does not answer in this time has no distance.
const PATIENCE: Duration = Duration::from_secs(2);
/// Engines measured at once; 2,000 of them at 200 ms take half a minute.
const AT_ONCE: usize = 64;

/// Measurements that are not reported yet: ms by engine.
#[derive(Debug, Default)]
pub struct Distances(Mutex<BTreeMap<String, f64>>);

impl Distances {
    fn put(&self, engine: String, ms: f64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(engine, ms);
    }

    /// Takes all of them, so that each is reported once.
    pub(crate) fn take(&self) -> BTreeMap<String, f64> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts back what could not be reported; what was measured meanwhile is newer.
    pub(crate) fn put_back(&self, unreported: BTreeMap<String, f64>) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (engine, ms) in unreported {
            waiting.entry(engine).or_insert(ms);
        }
    }
}

/// Measures the distance to every engine again and again, for as long as the process runs.
pub async fn measure_distances(role: Arc<DataRole>, clock: Clock) {
    let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy().pool_max_idle_per_host(1).tcp_nodelay(true).build();
    let client = client.expect("a client without TLS needs nothing that can be missing");
    loop {
        let mut running = JoinSet::new();
        for (engine, address) in role.plane.addresses() {
            if running.len() >= AT_ONCE {
                running.join_next().await;
            }
            let (client, role) = (client.clone(), Arc::clone(&role));
            running.spawn(async move {
                match round_trip_ms(&client, address, clock).await {
                    Ok(Some(ms)) => role.distances.put(engine, ms),
                    Ok(None) => tracing::debug!(engine, "closes connections after one answer; its distance is not measured"),
                    Err(error) => tracing::debug!(engine, %error, "the distance was not measured"),
                }
            });
        }
        while running.join_next().await.is_some() {}
        tokio::time::sleep(PERIOD).await;
    }
}

/// The least time of a few small requests on one open connection, in ms; `None` where the engine does not keep it open.
///
/// Errors: the engine cannot be reached or does not answer in time.
async fn round_trip_ms(client: &reqwest::Client, address: SocketAddr, clock: Clock) -> reqwest::Result<Option<f64>> {
    let mut least = f64::INFINITY;
    for nth in 0..=TIMED {
        let started = clock.now();
        let response = client.get(format!("http://{address}/health")).send().await?;
        let took = clock.now() - started;
        let closes = response.headers().get("connection").is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"close"));
        // Read to its end, or the next request would need another connection.
        response.bytes().await?;
        if closes {
            return Ok(None);
        }
        if nth > 0 {
            least = least.min(took.as_secs_f64() * 1e3);
        }
    }
    Ok(Some(least))
}
