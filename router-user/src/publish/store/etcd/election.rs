//! Leader election: one key, bound to a lease, that only one controller can create.

use std::time::Duration;

use etcd_client::{Compare, CompareOp, DeleteOptions, EventType, PutOptions, Txn, TxnOp, TxnOpResponse, WatchOptions};
use tokio::time::Instant;

use super::store::{EtcdStore, Head, NO_HEAD, after_all, ended, failed, within};
use crate::publish::Generation;
use crate::publish::store::StoreError;

/// Share of a lease after which a leader without a heartbeat is deposed. The rest of the lease is
/// for the election, so that another controller leads before it is over. etcd's own expiry would be
/// too late: it grants whole seconds, and no fewer than one and a half election timeouts, and looks
/// for what has expired twice a second.
const SILENCE_FRAC: f64 = 0.6;

/// How long a leader with a lease of `length` may be silent.
fn silence(length: Duration) -> Duration {
    length.mul_f64(SILENCE_FRAC)
}

/// A controller's time as the leader: its epoch, and what proves to etcd that it still leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    pub epoch: u64,
    /// Revision at which the election key was created; no other leader's key has the same.
    revision: i64,
    lease: i64,
    /// Time at which the term ends, unless a heartbeat prolongs it.
    pub until: Instant,
}

impl Term {
    /// True if both are the same term, also if it was prolonged or has opened another epoch.
    pub fn is_same_lead(&self, other: &Self) -> bool {
        self.revision == other.revision && self.lease == other.lease
    }
}

/// The outcome of standing for election once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Election {
    Won(Term),
    /// Another controller leads.
    Lost {
        leader: String,
        revision: i64,
    },
}

impl EtcdStore {
    /// Stands for election once, as `name`, with a lease of `length`. The epoch of a term is above
    /// every earlier leader's, above the newest snapshot's, and above that of `seen`.
    ///
    /// Errors: etcd does not answer, or is out of epochs.
    pub async fn campaign(&self, name: &str, length: Duration, seen: Generation) -> Result<Election, StoreError> {
        let reads = ["leader", "epoch", "head"].map(|key| TxnOp::get(self.key(key), None));
        let answer = within("ask who leads", self.client.kv_client().txn(Txn::new().and_then(reads))).await?;
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        let mut found = answer.op_responses().into_iter().map(|response| match response {
            TxnOpResponse::Get(mut got) => got.take_kvs().pop(),
            _ => None,
        });
        let (leader, epoch, head) = (found.next().flatten(), found.next().flatten(), found.next().flatten());
        if let Some(kv) = leader {
            return Ok(Election::Lost { leader: String::from_utf8_lossy(kv.value()).into_owned(), revision });
        }
        let newest = head.as_ref().map_or(Ok(Head::NONE), |kv| self.parse(kv))?.generation;
        let last: u64 = match &epoch {
            None => 0,
            Some(kv) => kv.value_str().ok().and_then(|text| text.parse().ok()).ok_or_else(|| StoreError::Foreign {
                key: self.key("epoch"),
                found: String::from_utf8_lossy(kv.value()).chars().take(60).collect(),
                wanted: "a number",
            })?,
        };
        let next = 1 + last.max(newest.epoch()).max(seen.epoch());

        let asked = Instant::now();
        let seconds = length.as_secs().try_into().unwrap_or(i64::MAX);
        let lease = within("take a lease", self.client.lease_client().grant(seconds, None)).await?.id();
        let unchanged = |key: &str, kv: &Option<etcd_client::KeyValue>| {
            Compare::mod_revision(self.key(key), CompareOp::Equal, kv.as_ref().map_or(0, etcd_client::KeyValue::mod_revision))
        };
        let when = [
            Compare::create_revision(self.key("leader"), CompareOp::Equal, 0),
            unchanged("epoch", &epoch),
            unchanged("head", &head),
        ];
        // Pieces that the last leader did not finish lie above the head; they are removed.
        let unfinished = DeleteOptions::new().with_range(after_all(&self.key("snapshots/")));
        let mut then = vec![
            TxnOp::put(self.key("leader"), name, Some(PutOptions::new().with_lease(lease))),
            TxnOp::put(self.key("epoch"), next.to_string(), None),
            TxnOp::delete(self.piece(Generation(newest.0 + 1), 0), Some(unfinished)),
        ];
        if head.is_none() {
            then.push(TxnOp::put(self.key("head"), NO_HEAD, None));
        }
        let won = within("take the lead", self.client.kv_client().txn(Txn::new().when(when).and_then(then))).await;
        if let Ok(answer) = &won
            && answer.succeeded()
        {
            let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
            return Ok(Election::Won(Term { epoch: next, revision, lease, until: asked + silence(length) }));
        }
        // Whether it was lost or its outcome is unknown: without the lease there is no key of ours.
        within("give back a lease", self.client.lease_client().revoke(lease)).await?;
        won?;
        Ok(Election::Lost { leader: "another controller".to_owned(), revision })
    }

