//! Reports measured demand to the controller.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::dataplane::{DataRole, Source};
use crate::publish::store::DemandReport;

/// Longest window reported at once; what a controller that was away for longer has missed is of no use to it.
const MAX_WINDOW: Duration = Duration::from_secs(60);

/// Reports how many requests of each class arrived, and what became of those sent to each engine, every `period`, for as long as the
/// process runs.
///
/// A report that fails is not lost: the next one covers its window too.
pub async fn report_demand(role: Arc<DataRole>, source: Source, clock: Clock, period: Duration) {
    let instance = format!("{}-{}", std::process::id(), crate::clock::unix_ms());
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut since, mut counted) = (clock.now(), role.counts());
    loop {
        ticks.tick().await;
        let (now, counts) = (clock.now(), role.counts());
        let window = now - since;
        if window.as_millis() == 0 {
            continue;
        }
        let distances = role.distances.take();
        let report = DemandReport {
            cluster: role.cluster.clone(),
            instance: instance.clone(),
            window_ms: window.as_millis() as u64,
            arrivals: counts.arrivals_since(&counted),
            generation: role.plane.routes.load().as_ref().map_or(0, |routes| routes.snapshot.generation),
            engines: counts.engines_since(&counted, &distances),
        };
        match source.report(report).await {
            Ok(()) => {
                (since, counted) = (now, counts);
                // A controller with nothing new to say is heard of here.
                if source.has_controller().await {
                    role.contact.renew();
                }
            }
            Err(error) => {
                tracing::debug!(error = format!("{error:#}"), "demand was not reported");
                role.distances.put_back(distances);
                if window > MAX_WINDOW {
                    (since, counted) = (now, counts);
                }
            }
        }
    }
}
