//! The task that finds engines which are down as seen from here, so that their failover weights
//! come in use, and go afterwards.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::dataplane::role::DataRole;
use crate::policy::outage::Outage;
use crate::shortage;

/// How often the workers' counters are read. Until then each request skips an engine that is down
/// by rank.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Polls between two probes of an engine that is down: one probe per second.
const PROBE_POLLS: u32 = 5;
/// Longest wait for a probe's connection. A SYN that is lost once takes longer; the next probe
/// shows that.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Outcomes of probes that wait to be read; senders wait beyond it.
const OUTCOMES_MOST: usize = 64;

/// Watches for engines that are down, until the process ends.
pub async fn watch_outages(role: Arc<DataRole>) {
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (sender, mut outcomes) = mpsc::channel(OUTCOMES_MOST);
    let mut known: BTreeMap<String, Outage> = BTreeMap::new();
    let mut polls = 0_u32;
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                for (engine, (is_out, failures)) in role.setup().plane.failing() {
                    known.entry(engine).or_default().observe(is_out, failures);
                }
                polls = polls.wrapping_add(1);
                if polls.is_multiple_of(PROBE_POLLS) {
                    probe(&role, &mut known, &sender);
                }
            }
            Some((engine, has_answered)) = outcomes.recv() => {
                known.entry(engine).or_default().probed(has_answered);
            }
        }
        let down = known.iter().filter(|(_, outage)| outage.is_down()).map(|(engine, _)| engine.clone());
        role.mark_down(down.collect()).await;
    }
}

/// Probes the engines that are down; forgets engines that the snapshot no longer has.
fn probe(role: &DataRole, known: &mut BTreeMap<String, Outage>, outcomes: &mpsc::Sender<(String, bool)>) {
    let Some(published) = role.published() else { return };
    let plane = &role.setup().plane;
    let addresses: BTreeMap<&str, SocketAddr> =
        published.engines.iter().map(|entry| (entry.name.as_str(), plane.address(&entry.name, entry.address))).collect();
    known.retain(|engine, _| addresses.contains_key(engine.as_str()));
    for engine in known.iter().filter(|(_, outage)| outage.is_down()).map(|(engine, _)| engine.clone()) {
        let (address, outcomes) = (addresses[engine.as_str()], outcomes.clone());
        tokio::spawn(async move {
            let has_answered = match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
                // The engine was not asked.
                Ok(Err(error)) if shortage::is_ours(&error) => return,
                outcome => matches!(outcome, Ok(Ok(_))),
            };
            // The receiver is gone only when the process ends.
            let _ = outcomes.send((engine, has_answered)).await;
        });
    }
}
