//! Finds out which engines are lost to this data plane, so that the weights for their loss come in force, and go when they are back.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::dataplane::DataRole;
use crate::dataplane::effective::change;
use crate::policy::outage::Loss;

/// How often the workers' findings are looked at: the ranks of the slots bear the time between.
const LOOK: Duration = Duration::from_millis(200);
/// Looks between two attempts to reach an engine that is lost: once a second.
const ASK_LOOKS: u32 = 5;
/// A connection that takes longer is none.
const PATIENCE: Duration = Duration::from_secs(1);
/// Outcomes that wait to be taken; there is one per lost engine.
const QUEUE: usize = 64;

/// Watches for lost engines for as long as the process runs.
pub async fn watch_losses(role: Arc<DataRole>) {
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (sender, mut outcomes) = mpsc::channel(QUEUE);
    let mut known: BTreeMap<String, Loss> = BTreeMap::new();
    let mut looks = 0_u32;
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                for (engine, (is_out, failures)) in role.plane.failing() {
                    known.entry(engine).or_default().observe(is_out, failures);
                }
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(ASK_LOOKS) {
                    ask(&role, &mut known, &sender);
                }
            }
            Some((engine, has_answered)) = outcomes.recv() => {
                known.entry(engine).or_default().asked(has_answered);
            }
        }
        let lost: Vec<String> = known.iter().filter(|(_, loss)| loss.is_lost()).map(|(engine, _)| engine.clone()).collect();
        change(&role, |now| std::mem::replace(&mut now.lost, lost.clone()) != lost).await;
    }
}

/// Tries to reach what is lost; forgets what the snapshot no longer has.
fn ask(role: &DataRole, known: &mut BTreeMap<String, Loss>, outcomes: &mpsc::Sender<(String, bool)>) {
    let Some(published) = role.published.load_full() else { return };
    let addresses: BTreeMap<&str, SocketAddr> =
        published.engines.iter().map(|entry| (entry.name.as_str(), role.plane.address(&entry.name, entry.address))).collect();
    known.retain(|engine, _| addresses.contains_key(engine.as_str()));
    for engine in known.iter().filter(|(_, loss)| loss.is_lost()).map(|(engine, _)| engine.clone()) {
        let (address, outcomes) = (addresses[engine.as_str()], outcomes.clone());
        tokio::spawn(async move {
            let reached = tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await;
            // Whoever waited for it may be gone.
            let _ = outcomes.send((engine, matches!(reached, Ok(Ok(_))))).await;
        });
    }
}
