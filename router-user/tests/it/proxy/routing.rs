//! Which engine a request goes to.

use std::collections::HashMap;

use router_user::io::IoChoice;
use router_user::proxy::ProxyConfig;
use rstest::rstest;

use super::world::{Engine, Listed, World, class, gate, pass, route, snapshot, until};

fn three() -> [Engine; 3] {
    [Engine::echo("e0"), Engine::echo("e1"), Engine::echo("e2")]
}

fn listed(engines: &[Engine; 3], weights: [f64; 3]) -> Vec<Listed> {
    engines.iter().zip(weights).map(|(e, weight)| Listed { address: e.address, weight, tags: &[] }).collect()
}

#[rstest]
fn a_session_stays_with_its_engine(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = three();
    let world = World::of(io, ProxyConfig { workers: 2, ..Default::default() }, snapshot(&listed(&engines, [0.5, 0.3, 0.2])));
    let (mut one, mut two) = (world.client(), world.client());
    for session in ["s1", "s2", "s3", "s4", "s5"] {
        let fields = format!("x-session-id: {session}\r\n");
        let home = one.ask(&fields).engine().to_owned();
        for client in [&mut one, &mut two] {
            for _ in 0..50 {
                let answer = client.ask(&fields);
                assert_eq!(answer.engine(), home);
                assert_eq!(answer.text(), home, "the name is that of the engine that answered");
            }
        }
    }
    // What a client sends again is served, but was counted as demand the first time.
    one.ask("x-stainless-retry-count: 2\r\n");
    one.ask("x-stainless-retry-count: 0\r\n");
    let stats = world.check_outcomes(&[]);
    assert_eq!(stats.workers, 2);
    assert_eq!(stats.classes[0].arrivals, 506);
    assert_eq!(stats.classes[0].picks.values().sum::<u64>(), 507);
}

#[rstest]
fn a_change_of_five_points_moves_at_most_six_of_the_sessions(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    const SESSIONS: usize = 10_000;
    let engines = three();
    let world = World::of(io, ProxyConfig::default(), snapshot(&listed(&engines, [0.50, 0.30, 0.20])));
    let mut client = world.client();
    let mut homes = || -> Vec<String> {
        (0..SESSIONS).map(|n| client.ask(&format!("x-session-id: session-{n}\r\n")).engine().to_owned()).collect()
    };
    let before = homes();
    let stats = world.settled();
    for (engine, weight) in stats.engines.iter().zip([0.5, 0.3, 0.2]) {
        let share = stats.classes[0].picks[&engine.engine] as f64 / SESSIONS as f64;
        assert!((share - weight).abs() < 0.02, "{} has {share} for {weight}", engine.engine);
    }
    world.apply(snapshot(&listed(&engines, [0.55, 0.25, 0.20])));
    let moved = before.iter().zip(homes()).filter(|(a, b)| *a != b).count();
    assert!((400..=600).contains(&moved), "{moved} of {SESSIONS} sessions moved");
}

