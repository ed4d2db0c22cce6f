//! The judgement of each engine, which all workers of a data plane share.
//!
//! A request takes a short lock at its end. A pick takes none: it reads one number per engine, and
//! one that tells whether a test is due.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::policy::Millis;
use crate::policy::admission::Ejection;
use crate::policy::outlier::{EngineState, Evidence, Judgement};
use crate::policy::pick::{WHOLE_SHARE, fixed_share, keeps};
use crate::policy::silence;
use crate::publish::slots::engine_key;
use crate::publish::snapshot::{EngineEntry, EngineOrder, OrderKind};

/// Time between two looks at the engines that are not well, in ms: a step of a ramp is 1 % then.
const LOOK_MS: Millis = 100;
/// Gain per answer of the running mean of paces.
const PACE_GAIN: f32 = 1.0 / 16.0;
const NEVER: Millis = Millis::MAX;

/// One engine, as picks see it and as requests judge it.
#[derive(Debug)]
pub(super) struct Judged {
    name: String,
    address: SocketAddr,
    /// Identity in hashing.
    key: u64,
    /// [`fixed_share`] of the multiplier.
    share: AtomicU32,
    /// The reason for an ejection is a soft one.
    is_soft: AtomicBool,
    /// One more served request would change nothing.
    is_clean: AtomicBool,
    /// It is ejected because requests wait there in vain.
    is_silent: AtomicBool,
    judgement: Mutex<Judgement>,
    /// When something came from the engine last.
    heard: AtomicU64,
    /// The suspicion of silence that each worker has.
    suspicions: Mutex<BTreeMap<usize, f64>>,
    /// Time in which streams and other answers begin here, over the time expected at capacity, as
    /// the bits of a running mean. Workers may overwrite each other's samples.
    paces: [AtomicU32; 2],
    signals: Arc<Signals>,
    /// When the operator's order was given that was obeyed last, in ms since the Unix epoch; 0 for
    /// none.
    obeyed: AtomicU64,
}

/// What all engines of a data plane have in common.
#[derive(Debug)]
struct Signals {
    /// Grows with every ejection and every return.
    version: AtomicU64,
    /// When the next test may begin; may be too early, never too late.
    test_due: AtomicU64,
}

/// What a data plane thinks of an engine at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct View {
    pub(super) state: EngineState,
    pub(super) multiplier: f64,
    pub(super) reason: Option<Evidence>,
}

impl Judged {
    fn new(name: &str, address: SocketAddr, signals: &Arc<Signals>) -> Self {
        Self {
            name: name.to_owned(),
            address,
            key: engine_key(name),
            share: AtomicU32::new(WHOLE_SHARE),
            is_soft: AtomicBool::new(false),
            is_clean: AtomicBool::new(true),
            is_silent: AtomicBool::new(false),
            judgement: Mutex::default(),
            heard: AtomicU64::new(0),
            suspicions: Mutex::default(),
            paces: [AtomicU32::new(1.0_f32.to_bits()), AtomicU32::new(1.0_f32.to_bits())],
            signals: Arc::clone(signals),
            obeyed: AtomicU64::new(0),
        }
    }

