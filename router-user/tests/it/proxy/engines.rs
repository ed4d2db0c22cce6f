//! Engines that fail before they answer: the request goes elsewhere, and no client notices.

use std::io::Write;
use std::time::Duration;

use router_user::io::IoChoice;
use router_user::proxy::ProxyConfig;
use rstest::rstest;

use super::world::{Engine, PATIENCE, World, answer, now, reset};

#[rstest]
fn a_refused_connection_goes_to_the_next_engine(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = [Engine::echo("e0"), Engine::echo("e1"), Engine::echo("e2")];
    let world = World::new(io, &[&engines[0], &engines[1], &engines[2]]);
    let mut client = world.client();
    let homes: Vec<String> = (0..60).map(|n| client.ask(&format!("x-session-id: {n}\r\n")).engine().to_owned()).collect();
    assert!(homes.contains(&"e1".to_owned()));
    engines[1].kill();
    for round in 0..5 {
        for (n, home) in homes.iter().enumerate() {
            let answer = client.ask(&format!("x-session-id: {n}\r\n"));
            assert_eq!(answer.status, 200, "round {round}, session {n}");
            // Sessions of the others stay where they are.
            assert!(answer.engine() == home || home == "e1");
            assert_ne!(answer.engine(), "e1");
        }
    }
    let stats = world.check_outcomes(&[]);
    let lost = &stats.engines[1];
    assert!(lost.connect_failures >= 3, "{lost:?}");
    assert!(lost.connect_failures < 30, "an engine that cannot be reached is not tried each time: {lost:?}");
    assert_eq!(serde_json::to_value(lost.state).unwrap(), "ejected");
    assert_eq!(stats.retries["connect_failed"], lost.connect_failures);
    assert_eq!(stats.classes[0].arrivals, 360, "retries are not arrivals");
}

#[rstest]
fn an_engine_comes_back_by_a_probe(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("back");
    // An address where nobody listens yet.
    let parked = Engine::echo("parked");
    let address = parked.address;
    parked.kill();
    drop(parked);
    let snapshot = super::world::snapshot(&[
        super::world::Listed { address, weight: 1.0, tags: &[] },
        super::world::Listed { address: engine.address, weight: 0.0, tags: &[] },
    ]);
    let world = World::of(io, ProxyConfig::default(), snapshot);
    let mut client = world.client();
    for _ in 0..10 {
        assert_eq!(client.ask("").engine(), "e1");
    }
    let listener = std::net::TcpListener::bind(address).unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            std::thread::spawn(move || {
                let mut held = Vec::new();
                while super::world::read_head(&mut socket, &mut held).is_some() {
                    held.clear();
                    answer(&mut socket, "again");
                }
            });
        }
    });
    let begun = now();
    while client.ask("").engine() == "e1" {
        assert!(begun.elapsed() < PATIENCE, "the engine is back and nobody noticed");
    }
    // Its share grows from then on.
    super::world::until("it is picked without a test", || client.ask("").engine() == "e0");
    world.check_outcomes(&[]);
}

