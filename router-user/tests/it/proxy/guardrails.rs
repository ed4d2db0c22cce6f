//! Engines that misbehave while they accept connections: they lose their requests, clients notice
//! nothing, and a bad request takes no engine away from the others.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use router_user::io::IoChoice;
use router_user::proxy::{DataPlaneStats, EngineStats, ProxyConfig};
use router_user::publish::snapshot::{OrderKind, Snapshot};
use rstest::rstest;

use super::world::{Client, Engine, Listed, World, answer, order, snapshot, until};

/// Answers with a status, further fields and a body.
fn say(socket: &mut TcpStream, status: u16, fields: &str, body: &str) -> bool {
    write!(socket, "HTTP/1.1 {status} X\r\n{fields}content-length: {}\r\n\r\n{body}", body.len()).is_ok()
}

/// An engine that answers every request with a status.
fn refusing(status: u16, fields: &'static str) -> Engine {
    Engine::start(move |socket, _| say(socket, status, fields, r#"{"error":"no"}"#))
}

/// Sends `times` requests, each of a session of its own, and counts the statuses.
fn ask_many(client: &mut Client, times: usize, fields: &str) -> Vec<u16> {
    (0..times).map(|n| client.ask(&format!("x-session-id: s{n}\r\n{fields}")).status).collect()
}

#[track_caller]
fn all_are(statuses: &[u16], expected: u16) {
    assert!(statuses.iter().all(|&status| status == expected), "{statuses:?}");
}

fn state(engine: &EngineStats) -> String {
    serde_json::to_value(engine.state).unwrap().as_str().unwrap().to_owned()
}

fn reason(engine: &EngineStats) -> &'static str {
    engine.reason.map_or("none", |reason| reason.name())
}

fn are_untouched(stats: &DataPlaneStats) {
    for engine in &stats.engines {
        assert_eq!((state(engine).as_str(), engine.multiplier), ("healthy", 1.0), "{engine:?}");
    }
}

/// Requests that an engine which fails all of them may get: three that find it out, and the tests
/// of a slow machine's run.
const FOUND_OUT: usize = 8;

#[rstest]
#[case::status_404("model_missing", "HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n")]
#[case::status_500("server_error", "HTTP/1.1 500 X\r\ncontent-length: 2\r\n\r\nno")]
#[case::status_503("server_error", "HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n")]
#[case::status_429("busy", "HTTP/1.1 429 X\r\ncontent-length: 0\r\n\r\n")]
#[case::a_chunked_500("server_error", "HTTP/1.1 500 X\r\ntransfer-encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n")]
#[case::a_500_as_a_stream(
    "server_error",
    "HTTP/1.1 500 X\r\ncontent-type: text/event-stream\r\ncontent-length: 9\r\n\r\ndata: x\n\n"
)]
#[case::garbage("malformed", "SSH-2.0-OpenSSH_9.6\r\n\r\n")]
#[case::nothing("closed", "")]
#[case::half_a_head("closed", "HTTP/1.1 200 OK\r\ncont")]
fn an_engine_that_fails_every_request_at_once_costs_no_client(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
    #[case] expected: &str,
    #[case] answers: &'static str,
) {
    // A whole answer leaves the connection open.
    let is_whole = answers.contains("\r\n\r\n") && answers.starts_with("HTTP");
    let bad = Engine::start(move |socket, _| socket.write_all(answers.as_bytes()).is_ok() && is_whole);
    let sound = [Engine::echo("a"), Engine::echo("b")];
    let world = World::new(io, &[&bad, &sound[0], &sound[1]]);
    all_are(&ask_many(&mut world.client(), 100, ""), 200);
    let stats = world.check_outcomes(&[]);
    assert_eq!((state(&stats.engines[0]).as_str(), reason(&stats.engines[0])), ("ejected", expected));
    assert!((3..=FOUND_OUT).contains(&bad.count()), "{}", bad.count());
    assert_eq!(stats.engines[0].failures[expected], bad.count() as u64);
    assert_eq!(stats.retries.values().sum::<u64>(), bad.count() as u64);
}

