//! Open-loop load: requests leave when they are due, whether or not earlier ones have been
//! answered.
//!
//! Every latency is counted from the moment a request was due, not from when it could be sent, so a
//! stall of the client or of what it loads is measured and not hidden; requests that left late are
//! counted. Arrivals are Poisson, from a seed.

mod args;
mod client;
mod record;
mod report;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

use crate::clock;
use router_user::rng::Rng;

pub use args::{Args, Target};
use client::Prompt;
pub(crate) use client::{Ask, Failure, Outcome, Pool};
use record::Record;
pub use record::Summary;
pub use report::{Kind, Report, Row, Share};

/// Arrivals whose timer may fire early by this much instead of late: half of the timer's
/// granularity of 1 ms.
const TIMER_LAG: Duration = Duration::from_micros(500);

/// One target under load.
struct Stream {
    target: Target,
    pool: Pool,
    in_flight: std::cell::Cell<usize>,
    interval: RefCell<Record>,
    total: RefCell<Record>,
}

/// Sends until the duration is over or the process is told to stop, waits for the answers, and
/// reports.
pub async fn run(args: Args) -> Result<()> {
    let targets = args.targets().await?;
    let args = Rc::new(args);
    let streams: Vec<Rc<Stream>> = targets.into_iter().map(|target| Rc::new(Stream::new(target, args.late_after))).collect();
    let start = clock::now();
    let end = args.duration.map(|duration| start + duration);

    let senders: Vec<_> = (0_u64..)
        .zip(&streams)
        .map(|(number, stream)| {
            let (args, stream) = (Rc::clone(&args), Rc::clone(stream));
            tokio::task::spawn_local(async move { send(&args, &stream, Rng::stream(args.seed, number), start, end).await })
        })
        .collect();
    let finished = async {
        for sender in senders {
            let _ = sender.await;
        }
        let give_up = clock::now() + args.timeout;
        while streams.iter().any(|stream| stream.in_flight.get() > 0) && clock::now() < give_up {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::pin!(finished);
    let stop = crate::net::stop_signal();
    tokio::pin!(stop);
    let mut tick = tokio::time::interval_at(start + args.interval, args.interval);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut interval_start = start;
    loop {
        tokio::select! {
            () = &mut finished => break,
            result = &mut stop => { result?; break }
            now = tick.tick() => {
                if args.is_live {
                    report::interval(&args, &streams, now - start, now - interval_start)?;
                }
                interval_start = now;
            }
        }
    }
    report::summary(&args, &streams, clock::now() - start)
}

impl Stream {
    fn new(target: Target, late_after: Duration) -> Self {
        let in_flight = std::cell::Cell::new(0);
        Self {
            target,
            pool: Pool::default(),
            in_flight,
            interval: RefCell::new(Record::new(late_after)),
            total: RefCell::new(Record::new(late_after)),
        }
    }

    fn record(&self, note: impl Fn(&mut Record)) {
        note(&mut self.interval.borrow_mut());
        note(&mut self.total.borrow_mut());
    }
}

async fn send(args: &Rc<Args>, stream: &Rc<Stream>, mut rng: Rng, start: Instant, end: Option<Instant>) {
    let mut due = start;
    if stream.target.rate_rps <= 0.0 {
        return;
    }
    loop {
        due += rng.interval(stream.target.rate_rps);
        if end.is_some_and(|end| due >= end) {
            return;
        }
        let prompt = Prompt::draw(args, &mut rng);
        if due > clock::now() + TIMER_LAG {
            tokio::time::sleep_until(due - TIMER_LAG).await;
        }
        let is_recorded = due >= start + args.warm_up;
        if stream.in_flight.get() >= args.max_in_flight {
            if is_recorded {
                stream.record(|record| record.fail(Failure::InFlight));
            }
            continue;
        }
        let (args, stream) = (Rc::clone(args), Rc::clone(stream));
        tokio::task::spawn_local(async move {
            stream.in_flight.set(stream.in_flight.get() + 1);
            let sent = clock::now();
            // A timer that fired early must not make latencies negative.
            let from = due.min(sent);
            let ask = prompt.ask(&stream.target.authority, &args);
            let outcome = stream.pool.exchange(stream.target.address, &ask, from).await;
            stream.in_flight.set(stream.in_flight.get() - 1);
            if is_recorded {
                stream.record(|record| record.note(sent - from, &outcome));
            }
        });
    }
}
