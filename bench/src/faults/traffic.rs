//! Open-loop traffic: requests leave when they are due, and each is marked with its number, so that
//! engines' journals say where it went.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use router_user::rng::Rng;
use tokio::time::Instant;

use super::analysis::Record;
use crate::clock;
use crate::load::{Ask, Failure, Outcome, Pool};

/// Most requests open at a time in one run; what is due beyond it fails as "in-flight". Half of the
/// usual limit of open files.
const MAX_IN_FLIGHT: usize = 4000;

/// Arrivals whose timer may fire early by this much instead of late: half of the timer's
/// granularity of 1 ms.
const TIMER_LAG: Duration = Duration::from_micros(500);

/// Pause of a closed loop after a failure, so that refusals at once are no flood.
const PAUSE: Duration = Duration::from_millis(100);

/// How long the answers of open requests are waited for beyond their own patience.
const GRACE: Duration = Duration::from_secs(1);

/// Output tokens of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tokens {
    Fixed(u32),
    /// Pareto with shape 1.5: a finite mean, which is three times the smallest, and no variance.
    HeavyTailed {
        min: u32,
        max: u32,
    },
}

/// The affinity key of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum User {
    /// Every request is a user of its own.
    Each,
    /// One of so many, at random.
    OneOf(u64),
    /// Always the same.
    Same(&'static str),
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) rate_rps: f64,
    /// So many clients send one request after the other; above 0 it stands in place of the rate.
    pub(super) at_once: usize,
    /// In s from the start of the run.
    pub(super) from_s: f64,
    pub(super) until_s: f64,
    pub(super) model: &'static str,
    pub(super) class: Option<&'static str>,
    pub(super) tokens: Tokens,
    pub(super) prompt_bytes: usize,
    /// Part of the requests that ask for a stream.
    pub(super) stream_frac: f64,
    pub(super) user: User,
    /// More text of the prompt.
    pub(super) text: &'static str,
    /// A client gives up after this long.
    pub(super) patience: Duration,
}

impl Flow {
    /// Short chats of many users, half of them streamed.
    pub(super) fn chats(rate_rps: f64) -> Self {
        Self {
            rate_rps,
            at_once: 0,
            from_s: 0.0,
            until_s: f64::INFINITY,
            model: "demo",
            class: None,
            tokens: Tokens::Fixed(16),
            prompt_bytes: 200,
            stream_frac: 0.5,
            user: User::Each,
            text: "",
            patience: PATIENCE,
        }
    }

    fn ask(&self, front: &str, id: u64, rng: &mut Rng) -> Ask {
        let is_stream = rng.unit() <= self.stream_frac;
        let tokens = match self.tokens {
            Tokens::Fixed(tokens) => tokens,
            Tokens::HeavyTailed { min, max } => ((f64::from(min) * rng.unit().powf(-1.0 / 1.5)) as u32).clamp(min, max),
        };
        let user = match self.user {
            User::Each => format!("u{id}"),
            User::OneOf(count) => format!("u{}", rng.below(count)),
            User::Same(name) => name.to_owned(),
        };
        let mut content = format!("[#{id}] {} Tell me more.", self.text);
        while content.len() < self.prompt_bytes {
            content.push_str(" And what comes next?");
        }
        let body = serde_json::json!({
            "model": self.model,
            "user": user,
            "messages": [{ "role": "user", "content": content }],
            "max_tokens": tokens,
            "stream": is_stream,
        });
        let class = self.class.map_or_else(String::new, |class| format!("x-ilb-class: {class}\r\n"));
        Ask::chat(front, &class, &body.to_string(), is_stream, self.patience)
    }
}

/// A client's patience unless a scenario says otherwise: far beyond any sound answer here, so that
/// what waits so long hangs.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

struct Shared {
    front: SocketAddr,
    start: Instant,
    records: RefCell<Vec<Record>>,
    next_id: Cell<u64>,
    in_flight: Cell<usize>,
    is_over: Cell<bool>,
}

/// Running traffic; its flows end when this is dropped.
pub(super) struct Traffic {
    shared: Rc<Shared>,
    patience: Duration,
}

impl Traffic {
    pub(super) fn start(front: SocketAddr, flows: &[Flow], seed: u64) -> Self {
        let shared = Rc::new(Shared {
            front,
            start: clock::now(),
            records: RefCell::default(),
            next_id: Cell::new(1),
            in_flight: Cell::new(0),
            is_over: Cell::new(false),
        });
        for (number, flow) in flows.iter().copied().enumerate() {
            let rng = Rng::stream(seed, number as u64);
            for client in 0..flow.at_once {
                let rng = Rng::stream(rng.clone().next_u64(), client as u64);
                tokio::task::spawn_local(Rc::clone(&shared).send_in_turn(number, flow, rng));
            }
            if flow.at_once == 0 && flow.rate_rps > 0.0 {
                tokio::task::spawn_local(Rc::clone(&shared).send(number, flow, rng));
            }
        }
        let patience = flows.iter().map(|flow| flow.patience).max().unwrap_or_default();
        Self { shared, patience }
    }

