//! The right to publish, generation numbers, and the stores.
//!
//! [`Publisher`] owns the stores. It is locked for as long as one of its operations takes, so that
//! operations run one after the other. [`Candidacy`] is this controller's place among the others;
//! it is read at any time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::clock::unix_ms;
use crate::config::Config;
use crate::control::leadership::archive::Archive;
use crate::control::leadership::leader::{Lead, stand};
use crate::publish::Generation;
use crate::publish::snapshot::{EngineOrder, FORMAT, Snapshot};
use crate::publish::store::{DirStore, Document, EtcdStore, Held, Reports, Store, StoreError, Term, write_whole};

/// First and longest pause after etcd gave no answer.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MOST: Duration = Duration::from_secs(5);
/// Snapshots of another leader that wait to be taken over; each replaces the one before.
const QUEUE: usize = 4;

/// This controller's role among the controllers that share an etcd, and the published snapshot.
pub(crate) struct Candidacy {
    /// `None` without an etcd: then this controller always publishes.
    shared: Option<(watch::Receiver<Lead>, mpsc::Receiver<Arc<Snapshot>>)>,
    published: watch::Receiver<Option<Arc<Snapshot>>>,
    seen: watch::Receiver<Generation>,
}

/// The stores of a controller.
pub(crate) struct Publisher {
    dir: DirStore,
    etcd: Option<Shared>,
    published: watch::Sender<Option<Arc<Snapshot>>>,
    /// Highest generation that a data plane or controller has reported.
    seen: watch::Receiver<Generation>,
    /// Highest generation of an attempt to publish. Its outcome may be unknown, so it is never used
    /// again.
    used: Generation,
    marks: Marks,
}

/// Operators' orders by engine, with which every snapshot is marked.
pub(crate) type Marks = Arc<parking_lot::Mutex<BTreeMap<String, EngineOrder>>>;

/// What the last leader kept; `None` where it kept nothing, or nothing else than is known.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) pins: Option<Vec<u8>>,
    pub(crate) orders: Option<Vec<u8>>,
}

/// The part that is shared with other controllers.
struct Shared {
    store: EtcdStore,
    lead: watch::Receiver<Lead>,
    /// The task that stands for election.
    candidate: tokio::task::AbortHandle,
    /// The term that this controller has prepared for, with the last epoch it opened in it.
    prepared: Option<Term>,
}

/// A change of this controller's role.
#[derive(Debug)]
pub(crate) enum Change {
    /// Another leader has published.
    Adopt(Arc<Snapshot>),
    /// It may lead now, or no more.
    Lead,
    /// A peer has a higher generation than any that is known here.
    Behind,
}

impl Publisher {
    /// Opens the stores; goes on from the newest snapshot on this disk. Stands for election where
    /// there is an etcd.
    ///
    /// Errors: the directory cannot be opened or listed.
    pub(crate) fn open(
        config: &Config,
        etcd: Option<EtcdStore>,
        seen: &watch::Sender<Generation>,
        marks: Marks,
    ) -> Result<(Self, Candidacy), StoreError> {
        let dir = DirStore::open(&config.store.dir)?;
        let current = dir.latest()?.map(Arc::new);
        if let Some(current) = &current {
            tracing::info!(generation = %Generation(current.generation), "going on from the stored snapshot");
        }
        // The number of a damaged file was used, too.
        let used = dir.list()?.last().copied().unwrap_or_default();
        seen.send_if_modified(|highest| std::mem::replace(highest, used.max(*highest)) < used);
        let published = watch::Sender::new(current);
        let mut shared = None;
        let etcd = etcd.map(|store| {
            let (lead_sender, lead) = watch::channel(Lead::default());
            let candidate = tokio::spawn(stand(
                store.clone(),
                name(config),
                config.store.lease,
                seen.subscribe(),
                published.subscribe(),
                lead_sender,
            ));
            let (sender, others) = mpsc::channel(QUEUE);
            tokio::spawn(follow(store.clone(), published.subscribe(), sender));
            shared = Some((lead.clone(), others));
            Shared { store, lead, candidate: candidate.abort_handle(), prepared: None }
        });
        let candidacy = Candidacy { shared, published: published.subscribe(), seen: seen.subscribe() };
        Ok((Self { dir, etcd, published, seen: seen.subscribe(), used, marks }, candidacy))
    }

    pub(crate) fn dir(&self) -> &DirStore {
        &self.dir
    }

    pub(crate) fn archive(&self) -> Archive {
        Archive { dir: self.dir.clone(), etcd: self.etcd.as_ref().map(|shared| shared.store.clone()) }
    }

    fn current(&self) -> Option<Arc<Snapshot>> {
        self.published.borrow().clone()
    }

    /// As the leader, publishes the current snapshot again under a higher generation, if a peer
    /// reports a generation that this controller does not know.
    ///
    /// Errors: as those of [`Self::publish`].
    pub(crate) async fn catch_up(&mut self) -> Result<(), StoreError> {
        let lead = self.etcd.as_ref().map(|shared| shared.lead.borrow().clone());
        let seen = *self.seen.borrow();
        let Some(current) =
            self.current().filter(|_| lead.is_none_or(|lead| standby_reason(&lead).is_none()) && seen > self.highest())
        else {
            return Ok(());
        };
        let reason = format!("a data plane holds generation {seen}, which this store does not have");
        tracing::warn!(%seen, "publishing again above a generation that this store does not have");
        self.publish(Snapshot { reason, ..Snapshot::clone(&current) }).await.map(drop)
    }

