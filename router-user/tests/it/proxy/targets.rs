//! Request targets: every form that a client may send, and what an engine is asked for.

use router_user::io::IoChoice;
use router_user::proxy::ProxyConfig;
use rstest::rstest;

use super::world::{Engine, Listed, World, class, route, snapshot};

const BODY: &str = r#"{"model":"demo"}"#;

#[rstest]
fn targets_in_absolute_form_are_served_and_engines_get_origin_form_with_the_host_that_was_named(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
) {
    let engine = Engine::echo("hello");
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    for target in ["http://llm.example/healthz", "HTTP://llm.example:80/healthz?x", "https://[::1]:8443/healthz"] {
        assert_eq!(client.get(target).text(), "ok\n", "{target}");
    }
    for (target, line, host) in [
        ("http://llm.example/v1/chat/completions?x=1", "POST /v1/chat/completions?x=1 HTTP/1.1", "llm.example"),
        ("http://b:81?y", "POST /?y HTTP/1.1", "b:81"),
        ("/v1/chat/completions", "POST /v1/chat/completions HTTP/1.1", "front"),
    ] {
        client.send(format!("POST {target} HTTP/1.1\r\nHost: front\r\ncontent-length: {}\r\n\r\n{BODY}", BODY.len()));
        assert_eq!(client.answer().text(), "hello", "{target}");
        let received = engine.received.lock().unwrap().pop().unwrap();
        assert_eq!((received.head.lines().next(), received.field("host")), (Some(line), Some(host)), "{target}");
    }
    // A class error in Anthropic's shape, whatever the form of the target.
    client.send("POST http://a/v1/mess%61ges HTTP/1.1\r\nhost: a\r\ncontent-length: 16\r\n\r\n{\"model\":\"nope\"}");
    let json: serde_json::Value = serde_json::from_slice(&client.answer().body).unwrap();
    assert_eq!((&json["type"], &json["error"]["code"]), (&serde_json::json!("error"), &serde_json::json!("model_not_found")));
    world.check_outcomes(&[("model_not_found", 1)]);
}

#[rstest]
fn options_with_an_asterisk_asks_about_this_server_and_reaches_no_engine(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
) {
    let engine = Engine::echo("hello");
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    for target in ["*", "http://a"] {
        client.send(format!("OPTIONS {target} HTTP/1.1\r\nhost: a\r\n\r\n"));
        let answer = client.answer();
        assert_eq!((answer.status, answer.text()), (200, ""));
    }
    client.send("OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.answer().text(), "hello", "of one path it goes to an engine");
    assert_eq!(engine.count(), 1);
}

#[rstest]
fn a_model_is_found_by_its_id_as_it_is_and_percent_encoded(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("hello");
    let mut models = snapshot(&[Listed { address: engine.address, weight: 1.0, tags: &[] }]);
    for (number, model) in ["meta-llama/Llama-3.1-8B", "a b", "mod\u{e8}le", "100%", "s3://bucket/model"].into_iter().enumerate()
    {
        models.engines[0].models.push(model.to_owned());
        models.classes.push(class(&format!("c{number}"), model, &[]));
        models.routes.push(route(number as u16 + 1, 0.0, &[1.0]));
    }
    let world = World::of(io, ProxyConfig::default(), models);
    let mut client = world.client();
    for (target, id) in [
        ("/v1/models/meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("/v1/models/meta-llama%2FLlama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("/v1/models/meta-llama%2fLlama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("/v1/%6Dodels/meta-llama/Llama-3%2E1-8B?x=y", "meta-llama/Llama-3.1-8B"),
        ("/v1/models/a%20b", "a b"),
        ("/v1/models/mod%C3%A8le", "mod\u{e8}le"),
        ("/v1/models/100%25", "100%"),
        ("/v1/models/s3:%2F%2Fbucket/model", "s3://bucket/model"),
    ] {
        let answer = client.get(target);
        assert_eq!(answer.status, 200, "{target}");
        let json: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(json["id"], id, "{target}");
    }
    assert_eq!(client.get("/v1/models/meta-llama").code(), "model_not_found");
    assert_eq!(client.get("/v1/models/meta-llama%252FLlama-3.1-8B").code(), "model_not_found", "decoded once");
    assert_eq!(client.get("/v1/mod%65ls").status, 200);
    assert_eq!(client.get("/health%7a").text(), "ok\n");
    assert_eq!(engine.count(), 0);
}

#[rstest]
fn a_higher_minor_version_is_served_as_http_1_1(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("hello");
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    for _ in 0..2 {
        client.send(format!("POST /v1/completions HTTP/1.2\r\nhost: a\r\ncontent-length: {}\r\n\r\n{BODY}", BODY.len()));
        assert_eq!(client.answer().text(), "hello");
    }
    let received = engine.received.lock().unwrap();
    assert!(received.iter().all(|r| r.head.starts_with("POST /v1/completions HTTP/1.1\r\n")), "{received:?}");
}
