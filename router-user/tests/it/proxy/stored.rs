//! Stored objects: requests that name one go to the engine that made it.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use router_user::io::IoChoice;
use router_user::proxy::ProxyConfig;
use router_user::publish::snapshot::{OrderKind, Snapshot};
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{Answer, Client, Engine, Listed, Received, World, class, gate, order, pass, route, snapshot, until};

/// An engine that keeps what it makes, under ids that have its name, and knows nothing else.
fn keeper(name: &'static str) -> Engine {
    let (kept, made) = (Mutex::new(BTreeSet::new()), AtomicUsize::new(0));
    Engine::start(move |socket, request| {
        let (method, path) = line(request);
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let segments: Vec<&str> = path.trim_start_matches("/v1/").split('/').collect();
        let mut kept = kept.lock().unwrap();
        let [collection, rest @ ..] = &segments[..] else { return false };
        let Some(id) = rest.first() else {
            if method == "GET" {
                return reply(socket, 200, &json!({ "object": "list", "data": kept.iter().collect::<Vec<_>>() }));
            }
            let builds_on = ["previous_response_id", "input_file_id"].iter().find_map(|field| body[field].as_str());
            if builds_on.is_some_and(|id| !kept.contains(id)) {
                return reply(
                    socket,
                    404,
                    &json!({ "error": { "message": "never heard of it", "type": "x", "code": "of_engine" } }),
                );
            }
            let id = format!("{collection}-{name}-{}", made.fetch_add(1, Ordering::Relaxed));
            kept.insert(id.clone());
            return if body["stream"] == true { stream(socket, &id) } else { reply(socket, 200, &json!({ "id": id })) };
        };
        if !kept.contains(*id) {
            return reply(socket, 404, &json!({ "error": { "message": "never heard of it", "type": "x", "code": "of_engine" } }));
        }
        let mut object = json!({ "id": id });
        if method == "DELETE" {
            kept.remove(*id);
        } else if *collection == "batches" {
            let output = format!("files-{name}-of-{id}");
            object["output_file_id"] = output.clone().into();
            kept.insert(output);
        }
        reply(socket, 200, &object)
    })
}

/// The method and the path of a request, without a query.
fn line(request: &Received) -> (&str, &str) {
    let mut words = request.head.split([' ', '?']);
    (words.next().unwrap(), words.next().unwrap())
}