    fn highest(&self) -> Generation {
        self.used.max(Generation(self.published.borrow().as_ref().map_or(0, |current| current.generation)))
    }

    /// Adopts another leader's snapshot; false if it is not newer.
    pub(crate) async fn adopt(&mut self, snapshot: &Arc<Snapshot>) -> bool {
        let generation = Generation(snapshot.generation);
        if self.current().is_some_and(|current| current.generation >= snapshot.generation) {
            return false;
        }
        if let Err(error) = self.keep(snapshot).await {
            tracing::warn!(%error, %generation, "another leader's snapshot could not be kept on disk");
        }
        self.published.send_replace(Some(Arc::clone(snapshot)));
        tracing::info!(%generation, "took over what another controller has published");
        true
    }

    /// Writes a snapshot to this disk; disks block, and the runtime's thread must not.
    async fn keep(&self, snapshot: &Arc<Snapshot>) -> Result<(), StoreError> {
        let (dir, snapshot) = (self.dir.clone(), Arc::clone(snapshot));
        tokio::task::spawn_blocking(move || dir.publish(&snapshot))
            .await
            .expect("writing a file does not panic, and nobody cancels it")
    }

    /// Takes over the last leader's state, before a new leader's first plan. Returns what the last
    /// leader kept.
    ///
    /// Errors: etcd does not answer; to be tried again.
    pub(crate) async fn take_over(&mut self) -> Result<Kept, StoreError> {
        let Some(shared) = &self.etcd else { return Ok(Kept::default()) };
        let Some(term) = shared.lead.borrow().term.clone() else { return Ok(Kept::default()) };
        if shared.prepared.as_ref().is_some_and(|prepared| prepared.is_same_lead(&term)) {
            return Ok(Kept::default());
        }
        let store = shared.store.clone();
        let newest = store.newest().await?;
        let kept = Kept { pins: store.kept(Document::Pins).await?, orders: store.kept(Document::Orders).await? };
        let newest_generation = newest.as_ref().map_or(0, |newest| newest.generation);
        if let Some(newest) = newest {
            self.adopt(&Arc::new(newest)).await;
        }
        if let Some(shared) = &mut self.etcd {
            shared.prepared = Some(term);
        }
        // An etcd that is new, or has lost its data, gets the current snapshot.
        if let Some(current) = self.current().filter(|current| current.generation > newest_generation) {
            let reason = format!("etcd did not have generation {}", Generation(current.generation));
            if let Err(error) = self.publish(Snapshot { reason, ..Snapshot::clone(&current) }).await {
                if let Some(shared) = &mut self.etcd {
                    shared.prepared = None;
                }
                return Err(error);
            }
        }
        Ok(kept)
    }

    /// Numbers, marks, seals and publishes `content`. etcd comes first, if there is one: a snapshot
    /// that it refuses is not written to disk.
    ///
    /// Errors: it is not published; or etcd did not answer, and it may have been published. Its
    /// number is not used again.
    pub(crate) async fn publish(&mut self, content: Snapshot) -> Result<Arc<Snapshot>, StoreError> {
        let seen = *self.seen.borrow();
        let highest = self.highest();
        let epoch = match &mut self.etcd {
            None if seen > highest => seen.epoch() + 1,
            None => highest.epoch(),
            Some(Shared { store, prepared, .. }) => {
                let term = prepared.as_mut().ok_or(StoreError::Deposed)?;
                let foreign = seen.max(highest);
                if foreign.epoch() > term.epoch || (seen > highest && seen.epoch() == term.epoch) {
                    *term = store.raise(term, foreign).await?;
                }
                term.epoch
            }
        };
        let generation = Generation::after(highest, epoch).ok_or(StoreError::Numbers(highest))?;
        // Content may come from a snapshot of the format before.
        let mut numbered = Snapshot { format: FORMAT, generation: generation.0, published_unix_ms: unix_ms(), ..content };
        mark(&mut numbered, &self.marks.lock());
        let snapshot = Arc::new(numbered.sealed());
        snapshot.validate().map_err(|source| StoreError::illegal("a plan", source))?;
        self.used = generation;
        match &self.etcd {
            None => self.keep(&snapshot).await?,
            Some(Shared { store, prepared, .. }) => {
                store.publish(prepared.as_ref().ok_or(StoreError::Deposed)?, &snapshot).await?;
                if let Err(error) = self.keep(&snapshot).await {
                    tracing::warn!(%error, %generation, "published, but not kept on this disk");
                }
            }
        }
        self.published.send_replace(Some(Arc::clone(&snapshot)));
        Ok(snapshot)
    }

