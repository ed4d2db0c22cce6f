//! Bodies that are not plain JSON, and what is echoed of them.

use router_user::io::IoChoice;
use router_user::proxy::ProxyConfig;
use router_user::publish::snapshot::Snapshot;
use rstest::rstest;

use super::world::{Answer, Client, Engine, Listed, World, class, route, snapshot};

/// Two engines: `e0` has the model `demo`, `e1` the model `openai/whisper`.
fn two_models(engines: [&Engine; 2]) -> Snapshot {
    let listed = engines.map(|engine| Listed { address: engine.address, weight: 1.0, tags: &[] });
    let mut models = snapshot(&listed);
    models.engines[1].models = vec!["openai/whisper".to_owned()];
    models.classes.push(class("speech", "openai/whisper", &[]));
    models.routes = vec![route(0, 0.0, &[1.0, 0.0]), route(1, 0.0, &[0.0, 1.0])];
    models
}

fn post(client: &mut Client, path: &str, fields: &str, body: &[u8]) -> Answer {
    client.send(format!("POST {path} HTTP/1.1\r\nhost: a\r\n{fields}content-length: {}\r\n\r\n", body.len()));
    client.send(body);
    client.answer()
}

#[rstest]
fn compressed_bodies_reach_the_only_model_untouched_and_get_415_where_there_is_a_choice(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
) {
    let engines = [Engine::echo("e0"), Engine::echo("e1")];
    let world = World::new(io, &[&engines[0]]);
    let mut client = world.client();
    // What is in it is nobody's business here, so that any bytes stand for any coding.
    let body: Vec<u8> = (0..20_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let codings = ["gzip", "deflate", "zstd", "br", "gzip, zstd", "x-unknown"];
    for coding in codings {
        for path in ["/v1/messages", "/v1/responses", "/v1/chat/completions", "/v1/other"] {
            let fields = format!("content-type: application/json\r\nContent-Encoding: {coding}\r\n");
            assert_eq!(post(&mut client, path, &fields, &body).text(), "e0", "{coding} {path}");
            let received = engines[0].received.lock().unwrap().pop().unwrap();
            assert!(received.body == body && received.field("content-encoding") == Some(coding), "{coding} {path}");
        }
    }
    world.apply(two_models([&engines[0], &engines[1]]));
    let mut client = world.client();
    for coding in codings {
        let answer = post(&mut client, "/v1/messages", &format!("content-encoding: {coding}\r\n"), &body);
        assert_eq!((answer.status, answer.code().as_str()), (415, "unsupported_content_encoding"));
        assert_eq!(answer.field("accept-encoding"), Some("identity"));
    }
    // The coding that is none, and a coding of nothing, are no reason to refuse.
    let plain = br#"{"model":"openai/whisper"}"#;
    assert_eq!(post(&mut client, "/v1/messages", "content-encoding: identity\r\n", plain).text(), "e1");
    assert_eq!(post(&mut client, "/v1/messages", "content-encoding: gzip\r\n", b"").code(), "invalid_json");
    world.check_outcomes(&[("client_bad_request", 7)]);
}

const BOUNDARY: &str = "----WebKitFormBoundary7MA4YWxkTrZu0gW";

fn form(parts: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut form = Vec::new();
    for (disposition, value) in parts {
        form.extend_from_slice(format!("--{BOUNDARY}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n").as_bytes());
        form.extend_from_slice(value);
        form.extend_from_slice(b"\r\n");
    }
    form.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    form
}

#[rstest]
fn the_model_of_a_form_is_found_before_and_after_its_file(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = [Engine::echo("e0"), Engine::echo("e1")];
    let world = World::of(io, ProxyConfig::default(), two_models([&engines[0], &engines[1]]));
    let mut client = world.client();
    let content_type = format!("content-type: multipart/form-data; boundary={BOUNDARY}\r\n");
    let mut ask = |parts: &[(&str, Vec<u8>)]| post(&mut client, "/v1/audio/transcriptions", &content_type, &form(parts));
    // Longer than what is looked at in one go, with every byte and the look of a delimiter in it.
    let mut audio: Vec<u8> = (0..300_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    audio.extend_from_slice(format!("\r\n--{}", &BOUNDARY[..BOUNDARY.len() - 1]).as_bytes());
    let file = ("name=\"file\"; filename=\"model\"", audio);
    let model = |name: &str| ("name=\"model\"", name.as_bytes().to_vec());
    for parts in [[file.clone(), model("openai/whisper")], [model("openai/whisper"), file.clone()]] {
        assert_eq!(ask(&parts).text(), "e1");
        assert!(engines[1].received.lock().unwrap().pop().unwrap().body == form(&parts), "the form was changed");
    }
    assert_eq!(ask(&[model("demo")]).text(), "e0");
    assert_eq!(ask(&[file.clone(), model("nope")]).code(), "model_not_found");
    assert_eq!(ask(&[model("demo"), model("openai/whisper")]).code(), "invalid_form");
    assert_eq!(ask(std::slice::from_ref(&file)).code(), "model_required");
    // With one model there is nothing to choose, but a form that names another is refused all the
    // same.
    world.apply(snapshot(&[Listed { address: engines[0].address, weight: 1.0, tags: &[] }]));
    let mut ask = |parts: &[(&str, Vec<u8>)]| post(&mut client, "/v1/audio/transcriptions", &content_type, &form(parts));
    assert_eq!(ask(std::slice::from_ref(&file)).text(), "e0");
    assert_eq!(ask(&[file, model("nope")]).code(), "model_not_found");
    world.check_outcomes(&[("client_bad_request", 2), ("model_not_found", 2)]);
}

#[rstest]
fn large_bodies_are_read_whole_and_their_names_are_not_echoed(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = [Engine::echo("e0"), Engine::echo("e1")];
    let world = World::of(io, ProxyConfig::default(), two_models([&engines[0], &engines[1]]));
    let mut client = world.client();
    // Many slices, and the model behind all of it.
    let messages = format!(r#"{{"messages":[{}{{}}],"model":"openai/whisper"}}"#, "{},".repeat(100_000));
    let keys = format!(r#"{{{}"model":"openai/whisper"}}"#, "\"\\u0061\":[[]],".repeat(20_000));
    for body in [&messages, &keys] {
        assert_eq!(post(&mut client, "/v1/chat/completions", "", body.as_bytes()).text(), "e1");
        assert!(engines[1].received.lock().unwrap().pop().unwrap().body == body.as_bytes());
    }
    let broken = &messages.as_bytes()[..messages.len() - 1];
    assert_eq!(post(&mut client, "/v1/chat/completions", "", broken).code(), "invalid_json");
    let mut refused = |fields: &str, path: &str, body: String| {
        let answer = post(&mut client, path, fields, body.as_bytes());
        assert!(answer.body.len() < 500, "{} bytes of error", answer.body.len());
        answer.code()
    };
    let long = |n: usize| "n\u{e9}".repeat(n);
    assert_eq!(refused("", "/v1/chat/completions", format!(r#"{{"model":"{}"}}"#, long(1_000_000))), "invalid_json");
    assert_eq!(refused("", "/v1/chat/completions", format!(r#"{{"model":"{}"}}"#, long(1_000))), "model_not_found");
    let demo = || r#"{"model":"demo"}"#.to_owned();
    let name = "x".repeat(5_000);
    assert_eq!(refused(&format!("x-ilb-class: {name}\r\n"), "/v1/x", demo()), "class_not_found");
    assert_eq!(refused(&format!("x-ilb-require: {name}\r\n"), "/v1/x", demo()), "malformed_require");
    assert_eq!(refused(&format!("x-ilb-require: a={name}\r\n"), "/v1/x", demo()), "no_eligible_engine");
    let answer = client.get(&format!("/v1/{name}"));
    assert!(answer.code() == "not_found" && answer.body.len() < 500, "{answer:?}");
}
