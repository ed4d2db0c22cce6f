//! The queue of a data plane: where requests wait when no engine has room for them.
//!
//! All workers share it, so that users and classes are treated alike wherever they connect. It is
//! locked only while somebody waits. A request that finds room, which is the rule, changes two
//! numbers of the engine. An engine's place goes from the request that leaves it straight to the
//! one whose turn it is, on whatever worker that waits.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use super::counter::Counter;
use super::engine_load::{EngineLoad, EngineLoads};
use super::histogram::{Histogram, Latencies, TTFT_BOUNDS};
use super::outliers::Judged;
use crate::clock::Clock;
use crate::policy::Millis;
use crate::policy::admission::{FairQueue, LEVELS, Reach, Refusal, Waiter};

#[derive(Debug)]
pub(super) struct Admission {
    clock: Clock,
    pub(super) loads: EngineLoads,
    /// Requests that may be in flight to one engine, of all workers.
    in_flight_max: AtomicUsize,
    /// Requests that wait.
    length: AtomicUsize,
    /// Requests that may wait; 0 turns the queue off, and the limits with it.
    length_max: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    queue: FairQueue,
    waits: HashMap<u64, Wait>,
}

/// How things stand with a request that was made to wait.
#[derive(Debug)]
enum Wait {
    Queued(Waker),
    /// It has a place at this engine.
    Placed(Arc<EngineLoad>),
    Refused(Refusal),
}

/// What one worker counts of the queue.
#[derive(Debug)]
pub(super) struct QueueCounters {
    refusals: [[Counter; LEVELS]; Refusal::ALL.len()],
    /// Waits that ended with a place at an engine.
    pub(super) waits: Histogram,
}

impl Default for QueueCounters {
    fn default() -> Self {
        Self { refusals: Default::default(), waits: Histogram::new(&TTFT_BOUNDS) }
    }
}

impl QueueCounters {
    pub(super) fn refused(&self, refusal: Refusal, level: usize) {
        self.refusals[refusal as usize][level].add(1);
    }

    /// What all workers have counted; what the queue knows itself is left out.
    pub(super) fn sum<'w>(workers: impl Iterator<Item = &'w Self> + Clone) -> QueueView {
        let count = |refusal: Refusal, level: usize| workers.clone().map(|w| w.refusals[refusal as usize][level].value()).sum();
        let by_level = |refusal| std::array::from_fn(|level| count(refusal, level));
        QueueView {
            refusals: Refusal::ALL.iter().map(|&refusal| (refusal.name(), by_level(refusal))).collect(),
            waits: Latencies::sum_of(workers.clone().map(|w| &w.waits), &TTFT_BOUNDS),
            ..QueueView::default()
        }
    }
}

/// The queue at one moment, for operators.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct QueueView {
    /// Requests that wait, by priority.
    pub lengths: [usize; LEVELS],
    /// Engines that are full at present, each with the most requests that may wait for their first
    /// token there.
    pub limits: Vec<(String, usize)>,
    /// Requests refused, by reason and priority.
    pub refusals: BTreeMap<&'static str, [u64; LEVELS]>,
    /// Times that requests have waited before an engine had room.
    pub waits: Latencies,
}