#[rstest]
fn streams_that_break_off_cost_an_engine_its_requests(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let stream = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100\r\n\r\ndata: x\n\n";
    let bad = Engine::start(move |socket, _| socket.write_all(stream.as_bytes()).is_err());
    let sound = Engine::echo("sound");
    let world = World::new(io, &[&bad, &sound]);
    for n in 0..100 {
        let mut client = world.client();
        client.post(&format!("x-session-id: s{n}\r\nconnection: close\r\n"), r#"{"model":"demo"}"#);
        client.head();
        client.rest();
    }
    let stats = world.settled();
    assert_eq!(reason(&stats.engines[0]), "broken");
    assert!((3..=FOUND_OUT).contains(&bad.count()), "{}", bad.count());
    assert_eq!(stats.outcomes["engine_broke_mid_stream"], bad.count() as u64);
}

/// What engines say of requests that are wrong is no evidence, however often.
#[rstest]
fn mistakes_of_clients_cost_no_engine_anything(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    for status in [400, 401, 403, 413, 422] {
        let engines = [refusing(status, ""), refusing(status, "")];
        let world = World::new(io, &[&engines[0], &engines[1]]);
        all_are(&ask_many(&mut world.client(), 40, ""), status);
        let stats = world.check_outcomes(&[]);
        are_untouched(&stats);
        assert_eq!(stats.retries.values().sum::<u64>(), 0);
        assert!(engines.iter().all(|engine| engine.count() > 5), "both keep their requests");
    }
}

#[rstest]
fn a_path_that_an_engine_does_not_have_is_no_evidence(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = [refusing(404, ""), refusing(404, "")];
    let world = World::new(io, &[&engines[0], &engines[1]]);
    let mut client = world.client();
    for target in ["POST /v1/rerank", "POST /v1/responses", "POST /v1/audio/speech"] {
        for _ in 0..10 {
            client.send(format!("{target} HTTP/1.1\r\nhost: a\r\ncontent-length: 16\r\n\r\n{{\"model\":\"demo\"}}"));
            assert_eq!(client.answer().status, 404);
        }
    }
    are_untouched(&world.check_outcomes(&[]));
}

/// A request that fails on every engine is the fault of none. Its last answer is passed on as it
/// came.
#[rstest]
fn a_request_that_every_engine_fails_costs_no_engine_anything(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = |name: &'static str| {
        Engine::start(move |socket, request| match request.field("x-bad") {
            Some(_) => say(socket, 500, "x-own: 1\r\n", "too long"),
            None => answer(socket, name),
        })
    };
    let engines = [engine("a"), engine("b"), engine("c")];
    let world = World::new(io, &[&engines[0], &engines[1], &engines[2]]);
    let mut client = world.client();
    for n in 0..3 {
        let answer = client.ask(&format!("x-session-id: s{n}\r\nx-bad: 1\r\n"));
        assert_eq!((answer.status, answer.field("x-own"), answer.text()), (500, Some("1"), "too long"));
    }
    let stats = world.check_outcomes(&[]);
    are_untouched(&stats);
    assert_eq!(stats.retries["engine_error"], 6, "each was tried on all three");
    assert_eq!(stats.engines.iter().map(|engine| engine.served[4]).sum::<u64>(), 9);
}

/// When two of three engines fail a request and the third serves it, the two are at fault.
#[rstest]
fn engines_whose_requests_another_one_serves_are_at_fault(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (bad, sound) = ([refusing(500, ""), refusing(500, "")], Engine::echo("sound"));
    let world = World::new(io, &[&bad[0], &bad[1], &sound]);
    let mut client = world.client();
    all_are(&ask_many(&mut client, 40, ""), 200);
    let stats = world.check_outcomes(&[]);
    assert_eq!([0, 1, 2].map(|n| stats.engines[n].multiplier), [0.0, 0.0, 1.0]);
    assert!(bad.iter().all(|engine| engine.count() <= 2 * FOUND_OUT));
}

/// With nobody else to ask, requests still go out, and everything that an engine says comes back.
#[rstest]
fn the_last_engines_stay_however_they_fail(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    for count in [1, 2] {
        let engines: Vec<Engine> = (0..count).map(|_| refusing(500, "")).collect();
        let world = World::new(io, &engines.iter().collect::<Vec<_>>());
        all_are(&ask_many(&mut world.client(), 60, ""), 500);
        world.check_outcomes(&[]);
        assert!(engines.iter().all(|engine| engine.count() >= 10), "each keeps its requests");
    }
}

#[rstest]
fn a_deadly_request_ends_two_engines_at_most(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    // Longer than a kept connection may take to turn out to be stale.
    let thinks = Duration::from_millis(500);
    for is_kept in [false, true] {
        let engine = |name: &'static str| {
            Engine::start(move |socket, request| match request.field("x-poison") {
                Some(_) => {
                    std::thread::sleep(thinks);
                    false
                }
                None => answer(socket, name),
            })
        };
        let engines = [engine("a"), engine("b"), engine("c"), engine("d")];
        let world = World::with(
            io,
            ProxyConfig { workers: 1, ..ProxyConfig::default() },
            &[&engines[0], &engines[1], &engines[2], &engines[3]],
        );
        let mut client = world.client();
        if is_kept {
            all_are(&ask_many(&mut client, 60, ""), 200);
            assert!(engines.iter().all(|engine| engine.count() > 0), "a kept connection to each");
        }
        let answer = client.ask("x-poison: 1\r\n");
        assert_eq!((answer.status, answer.code().as_str()), (502, "poison"));
        let deadly = |engine: &Engine| {
            engine.received.lock().unwrap().iter().filter(|request| request.field("x-poison").is_some()).count()
        };
        assert_eq!(engines.iter().map(deadly).sum::<usize>(), 2);
        assert!(engines.iter().all(|engine| deadly(engine) <= 1), "none gets it twice");
        let stats = world.check_outcomes(&[("poison", 1)]);
        are_untouched(&stats);
        assert_eq!(stats.retries["reset"], 1);
    }
}

