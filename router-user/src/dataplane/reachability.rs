//! The task that finds out whether any engine can be reached from here: without one, this data
//! plane is not ready.
//!
//! Requests that get through prove it for free. Only while none do, engines are probed by
//! connecting to them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::dataplane::role::{DataRole, Reachability};
use crate::shortage;

/// How often it is checked: readiness probes usually come every 1 to 10 s.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for a connection; as long as the default of proxy.connect_timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Engines probed at once: 2,000 engines that do not even refuse take 32 s.
const AT_ONCE: usize = 64;

/// The outcome of one probe.
enum Probe {
    Answered,
    Failed,
    /// This machine had no descriptors, ports or memory left, which says nothing about the engine.
    Untried,
}

/// Watches whether any engine can be reached, until the process ends.
pub async fn watch_reachability(role: Arc<DataRole>) {
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut contacts, mut last, mut is_short) = (0, None, false);
    loop {
        ticks.tick().await;
        let was_short = std::mem::take(&mut is_short);
        let now = role.setup().plane.contacts();
        if std::mem::replace(&mut contacts, now) < now {
            role.set_reachability(Reachability::Reachable);
            continue;
        }
        let engines = role.setup().plane.eligible_addresses();
        // The engine that answered last is asked first, so that an idle data plane makes one
        // connection per poll.
        if let Some(address) = last.filter(|address| engines.contains(address))
            && matches!(probe(address).await, Probe::Answered)
        {
            role.set_reachability(Reachability::Reachable);
            continue;
        }
        let count = engines.len();
        match first_to_answer(engines).await {
            Ok(Some(address)) => {
                last = Some(address);
                role.set_reachability(Reachability::Reachable);
            }
            Ok(None) => role.set_reachability(Reachability::Unreachable(count)),
            Err(Inconclusive) => {
                is_short = true;
                // Once, and not with every poll that follows.
                if !was_short {
                    tracing::warn!("failed to probe engines for want of local resources");
                }
            }
        }
    }
}

/// No engine answered, but not all of them could be probed.
struct Inconclusive;

async fn first_to_answer(engines: Vec<SocketAddr>) -> Result<Option<SocketAddr>, Inconclusive> {
    let mut running = JoinSet::new();
    let mut waiting = engines.into_iter();
    let mut is_complete = true;
    loop {
        while running.len() < AT_ONCE
            && let Some(address) = waiting.next()
        {
            running.spawn(async move { (address, probe(address).await) });
        }
        match running.join_next().await {
            Some(Ok((address, Probe::Answered))) => return Ok(Some(address)),
            Some(Ok((_, Probe::Failed))) => {}
            Some(Ok((_, Probe::Untried)) | Err(_)) => is_complete = false,
            None if is_complete => return Ok(None),
            None => return Err(Inconclusive),
        }
    }
}

async fn probe(address: SocketAddr) -> Probe {
    match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
        Ok(Ok(_)) => Probe::Answered,
        Ok(Err(error)) if shortage::is_ours(&error) => Probe::Untried,
        Ok(Err(_)) | Err(_) => Probe::Failed,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// An address where nobody listens: its port was just given back.
    async fn closed() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        listener.local_addr().expect("bound")
    }

    #[tokio::test]
    async fn one_engine_that_answers_among_many_that_refuse_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let open = listener.local_addr().expect("bound");
        let mut engines = vec![closed().await; 3 * AT_ONCE];
        assert!(matches!(first_to_answer(engines.clone()).await, Ok(None)));
        assert!(matches!(first_to_answer(Vec::new()).await, Ok(None)));
        engines.push(open);
        assert!(matches!(first_to_answer(engines).await, Ok(Some(found)) if found == open));
    }
}