impl Admission {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            loads: EngineLoads::default(),
            in_flight_max: AtomicUsize::new(0),
            length: AtomicUsize::new(0),
            length_max: AtomicUsize::new(0),
            state: Mutex::new(State { queue: FairQueue::new(0), waits: HashMap::new() }),
        }
    }

    /// Adds a worker that may have so many requests in flight to one engine.
    pub(super) fn join(&self, length_max: usize, in_flight_max: usize) {
        self.in_flight_max.fetch_add(in_flight_max, Ordering::Relaxed);
        self.length_max.store(length_max, Ordering::Relaxed);
        self.state.lock().queue.set_max(length_max);
    }

    pub(super) fn is_on(&self) -> bool {
        self.length_max.load(Ordering::Relaxed) > 0
    }

    /// Whether an engine may be given one more request.
    pub(super) fn has_room(&self, load: &EngineLoad) -> bool {
        load.has_room(self.in_flight_max.load(Ordering::Relaxed), self.is_on())
    }

    /// Lets a request wait for a place at one of `engines`. `reach` tells which of them its class
    /// may use.
    ///
    /// Errors: why it is refused, and the time in ms until those who wait are served.
    pub(super) fn wait<'e>(
        self: &Arc<Self>,
        waiter: Waiter,
        patience_ms: f64,
        reach: impl FnOnce() -> Reach,
        engines: impl Iterator<Item = (&'e Arc<EngineLoad>, &'e Judged)>,
    ) -> Result<Ticket, (Refusal, f64)> {
        let now = self.now();
        let mut woken = Vec::new();
        let mut state = self.state.lock();
        let entered = match state.queue.enter(now, waiter, patience_ms, reach) {
            Ok(entered) => entered,
            Err(refusal) => return Err((refusal, state.queue.drain_ms())),
        };
        if let Some((id, refusal)) = entered.evicted {
            woken.extend(state.settle(id, Wait::Refused(refusal)));
        }
        state.waits.insert(entered.id, Wait::Queued(Waker::noop().clone()));
        // The order matters: whoever leaves an engine from now on sees that somebody waits, and who
        // has left before has made room that is seen here.
        self.length.store(state.queue.len(), Ordering::SeqCst);
        engines.for_each(|(load, judged)| self.place(&mut state, load, judged, now, &mut woken));
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        let patience = Duration::from_millis(entered.patience_ms);
        Ok(Ticket { admission: Arc::clone(self), id: entered.id, patience })
    }

    /// Takes which engines each class may use now.
    pub(super) fn set_reach(&self, reach: impl Fn(u64) -> Option<Reach>) {
        self.state.lock().queue.set_reach(reach);
    }

    /// Gives the room that an engine has to those that wait for it.
    #[inline]
    pub(super) fn offer(&self, load: &Arc<EngineLoad>, judged: &Judged) {
        if self.has_waiters() {
            let mut woken = Vec::new();
            self.place(&mut self.state.lock(), load, judged, self.now(), &mut woken);
            woken.into_iter().for_each(Waker::wake);
        }
    }

    pub(super) fn has_waiters(&self) -> bool {
        self.length.load(Ordering::SeqCst) > 0
    }

    fn place(&self, state: &mut State, load: &Arc<EngineLoad>, judged: &Judged, now: Millis, woken: &mut Vec<Waker>) {
        while !state.queue.is_empty() && self.has_room(load) {
            let Some(id) = state.queue.pop(now, load.place, judged.ejection()) else { break };
            load.enter();
            woken.extend(state.settle(id, Wait::Placed(Arc::clone(load))));
        }
        self.length.store(state.queue.len(), Ordering::SeqCst);
    }

    /// Time, in ms, until those who wait are served.
    pub(super) fn drain_ms(&self) -> f64 {
        self.state.lock().queue.drain_ms()
    }

    /// Adds what the queue knows itself.
    pub(super) fn fill(&self, view: &mut QueueView) {
        view.lengths = self.state.lock().queue.lengths();
        view.limits = self.loads.limits();
        view.limits.sort();
    }

    fn now(&self) -> Millis {
        self.clock.now().as_millis() as Millis
    }
}

impl State {
    /// Ends the wait of a request; its waker.
    fn settle(&mut self, id: u64, end: Wait) -> Option<Waker> {
        match self.waits.insert(id, end) {
            Some(Wait::Queued(waker)) => Some(waker),
            _ => None,
        }
    }
}

/// A request that waits. Dropping it takes the request out of the queue.
pub(super) struct Ticket {
    admission: Arc<Admission>,
    id: u64,
    /// Time for which it may wait.
    pub(super) patience: Duration,
}

impl Ticket {
    /// The engine at which it has a place now, or why it was refused.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<Arc<EngineLoad>, Refusal>> {
        let mut state = self.admission.state.lock();
        match state.waits.get_mut(&self.id) {
            Some(Wait::Queued(waker)) => {
                waker.clone_from(cx.waker());
                Poll::Pending
            }
            Some(Wait::Placed(load)) => {
                let load = Arc::clone(load);
                state.waits.remove(&self.id);
                Poll::Ready(Ok(load))
            }
            Some(&mut Wait::Refused(refusal)) => Poll::Ready(Err(refusal)),
            None => unreachable!("a ticket is not polled again after its end"),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.admission.state.lock();
        match state.waits.remove(&self.id) {
            Some(Wait::Queued(_)) => {
                state.queue.leave(self.id);
                self.admission.length.store(state.queue.len(), Ordering::SeqCst);
            }
            // Workers offer the room again at their next tick.
            Some(Wait::Placed(load)) => load.give_up(),
            Some(Wait::Refused(_)) | None => {}
        }
    }
}