fn reply(socket: &mut TcpStream, status: u16, body: &Value) -> bool {
    let body = body.to_string();
    write!(socket, "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .is_ok()
}

/// A stream whose first event has the id, every byte sent alone.
fn stream(socket: &mut TcpStream, id: &str) -> bool {
    let created = format!("data: {{\"type\":\"response.created\",\"response\":{{\"id\":\"{id}\",\"object\":\"response\"}}}}\n\n");
    let text = "data: {\"type\":\"response.output_text.delta\",\"delta\":\"hello\"}\n\n";
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let body = format!("{:x}\r\n{created}\r\n{:x}\r\n{text}\r\n0\r\n\r\n", created.len(), text.len());
    (head.to_owned() + &body).bytes().all(|byte| socket.write_all(&[byte]).is_ok())
}

fn request(client: &mut Client, method: &str, target: &str, fields: &str, body: &str) -> Answer {
    client.send(format!("{method} {target} HTTP/1.1\r\nhost: a\r\n{fields}content-length: {}\r\n\r\n{body}", body.len()));
    client.answer()
}

/// Makes a response, on an engine like any other; its id and that engine.
fn respond(client: &mut Client, more: &str) -> (String, String) {
    let answer = request(client, "POST", "/v1/responses", "", &format!(r#"{{"model":"demo"{more}}}"#));
    assert_eq!(answer.status, 200, "{answer:?}");
    (id(&answer), answer.engine().to_owned())
}

fn id(answer: &Answer) -> String {
    let json: Value = serde_json::from_slice(&answer.body).unwrap();
    json["id"].as_str().unwrap().to_owned()
}

/// A later turn of a conversation.
fn turn(client: &mut Client, previous: &str, fields: &str) -> Answer {
    let body = format!(r#"{{"model":"demo","input":"and","previous_response_id":"{previous}"}}"#);
    request(client, "POST", "/v1/responses", fields, &body)
}

#[track_caller]
fn check_refused(answer: &Answer, status: u16, code: &str, mentions: &str) {
    assert_eq!((answer.status, answer.code().as_str()), (status, code), "{answer:?}");
    assert!(answer.text().contains(mentions), "{} does not mention {mentions}", answer.text());
    assert_eq!(answer.field("x-ilb-engine"), None, "no engine was asked");
    assert_eq!(answer.field("retry-after").is_some(), status == 503);
}

fn three() -> [Engine; 3] {
    [keeper("k0"), keeper("k1"), keeper("k2")]
}

fn listed<'e>(engines: impl IntoIterator<Item = &'e Engine>) -> Snapshot {
    let listed = engines.into_iter().map(|e| Listed { address: e.address, weight: 0.25, tags: &[] });
    let mut snapshot = snapshot(&listed.collect::<Vec<_>>());
    let weight = 1.0 / snapshot.engines.len() as f64;
    snapshot.routes[0].weights.iter_mut().for_each(|share| share.weight = weight);
    snapshot
}

#[rstest]
fn every_request_that_names_a_response_goes_to_its_engine_through_any_worker(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
) {
    let engines = three();
    let world = World::of(io, ProxyConfig { workers: 3, ..Default::default() }, listed(&engines));
    let mut clients: Vec<Client> = (0..8).map(|_| world.client()).collect();
    let mut homes = BTreeSet::new();
    for n in 0..48 {
        let (id, home) = respond(&mut clients[n % 8], if n % 2 == 0 { "" } else { r#","previous_response_id":null"# });
        homes.insert(home.clone());
        for (step, (method, below)) in
            [("GET", ""), ("GET", "/input_items?limit=2"), ("POST", "/cancel"), ("GET", "?stream=true")].into_iter().enumerate()
        {
            let answer = request(&mut clients[(n + step) % 8], method, &format!("/v1/responses/{id}{below}"), "", "");
            assert_eq!((answer.status, answer.engine()), (200, &*home), "{method} {below}");
        }
        let next = turn(&mut clients[(n + 5) % 8], &id, &format!("x-session-id: other-{n}\r\n"));
        assert_eq!((next.status, next.engine()), (200, &*home));
        assert_eq!(turn(&mut clients[(n + 6) % 8], &self::id(&next), "").engine(), home);
        let gone = request(&mut clients[(n + 7) % 8], "DELETE", &format!("/v1/responses/{id}"), "", "");
        assert_eq!((gone.status, gone.engine()), (200, &*home));
        check_refused(&clients[n % 8].get(&format!("/v1/responses/{id}")), 404, "unknown_id", &id);
    }
    assert_eq!(homes.len(), 3, "responses without a predecessor spread");
    let stats = world.check_outcomes(&[("unknown_id", 48)]);
    assert_eq!((stats.stored_ids, stats.stored_ids_evicted), (96, 0));
    // Only what makes something is demand.
    assert_eq!(stats.classes[0].arrivals, 48 * 3);
}

#[rstest]
fn a_drained_engine_still_gives_what_it_holds_and_an_ejected_one_does_not(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
) {
    let engines = [keeper("k0"), keeper("k1")];
    let world = World::of(io, ProxyConfig::default(), listed(&engines));
    let mut client = world.client();
    let held = (0..40).map(|_| respond(&mut client, "")).find(|(_, home)| home == "e0").expect("responses spread").0;
    let ordered = |kind, generation| {
        let mut snapshot = Snapshot { generation, ..listed(&engines) };
        order(&mut snapshot, 0, kind, generation);
        world.apply(snapshot);
    };
    ordered(OrderKind::Drain, 2);
    let answer = client.get(&format!("/v1/responses/{held}"));
    assert_eq!((answer.status, answer.engine()), (200, "e0"));
    assert!((0..10).all(|_| respond(&mut client, "").1 == "e1"), "what is new goes elsewhere");
    ordered(OrderKind::Eject, 3);
    check_refused(&client.get(&format!("/v1/responses/{held}")), 503, "holder_unavailable", "ejected by an operator");
    check_refused(&client.get("/v1/responses/resp_unknown"), 404, "unknown_id", "resp_unknown");
    assert_eq!(client.get("/v1/files").code(), "list_over_engines", "the list of one would look whole");
    ordered(OrderKind::Restore, 4);
    assert_eq!(client.get(&format!("/v1/responses/{held}")).engine(), "e0");
}

#[rstest]
fn a_stream_ties_its_id_whatever_reads_bring_it(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = three();
    let world = World::of(io, ProxyConfig { workers: 2, ..Default::default() }, listed(&engines));
    for _ in 0..12 {
        let answer = request(&mut world.client(), "POST", "/v1/responses", "", r#"{"model":"demo","stream":true}"#);
        let created = answer.text().lines().next().unwrap().strip_prefix("data: ").unwrap();
        let created: Value = serde_json::from_str(created).unwrap();
        let id = created["response"]["id"].as_str().unwrap();
        let next = turn(&mut world.client(), id, "");
        assert_eq!((next.status, next.engine()), (200, answer.engine()));
    }
}

#[rstest]
fn an_id_that_is_cut_in_the_middle_is_tied_before_the_client_has_it(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (open, gate) = gate();
    let halves = Arc::new(move |socket: &mut TcpStream, request: &Received| {
        if line(request).0 == "GET" {
            return reply(socket, 200, &json!({ "id": "resp_whole" }));
        }
        write!(socket, "HTTP/1.1 200 OK\r\ncontent-length: 19\r\n\r\n{{\"id\":\"resp_").unwrap();
        pass(&gate);
        write!(socket, "whole\"}}").is_ok()
    });
    let (a, b) = (Arc::clone(&halves), halves);
    let engines = [Engine::start(move |s, r| a(s, r)), Engine::start(move |s, r| b(s, r))];
    let world = World::of(io, ProxyConfig::default(), listed(&engines));
    for n in 0..8 {
        let mut client = world.client();
        let body = format!(r#"{{"model":"demo","user":"{n}"}}"#);
        client.send(format!("POST /v1/responses HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
        let home = client.head().engine().to_owned();
        check_refused(&world.client().get("/v1/responses/resp_"), 404, "unknown_id", "resp_");
        open.send(()).unwrap();
        while !client.held.ends_with(b"}") {
            let mut byte = [0];
            client.socket.read_exact(&mut byte).unwrap();
            client.held.push(byte[0]);
        }
        assert_eq!(world.client().get("/v1/responses/resp_whole").engine(), home);
    }
}

#[rstest]
fn a_batch_goes_to_the_engine_of_its_file_and_its_result_is_found_there(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
) {
    let engines = three();
    let world = World::of(io, ProxyConfig::default(), listed(&engines));
    let mut client = world.client();
    for _ in 0..12 {
        let form = "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b--\r\n";
        let file = request(&mut client, "POST", "/v1/files", "content-type: multipart/form-data; boundary=b\r\n", form);
        let home = file.engine().to_owned();
        let body = format!(r#"{{"input_file_id":"{}","endpoint":"/v1/chat/completions"}}"#, id(&file));
        let batch = request(&mut client, "POST", "/v1/batches", "", &body);
        assert_eq!((batch.status, batch.engine()), (200, &*home));
        let done = client.get(&format!("/v1/batches/{}", id(&batch)));
        let done: Value = serde_json::from_slice(&done.body).unwrap();
        let output = client.get(&format!("/v1/files/{}/content", done["output_file_id"].as_str().unwrap()));
        assert_eq!((output.status, output.engine()), (200, &*home));
        let cancelled = request(&mut client, "POST", &format!("/v1/batches/{}/cancel", id(&batch)), "", "");
        assert_eq!((cancelled.status, cancelled.engine()), (200, &*home));
    }
    // Of all that, the batch alone is work for a model.
    assert_eq!(world.settled().classes[0].arrivals, 12);
}

#[rstest]
fn what_a_client_has_written_into_a_file_ties_nothing(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let liar = || {
        Engine::start(|socket, request| match line(request) {
            ("GET", path) if path.ends_with("/content") => reply(socket, 200, &json!({ "id": "resp_of_somebody" })),
            _ => reply(socket, 200, &json!({ "id": "file-1" })),
        })
    };
    let engines = [liar(), liar()];
    let world = World::of(io, ProxyConfig::default(), listed(&engines));
    let mut client = world.client();
    request(&mut client, "POST", "/v1/files", "", r#"{"model":"demo"}"#);
    assert_eq!(client.get("/v1/files/file-1/content").status, 200);
    check_refused(&client.get("/v1/responses/resp_of_somebody"), 404, "unknown_id", "resp_of_somebody");
    assert_eq!(world.settled().stored_ids, 1);
}

#[rstest]
fn an_unknown_id_is_said_to_be_unknown_and_is_asked_of_no_engine(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = three();
    let world = World::of(io, ProxyConfig::default(), listed(&engines));
    let mut client = world.client();
    let answer = turn(&mut client, "resp_other", "");
    check_refused(&answer, 404, "unknown_id", "resp_other");
    assert!(answer.text().contains(r#""param":"previous_response_id""#), "{}", answer.text());
    let long = "x".repeat(300);
    check_refused(&client.get(&format!("/v1/files/{long}")), 404, "unknown_id", "does not know");
    check_refused(
        &request(&mut client, "POST", "/v1/batches", "", r#"{"input_file_id":"f"}"#),
        404,
        "unknown_id",
        "input_file_id",
    );
    check_refused(&client.get("/v1/messages/batches/msgbatch_1"), 404, "unknown_id", "msgbatch_1");
    assert_eq!(engines.iter().map(Engine::count).sum::<usize>(), 0);
    // A chat is no stored object, whatever its fields say.
    client.post("", r#"{"model":"demo","previous_response_id":"resp_other"}"#);
    assert_eq!(client.answer().code(), "of_engine");
    world.check_outcomes(&[("unknown_id", 4)]);
    // One engine alone can have it, and knows best.
    let world = World::new(io, &[&engines[0]]);
    assert_eq!(turn(&mut world.client(), "resp_other", "").code(), "of_engine");
    assert_eq!(world.client().get("/v1/files/file-1").code(), "of_engine");
    assert_eq!(world.client().get("/v1/files").status, 200);
}

#[rstest]
fn a_lost_engine_is_named_and_no_other_is_asked(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = three();
    let world = World::of(io, ProxyConfig::default(), listed(&engines));
    let mut client = world.client();
    let (id, home) = respond(&mut client, "");
    let place: usize = home.trim_start_matches('e').parse().unwrap();
    let others = || engines.iter().enumerate().filter(|&(n, _)| n != place).map(|(_, e)| e.count()).sum::<usize>();
    let asked = others();
    engines[place].kill();
    for _ in 0..5 {
        check_refused(&turn(&mut client, &id, ""), 503, "holder_unavailable", &home);
        check_refused(&client.get(&format!("/v1/responses/{id}")), 503, "holder_unavailable", &home);
    }
    // The engine leaves the fleet, and another has its number.
    let mut without = listed(&engines);
    without.engines[place].name = "new".to_owned();
    without.generation = 2;
    world.apply(without);
    check_refused(&turn(&mut client, &id, ""), 404, "holder_gone", &home);
    check_refused(&request(&mut client, "DELETE", &format!("/v1/responses/{id}"), "", ""), 404, "holder_gone", &home);
    assert_eq!(others(), asked, "another engine was asked");
    world.check_outcomes(&[("engines_unavailable", 10), ("holder_gone", 2)]);
}

#[rstest]
fn a_full_engine_is_named_and_no_other_is_asked(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (open, gate) = gate();
    let slow = Arc::new(move |socket: &mut TcpStream, request: &Received| {
        if request.field("x-slow").is_some() {
            pass(&gate);
        }
        reply(socket, 200, &json!({ "id": "resp_1" }))
    });
    let (a, b) = (Arc::clone(&slow), slow);
    let engines = [Engine::start(move |s, r| a(s, r)), Engine::start(move |s, r| b(s, r))];
    let config = ProxyConfig { max_in_flight_per_engine: 1, max_waiting: 0, ..Default::default() };
    let world = World::of(io, config, listed(&engines));
    let (id, home) = respond(&mut world.client(), "");
    let mut busy = world.client();
    let body = format!(r#"{{"model":"demo","previous_response_id":"{id}"}}"#);
    busy.send(format!("POST /v1/responses HTTP/1.1\r\nhost: a\r\nx-slow: 1\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    until("the request is in flight", || world.stats().engines.iter().any(|e| e.in_flight == 1));
    check_refused(&turn(&mut world.client(), &id, ""), 503, "engines_full", &home);
    open.send(()).unwrap();
    assert_eq!(busy.answer().engine(), home);
    assert_eq!(engines[0].count().min(engines[1].count()), 0, "the other engine was asked");
}

#[rstest]
fn the_holder_must_be_eligible_for_the_class_and_the_tags(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = [keeper("us"), keeper("eu")];
    let fleet = |eu: &'static [(&'static str, &'static str)]| {
        let mut snapshot = snapshot(&[
            Listed { address: engines[0].address, weight: 1.0, tags: &[("residency", "us")] },
            Listed { address: engines[1].address, weight: 0.0, tags: eu },
        ]);
        snapshot.classes.push(class("chat-eu", "demo", &[("residency", "eu")]));
        snapshot.routes.push(route(1, 0.0, if eu.is_empty() { &[0.0, 0.0] } else { &[0.0, 1.0] }));
        snapshot
    };
    let world = World::of(io, ProxyConfig::default(), fleet(&[("residency", "eu")]));
    let mut client = world.client();
    let (in_us, engine) = respond(&mut client, "");
    assert_eq!(engine, "e0");
    let eu = "x-ilb-require: residency=eu\r\n";
    check_refused(&turn(&mut client, &in_us, eu), 404, "holder_not_eligible", "e0");
    check_refused(&request(&mut client, "GET", &format!("/v1/responses/{in_us}"), eu, ""), 404, "holder_not_eligible", "e0");
    let answer = request(&mut client, "POST", "/v1/responses", eu, r#"{"model":"demo"}"#);
    let in_eu = id(&answer);
    // The class of the object stands in for one that the request does not name.
    for fields in ["", eu, "x-ilb-class: chat-eu\r\n"] {
        assert_eq!(request(&mut client, "GET", &format!("/v1/responses/{in_eu}"), fields, "").engine(), "e1", "{fields}");
        assert_eq!(turn(&mut client, &in_eu, fields).engine(), "e1", "{fields}");
    }
    // The engine loses the tag: the object's class may not use it any more.
    let mut moved = fleet(&[]);
    moved.routes[1].shed_frac = 1.0;
    world.apply(moved);
    check_refused(&client.get(&format!("/v1/responses/{in_eu}")), 404, "holder_not_eligible", "chat-eu");
    world.check_outcomes(&[("no_eligible_engine", 3)]);
}

#[rstest]
fn the_oldest_ids_make_room_for_new_ones(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = three();
    let world = World::of(io, ProxyConfig { max_stored_ids: 10, workers: 2, ..Default::default() }, listed(&engines));
    let made: Vec<(String, String)> = (0..15).map(|_| respond(&mut world.client(), "")).collect();
    let mut client = world.client();
    for (n, (id, home)) in made.iter().enumerate() {
        let answer = client.get(&format!("/v1/responses/{id}"));
        if n < 5 {
            check_refused(&answer, 404, "unknown_id", id);
        } else {
            assert_eq!((answer.status, answer.engine()), (200, &**home), "{n}");
        }
    }
    let stats = world.settled();
    assert_eq!((stats.stored_ids, stats.stored_ids_evicted), (10, 5));
}

#[rstest]
fn an_old_id_is_forgotten(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = three();
    let config = ProxyConfig { stored_id_max_age: Duration::from_millis(1), ..Default::default() };
    let world = World::of(io, config, listed(&engines));
    let (id, _) = respond(&mut world.client(), "");
    until("the id is too old", || world.client().get(&format!("/v1/responses/{id}")).status == 404);
}

#[rstest]
fn with_several_models_an_object_is_found_without_naming_its_model(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = three();
    let mut fleet = listed(&engines);
    fleet.classes.push(class("other-chat", "other", &[]));
    fleet.routes.push(route(1, 0.0, &[0.0, 0.5, 0.5]));
    fleet.engines.iter_mut().for_each(|engine| engine.models = vec!["demo".to_owned(), "other".to_owned()]);
    let world = World::of(io, ProxyConfig::default(), fleet);
    let mut client = world.client();
    for _ in 0..12 {
        let (response, home) = respond(&mut client, "");
        assert_eq!(client.get(&format!("/v1/responses/{response}")).engine(), home);
        let cancel = request(&mut client, "POST", &format!("/v1/responses/{response}/cancel"), "", "");
        assert_eq!((cancel.status, cancel.engine()), (200, &*home));
        // A file has no model; its class says which engines may have it.
        let file = request(&mut client, "POST", "/v1/files", "x-ilb-class: other-chat\r\n", "data");
        assert_ne!(file.engine(), "e0");
        let batch = request(&mut client, "POST", "/v1/batches", "", &format!(r#"{{"input_file_id":"{}"}}"#, id(&file)));
        assert_eq!((batch.status, batch.engine()), (200, file.engine()));
    }
    check_refused(&client.get("/v1/responses/resp_other"), 404, "unknown_id", "resp_other");
    assert_eq!(request(&mut client, "POST", "/v1/files", "", "data").code(), "model_required");
}

#[rstest]
fn a_list_is_served_by_one_engine_and_refused_over_several(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = [keeper("us"), keeper("eu")];
    let mut fleet = listed(&engines);
    fleet.engines[1].tags = super::world::tags(&[("residency", "eu")]);
    fleet.classes.push(class("chat-eu", "demo", &[("residency", "eu")]));
    fleet.routes.push(route(1, 0.0, &[0.0, 1.0]));
    let world = World::of(io, ProxyConfig::default(), fleet);
    let mut client = world.client();
    for path in ["/v1/files", "/v1/files?limit=5", "/v1/batches", "/v1/files/"] {
        check_refused(&client.get(path), 400, "list_over_engines", "2 engines");
    }
    for fields in ["x-ilb-class: chat-eu\r\n", "x-ilb-require: residency=eu\r\n"] {
        let answer = request(&mut client, "GET", "/v1/files", fields, "");
        assert_eq!((answer.status, answer.engine()), (200, "e1"));
    }
    assert_eq!(world.check_outcomes(&[("client_bad_request", 4)]).classes[1].arrivals, 0);
}

#[rstest]
fn planned_shed_refuses_turns_and_not_looks(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::start(|socket, request| match request.field("x-refuse") {
        Some(_) => reply(socket, 429, &json!({ "error": "full" })),
        None => reply(socket, 200, &json!({ "id": "resp_1" })),
    });
    let (mut shedding, world) = (listed([&engine]), World::of(io, ProxyConfig::default(), listed([&engine])));
    let mut client = world.client();
    respond(&mut client, "");
    shedding.routes[0].shed_frac = 1.0;
    // The engine confirms that it is full, again and again: its word holds for a while.
    until("a turn is shed", || {
        world.apply(listed([&engine]));
        assert_eq!(turn(&mut client, "resp_1", "x-refuse: 1\r\n").status, 429);
        world.apply(shedding.clone());
        let answer = turn(&mut client, "resp_1", "");
        let look = client.get("/v1/responses/resp_1");
        assert_eq!((look.status, look.engine()), (200, "e0"));
        answer.status == 429 && answer.code() == "shed_planned"
    });
    let gone = request(&mut client, "DELETE", "/v1/responses/resp_1", "", "");
    assert_eq!((gone.status, gone.engine()), (200, "e0"));
    world.settled();
}

#[rstest]
fn engines_that_share_what_they_store_get_such_requests_as_any_other(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = [Engine::echo("e0"), Engine::echo("e1"), Engine::echo("e2")];
    let world = World::of(io, ProxyConfig { max_stored_ids: 0, ..Default::default() }, listed(&engines));
    let mut client = world.client();
    let mut seen = BTreeSet::new();
    for n in 0..30 {
        seen.insert(client.get(&format!("/v1/responses/resp_{n}")).engine().to_owned());
        seen.insert(turn(&mut client, "resp_1", &format!("x-session-id: {n}\r\n")).engine().to_owned());
    }
    assert_eq!(seen.len(), 3);
    assert_eq!(client.get("/v1/files").status, 200);
    assert_eq!(world.check_outcomes(&[]).stored_ids, 0);
}

/// A request that changes what an engine keeps is not sent again when a kept connection ends.
#[rstest]
fn a_deletion_is_sent_once(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::start(|socket, request| line(request).0 != "DELETE" && reply(socket, 200, &json!({ "id": "resp_1" })));
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    respond(&mut client, "");
    let answer = request(&mut client, "DELETE", "/v1/responses/resp_1", "", "");
    check_refused(&answer, 503, "holder_unavailable", "e0");
    assert_eq!(engine.count(), 2);
}
