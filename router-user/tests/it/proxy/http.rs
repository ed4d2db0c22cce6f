//! HTTP/1.1 to clients: what passes unchanged, and how connections go on.

use std::io::Write;
use std::net::Shutdown;

use router_user::io::IoChoice;
use router_user::proxy::ProxyConfig;
use rstest::rstest;

use super::world::{Engine, World, answer};

#[rstest]
fn bodies_and_end_to_end_fields_pass_unchanged(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    // A body larger than any buffer, with every byte value.
    let large: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let reply = large.clone();
    let engine = Engine::start(move |socket, _| {
        let head = format!(
            "HTTP/1.1 201 Made So\r\nX-One: 1\r\nContent-Type: a/b\r\nX-one: 2\r\nContent-Length: {}\r\n\r\n",
            reply.len()
        );
        socket.write_all(head.as_bytes()).is_ok() && socket.write_all(&reply).is_ok()
    });
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    let mut body = br#"{ "model" : "demo", "odd":1.50, "odd":"\u00e9\/", "prompt":""#.to_vec();
    body.extend(large.iter().map(|b| b'a' + b % 26));
    body.extend_from_slice(b"\"}");
    for _ in 0..2 {
        client.send(format!(
            "POST /v1/unknown/path?q=%20&r HTTP/1.1\r\nHost: example.com:80\r\nX-Custom-A: one\r\nauthorization: Bearer k\r\nX-CUSTOM-A:two  \r\n\
             Connection: keep-alive, x-hop\r\nx-hop: 1\r\nX-Request-Id: id-7\r\ncookie: a=b; c=d\r\ncontent-length: {}\r\n\r\n",
            body.len()
        ));
        client.send(&body);
        let answer = client.answer();
        assert_eq!(answer.status, 201);
        assert_eq!(answer.body, large);
        assert_eq!(
            answer.head,
            format!(
                "HTTP/1.1 201 Made So\r\nX-One: 1\r\nContent-Type: a/b\r\nX-one: 2\r\ncontent-length: {}\r\nx-ilb-engine: e0\r\n\
                 x-request-id: id-7\r\n\r\n",
                large.len()
            )
        );
    }
    let received = engine.received.lock().unwrap();
    assert_eq!(received.len(), 2);
    for request in received.iter() {
        assert_eq!(
            request.head,
            format!(
                "POST /v1/unknown/path?q=%20&r HTTP/1.1\r\nHost: example.com:80\r\nX-Custom-A: one\r\nauthorization: Bearer k\r\n\
                 X-CUSTOM-A: two\r\nx-hop: 1\r\nX-Request-Id: id-7\r\ncookie: a=b; c=d\r\nx-forwarded-for: 127.0.0.1\r\n\
                 via: 1.1 ilb\r\ncontent-length: {}\r\n\r\n",
                body.len()
            )
        );
        assert!(request.body == body, "the body was changed");
    }
    // Both requests went over one connection.
    assert_eq!(world.settled().engines[0].connects, 1);
}

