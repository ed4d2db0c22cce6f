//! The task that lets the weights of a silent controller decay.

use std::sync::Arc;
use std::time::Duration;

use crate::dataplane::role::DataRole;
use crate::policy::decay::plan_share;

/// How often the silence is measured. `store.stale_after` is minutes, and a step of decay an eighth
/// of that.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Lets weights decay while no controller is heard of for `stale_after`, and restores them when one
/// is, until the process ends.
pub async fn watch_silence(role: Arc<DataRole>, stale_after: Duration) {
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        role.set_plan_share(plan_share(role.silence(), stale_after)).await;
    }
}
