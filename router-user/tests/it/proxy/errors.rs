//! Refusals: malformed requests, limits, unknown models, and what is answered without an engine.

use router_user::io::IoChoice;
use router_user::proxy::ProxyConfig;
use rstest::rstest;
use std::time::Duration;

use super::world::{Client, Engine, Listed, World, answer, class, gate, pass, route, snapshot, until};

#[rstest]
fn malformed_requests(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("hello");
    let world = World::new(io, &[&engine]);
    let body = r#"{"model":"demo"}"#;
    let post = |fields: &str| format!("POST /v1/completions HTTP/1.1\r\nhost: a\r\n{fields}\r\n{body}");
    let chunked =
        |chunks: &str| format!("POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{chunks}");
    let rows = [
        (400, post("content-length: 16\r\ntransfer-encoding: chunked\r\n")),
        (400, post("content-length: 16\r\ncontent-length: 16\r\n")),
        (400, post("content-length: 16, 16\r\n")),
        (400, post("content-length: +16\r\n")),
        (400, post("content-length: 0x10\r\n")),
        (400, post("content-length : 16\r\n")),
        (400, post("content-length: 16\r\n folded\r\n")),
        (400, post("content-length: 16\r\nx: a\rb\r\n")),
        (400, post("content-length: 16\r\nx: a\nb: c\r\n")),
        (400, post("content-length: 16\r\nhost: b\r\n")),
        (400, "POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n".to_owned()),
        (400, "POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_owned()),
        (400, "GET /\r\n\r\n".to_owned()),
        (400, "GET / HTTP/1.1\nhost: a\n\n".to_owned()),
        (400, "\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned()),
        (400, "\u{16}\u{3}\u{1}\u{2}\0\u{1}\r\n\r\n".to_owned()),
        (400, chunked("x\r\n\r\n")),
        (400, chunked("\r\n\r\n")),
        (400, chunked("10\r\n{\"model\":\"demo\"}0\r\n\r\n")),
        (400, chunked("+10\r\n")),
        (400, chunked("fffffffffffffffff\r\n")),
        (417, post("content-length: 16\r\nexpect: tea\r\n")),
        (501, post("transfer-encoding: gzip, chunked\r\n")),
        (501, "CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n".to_owned()),
        (400, "GET a:80 HTTP/1.1\r\nhost: a\r\n\r\n".to_owned()),
        (400, "GET * HTTP/1.1\r\nhost: a\r\n\r\n".to_owned()),
        (400, "GET http://user@a/healthz HTTP/1.1\r\nhost: a\r\n\r\n".to_owned()),
        (400, "GET /v1/../healthz HTTP/1.1\r\nhost: a\r\n\r\n".to_owned()),
        (400, "GET /v1/%2e%2E/healthz HTTP/1.1\r\nhost: a\r\n\r\n".to_owned()),
        (400, "GET //healthz HTTP/1.1\r\nhost: a\r\n\r\n".to_owned()),
        (400, "GET /%zz HTTP/1.1\r\nhost: a\r\n\r\n".to_owned()),
        (400, "GET /healthz HTTP/1.1\r\nhost: [::1\r\n\r\n".to_owned()),
        (400, "GET /healthz HTTP/1.1\r\nhost: a:b:c\r\n\r\n".to_owned()),
        (400, "GET /healthz HTTP/1.1\r\nhost: a:99999\r\n\r\n".to_owned()),
        (400, "GET /healthz HTTP/1.1\r\nhost: :80\r\n\r\n".to_owned()),
        (400, "GET /healthz HTTP/1.1\r\nhost: a%zz\r\n\r\n".to_owned()),
        (505, "GET /healthz HTTP/2.0\r\nhost: a\r\n\r\n".to_owned()),
    ];
    for (status, request) in &rows {
        let mut client = world.client();
        client.send(request);
        let answer = client.answer();
        assert_eq!(answer.status, *status, "{request:?}");
        answer.code();
        assert_eq!(answer.field("connection"), Some("close"), "{request:?}");
        assert!(client.is_closed(), "{request:?}");
    }
    assert_eq!(engine.count(), 0);
    world.check_outcomes(&[("client_bad_request", rows.len() as u64)]);
}

#[rstest]
fn limits_at_the_edge(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("hello");
    let config = ProxyConfig { max_head_bytes: 2000, max_head_fields: 10, max_body_bytes: 100_000, ..Default::default() };
    let world = World::with(io, config, &[&engine]);
    let head = |length: usize| {
        let rest = "GET / HTTP/1.1\r\nhost: a\r\nx: \r\n\r\n".len();
        format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "x".repeat(length - rest))
    };
    let fields = |count: usize| format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: y\r\n".repeat(count - 1));
    let body = |length: usize| {
        let json = format!(r#"{{"model":"demo","prompt":"{}"}}"#, "x".repeat(length - r#"{"model":"demo","prompt":""}"#.len()));
        format!("POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{json}")
    };
    let chunked = |length: usize| {
        let known = body(length);
        let json = &known[known.len() - length..];
        format!("POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{length:x}\r\n{json}\r\n0\r\n\r\n")
    };
    for (request, status, code) in [
        (head(2000), 200, ""),
        (head(2001), 431, "head_too_large"),
        (fields(10), 200, ""),
        (fields(11), 431, "head_too_large"),
        (body(100_000), 200, ""),
        (body(100_001), 413, "body_too_large"),
        (chunked(100_000), 200, ""),
        (chunked(100_001), 413, "body_too_large"),
    ] {
        let mut client = world.client();
        client.send(&request);
        let answer = client.answer();
        assert_eq!(answer.status, status, "{}", &request[..60]);
        if status == 200 {
            assert_eq!(answer.text(), "hello");
        } else {
            assert_eq!(answer.code(), code);
            assert!(client.is_closed());
        }
    }
    world.check_outcomes(&[("body_too_large", 2), ("head_too_large", 2)]);
}

/// A refusal must reach a client that is still sending: closing with unread bytes would reset the
/// connection under it.
#[rstest]
fn a_refusal_reaches_a_client_in_the_middle_of_its_upload(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("hello");
    let world = World::with(io, ProxyConfig { max_body_bytes: 1000, ..Default::default() }, &[&engine]);
    for _ in 0..20 {
        let mut client = world.client();
        client.send("POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n");
        client.send(vec![b'x'; 1_000_000]);
        assert_eq!(client.answer().status, 413);
        assert!(client.is_closed());
    }
}

#[rstest]
fn models(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("hello");
    let mut two = snapshot(&[Listed { address: engine.address, weight: 1.0, tags: &[] }]);
    two.engines[0].models.push("other".to_owned());
    two.classes.push(class("other", "other", &[]));
    two.routes.push(route(1, 0.0, &[1.0]));
    let world = World::of(io, ProxyConfig::default(), two);
    let mut client = world.client();
    let mut check = |path: &str, body: &str, status: u16, code: &str| {
        client.send(format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
        let answer = client.answer();
        assert_eq!(answer.status, status, "{path} {body}");
        if status != 200 {
            assert_eq!(answer.code(), code, "{path} {body}");
        }
    };
    check("/v1/chat/completions", r#"{"model":"demo"}"#, 200, "");
    check("/v1/chat/completions?x=y", r#"{"model":"other"}"#, 200, "");
    check("/v1/anything/new", r#"{"model":"other"}"#, 200, "");
    check("/v1/chat/completions", r#"{"model":"nope"}"#, 404, "model_not_found");
    check("/v1/anything/new", r#"{"model":"nope"}"#, 404, "model_not_found");
    check("/v1/chat/completions", r#"{"model":"#, 400, "invalid_json");
    check("/v1/chat/completions", r#"{"model":7}"#, 400, "invalid_json");
    check("/v1/embeddings", "", 400, "invalid_json");
    check("/v1/chat/completions", "[]", 400, "invalid_json");
    check("/v1/chat/completions", "{}", 400, "model_required");
    check("/v1/audio/transcriptions", "--form", 400, "model_required");
    assert_eq!(client.get("/v1/whatever").code(), "not_found");
    for (path, kind) in [("/v1/messages", serde_json::json!("error")), ("/v1/chat/completions", serde_json::Value::Null)] {
        client.send(format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 16\r\n\r\n{{\"model\":\"nope\"}}"));
        let json: serde_json::Value = serde_json::from_slice(&client.answer().body).unwrap();
        assert_eq!(json["type"], kind);
        assert_eq!(json["error"]["code"], "model_not_found");
    }

    let list: serde_json::Value = serde_json::from_slice(&client.get("/v1/models").body).unwrap();
    assert_eq!(
        list,
        serde_json::json!({ "object": "list", "data": [
            { "id": "demo", "object": "model", "created": 1, "owned_by": "ilb" },
            { "id": "other", "object": "model", "created": 1, "owned_by": "ilb" },
        ] })
    );
    assert_eq!(client.get("/v1/models/demo").status, 200);
    assert_eq!(client.get("/v1/models/nope").code(), "model_not_found");
    assert_eq!(client.get("/healthz").text(), "ok\n");
    assert_eq!(client.get("/readyz").text(), "ready\n");
    world.check_outcomes(&[("client_bad_request", 7), ("model_not_found", 5)]);

    // With one model there is nothing to choose.
    world.apply(snapshot(&[Listed { address: engine.address, weight: 1.0, tags: &[] }]));
    assert_eq!(client.get("/v1/whatever").text(), "hello");
    client.post("", "{}");
    assert_eq!(client.answer().text(), "hello");
}

#[rstest]
fn not_ready_until_the_first_snapshot(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("hello");
    let world = World::bare(io, ProxyConfig::default());
    let mut client = world.client();
    for answer in [client.ask(""), client.get("/v1/models"), client.get("/readyz")] {
        assert_eq!((answer.status, answer.code().as_str(), answer.field("retry-after")), (503, "not_ready", Some("1")));
    }
    assert_eq!(client.get("/healthz").status, 200);
    world.apply(snapshot(&[Listed { address: engine.address, weight: 1.0, tags: &[] }]));
    assert_eq!(client.ask("").text(), "hello");
    world.check_outcomes(&[("not_ready", 3)]);
}

#[rstest]
fn slow_clients_are_bounded(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("hello");
    let config = ProxyConfig {
        head_timeout: Duration::from_millis(100),
        body_gap_timeout: Duration::from_millis(100),
        client_idle_timeout: Duration::from_millis(300),
        ..Default::default()
    };
    let world = World::with(io, config, &[&engine]);
    let mut idle = world.client();
    assert_eq!(idle.ask("").text(), "hello");
    for unfinished in ["GET / HT", "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 16\r\n\r\n{\"mod"] {
        let mut client = world.client();
        client.send(unfinished);
        assert_eq!(client.answer().code(), "request_timeout");
        assert!(client.is_closed());
    }
    assert!(idle.is_closed(), "an idle connection is closed without a word");
    world.check_outcomes(&[("client_timeout", 2)]);
    until("all connections are counted out", || world.stats().connections == 0);
}

/// An engine that answers when the test says so.
fn gated() -> (std::sync::mpsc::Sender<()>, Engine) {
    let (open, gate) = gate();
    let engine = Engine::start(move |socket, _| {
        pass(&gate);
        answer(socket, "hello")
    });
    (open, engine)
}

/// A data plane with two connections at most, both of which wait for an answer of the engine.
fn busy(io: IoChoice, engine: &Engine) -> (World, [Client; 2]) {
    let world = World::with(io, ProxyConfig { max_connections: 2, ..Default::default() }, &[engine]);
    let mut clients = [world.client(), world.client()];
    clients.iter_mut().for_each(|client| client.post("", r#"{"model":"demo"}"#));
    until("both have reached the engine", || engine.count() == 2);
    (world, clients)
}

#[rstest]
fn while_every_connection_is_busy_health_is_answered_and_all_else_is_refused(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
) {
    let (open, engine) = gated();
    let (world, mut clients) = busy(io, &engine);
    for (target, text) in [("/healthz", "ok\n"), ("/readyz", "ready\n"), ("/healthz?from=probe", "ok\n")] {
        let mut probe = world.client();
        let answer = probe.get(target);
        assert_eq!((answer.status, answer.text(), answer.field("connection")), (200, text, Some("close")));
        assert!(probe.is_closed(), "its place is free again");
    }
    let refused = ["POST /v1/chat/completions", "GET /v1/models", "POST /healthz", "OPTIONS *"];
    for line in refused {
        let mut client = world.client();
        client.send(format!("{line} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{{}}"));
        let answer = client.answer();
        assert_eq!(
            (answer.status, answer.code().as_str(), answer.field("retry-after")),
            (503, "overloaded", Some("1")),
            "{line}"
        );
        assert_eq!(answer.field("connection"), Some("close"));
        assert!(client.is_closed());
    }
    assert_eq!(engine.count(), 2);
    // As soon as one of the busy ones has its answer, it is idle and makes way.
    (0..3).for_each(|_| open.send(()).unwrap());
    clients.iter_mut().for_each(|client| assert_eq!(client.answer().text(), "hello"));
    assert_eq!(world.client().ask("").text(), "hello");
    world.check_outcomes(&[("overloaded", refused.len() as u64)]);
}

#[rstest]
fn connections_that_never_send_do_not_shut_health_out_while_all_others_are_busy(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
) {
    let (open, engine) = gated();
    let (world, mut clients) = busy(io, &engine);
    let mut silent: Vec<Client> = (0..20).map(|_| world.client()).collect();
    silent.iter_mut().take(10).for_each(|client| client.send("GET /heal"));
    assert_eq!(world.client().get("/healthz").text(), "ok\n");
    assert!(world.stats().connections <= 2 + 8, "the reserve is bounded");
    (0..2).for_each(|_| open.send(()).unwrap());
    clients.iter_mut().for_each(|client| assert_eq!(client.answer().text(), "hello"));
    drop(silent);
    until("all connections are counted out", || world.stats().connections <= 2);
}

#[rstest]
fn the_longest_idle_connection_makes_way_for_a_new_one(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("hello");
    let world = World::with(io, ProxyConfig { max_connections: 3, ..Default::default() }, &[&engine]);
    let mut clients = [world.client(), world.client(), world.client()];
    // The second one is idle longest; one tick of the worker's clock lies between two of them.
    for number in [0, 1, 2, 0] {
        assert_eq!(clients[number].ask("").text(), "hello");
        std::thread::sleep(Duration::from_millis(60));
    }
    let mut new = world.client();
    assert_eq!(new.ask("").text(), "hello");
    let [first, second, third] = &mut clients;
    assert!(second.is_closed(), "an idle connection is closed without a word");
    assert_eq!((first.ask("").text(), third.ask("").text()), ("hello", "hello"));
    assert_eq!(world.check_outcomes(&[]).connections, 3);
}

#[rstest]
fn connections_that_never_send_do_not_shut_others_out(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("hello");
    let world = World::with(io, ProxyConfig { max_connections: 4, ..Default::default() }, &[&engine]);
    let silent: Vec<_> = (0..16).map(|_| world.client()).collect();
    for _ in 0..8 {
        assert_eq!(world.client().ask("").text(), "hello");
    }
    drop(silent);
    world.check_outcomes(&[]);
}
