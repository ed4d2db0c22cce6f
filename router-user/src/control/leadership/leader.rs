//! Standing for election, for as long as the process runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::publish::Generation;
use crate::publish::snapshot::Snapshot;
use crate::publish::store::{Election, EtcdStore, Term};

/// First and longest pause after etcd gave no answer.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MOST: Duration = Duration::from_secs(1);
/// Number of heartbeats of a leader within its lease, so that a late one does not end the term.
const SIGNS: u32 = 6;

/// The leader, as this controller knows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Lead {
    /// This controller's term, while it leads.
    pub(crate) term: Option<Term>,
    /// Name of another leader, if there is one.
    pub(crate) other: Option<String>,
    /// The error while etcd does not answer.
    pub(crate) error: Option<String>,
}

/// Stands for election as `name`, leads while etcd agrees, and stands again, until the receiver of
/// `lead` is dropped.
///
/// A term ends when the last heartbeat that etcd confirmed is too old by this process's own clock.
/// So it ends here before another controller takes over.
pub(crate) async fn stand(
    store: EtcdStore,
    name: String,
    length: Duration,
    seen: watch::Receiver<Generation>,
    published: watch::Receiver<Option<Arc<Snapshot>>>,
    lead: watch::Sender<Lead>,
) {
    let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MOST);
    while !lead.is_closed() {
        // An etcd that has lost its data knows no epoch, and this controller may not know every
        // published snapshot.
        let current = published.borrow().as_ref().map_or(Generation(0), |current| Generation(current.generation));
        let highest = current.max(*seen.borrow());
        let outcome = match store.campaign(&name, length, highest).await {
            Ok(Election::Won(term)) => {
                tracing::info!(epoch = term.epoch, "this controller leads");
                hold(&store, term, length, &lead).await;
                tracing::warn!("this controller leads no more");
                Ok(())
            }
            Ok(Election::Lost { leader, revision }) => {
                if lead.borrow().other.as_ref() != Some(&leader) {
                    tracing::info!(leader, "standing by");
                }
                lead.send_replace(Lead { other: Some(leader), ..Lead::default() });
                tokio::select! {
                    outcome = store.vacancy(revision, length) => outcome,
                    () = lead.closed() => Ok(()),
                }
            }
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => backoff.reset(),
            Err(error) => {
                let error = error.to_string();
                if lead.borrow().error.is_none() {
                    tracing::warn!(error, "no election; asking again");
                }
                lead.send_replace(Lead { error: Some(error), ..Lead::default() });
                tokio::time::sleep(backoff.pause()).await;
            }
        }
    }
}

/// Leads until the lease is lost or nobody listens any more.
async fn hold(store: &EtcdStore, mut term: Term, length: Duration, lead: &watch::Sender<Lead>) {
    loop {
        let until = term.until;
        lead.send_replace(Lead { term: Some(term.clone()), ..Lead::default() });
        tokio::select! {
            () = tokio::time::sleep_until((Instant::now() + length / SIGNS).min(until)) => {}
            () = lead.closed() => break,
        }
        let prolonged = loop {
            match tokio::time::timeout_at(until, store.prolong(&term, length)).await {
                Ok(Ok(prolonged)) => break prolonged,
                Ok(Err(error)) => {
                    tracing::warn!(%error, "etcd took no heartbeat; trying again while the term lasts");
                    tokio::time::sleep(BACKOFF_FIRST).await;
                }
                Err(_) => break None,
            }
            if Instant::now() >= until {
                break None;
            }
        };
        match prolonged {
            Some(next) => term = next,
            None => break,
        }
    }
    lead.send_replace(Lead::default());
}
