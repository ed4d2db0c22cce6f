//! The retry budget of a data plane, and clients that send failed requests again.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use router_user::io::IoChoice;
use router_user::proxy::{DataPlaneStats, ProxyConfig};
use rstest::rstest;

use super::world::{Client, Engine, Listed, Received, World, answer, gate, pass, snapshot, until};

/// Seconds that a test may take at most: each adds one resend to a budget.
const SLACK: u64 = 20;

/// An engine of all the weight, and one that only takes over.
fn weighted(first: &Engine, second: &Engine) -> router_user::publish::snapshot::Snapshot {
    let listed = |engine: &Engine, weight| Listed { address: engine.address, weight, tags: &[] };
    snapshot(&[listed(first, 1.0), listed(second, 0.0)])
}

fn resent(stats: &DataPlaneStats) -> u64 {
    stats.retries["reset"] + stats.retries["stale_connection"]
}

#[rstest]
fn a_burst_of_cut_requests_stays_within_the_budget_on_kept_and_on_fresh_connections(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
    #[values(1, 2)] workers: usize,
) {
    // Below what a listening socket keeps for an accept that is late.
    const BURST: usize = 100;
    for rounds in [0, 1] {
        let (open, held) = gate();
        let is_last = Arc::new(AtomicBool::new(false));
        let dies = Engine::start({
            let is_last = Arc::clone(&is_last);
            move |socket: &mut TcpStream, _: &Received| {
                pass(&held);
                !is_last.load(Ordering::Relaxed) && answer(socket, "warm")
            }
        });
        let takes_over = Engine::echo("takes over");
        let world = World::of(io, ProxyConfig { workers, ..Default::default() }, weighted(&dies, &takes_over));
        let mut clients: Vec<Client> = (0..BURST).map(|_| world.client()).collect();
        let mut send = |round: usize| {
            for (n, client) in clients.iter_mut().enumerate() {
                client.post("", &format!(r#"{{"model":"demo","user":"{round} {n}"}}"#));
            }
            until("all requests are in flight", || dies.count() == (round + 1) * BURST);
        };
        for round in 0..rounds {
            send(round);
            (0..BURST).for_each(|_| open.send(()).unwrap());
            until("all are answered", || world.stats().outcomes["ok"] == ((round + 1) * BURST) as u64);
        }
        send(rounds);
        is_last.store(true, Ordering::Relaxed);
        dies.kill();
        (0..BURST).for_each(|_| open.send(()).unwrap());
        let stats = world.settled();
        let requests = ((rounds + 1) * BURST) as u64;
        let (resent, denied) = (resent(&stats), stats.outcomes["engines_unavailable"]);
        // A fifth of the requests, and the credit at the start.
        let allowed = requests / 5 + 10 + SLACK;
        assert!((1..=allowed).contains(&resent), "{resent} sent again, {allowed} allowed: {stats:?}");
        assert_eq!((takes_over.count() as u64 + denied, stats.retries_denied), (BURST as u64, denied), "{stats:?}");
    }
}

#[rstest]
fn nothing_is_sent_again_while_the_engines_are_full(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    const MOST: usize = 10;
    let (open, held) = gate();
    let engine = Engine::start(move |socket: &mut TcpStream, request: &Received| {
        if request.field("x-wait").is_some() {
            pass(&held);
        }
        request.field("x-cut").is_none() && answer(socket, "done")
    });
    let world = World::with(io, ProxyConfig { max_in_flight_per_engine: MOST, ..Default::default() }, &[&engine]);
    let mut client = world.client();
    // The engine may have closed the kept connection because it was idle.
    let mut cut = || {
        assert_eq!(client.ask("").status, 200);
        assert_eq!(client.ask("x-cut: 1\r\n").code(), "engines_unavailable");
        let stats = world.stats();
        (stats.retries["stale_connection"], stats.retries_denied)
    };
    assert_eq!(cut(), (1, 0));
    let mut waiting: Vec<Client> = (1..MOST).map(|_| world.client()).collect();
    waiting.iter_mut().for_each(|client| client.post("x-wait: 1\r\n", r#"{"model":"demo"}"#));
    until("all wait", || world.stats().engines[0].in_flight == MOST as u64 - 1);
    assert_eq!(cut(), (1, 1));
    waiting.iter().for_each(|_| open.send(()).unwrap());
    waiting.iter_mut().for_each(|client| assert_eq!(client.answer().text(), "done"));
    assert_eq!(cut(), (2, 1));
}

/// Requests that both engines cut: as many are sent again as have credit.
fn sent_again_of_200(io: IoChoice, request: impl Fn(usize) -> (String, String)) -> DataPlaneStats {
    let engines = [Engine::start(|_, _| false), Engine::start(|_, _| false)];
    let world = World::new(io, &[&engines[0], &engines[1]]);
    let mut client = world.client();
    for n in 0..200 {
        let (fields, body) = request(n);
        client.post(&fields, &body);
        assert!(["engines_unavailable", "poison"].contains(&client.answer().code().as_str()));
    }
    let stats = world.settled();
    // The second engine's cut is the last word, or there was no credit to hear it.
    assert_eq!((stats.outcomes["poison"], stats.outcomes["engines_unavailable"]), (resent(&stats), 200 - resent(&stats)));
    stats
}

#[rstest]
fn a_request_that_its_client_sends_again_earns_no_credit(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let body = |n: usize| format!(r#"{{"model":"demo","prompt":"{n}"}}"#);
    let new = sent_again_of_200(io, |n| (String::new(), body(n)));
    assert_eq!(new.client_retries, 0);
    assert!(resent(&new) >= 10 + 200 / 5 - 1, "{new:?}");
    let same_body = sent_again_of_200(io, |_| (String::new(), body(0)));
    let same_key = sent_again_of_200(io, |n| ("Idempotency-Key: k\r\n".to_owned(), body(n)));
    let own_word = sent_again_of_200(io, |n| (format!("x-stainless-retry-count: {}\r\n", n.min(1)), body(n)));
    for repeated in [same_body, same_key, own_word] {
        assert_eq!(repeated.client_retries, 199);
        assert!(resent(&repeated) <= 10 + SLACK, "{repeated:?}");
    }
}

#[rstest]
fn only_what_was_not_served_counts_as_sent_again(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let received = Arc::new(Mutex::new(Vec::new()));
    let (told, has_left) = std::sync::mpsc::channel();
    let engine = Engine::start({
        let received = Arc::clone(&received);
        move |socket: &mut TcpStream, request: &Received| {
            received.lock().unwrap().push(request.field("idempotency-key").map(str::to_owned));
            if request.field("x-wait").is_some() {
                told.send(std::io::Read::read(socket, &mut [0; 16]).unwrap_or(0)).unwrap();
                return false;
            }
            answer(socket, "served")
        }
    });
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    for _ in 0..3 {
        assert_eq!(client.ask("idempotency-key: k\r\n").text(), "served");
        assert_eq!(client.ask("").text(), "served");
    }
    assert_eq!(world.settled().client_retries, 0, "served requests may be alike");
    assert_eq!(received.lock().unwrap()[0].as_deref(), Some("k"), "the field reaches the engine");
    // A client that gives up and comes back.
    let mut leaves = world.client();
    leaves.post("x-wait: 1\r\n", r#"{"model":"demo"}"#);
    until("the engine has it", || engine.count() == 7);
    drop(leaves);
    has_left.recv_timeout(super::world::PATIENCE).unwrap();
    world.settled();
    assert_eq!((client.ask("").text(), client.ask("").text()), ("served", "served"));
    assert_eq!(world.settled().client_retries, 1, "one failure excuses one request");
}