    /// Publishes the current weights again if orders have changed since. While a plan is on trial,
    /// the next plan does it.
    ///
    /// Errors: as those of [`Self::publish`].
    pub(crate) async fn publish_marks(&mut self, reason: String) -> Result<Option<Arc<Snapshot>>, StoreError> {
        let current = self.current().filter(|current| current.target_clusters.is_empty());
        let Some(current) = current.filter(|current| !is_marked(current, &self.marks.lock())) else { return Ok(None) };
        self.publish(Snapshot { reason, ..Snapshot::clone(&current) }).await.map(Some)
    }

    /// Keeps a document: first in etcd for the next leader, then in a file.
    ///
    /// Errors: another controller leads, etcd does not answer, or the file cannot be written.
    pub(crate) async fn keep_document(&self, document: Document, file: PathBuf, json: Vec<u8>) -> Result<(), StoreError> {
        if let Some(Shared { store, prepared, .. }) = &self.etcd {
            store.keep(prepared.as_ref().ok_or(StoreError::Deposed)?, document, &json).await?;
        }
        tokio::task::spawn_blocking(move || write_whole(&file, &json)).await.unwrap_or_else(|error| {
            tracing::error!(%error, document = document.name(), "writing a file panicked");
            Ok(())
        })
    }

    /// The demand reports of data planes that report to etcd.
    pub(crate) fn reports(&self) -> Option<Reports> {
        self.etcd.as_ref().map(|shared| shared.store.reports())
    }

    /// Gives up the lead for good, so that another controller takes over at once.
    pub(crate) async fn resign(&mut self) {
        let Some(Shared { store, lead, candidate, prepared, .. }) = &mut self.etcd else { return };
        candidate.abort();
        *prepared = None;
        let term = lead.borrow().term.clone();
        if let Some(term) = term
            && let Err(error) = store.resign(&term).await
        {
            tracing::warn!(%error, "the lead was not given up; it expires with its lease");
        }
    }
}

impl Candidacy {
    /// The current snapshot, and every later one.
    pub(crate) fn snapshots(&self) -> watch::Receiver<Option<Arc<Snapshot>>> {
        self.published.clone()
    }

    pub(crate) fn current(&self) -> Option<Arc<Snapshot>> {
        self.published.borrow().clone()
    }

    /// `None` if this controller may publish; otherwise the reason for which it is a standby.
    pub(crate) fn standby_reason(&self) -> Option<String> {
        self.shared.as_ref().and_then(|(lead, _)| standby_reason(&lead.borrow()))
    }

    /// Waits for a change.
    pub(crate) async fn change(&mut self) -> Change {
        let Some((lead, others)) = &mut self.shared else {
            return behind(&mut self.seen).await;
        };
        tokio::select! {
            Some(snapshot) = others.recv() => Change::Adopt(snapshot),
            Ok(()) = lead.changed() => Change::Lead,
            change = behind(&mut self.seen) => change,
        }
    }
}

/// Whether a snapshot has all of `orders`, and no others.
pub(crate) fn is_marked(snapshot: &Snapshot, orders: &BTreeMap<String, EngineOrder>) -> bool {
    snapshot.engines.iter().all(|engine| engine.order.as_ref() == orders.get(&engine.name))
}

fn mark(snapshot: &mut Snapshot, orders: &BTreeMap<String, EngineOrder>) {
    snapshot.engines.iter_mut().for_each(|engine| engine.order = orders.get(&engine.name).cloned());
}

fn standby_reason(lead: &Lead) -> Option<String> {
    match lead {
        Lead { term: Some(term), .. } if term.until > Instant::now() => None,
        Lead { other: Some(leader), .. } => Some(format!("{leader} leads")),
        Lead { error: Some(error), .. } => Some(format!("nobody is known to lead: {error}")),
        _ => Some("nobody leads yet".to_owned()),
    }
}

async fn behind(seen: &mut watch::Receiver<Generation>) -> Change {
    match seen.changed().await {
        Ok(()) => Change::Behind,
        // No sender of generations is left.
        Err(_) => std::future::pending().await,
    }
}

/// Follows the snapshots of other leaders, until the receiver is dropped.
async fn follow(store: EtcdStore, snapshots: watch::Receiver<Option<Arc<Snapshot>>>, others: mpsc::Sender<Arc<Snapshot>>) {
    let (mut backoff, mut current) = (Backoff::new(BACKOFF_FIRST, BACKOFF_MOST), Held::default());
    loop {
        let published = snapshots.borrow().as_ref().map(|snapshot| Held::of(snapshot)).unwrap_or_default();
        if published.generation > current.generation {
            current = published;
        }
        match store.newer_than(current.clone()).await {
            Ok(newer) => {
                backoff.reset();
                let Some(snapshot) = newer else { continue };
                current = Held::of(&snapshot);
                if others.send(snapshot).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "cannot follow etcd");
                tokio::time::sleep(backoff.pause()).await;
            }
        }
        if others.is_closed() {
            return;
        }
    }
}

/// The name of this controller, for other controllers and operators.
fn name(config: &Config) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match host.trim() {
        "" => "localhost",
        host => host,
    };
    format!("{host}:{} (process {})", config.control.listen.port(), std::process::id())
}