    /// Waits until the leader seen at `revision`, whose lease is of `length`, is gone. A leader
    /// that is silent is deposed; should it live after all, etcd refuses whatever it writes from
    /// then on.
    ///
    /// Errors: etcd does not answer, or has compacted that revision.
    pub async fn vacancy(&self, revision: i64, length: Duration) -> Result<(), StoreError> {
        let mut watch = self.watch(self.key("leader"), revision, WatchOptions::new()).await?;
        let (mut last, mut silent) = (revision, Instant::now() + silence(length));
        loop {
            let Ok(message) = tokio::time::timeout_at(silent, watch.message()).await else {
                return self.depose(last).await;
            };
            let message = message.map_err(|source| failed("watch the leader", source))?;
            let message = message.filter(|m| !m.canceled()).ok_or_else(|| ended("watch the leader"))?;
            for event in message.events() {
                if event.event_type() == EventType::Delete {
                    return Ok(());
                }
                last = event.kv().map_or(last, etcd_client::KeyValue::mod_revision);
                silent = Instant::now() + silence(length);
            }
        }
    }

    /// Ends the term of a leader without a heartbeat since revision `last`. A heartbeat that is
    /// only late here keeps the term.
    async fn depose(&self, last: i64) -> Result<(), StoreError> {
        let unchanged = Compare::mod_revision(self.key("leader"), CompareOp::Less, last + 1);
        let delete = TxnOp::delete(self.key("leader"), None);
        let txn = Txn::new().when([unchanged]).and_then([delete]);
        within("depose a silent leader", self.client.kv_client().txn(txn)).await.map(drop)
    }

    /// True if a controller leads.
    ///
    /// Errors: etcd does not answer.
    pub async fn is_led(&self) -> Result<bool, StoreError> {
        let answer = within("ask who leads", self.client.kv_client().get(self.key("leader"), None)).await?;
        Ok(!answer.kvs().is_empty())
    }

    /// Prolongs the lease of a term, which is of `length`, and shows those who stand by that its
    /// leader lives. `None` when the term is over.
    ///
    /// Errors: etcd does not answer; the term is as good as it was.
    pub async fn prolong(&self, term: &Term, length: Duration) -> Result<Option<Term>, StoreError> {
        let asked = Instant::now();
        let mut leases = self.client.lease_client();
        let touch = TxnOp::put(self.key("leader"), [], Some(PutOptions::new().with_ignore_value().with_ignore_lease()));
        // Side by side: an etcd that is far away leaves little time.
        let (prolonged, shown) = tokio::join!(
            within("prolong the lease", leases.keep_alive(term.lease)),
            self.guarded(term, "show a sign of life", vec![], vec![touch]),
        );
        match prolonged {
            Err(StoreError::Etcd { source, .. }) if matches!(*source, etcd_client::Error::LeaseKeepAliveError(_)) => {
                return Ok(None);
            }
            outcome => drop(outcome?),
        }
        match shown {
            Ok(()) => Ok(Some(Term { until: asked + silence(length), ..term.clone() })),
            Err(StoreError::Deposed) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens a new epoch within a term, above that of `seen`: somebody holds a generation that etcd
    /// has forgotten.
    ///
    /// Errors: etcd does not answer, or another controller leads.
    pub async fn raise(&self, term: &Term, seen: Generation) -> Result<Term, StoreError> {
        let epoch = 1 + term.epoch.max(seen.epoch());
        self.guarded(term, "open an epoch", vec![], vec![TxnOp::put(self.key("epoch"), epoch.to_string(), None)]).await?;
        Ok(Term { epoch, ..term.clone() })
    }

    /// Ends a term, so that another controller can take over at once.
    ///
    /// Errors: etcd does not answer; the lease expires by itself then.
    pub async fn resign(&self, term: &Term) -> Result<(), StoreError> {
        within("give up the lead", self.client.lease_client().revoke(term.lease)).await.map(drop)
    }

    /// Carries out what only the leader of `term` may do, if `when` holds.
    ///
    /// Errors: etcd does not answer (the outcome is unknown then), or `term` is over or `when` does
    /// not hold (nothing was done).
    pub(super) async fn guarded(
        &self,
        term: &Term,
        doing: &'static str,
        mut when: Vec<Compare>,
        then: Vec<TxnOp>,
    ) -> Result<(), StoreError> {
        when.push(Compare::create_revision(self.key("leader"), CompareOp::Equal, term.revision));
        let answer = within(doing, self.client.kv_client().txn(Txn::new().when(when).and_then(then))).await?;
        if answer.succeeded() { Ok(()) } else { Err(StoreError::Deposed) }
    }
}