#[rstest]
fn chunked_requests_arrive_whole_at_any_split(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("hello");
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    let request = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n\
        8;x=y\r\n{\"model\"\r\n9\r\n: \"demo\"}\r\n0\r\ntrailer: 1\r\n\r\n";
    for split in 0..request.len() {
        client.send(&request[..split]);
        client.send(&request[split..]);
        assert_eq!(client.answer().text(), "hello", "split at {split}");
    }
    for request in engine.received.lock().unwrap().iter() {
        assert_eq!(request.body, br#"{"model": "demo"}"#);
        assert_eq!(request.field("content-length"), Some("17"));
    }
}

#[rstest]
fn a_request_id_is_made_where_there_is_none(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("hello");
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    let (one, two) = (client.ask(""), client.ask(""));
    let received = engine.received.lock().unwrap();
    for (answer, request) in [&one, &two].into_iter().zip(received.iter()) {
        assert_eq!(answer.field("x-request-id"), request.field("x-request-id"));
        assert_eq!(answer.field("x-request-id").unwrap().len(), 32);
    }
    assert_ne!(one.field("x-request-id"), two.field("x-request-id"));
}

#[rstest]
fn pipelined_requests_are_answered_in_order(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::start(|socket, request| answer(socket, request.field("x-number").unwrap()));
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    let requests: String = (0..50)
        .map(|n| {
            format!(
                "POST /v1/completions HTTP/1.1\r\nhost: a\r\nx-number: {n}\r\ncontent-length: 16\r\n\r\n{{\"model\":\"demo\"}}"
            )
        })
        .collect();
    client.send(requests);
    for n in 0..50 {
        assert_eq!(client.answer().text(), n.to_string());
    }
    assert_eq!(world.settled().outcomes["ok"], 50);
}

#[rstest]
fn responses_without_a_body(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::start(|socket, request| {
        let reply: &[u8] = match request.head.split(' ').nth(1).unwrap() {
            "/head" => b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n",
            "/204" => b"HTTP/1.1 204 No Content\r\n\r\n",
            "/304" => b"HTTP/1.1 304 Not Modified\r\ncontent-length: 100\r\n\r\n",
            "/interim" => b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            "/empty" => b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "/empty-chunked" => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            other => panic!("{other}"),
        };
        socket.write_all(reply).is_ok()
    });
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    for _ in 0..2 {
        client.send("HEAD /head HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(client.head().field("content-length"), Some("100"));
        client.send("GET /204 HTTP/1.1\r\nhost: a\r\n\r\n");
        let answer = client.head();
        assert_eq!((answer.status, answer.field("content-length")), (204, None));
        client.send("GET /304 HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(client.head().status, 304);
        assert_eq!(client.get("/interim").text(), "ok");
        assert_eq!(client.get("/empty").text(), "");
        assert_eq!(client.get("/empty-chunked").text(), "");
    }
    let stats = world.settled();
    assert_eq!((stats.outcomes["ok"], stats.engines[0].connects), (12, 1));
}

#[rstest]
fn continue_is_said_once_and_not_forwarded(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("hello");
    let world = World::with(io, ProxyConfig { max_body_bytes: 16, ..Default::default() }, &[&engine]);
    let mut client = world.client();
    for framing in ["content-length: 16\r\n", "transfer-encoding: chunked\r\n"] {
        client.send(format!("POST /v1/completions HTTP/1.1\r\nhost: a\r\nexpect: 100-Continue\r\n{framing}\r\n"));
        assert_eq!(client.head().head, "HTTP/1.1 100 Continue\r\n\r\n");
        let is_chunked = framing.starts_with('t');
        client.send(if is_chunked { "10\r\n{\"model\":\"demo\"}\r\n0\r\n\r\n" } else { "{\"model\":\"demo\"}" });
        assert_eq!(client.answer().text(), "hello");
        // With the body already there, nothing needs to be said.
        client.send(
            "POST /v1/completions HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 16\r\n\r\n{\"model\":\"demo\"}",
        );
        assert_eq!(client.answer().text(), "hello");
    }
    assert!(engine.received.lock().unwrap().iter().all(|r| r.field("expect").is_none()));
    // Too large a body is refused before it is sent.
    client.send("POST /v1/completions HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 17\r\n\r\n");
    assert_eq!(client.answer().status, 413);
    assert!(client.is_closed());
}

#[rstest]
fn old_clients_get_answers_that_end_with_the_connection(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::start(|socket, request| {
        let reply: &[u8] = match request.head.split(' ').nth(1).unwrap() {
            "/chunked" => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n",
            "/until-close" => b"HTTP/1.0 200 OK\r\n\r\nabcdef",
            _ => b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nabcdef",
        };
        socket.write_all(reply).is_ok() && !request.head.contains("/until-close")
    });
    let world = World::new(io, &[&engine]);
    for target in ["/known", "/chunked", "/until-close"] {
        let mut client = world.client();
        client.send(format!("GET {target} HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"));
        let head = client.head();
        assert_eq!((head.status, head.field("connection"), head.field("transfer-encoding")), (200, Some("close"), None));
        assert_eq!(client.rest(), b"abcdef", "{target}");
        let mut client = world.client();
        for _ in 0..2 {
            assert_eq!(client.get(target).text(), "abcdef", "{target}");
        }
    }
    world.check_outcomes(&[]);
}

#[rstest]
fn close_is_honoured(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("hello");
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    assert_eq!(client.ask("connection: close\r\n").field("connection"), Some("close"));
    assert!(client.is_closed());
    // A client that is done after a whole answer is not one that left.
    let mut client = world.client();
    client.ask("");
    client.socket.shutdown(Shutdown::Write).unwrap();
    assert!(client.is_closed());
    world.check_outcomes(&[]);
}
