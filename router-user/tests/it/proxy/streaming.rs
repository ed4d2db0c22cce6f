//! Streams: each read passed on as it comes, and what happens when either side leaves.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::mpsc::channel;
use std::time::Duration;

use router_user::io::IoChoice;
use router_user::proxy::ProxyConfig;
use rstest::rstest;

use super::world::{Engine, PATIENCE, World, answer, gate, pass, reset, until};

const SSE_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

fn chunk(data: &str) -> Vec<u8> {
    format!("{:x}\r\n{data}\r\n", data.len()).into_bytes()
}

#[rstest]
fn each_event_is_passed_on_before_the_next_is_made(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (open, gate) = gate();
    let engine = Engine::start(move |socket, _| {
        socket.write_all(SSE_HEAD).unwrap();
        for n in 0..20 {
            pass(&gate);
            socket.write_all(&chunk(&format!("data: {n}\n\n"))).unwrap();
        }
        socket.write_all(b"0\r\n\r\n").is_ok()
    });
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    for _ in 0..2 {
        client.post("", r#"{"model":"demo","stream":true}"#);
        for n in 0..20 {
            open.send(()).unwrap();
            if n == 0 {
                let head = client.head();
                assert_eq!(head.field("content-type"), Some("text/event-stream"));
                assert_eq!(head.field("x-ilb-engine"), Some("e0"));
            }
            // The engine stands at its gate, so this can only come without waiting for more.
            assert_eq!(client.chunk(), Ok(Some(format!("data: {n}\n\n").into_bytes())));
        }
        assert_eq!(client.chunk(), Ok(None));
    }
    let stats = world.check_outcomes(&[]);
    assert_eq!((stats.engines[0].events, stats.engines[0].connects), (40, 1));
}

#[rstest]
fn a_stream_cut_at_every_byte_arrives_the_same(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let data: Vec<String> =
        ["data: one\n\n", "data: two\ndata: three\n\n", ": note\n\n", "data: [DONE]\n\n"].map(String::from).to_vec();
    let mut bytes = SSE_HEAD.to_vec();
    data.iter().for_each(|d| bytes.extend_from_slice(&chunk(d)));
    bytes.extend_from_slice(b"0\r\nx-trailer: dropped\r\n\r\n");
    let length = bytes.len();
    let engine = Engine::start(move |socket, request| {
        let at: usize = request.field("x-cut").unwrap().parse().unwrap();
        socket.write_all(&bytes[..at]).is_ok() && socket.write_all(&bytes[at..]).is_ok()
    });
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    for cut in 0..length {
        let answer = client.ask(&format!("x-cut: {cut}\r\n"));
        assert_eq!(answer.text(), data.concat(), "cut at {cut}");
    }
    let stats = world.check_outcomes(&[]);
    assert_eq!(stats.engines[0].connects, 1);
}

#[rstest]
fn events_are_counted_whatever_ends_their_lines_and_wherever_reads_cut_them(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
) {
    let engine = Engine::start(|socket, request| {
        let (case, cut) = request.field("x-case").unwrap().split_once(' ').unwrap();
        let end = ["\n", "\r", "\r\n"][case.parse::<usize>().unwrap()];
        let stream = "data: one\n\n: ping\n\nevent: x\ndata: two\ndata: three\n\n\ndata: [DONE]\n\n".replace('\n', end);
        let (front, back) = stream.split_at(cut.parse::<usize>().unwrap().min(stream.len() - 1));
        socket.write_all(SSE_HEAD).unwrap();
        for part in [front, back].into_iter().filter(|part| !part.is_empty()) {
            socket.write_all(&chunk(part)).unwrap();
        }
        socket.write_all(b"0\r\n\r\n").is_ok()
    });
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    let mut streams = 0;
    for case in 0..3 {
        for cut in 0..80 {
            client.ask(&format!("x-case: {case} {cut}\r\n"));
            streams += 1;
        }
    }
    assert_eq!(world.check_outcomes(&[]).engines[0].events, 3 * streams);
}

/// A long answer to a client that reads slowly: the engine is held back, and nothing is lost.
#[rstest]
fn a_slow_reader_holds_the_engine_back(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    const CHUNKS: usize = 4000;
    let sent = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = sent.clone();
    let engine = Engine::start(move |socket, _| {
        socket.write_all(SSE_HEAD).unwrap();
        for n in 0..CHUNKS {
            socket.write_all(&chunk(&format!("{n:08}").repeat(1024))).unwrap();
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        socket.write_all(b"0\r\n\r\n").is_ok()
    });
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    client.post("", r#"{"model":"demo"}"#);
    client.head();
    // Stands still once every buffer on the way is full.
    let mut last = usize::MAX;
    until("the engine is held back", || {
        std::thread::sleep(Duration::from_millis(100));
        let at = sent.load(std::sync::atomic::Ordering::Relaxed);
        std::mem::replace(&mut last, at) == at
    });
    assert!(last < CHUNKS, "32 MB went into buffers");
    let body = client.chunks().unwrap();
    let expected: Vec<u8> = (0..CHUNKS).flat_map(|n| format!("{n:08}").repeat(1024).into_bytes()).collect();
    assert!(body == expected, "the body was changed");
    world.check_outcomes(&[]);
}

#[rstest]
fn a_client_that_does_not_read_is_cut_off(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (ended, is_ended) = channel();
    let engine = Engine::start(move |socket, _| {
        socket.write_all(SSE_HEAD).unwrap();
        while socket.write_all(&chunk(&"x".repeat(100_000))).is_ok() {}
        ended.send(()).unwrap();
        false
    });
    let config = ProxyConfig { client_stall_timeout: Duration::from_millis(300), ..Default::default() };
    let world = World::with(io, config, &[&engine]);
    let mut client = world.client();
    client.post("", r#"{"model":"demo"}"#);
    is_ended.recv_timeout(PATIENCE).unwrap();
    world.check_outcomes(&[("client_stalled", 1)]);
}

/// How a client leaves.
#[derive(Clone, Copy, Debug)]
enum Leave {
    Close,
    HalfClose,
    Reset,
}

#[rstest]
fn a_client_that_leaves_closes_the_engines_connection_at_once(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
    #[values(Leave::Close, Leave::HalfClose, Leave::Reset)] leave: Leave,
    #[values(false, true)] is_streaming: bool,
) {
    let (ended, is_ended) = channel();
    let engine = Engine::start(move |socket, _| {
        if is_streaming {
            socket.write_all(SSE_HEAD).unwrap();
            socket.write_all(&chunk("data: x\n\n")).unwrap();
        }
        // A prefill that only the end of the connection ends: every clock of the proxy is longer
        // than the test waits.
        let outcome = socket.read(&mut [0; 16]);
        ended.send(matches!(outcome, Ok(0)) || outcome.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset)).unwrap();
        false
    });
    let world = World::new(io, &[&engine]);
    for round in 0..3 {
        let mut client = world.client();
        client.post("", r#"{"model":"demo"}"#);
        if is_streaming {
            client.head();
            client.chunk().unwrap();
        } else {
            until("the engine has the request", || engine.count() == round + 1);
        }
        match leave {
            Leave::Close => drop(client),
            Leave::HalfClose => client.socket.shutdown(Shutdown::Write).unwrap(),
            Leave::Reset => reset(&client.socket),
        }
        assert_eq!(is_ended.recv_timeout(PATIENCE), Ok(true), "the engine got something else than the end");
    }
    world.check_outcomes(&[("client_gone", 3)]);
}

#[rstest]
fn an_engine_that_dies_in_a_stream_of_events(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    // Between two chunks, within a chunk, within a size line, and by a reset.
    for (tail, is_reset) in [("", false), ("20\r\ndata: {\"par", false), ("2", false), ("", true)] {
        let (open, gate) = gate();
        let engine = Engine::start(move |socket, _| {
            socket.write_all(SSE_HEAD).unwrap();
            socket.write_all(&chunk("data: 1\n\n")).unwrap();
            socket.write_all(tail.as_bytes()).unwrap();
            pass(&gate);
            if is_reset {
                reset(socket);
            }
            false
        });
        let second = Engine::echo("second");
        let world = World::of(
            io,
            ProxyConfig::default(),
            super::world::snapshot(&[
                super::world::Listed { address: engine.address, weight: 1.0, tags: &[] },
                super::world::Listed { address: second.address, weight: 0.0, tags: &[] },
            ]),
        );
        let mut client = world.client();
        client.post("", r#"{"model":"demo","stream":true}"#);
        client.head();
        assert_eq!(client.chunk(), Ok(Some(b"data: 1\n\n".to_vec())));
        open.send(()).unwrap();
        let rest = client.chunks().expect_err("a cut stream must not end like a whole one");
        let rest = String::from_utf8(rest).unwrap();
        let (partial, event) =
            rest.split_once("\n\nevent: error\ndata: ").unwrap_or_else(|| panic!("no error event in {rest:?}"));
        assert_eq!(partial, tail.split_once("\r\n").map_or("", |(_, data)| data));
        let error: serde_json::Value = serde_json::from_str(event.strip_suffix("\n\n").unwrap()).unwrap();
        assert_eq!(error["error"]["code"], "engine_broke_mid_stream");
        let stats = world.check_outcomes(&[("engine_broke_mid_stream", 1)]);
        assert_eq!(second.count(), 0, "a request is never sent again after the client got a byte");
        assert_eq!(stats.engines[0].broken_streams, 1);
    }
}

#[rstest]
fn an_engine_that_dies_in_another_body(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    for head in ["content-length: 100\r\n", "transfer-encoding: chunked\r\n"] {
        let engine = Engine::start(move |socket, _| {
            let begin = if head.starts_with('t') { "5\r\nbegin\r\n" } else { "begin" };
            socket.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n{begin}").as_bytes()).unwrap();
            false
        });
        let world = World::new(io, &[&engine]);
        let mut client = world.client();
        client.post("", r#"{"model":"demo"}"#);
        client.head();
        let rest = client.rest();
        assert_eq!(rest, if head.starts_with('t') { &b"5\r\nbegin\r\n"[..] } else { b"begin" });
        // To an old client only a reset tells the cut from the end.
        if head.starts_with('t') {
            let mut client = world.client();
            client.send("GET / HTTP/1.0\r\n\r\n");
            let mut buffer = Vec::new();
            let error = client.socket.read_to_end(&mut buffer).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
        world.check_outcomes(&[("engine_broke_mid_stream", if head.starts_with('t') { 2 } else { 1 })]);
    }
}

#[rstest]
fn a_stream_that_stands_still(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (ended, is_ended) = channel();
    let engine = Engine::start(move |socket, _| {
        socket.write_all(SSE_HEAD).unwrap();
        socket.write_all(&chunk("data: 1\n\n")).unwrap();
        ended.send(socket.read(&mut [0; 16]).unwrap_or(0)).unwrap();
        false
    });
    let world = World::with(io, ProxyConfig { gap_timeout: Duration::from_millis(150), ..Default::default() }, &[&engine]);
    let mut client = world.client();
    client.post("", r#"{"model":"demo"}"#);
    client.head();
    let rest = String::from_utf8(client.chunks().unwrap_err()).unwrap();
    assert!(rest.starts_with("data: 1\n\n\n\nevent: error\n") && rest.contains("gap_timeout"), "{rest:?}");
    assert_eq!(is_ended.recv_timeout(PATIENCE), Ok(0));
    world.check_outcomes(&[("gap_timeout", 1)]);
}

#[rstest]
fn an_answer_that_comes_before_the_request_is_sent(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    // The engine reads only the head of a large request, and refuses it.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (open, gate) = gate();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            super::world::read_head(&mut socket, &mut Vec::new()).unwrap();
            answer(&mut socket, "too much");
            // Kept open: a close with unread bytes could reset the answer away.
            pass(&gate);
        }
    });
    let world = World::of(
        io,
        ProxyConfig::default(),
        super::world::snapshot(&[super::world::Listed { address, weight: 1.0, tags: &[] }]),
    );
    let mut client = world.client();
    let body = format!(r#"{{"model":"demo","prompt":"{}"}}"#, "x".repeat(20_000_000));
    for _ in 0..2 {
        client.post("", &body);
        assert_eq!(client.answer().text(), "too much");
        open.send(()).unwrap();
    }
    // A connection with half a request on it is of no further use.
    assert_eq!(world.check_outcomes(&[]).engines[0].connects, 2);
}

#[rstest]
fn shutdown_lets_streams_finish(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (open, gate) = gate();
    let engine = Engine::start(move |socket, _| {
        socket.write_all(SSE_HEAD).unwrap();
        socket.write_all(&chunk("data: 1\n\n")).unwrap();
        pass(&gate);
        socket.write_all(&chunk("data: 2\n\n")).unwrap();
        socket.write_all(b"0\r\n\r\n").is_ok()
    });
    let world = World::new(io, &[&engine]);
    let address = world.handle.local_addrs()[0];
    let (mut client, mut idle) = (world.client(), world.client());
    idle.get("/healthz");
    client.post("", r#"{"model":"demo"}"#);
    client.head();
    client.chunk().unwrap();
    let handle = world.handle;
    let stopping = std::thread::spawn(move || handle.shutdown(PATIENCE));
    assert!(idle.is_closed(), "an idle connection is closed at once");
    until("new connections are refused", || std::net::TcpStream::connect(address).is_err());
    open.send(()).unwrap();
    assert_eq!(client.chunks().unwrap(), b"data: 2\n\n");
    stopping.join().unwrap();
}

#[rstest]
fn shutdown_cuts_what_is_out_of_grace(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (ended, is_ended) = channel();
    let (open, gate) = gate();
    let engine = Engine::start(move |socket, _| {
        socket.write_all(SSE_HEAD).unwrap();
        socket.write_all(&chunk("data: 1\n\n")).unwrap();
        pass(&gate);
        socket.write_all(&chunk("data: 2\n\n")).unwrap();
        ended.send(socket.read(&mut [0; 16]).unwrap_or(0)).unwrap();
        false
    });
    let world = World::new(io, &[&engine]);
    let address = world.handle.local_addrs()[0];
    let mut client = world.client();
    client.post("", r#"{"model":"demo"}"#);
    client.head();
    client.chunk().unwrap();
    let handle = world.handle;
    let stopping = std::thread::spawn(move || handle.shutdown(Duration::from_secs(3)));
    until("new connections are refused", || std::net::TcpStream::connect(address).is_err());
    // Within the grace the stream goes on, and the cut comes behind it.
    open.send(()).unwrap();
    assert_eq!(client.chunk(), Ok(Some(b"data: 2\n\n".to_vec())));
    stopping.join().unwrap();
    assert_eq!(client.chunks(), Err(Vec::new()), "a cut stream must not end like a whole one");
    assert_eq!(is_ended.recv_timeout(PATIENCE), Ok(0));
}

/// The events that open a stream say nothing of whether the engine will generate anything, so its
/// death after them costs no client its stream.
#[rstest]
fn an_engine_that_dies_before_its_first_content_costs_no_stream(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    for opening in [
        ": ping\n\n",
        "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n",
        "data: {\"type\":\"response.created\",\"response\":{}}\n\n: ping\n\n",
    ] {
        let dying = Engine::start(move |socket, _| {
            socket.write_all(SSE_HEAD).unwrap();
            socket.write_all(&chunk(opening)).unwrap();
            false
        });
        let sound = Engine::start(move |socket, _| {
            socket.write_all(SSE_HEAD).unwrap();
            socket.write_all(&chunk(opening)).unwrap();
            socket.write_all(&chunk("data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n")).unwrap();
            socket.write_all(b"0\r\n\r\n").is_ok()
        });
        let world = World::new(io, &[&dying, &sound]);
        let mut client = world.client();
        for n in 0..8 {
            let answer = client.ask(&format!("x-session-id: {n}\r\n"));
            let expected = opening.to_owned() + "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n";
            assert_eq!((answer.engine(), answer.text()), ("e1", expected.as_str()));
        }
        let stats = world.check_outcomes(&[]);
        assert_eq!(stats.retries["reset"], dying.count() as u64);
        assert_eq!((stats.engines[0].broken_streams, stats.engines[0].served), (0, [0; 5]));
        assert!(dying.count() > 0);
    }
}

/// Somebody behind the client may wait for a sign of life, so nothing is held back for long.
#[rstest]
fn a_ping_is_passed_on_though_no_content_follows(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (open, gate) = gate();
    let engine = Engine::start(move |socket, _| {
        socket.write_all(SSE_HEAD).unwrap();
        socket.write_all(&chunk(": ping\n\n")).unwrap();
        pass(&gate);
        socket.write_all(&chunk("data: x\n\n")).unwrap();
        socket.write_all(b"0\r\n\r\n").is_ok()
    });
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    client.post("", r#"{"model":"demo","stream":true}"#);
    client.head();
    assert_eq!(client.chunk(), Ok(Some(b": ping\n\n".to_vec())));
    // The engine stands at its gate until the ping has arrived.
    open.send(()).unwrap();
    assert_eq!(client.chunks(), Ok(b"data: x\n\n".to_vec()));
    world.check_outcomes(&[]);
}