    /// Whether the engine has its whole share; the first thing that a pick asks.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        self.share.load(Ordering::Relaxed) == WHOLE_SHARE
    }

    #[inline]
    pub(super) fn is_ejected(&self) -> bool {
        self.share.load(Ordering::Relaxed) == 0
    }

    /// Whether it is ejected for a reason that may as well be load.
    pub(super) fn is_ejected_softly(&self) -> bool {
        self.is_ejected() && self.is_soft.load(Ordering::Relaxed)
    }

    pub(super) fn ejection(&self) -> Ejection {
        match (self.is_ejected(), self.is_soft.load(Ordering::Relaxed)) {
            (false, _) => Ejection::None,
            (true, true) => Ejection::Soft,
            (true, false) => Ejection::Hard,
        }
    }

    /// The multiplier of the engine's share, 0 to 1.
    pub(super) fn share_frac(&self) -> f64 {
        f64::from(self.share.load(Ordering::Relaxed)) / f64::from(WHOLE_SHARE)
    }

    /// Whether the engine keeps `key`, with the share that it has.
    pub(super) fn keeps(&self, key: u64) -> bool {
        keeps(key, self.key, self.share.load(Ordering::Relaxed))
    }

    /// Whether requests that wait there should go elsewhere.
    #[inline]
    pub(super) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
    }

    /// Takes what one worker heard last from the engine; returns what anybody did.
    pub(super) fn hear(&self, at: Millis) -> Millis {
        self.heard.fetch_max(at, Ordering::Relaxed).max(at)
    }

    /// Takes the suspicion of one worker. True when that of all finds the engine silent.
    pub(super) fn suspect(&self, worker: usize, suspicion: f64, now: Millis) -> bool {
        let mut suspicions = self.suspicions.lock();
        if suspicion > 0.0 {
            suspicions.insert(worker, suspicion);
        } else {
            suspicions.remove(&worker);
        }
        let is_found = suspicion > 0.0 && !self.is_ejected() && silence::is_silent(suspicions.values().sum());
        if is_found {
            suspicions.clear();
            drop(suspicions);
            self.take(Evidence::Stalled, now, false);
        }
        is_found
    }

    /// Takes in what multiple of the expected time an answer began.
    pub(super) fn answered(&self, is_stream: bool, multiple: f64) {
        let pace = &self.paces[usize::from(is_stream)];
        let before = f32::from_bits(pace.load(Ordering::Relaxed));
        pace.store((before + PACE_GAIN * (multiple as f32 - before)).to_bits(), Ordering::Relaxed);
    }

    /// The usual multiple.
    pub(super) fn pace(&self, is_stream: bool) -> f64 {
        f64::from(f32::from_bits(self.paces[usize::from(is_stream)].load(Ordering::Relaxed)))
    }

    pub(super) fn take(&self, evidence: Evidence, now: Millis, is_test: bool) {
        if evidence == Evidence::Served && self.is_clean.load(Ordering::Relaxed) {
            return;
        }
        self.change(now, |judgement| judgement.take(evidence, now, is_test));
    }

    pub(super) fn take_back(&self, evidence: Evidence, now: Millis) {
        self.change(now, |judgement| judgement.take_back(evidence, now));
    }

    pub(super) fn rest(&self, now: Millis, for_ms: Millis) {
        self.change(now, |judgement| judgement.rest(now, for_ms));
    }

    pub(super) fn begin_test(&self, now: Millis) -> bool {
        self.change(now, |judgement| judgement.begin_test(now))
    }

    pub(super) fn test_lapsed(&self, now: Millis) {
        self.change(now, Judgement::test_lapsed);
    }

    /// Obeys an operator's last order, or the absence of one.
    fn obey(&self, order: Option<&EngineOrder>, now: Millis) {
        let since = order.map_or(0, |order| order.since_unix_ms);
        if self.obeyed.swap(since, Ordering::Relaxed) == since {
            return;
        }
        self.change(now, |judgement| match order.map(|order| order.kind) {
            Some(OrderKind::Drain) => judgement.order(EngineState::Drained),
            Some(OrderKind::Eject) => judgement.order(EngineState::EjectedByOperator),
            Some(OrderKind::Restore) => judgement.readmit(now),
            None if judgement.state(now).is_by_operator() => judgement.readmit(now),
            None => {}
        });
    }

    pub(super) fn view(&self, now: Millis) -> View {
        let judgement = self.judgement.lock();
        View { state: judgement.state(now), multiplier: judgement.multiplier(now), reason: judgement.reason(now) }
    }

    fn change<T>(&self, now: Millis, change: impl FnOnce(&mut Judgement) -> T) -> T {
        let mut judgement = self.judgement.lock();
        let before = judgement.state(now);
        let result = change(&mut judgement);
        let (state, reason) = (judgement.state(now), judgement.reason(now));
        let share = fixed_share(judgement.multiplier(now));
        // Stored under the lock, so that an older share never overtakes a newer one.
        self.is_clean.store(judgement.is_clean(), Ordering::Relaxed);
        let is_waiting = matches!(reason, Some(Evidence::Stalled | Evidence::Late));
        self.is_silent.store(share == 0 && is_waiting, Ordering::Relaxed);
        self.is_soft.store(reason.is_some_and(Evidence::is_soft), Ordering::Relaxed);
        if (self.share.swap(share, Ordering::Relaxed) == 0) != (share == 0) {
            self.signals.version.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(due) = judgement.test_due() {
            self.signals.test_due.fetch_min(due, Ordering::Relaxed);
        }
        drop(judgement);
        if state != before {
            let reason = reason.map_or("", Evidence::name);
            tracing::info!(engine = %self.name, from = ?before, to = ?state, reason, "engine judged anew");
        }
        result
    }

    /// Brings up to date what changes with time alone; returns when a test may begin.
    fn look(&self, now: Millis) -> Millis {
        if self.is_whole() {
            return NEVER;
        }
        self.change(now, |judgement| {
            judgement.settle(now);
            judgement.test_due().unwrap_or(NEVER)
        })
    }
}