#[rstest]
fn a_busy_engine_rests_as_long_as_it_asks_and_that_is_no_failure(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let by_date = "date: Fri, 31 Dec 1999 23:59:00 GMT\r\nretry-after: Fri, 31 Dec 1999 23:59:40 GMT\r\n";
    for (status, fields) in [(429, "retry-after: 40\r\n"), (503, "retry-after: 40\r\n"), (503, by_date)] {
        let (busy, sound) = (refusing(status, fields), Engine::echo("sound"));
        let world = World::new(io, &[&busy, &sound]);
        all_are(&ask_many(&mut world.client(), 60, ""), 200);
        let stats = world.check_outcomes(&[]);
        assert_eq!((busy.count(), stats.engines[0].failed()), (1, 0), "one word is enough");
        assert_eq!((state(&stats.engines[0]).as_str(), reason(&stats.engines[0])), ("ejected", "busy"));
        assert_eq!(stats.retries["busy"], 1);
    }
}

#[rstest]
fn an_operator_who_says_that_an_engine_is_well_ends_its_rest(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let is_well = Arc::new(AtomicBool::new(false));
    let busy = Engine::start({
        let is_well = Arc::clone(&is_well);
        move |socket, _| {
            if is_well.load(Ordering::Relaxed) { answer(socket, "back") } else { say(socket, 429, "retry-after: 60\r\n", "") }
        }
    });
    let sound = Engine::echo("sound");
    let world = World::new(io, &[&busy, &sound]);
    let mut client = world.client();
    all_are(&ask_many(&mut client, 30, ""), 200);
    assert_eq!((state(&world.stats().engines[0]).as_str(), busy.count()), ("ejected", 1));
    is_well.store(true, Ordering::Relaxed);
    let listed = |engine: &Engine| Listed { address: engine.address, weight: 0.5, tags: &[] };
    let mut restored = Snapshot { generation: 2, ..snapshot(&[listed(&busy), listed(&sound)]) };
    order(&mut restored, 0, OrderKind::Restore, 1);
    world.apply(restored);
    assert_eq!(state(&world.stats().engines[0]), "ramp");
    until("it has requests again", || {
        all_are(&ask_many(&mut client, 5, ""), 200);
        busy.count() > 1
    });
    world.check_outcomes(&[]);
}

#[rstest]
fn an_engine_that_is_well_again_returns_by_a_test_that_costs_no_client(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let is_well = Arc::new(AtomicBool::new(false));
    let returning = Engine::start({
        let is_well = Arc::clone(&is_well);
        move |socket, _| if is_well.load(Ordering::Relaxed) { answer(socket, "back") } else { say(socket, 500, "", "") }
    });
    let sound = Engine::echo("sound");
    let world = World::new(io, &[&returning, &sound]);
    let mut client = world.client();
    all_are(&ask_many(&mut client, 30, ""), 200);
    assert_eq!(world.stats().engines[0].multiplier, 0.0);
    let found_out = returning.count();
    until("a test has been made", || {
        all_are(&ask_many(&mut client, 5, ""), 200);
        returning.count() > found_out
    });
    is_well.store(true, Ordering::Relaxed);
    until("the engine has a share again", || {
        all_are(&ask_many(&mut client, 5, ""), 200);
        world.stats().engines[0].multiplier > 0.0
    });
    assert!(["ramp", "healthy"].contains(&state(&world.stats().engines[0]).as_str()));
    world.check_outcomes(&[]);
}

#[rstest]
fn what_an_engine_keeps_something_of_is_not_sent_again_for_a_status(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    for status in [500, 429] {
        let engines = [refusing(status, ""), refusing(status, "")];
        let world = World::new(io, &[&engines[0], &engines[1]]);
        let mut client = world.client();
        client.send("POST /v1/files HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\ndata");
        assert_eq!(client.answer().status, status);
        assert_eq!(engines[0].count() + engines[1].count(), 1);
    }
}

/// An engine that accepts and never answers is found by the requests that wait, which go elsewhere.
#[rstest]
fn requests_that_wait_at_a_silent_engine_are_served_elsewhere(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (gate, closed) = std::sync::mpsc::channel::<()>();
    let closed = std::sync::Mutex::new(closed);
    let silent = Engine::start(move |_, _| {
        // Until the test ends.
        let _ended = closed.lock().unwrap().recv();
        false
    });
    let sound = Engine::echo("sound");
    let world = World::with(io, ProxyConfig { workers: 1, ..ProxyConfig::default() }, &[&silent, &sound]);
    let mut clients: Vec<Client> = (0..30).map(|_| world.client()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.post(&format!("x-session-id: s{n}\r\n"), r#"{"model":"demo","stream":true}"#);
    }
    for client in &mut clients {
        assert_eq!(client.answer().text(), "sound");
    }
    let stats = world.check_outcomes(&[]);
    assert_eq!((state(&stats.engines[0]).as_str(), reason(&stats.engines[0])), ("ejected", "stalled"));
    let waited = stats.retries["late"];
    assert!(waited >= 3, "{stats:?}");
    assert_eq!(stats.engines[0].failures["stalled"], waited);
    all_are(&ask_many(&mut world.client(), 30, ""), 200);
    drop(gate);
}
