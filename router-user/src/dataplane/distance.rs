//! The task that measures how far engines are, off the path of requests.
//!
//! A distance is the time of a small request on a connection that is already open: the least of a
//! few, since every disturbance makes a measurement longer. The kernel's own estimate (`TCP_INFO`)
//! would cost nothing, but it ends where TCP ends, such as at a mesh's sidecar or a relay, while
//! requests go on from there.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::dataplane::role::DataRole;

/// Pause between two rounds over all engines. Distances change when network routes do; the
/// controller believes a change after three rounds.
const ROUND_PAUSE: Duration = Duration::from_secs(5);
/// Requests that are timed, after one that opens the connection.
const TIMED: usize = 3;
/// Longest wait for one answer; an engine that takes longer has no distance.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Engines measured at once; 2,000 of them at 200 ms take half a minute.
const AT_ONCE: usize = 64;

/// Measures the distance to every engine in rounds, until the process ends.
pub async fn measure_distances(role: Arc<DataRole>, clock: Clock) {
    let client =
        reqwest::Client::builder().timeout(REQUEST_TIMEOUT).no_proxy().pool_max_idle_per_host(1).tcp_nodelay(true).build();
    let client = client.expect("a client without TLS needs nothing that can be missing");
    loop {
        let mut running = JoinSet::new();
        for (engine, address) in role.setup().plane.addresses() {
            if running.len() >= AT_ONCE {
                running.join_next().await;
            }
            let (client, role) = (client.clone(), Arc::clone(&role));
            running.spawn(async move {
                match round_trip_ms(&client, address, clock).await {
                    Ok(Some(ms)) => role.put_distance(engine, ms),
                    Ok(None) => {
                        tracing::debug!(engine, "the engine closes connections after each answer; its distance is not measured")
                    }
                    Err(error) => tracing::debug!(engine, %error, "failed to measure the distance"),
                }
            });
        }
        while running.join_next().await.is_some() {}
        tokio::time::sleep(ROUND_PAUSE).await;
    }
}

/// The least time of a few small requests on one open connection, in ms; `None` where the engine
/// does not keep it open.
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