    /// Sends one request of a flow and waits for its end.
    pub(super) async fn once(front: SocketAddr, flow: &Flow, seed: u64) -> Record {
        let ask = flow.ask(&front.to_string(), 0, &mut Rng::new(seed));
        record(0, 0, 0.0, Pool::default().exchange(front, &ask, clock::now()).await)
    }

    /// Time since the start, in s.
    pub(super) fn at_s(&self) -> f64 {
        (clock::now() - self.shared.start).as_secs_f64()
    }

    pub(super) async fn until(&self, at_s: f64) {
        tokio::time::sleep_until(self.shared.start + Duration::from_secs_f64(at_s)).await;
    }

    /// Requests that have ended so far.
    pub(super) fn so_far(&self) -> std::cell::Ref<'_, Vec<Record>> {
        self.shared.records.borrow()
    }

    /// Sends no more, waits for what is open, and returns all requests in the order of their due
    /// times.
    pub(super) async fn finish(self) -> Vec<Record> {
        self.shared.is_over.set(true);
        let give_up = clock::now() + self.patience + GRACE;
        while self.shared.in_flight.get() > 0 && clock::now() < give_up {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut records = std::mem::take(&mut *self.shared.records.borrow_mut());
        records.sort_by(|a, b| a.due_s.total_cmp(&b.due_s));
        records
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.shared.is_over.set(true);
    }
}

impl Shared {
    fn take_id(&self) -> u64 {
        self.next_id.replace(self.next_id.get() + 1)
    }

    /// One client of a closed loop.
    async fn send_in_turn(self: Rc<Self>, number: usize, flow: Flow, mut rng: Rng) {
        let (pool, front) = (Pool::default(), self.front.to_string());
        tokio::time::sleep_until(self.start + Duration::from_secs_f64(flow.from_s)).await;
        loop {
            let now = clock::now();
            let due_s = (now - self.start).as_secs_f64();
            if due_s >= flow.until_s || self.is_over.get() {
                return;
            }
            let id = self.take_id();
            let ask = flow.ask(&front, id, &mut rng);
            self.in_flight.set(self.in_flight.get() + 1);
            let outcome = pool.exchange(self.front, &ask, now).await;
            self.in_flight.set(self.in_flight.get() - 1);
            if outcome.failure.is_some() {
                tokio::time::sleep(PAUSE).await;
            }
            self.records.borrow_mut().push(record(id, number, due_s, outcome));
        }
    }

    async fn send(self: Rc<Self>, number: usize, flow: Flow, mut rng: Rng) {
        let pool = Rc::new(Pool::default());
        let front = self.front.to_string();
        let mut due_s = flow.from_s;
        loop {
            due_s += rng.interval(flow.rate_rps).as_secs_f64();
            if due_s >= flow.until_s {
                return;
            }
            let due = self.start + Duration::from_secs_f64(due_s);
            if due > clock::now() + TIMER_LAG {
                tokio::time::sleep_until(due - TIMER_LAG).await;
            }
            if self.is_over.get() {
                return;
            }
            let id = self.take_id();
            let ask = flow.ask(&front, id, &mut rng);
            if self.in_flight.get() >= MAX_IN_FLIGHT {
                let outcome = Outcome { failure: Some(Failure::InFlight), ..Outcome::default() };
                self.records.borrow_mut().push(record(id, number, due_s, outcome));
                continue;
            }
            let (shared, pool) = (Rc::clone(&self), Rc::clone(&pool));
            tokio::task::spawn_local(async move {
                shared.in_flight.set(shared.in_flight.get() + 1);
                // A timer that fired early must not make times negative.
                let from = due.min(clock::now());
                let outcome = pool.exchange(shared.front, &ask, from).await;
                shared.in_flight.set(shared.in_flight.get() - 1);
                shared.records.borrow_mut().push(record(id, number, due_s, outcome));
            });
        }
    }
}

fn record(id: u64, flow: usize, due_s: f64, outcome: Outcome) -> Record {
    // A proxy that closes a connection with a request on it has failed that request, although this
    // client tries once more: few other clients do.
    let lost = outcome.is_reconnected.then_some(Failure::NoReply);
    Record {
        id,
        flow,
        due_s,
        failure: outcome.failure.or(lost),
        has_begun: outcome.has_begun && lost.is_none(),
        ttft_s: outcome.ttft.map(|ttft| ttft.as_secs_f64()),
        total_s: outcome.total.as_secs_f64(),
        engine: outcome.engine,
    }
}