/// The engines of a data plane.
#[derive(Debug)]
pub(super) struct Outliers {
    engines: Mutex<BTreeMap<String, Arc<Judged>>>,
    signals: Arc<Signals>,
    /// When the engines are looked at next.
    look_due: AtomicU64,
}

impl Default for Outliers {
    fn default() -> Self {
        let signals = Arc::new(Signals { version: AtomicU64::new(0), test_due: AtomicU64::new(NEVER) });
        Self { engines: Mutex::default(), signals, look_due: AtomicU64::new(0) }
    }
}

impl Outliers {
    /// The judgement of an engine. An engine at another address is a new one.
    pub(super) fn engine(&self, name: &str, address: SocketAddr) -> Arc<Judged> {
        let mut engines = self.engines.lock();
        match engines.get(name) {
            Some(known) if known.address == address => Arc::clone(known),
            _ => {
                let new = Arc::new(Judged::new(name, address, &self.signals));
                engines.insert(name.to_owned(), Arc::clone(&new));
                new
            }
        }
    }

    /// Takes the engines of a snapshot that comes in use, with operators' orders; forgets all
    /// others.
    pub(super) fn adopt(&self, known: &[EngineEntry], address: impl Fn(&EngineEntry) -> SocketAddr, now: Millis) {
        self.engines.lock().retain(|name, _| known.iter().any(|entry| entry.name == *name));
        known.iter().for_each(|entry| self.engine(&entry.name, address(entry)).obey(entry.order.as_ref(), now));
    }

    /// Grows with every ejection and every return.
    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.signals.version.load(Ordering::Relaxed)
    }

    /// Whether a test of some engine may be due.
    #[inline]
    pub(super) fn has_test_due(&self, now: Millis) -> bool {
        self.signals.test_due.load(Ordering::Relaxed) <= now
    }

    /// Lets ramps go on. Every worker calls it at every tick, and one of them does it.
    pub(super) fn look(&self, now: Millis) {
        let due = self.look_due.load(Ordering::Relaxed);
        let is_mine =
            now >= due && self.look_due.compare_exchange(due, now + LOOK_MS, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !is_mine {
            return;
        }
        // Forgotten first, so that an engine that is ejected meanwhile is not overlooked.
        self.signals.test_due.store(NEVER, Ordering::Relaxed);
        let next = self.engines.lock().values().map(|engine| engine.look(now)).min();
        self.signals.test_due.fetch_min(next.unwrap_or(NEVER), Ordering::Relaxed);
    }

    pub(super) fn views(&self, now: Millis) -> BTreeMap<String, View> {
        self.engines.lock().iter().map(|(name, engine)| (name.clone(), engine.view(now))).collect()
    }
}