#[rstest]
fn all_engines_gone(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = [Engine::echo("e0"), Engine::echo("e1")];
    let world = World::new(io, &[&engines[0], &engines[1]]);
    engines.iter().for_each(Engine::kill);
    let mut client = world.client();
    for _ in 0..10 {
        let answer = client.ask("");
        assert_eq!((answer.status, answer.code().as_str()), (503, "engines_unavailable"));
        assert!(answer.text().contains(r#""type":"engines_unavailable""#));
        assert_eq!(answer.field("retry-after"), Some("1"));
    }
    world.check_outcomes(&[("engines_unavailable", 10)]);
}

#[rstest]
fn a_connection_reset_before_any_byte_goes_to_the_next_engine(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    for is_reset in [true, false] {
        let broken = Engine::start(move |socket, _| {
            if is_reset {
                reset(socket);
            }
            false
        });
        let sound = Engine::echo("sound");
        let world = World::new(io, &[&broken, &sound]);
        let mut client = world.client();
        for n in 0..8 {
            let answer = client.ask(&format!("x-session-id: {n}\r\n"));
            assert_eq!((answer.status, answer.text()), (200, "sound"));
        }
        let stats = world.check_outcomes(&[]);
        assert!(broken.count() > 0);
        assert_eq!(stats.retries["reset"], broken.count() as u64);
        assert_eq!(stats.engines[0].resets, broken.count() as u64);
    }
}

#[rstest]
fn retries_of_sent_requests_are_bounded_by_the_budget(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = [Engine::start(|_, _| false), Engine::start(|_, _| false)];
    let world = World::new(io, &[&engines[0], &engines[1]]);
    let mut client = world.client();
    let mut codes: std::collections::BTreeMap<String, u64> = std::collections::BTreeMap::new();
    for _ in 0..200 {
        *codes.entry(client.ask("").code()).or_default() += 1;
    }
    // Two engines had it, or one, and the budget allowed no other.
    let stats = world.check_outcomes(&[("engines_unavailable", codes["engines_unavailable"]), ("poison", codes["poison"])]);
    let sent = (engines[0].count() + engines[1].count()) as u64;
    assert_eq!(sent, 200 + stats.retries["reset"]);
    // A fifth of the requests, what was saved at the start, and one per second.
    assert!(stats.retries["reset"] <= 40 + 10 + 20, "{stats:?}");
    assert!(stats.retries_denied > 0);
}

#[rstest]
fn a_stale_connection_is_replayed_on_a_fresh_one(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    // Answers once per connection, and closes it only when the next request has come: the closest
    // an engine can come to closing an idle connection in the moment in which it is used again.
    let engine = Engine::start({
        let served = std::sync::Mutex::new(std::collections::HashSet::new());
        move |socket, _| served.lock().unwrap().insert(socket.peer_addr().unwrap()) && answer(socket, "hello")
    });
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    for _ in 0..10 {
        assert_eq!(client.ask("").text(), "hello");
    }
    let stats = world.check_outcomes(&[]);
    assert_eq!((stats.retries["stale_connection"], stats.engines[0].replays), (9, 9));
    assert_eq!(stats.engines[0].picks, 10, "a replay is not another pick");
    assert_eq!(engine.count(), 19);
}

#[rstest]
fn a_stateful_request_is_never_sent_twice(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = [Engine::start(|_, _| false), Engine::start(|_, _| false)];
    let world = World::new(io, &[&engines[0], &engines[1]]);
    let mut client = world.client();
    client.send("POST /v1/files HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\ndata");
    assert_eq!(client.answer().code(), "engines_unavailable");
    assert_eq!(engines[0].count() + engines[1].count(), 1);
    // A connection that could be made nowhere has sent nothing, so the next engine may get it.
    engines[0].kill();
    engines[1].kill();
    client.send("POST /v1/files HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\ndata");
    assert_eq!(client.answer().code(), "engines_unavailable");
    let stats = world.check_outcomes(&[("engines_unavailable", 2)]);
    assert_eq!((stats.retries_denied, stats.retries["connect_failed"]), (1, 1));
}

#[rstest]
fn a_connection_closed_while_idle_is_not_used_again(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    for extra in [&b""[..], b"HTTP/1.1 408 Request Timeout\r\n\r\n"] {
        let engine =
            Engine::start(move |socket, _| answer(socket, "hello") && socket.write_all(extra).is_ok() && extra.is_empty());
        let world = World::new(io, &[&engine]);
        let mut client = world.client();
        for _ in 0..10 {
            assert_eq!(client.ask("").text(), "hello");
            engine.close_connections();
        }
        let stats = world.check_outcomes(&[]);
        assert!(stats.engines[0].connects >= 9, "{stats:?}");
    }
}

#[rstest]
fn idle_connections_are_let_go_in_time(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (ended, is_ended) = std::sync::mpsc::channel();
    let engine = Engine::start(move |socket, _| {
        answer(socket, "hello");
        // Nothing more comes, so this returns when the proxy closes, and all of its other clocks
        // are longer than the test waits.
        ended.send(std::io::Read::read(socket, &mut [0; 16]).unwrap()).unwrap();
        false
    });
    let world =
        World::with(io, ProxyConfig { engine_idle_timeout: Duration::from_millis(200), ..Default::default() }, &[&engine]);
    assert_eq!(world.client().ask("").text(), "hello");
    assert_eq!(is_ended.recv_timeout(PATIENCE), Ok(0));
}

#[rstest]
fn answers_that_are_not_http(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    for bad in [
        &b"hello\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\n\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\nx",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 000 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 099 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 600 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 999 OK\r\ncontent-length: 0\r\n\r\n",
    ] {
        let engine = Engine::start(move |socket, _| {
            socket.write_all(bad).unwrap();
            false
        });
        let world = World::new(io, &[&engine]);
        let answer = world.client().ask("");
        assert_eq!((answer.status, answer.code().as_str()), (502, "bad_engine_response"), "{bad:?}");
        world.check_outcomes(&[("engine_bad_response", 1)]);
    }
}

/// Nothing has gone to the client when the first chunk turns out to be malformed, so it is told so,
/// or another engine answers.
#[rstest]
fn a_malformed_first_chunk_is_no_answer(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    for bad in [
        "zz\r\n",
        "\r\n",
        "5 \r\nhello\r\n",
        "-1\r\n",
        "+5\r\nhello\r\n",
        "0x5\r\nhello\r\n",
        "5\nhello\n",
        "5\r\nhelloworld\r\n",
        "5\r\nhello\n\n",
        "ffffffffffffffff\r\n",
        "10000000000000005\r\nhello\r\n",
        "0\r\nno colon\r\n\r\n",
    ] {
        let engine = |kind: &'static str, chunk: String| {
            Engine::start(move |socket, _| {
                let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
                socket.write_all((head + &chunk).as_bytes()).is_ok()
            })
        };
        for kind in ["text/event-stream", "application/json"] {
            let broken = engine(kind, bad.to_owned());
            let world = World::new(io, &[&broken]);
            for minor in [0, 1] {
                let mut client = world.client();
                client.send(format!(
                    "POST /v1/completions HTTP/1.{minor}\r\nhost: a\r\ncontent-length: 16\r\n\r\n{{\"model\":\"demo\"}}"
                ));
                let answer = client.answer();
                assert_eq!((answer.status, answer.code().as_str()), (502, "bad_engine_response"), "{bad:?} to 1.{minor}");
            }
            assert_eq!(world.check_outcomes(&[("engine_bad_response", 2)]).engines[0].served, [0; 5]);
        }
        let (broken, sound) = (engine("text/event-stream", bad.to_owned()), Engine::echo("sound"));
        let world = World::new(io, &[&broken, &sound]);
        let mut client = world.client();
        for n in 0..8 {
            assert_eq!(client.ask(&format!("x-session-id: {n}\r\n")).text(), "sound", "{bad:?}");
        }
        let stats = world.check_outcomes(&[]);
        assert_eq!(stats.retries["bad_response"], broken.count() as u64);
        // What an engine keeps something of is not sent to a second one.
        client.send("POST /v1/files HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\ndata");
        assert!([200, 502].contains(&client.answer().status));
        assert_eq!(world.settled().retries["bad_response"], stats.retries["bad_response"]);
    }
}

/// The size line of the first chunk may come in pieces; only what can be passed on begins the
/// answer.
#[rstest]
fn a_first_chunk_in_pieces_is_looked_at_whole(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::start(move |socket, request| {
        socket.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
        for piece in request.field("x-pieces").unwrap().split('|') {
            std::thread::sleep(Duration::from_millis(20));
            socket.write_all(piece.replace('_', "\r\n").as_bytes()).unwrap();
        }
        false
    });
    let world = World::new(io, &[&engine]);
    let ask = |pieces: &str| world.client().ask(&format!("x-pieces: {pieces}\r\n"));
    assert_eq!(ask("5|_|hello|_0__").text(), "hello");
    assert_eq!(ask("0|_|_").text(), "");
    assert_eq!(ask("5|x").code(), "bad_engine_response");
    assert_eq!(ask("5_|").code(), "engines_unavailable", "cut before any data");
    assert_eq!(ask("0_|x_").code(), "bad_engine_response");
}

#[rstest]
fn an_engine_that_does_not_answer_in_time(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (ended, is_ended) = std::sync::mpsc::channel();
    let engine = Engine::start(move |socket, request| {
        // One says nothing at all, the other only its head: neither is the first byte of an answer.
        if request.field("x-head").is_some() {
            socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n").unwrap();
        }
        ended.send(std::io::Read::read(socket, &mut [0; 16]).unwrap_or(0)).unwrap();
        false
    });
    let world = World::with(io, ProxyConfig { ttft_timeout: Duration::from_millis(150), ..Default::default() }, &[&engine]);
    let mut client = world.client();
    for fields in ["", "x-head: 1\r\n"] {
        let answer = client.ask(fields);
        assert_eq!((answer.status, answer.code().as_str()), (504, "ttft_timeout"));
        assert_eq!(is_ended.recv_timeout(PATIENCE), Ok(0), "the engine's connection stays open");
    }
    world.check_outcomes(&[("ttft_timeout", 2)]);
}

/// Long reasoning is silent: the clients' own deadlines, 600 s in the usual libraries, must decide.
#[test]
fn default_clocks_outlast_the_clients_own_deadlines_and_end_all_the_same() {
    let defaults = ProxyConfig::default();
    for clock in [defaults.ttft_timeout, defaults.gap_timeout] {
        assert!((Duration::from_secs(601)..=Duration::from_secs(3600)).contains(&clock), "{clock:?}");
    }
}

/// An address where connecting neither succeeds nor fails: a listener whose queue is full and who
/// accepts nobody.
struct Silent {
    address: std::net::SocketAddr,
    _held: (socket2::Socket, Vec<socket2::Socket>),
}

impl Silent {
    fn new() -> Self {
        let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        listener.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let fill = (0..4)
            .map(|_| {
                let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
                socket.set_nonblocking(true).unwrap();
                let _pending = socket.connect(&address);
                socket
            })
            .collect();
        Self { address: address.as_socket().unwrap(), _held: (listener, fill) }
    }
}

#[rstest]
fn an_engine_that_does_not_accept_is_passed_over(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (silent, sound) = (Silent::new(), Engine::echo("sound"));
    let snapshot = super::world::snapshot(&[
        super::world::Listed { address: silent.address, weight: 1.0, tags: &[] },
        super::world::Listed { address: sound.address, weight: 0.0, tags: &[] },
    ]);
    let world = World::of(io, ProxyConfig { connect_timeout: Duration::from_millis(200), ..Default::default() }, snapshot);
    let mut client = world.client();
    // One client pays for a connect that times out; those behind it do not, until the next probe.
    for _ in 0..21 {
        assert_eq!(client.ask("").text(), "sound");
    }
    let stats = world.check_outcomes(&[]);
    assert_eq!((stats.engines[0].connect_failures, stats.retries["connect_failed"]), (1, 1));
}

#[rstest]
fn a_client_that_leaves_while_connecting(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let silent = Silent::new();
    let snapshot = super::world::snapshot(&[super::world::Listed { address: silent.address, weight: 1.0, tags: &[] }]);
    let world = World::of(io, ProxyConfig { connect_timeout: PATIENCE, ..Default::default() }, snapshot);
    let mut client = world.client();
    client.post("", r#"{"model":"demo"}"#);
    super::world::until("the engine has been picked", || world.stats().engines[0].picks == 1);
    drop(client);
    world.check_outcomes(&[("client_gone", 1)]);
}