#[rstest]
fn affinity_sources_in_order(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = three();
    let world = World::of(io, ProxyConfig::default(), snapshot(&listed(&engines, [0.34, 0.33, 0.33])));
    let mut client = world.client();
    // What is the same in all requests of a row is what ties them; the rest varies.
    type Request = fn(u32) -> (String, String);
    let rows: [(&str, Request); 4] = [
        ("session", |n| {
            ("x-session-id: s\r\n".to_owned(), format!(r#"{{"model":"demo","prompt_cache_key":"{n}","user":"{n}"}}"#))
        }),
        ("cache key", |n| (String::new(), format!(r#"{{"model":"demo","user":"{n}","prompt":"{n}","prompt_cache_key":"k"}}"#))),
        ("user", |n| (String::new(), format!(r#"{{"user":"u","model":"demo","prompt":"{n}"}}"#))),
        ("messages", |n| {
            let turns = r#",{"role":"assistant","content":"a"},{"role":"user","content":"more"}"#.repeat(n as usize % 3);
            (
                String::new(),
                format!(
                    r#"{{"model":"demo","messages":[{{"role":"system","content":"s"}},{{"role":"user","content":"u"}}{turns}]}}"#
                ),
            )
        }),
    ];
    for (name, request) in rows {
        let mut seen = HashMap::new();
        for n in 0..30 {
            let (fields, body) = request(n);
            // A request id is different each time and must not matter.
            client.post(&format!("x-request-id: id-{n}\r\n{fields}"), &body);
            *seen.entry(client.answer().engine().to_owned()).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 1, "{name}: {seen:?}");
    }
    // Nothing to hold on to: requests spread.
    let seen: HashMap<String, ()> = (0..60).map(|_| (client.ask("").engine().to_owned(), ())).collect();
    assert_eq!(seen.len(), 3);
}

#[rstest]
fn classes_and_required_tags(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = [Engine::echo("us"), Engine::echo("eu")];
    let mut snapshot = snapshot(&[
        Listed { address: engines[0].address, weight: 1.0, tags: &[("residency", "us"), ("sku", "h100")] },
        Listed { address: engines[1].address, weight: 0.0, tags: &[("residency", "eu"), ("sku", "h100")] },
    ]);
    snapshot.classes.push(class("chat-eu", "demo", &[("residency", "eu"), ("sku", "h100")]));
    snapshot.classes.push(class("chat-mars", "demo", &[("residency", "mars")]));
    snapshot.routes.push(route(1, 0.0, &[0.0, 1.0]));
    let world = World::of(io, ProxyConfig::default(), snapshot);
    let mut client = world.client();
    let mut check = |fields: &str, expected: Result<&str, (u16, &str, &str)>| {
        let answer = client.ask(fields);
        match expected {
            Ok(text) => assert_eq!((answer.status, answer.text()), (200, text), "{fields}"),
            Err((status, code, mentions)) => {
                assert_eq!((answer.status, answer.code().as_str()), (status, code), "{fields}");
                assert!(answer.text().contains(mentions), "{} does not mention {mentions}", answer.text());
                assert_eq!(answer.field("retry-after").is_some(), status == 503, "{fields}");
            }
        }
    };
    for _ in 0..20 {
        check("", Ok("us"));
        check("x-ilb-class: chat-eu\r\n", Ok("eu"));
        check("x-ilb-require: residency=eu\r\n", Ok("eu"));
        check("x-ilb-require: residency=eu\r\nX-ILB-Require: sku = h100\r\n", Ok("eu"));
    }
    check("x-ilb-class: nope\r\n", Err((400, "class_not_found", "nope")));
    check("x-ilb-class: chat\r\nx-ilb-require: residency=eu\r\n", Err((503, "no_eligible_engine", "residency=eu")));
    check("x-ilb-require: residency=moon\r\n", Err((503, "no_eligible_engine", "residency=moon")));
    check("x-ilb-require: residency=mars\r\n", Err((503, "no_eligible_engine", "residency=mars")));
    check("x-ilb-require: residency\r\n", Err((400, "malformed_require", "residency")));
    for engine in &engines {
        assert!(engine.received.lock().unwrap().iter().all(|r| !r.head.to_ascii_lowercase().contains("x-ilb")));
    }
    // Residency holds when the only eligible engine is gone.
    engines[1].kill();
    check("x-ilb-require: residency=eu\r\n", Err((503, "engines_unavailable", "")));
    world.check_outcomes(&[("client_bad_request", 2), ("no_eligible_engine", 3), ("engines_unavailable", 1)]);
}

#[rstest]
fn a_full_engine_hands_over_and_all_full_is_said(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (open, gate) = gate();
    let slow = move |socket: &mut std::net::TcpStream, _: &super::world::Received| {
        pass(&gate);
        super::world::answer(socket, "slow")
    };
    let slow = std::sync::Arc::new(slow);
    let (a, b) = (slow.clone(), slow);
    let engines = [Engine::start(move |s, r| a(s, r)), Engine::start(move |s, r| b(s, r))];
    let world = World::with(
        io,
        ProxyConfig { max_in_flight_per_engine: 1, max_waiting: 0, ..Default::default() },
        &[&engines[0], &engines[1]],
    );
    let mut clients = [world.client(), world.client()];
    for (n, client) in clients.iter_mut().enumerate() {
        // One session, so the second request has the same first choice.
        client.post("x-session-id: s\r\n", r#"{"model":"demo"}"#);
        until("the request has arrived", || engines[0].count() + engines[1].count() == n + 1);
    }
    assert_eq!(engines[0].count(), 1, "the second request did not hand over");
    assert_eq!(world.stats().engines.iter().map(|e| e.in_flight).collect::<Vec<_>>(), [1, 1]);
    let answer = world.client().ask("");
    assert_eq!((answer.status, answer.code().as_str()), (503, "engines_full"));
    for client in &mut clients {
        open.send(()).unwrap();
        let _either = client;
    }
    for client in &mut clients {
        assert_eq!(client.answer().text(), "slow");
    }
    let stats = world.check_outcomes(&[("engines_full", 1)]);
    assert_eq!(stats.engines.iter().map(|e| e.in_flight).collect::<Vec<_>>(), [0, 0]);
}

#[rstest]
fn an_engine_is_reached_where_it_is_said_to_be(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (direct, relay, moved) = (Engine::echo("direct"), Engine::echo("relay"), Engine::echo("moved"));
    let at = |engine: &Engine| snapshot(&[Listed { address: engine.address, weight: 1.0, tags: &[] }]);
    let world = World::via(io, ProxyConfig::default(), HashMap::from([("e0".to_owned(), relay.address)]));
    world.apply(at(&direct));
    assert_eq!(world.client().ask("").text(), "relay");
    // Without a detour, a new address takes effect on open client connections too.
    let world = World::of(io, ProxyConfig::default(), at(&direct));
    let mut client = world.client();
    assert_eq!(client.ask("").text(), "direct");
    world.apply(at(&moved));
    assert_eq!(client.ask("").text(), "moved");
}
