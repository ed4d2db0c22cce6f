//! Reports measured demand to the controller.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::dataplane::counts::Counts;
use crate::dataplane::role::DataRole;
use crate::dataplane::source::Source;
use crate::protocol::DemandReport;

/// Longest window reported at once: demand of more than a minute ago says nothing about now.
const WINDOW_MOST: Duration = Duration::from_secs(60);

/// Reports every `period` how many requests of each class arrived and how those sent to each engine
/// ended, until the process ends.
///
/// A report that fails is not lost: the next one covers its window too, up to [`WINDOW_MOST`].
pub async fn report_demand(role: Arc<DataRole>, source: Source, clock: Clock, period: Duration) {
    let plane = Arc::clone(&role.setup().plane);
    let instance = format!("{}-{}", std::process::id(), crate::clock::unix_ms());
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut since, mut counted) = (clock.now(), Counts::of(plane.stats()));
    loop {
        ticks.tick().await;
        let (now, counts) = (clock.now(), Counts::of(plane.stats()));
        let window = now - since;
        if window.as_millis() == 0 {
            continue;
        }
        let distances = role.take_distances();
        let report = DemandReport {
            cluster: role.setup().cluster.clone(),
            instance: instance.clone(),
            window_ms: window.as_millis() as u64,
            arrivals: counts.arrivals_since(&counted),
            generation: role.snapshot().map_or(0, |snapshot| snapshot.generation),
            engines: counts.engines_since(&counted, &distances),
        };
        match source.report(report).await {
            Ok(()) => {
                (since, counted) = (now, counts);
                // A controller without a new snapshot is heard of here.
                if source.has_controller().await {
                    role.renew_contact();
                }
            }
            Err(error) => {
                tracing::debug!(%error, "failed to report demand");
                role.put_back_distances(distances);
                if window > WINDOW_MOST {
                    (since, counted) = (now, counts);
                }
            }
        }
    }
}
