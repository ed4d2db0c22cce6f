//! Planned shed: a permission that needs the engines' own confirmation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use router_user::io::IoChoice;
use router_user::policy::affinity::{Source, is_shed, key};
use router_user::proxy::ProxyConfig;
use rstest::rstest;

use super::world::{Client, Engine, Listed, World, answer, snapshot, until};

/// An engine that refuses the requests that ask it to, as one without room does.
fn refusing_on_request() -> Engine {
    Engine::start(|socket, request| match request.field("x-refuse") {
        Some(_) => {
            let refusal = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n";
            std::io::Write::write_all(socket, refusal).is_ok()
        }
        None => answer(socket, "hello"),
    })
}

fn world(io: IoChoice, engines: &[(&Engine, f64)], shed_frac: f64) -> World {
    let listed: Vec<Listed> =
        engines.iter().map(|(engine, weight)| Listed { address: engine.address, weight: *weight, tags: &[] }).collect();
    let mut snapshot = snapshot(&listed);
    snapshot.routes[0].shed_frac = shed_frac;
    World::of(io, ProxyConfig::default(), snapshot)
}

/// Lets the engine say that it is full, through a request that is not to be shed.
fn confirm(client: &mut Client, shed_frac: f64) {
    let kept = (0..).find(|n| !is_shed(key(Source::Session, format!("s{n}").as_bytes()), shed_frac)).unwrap();
    assert_eq!(client.ask(&format!("x-session-id: s{kept}\r\nx-refuse: 1\r\n")).status, 429);
}

#[rstest]
fn planned_shed_is_sticky(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = refusing_on_request();
    let world = world(io, &[(&engine, 1.0)], 0.25);
    let mut client = world.client();
    let mut refused = || -> Vec<bool> {
        (0..1000)
            .map(|n| {
                confirm(&mut client, 0.25);
                let answer = client.ask(&format!("x-session-id: s{n}\r\n"));
                if answer.status == 429 {
                    assert_eq!(answer.code(), "shed_planned");
                    assert!(answer.field("retry-after").is_some());
                }
                answer.status != 200
            })
            .collect()
    };
    let first = refused();
    assert_eq!(first, refused());
    let count = first.iter().filter(|&&r| r).count();
    assert!((200..300).contains(&count), "{count} of 1000 refused");
    world.check_outcomes(&[("shed_planned", 2 * count as u64)]);
}

#[rstest]
fn a_plan_that_sheds_while_its_engines_idle_costs_no_request(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = [Engine::echo("e0"), Engine::echo("e1")];
    // The second plan gives the class to no engine at all.
    for (weight, shed_frac) in [(0.5, 0.7), (0.0, 1.0)] {
        let world = world(io, &[(&engines[0], weight), (&engines[1], weight)], shed_frac);
        let mut client = world.client();
        for n in 0..500 {
            assert_eq!(client.ask(&format!("x-session-id: s{n}\r\n")).status, 200);
        }
        world.check_outcomes(&[]);
    }
}

#[rstest]
fn one_planned_engine_with_room_is_enough_to_serve_all(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (full, idle, unplanned) = (refusing_on_request(), Engine::echo("idle"), Engine::echo("unplanned"));
    let world = world(io, &[(&full, 0.5), (&idle, 0.5), (&unplanned, 0.0)], 1.0);
    let mut client = world.client();
    until("the full engine has said so", || {
        client.ask(&format!("x-session-id: s{}\r\nx-refuse: 1\r\n", full.count() + idle.count()));
        full.count() > 0
    });
    for n in 0..100 {
        assert_eq!(client.ask(&format!("x-session-id: s{n}\r\n")).status, 200);
    }
    // An engine that is gone has no room, so the one that is full decides.
    idle.kill();
    until("shed is allowed", || {
        let n = full.count();
        let answer = client.ask(&format!("x-session-id: s{n}\r\nx-refuse: 1\r\n"));
        answer.status == 429 && !answer.body.is_empty() && answer.code() == "shed_planned"
    });
}

#[rstest]
fn engines_whose_first_tokens_come_late_confirm_the_plan_until_they_are_quick_again(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
) {
    let is_slow = Arc::new(AtomicBool::new(true));
    let slow = Arc::clone(&is_slow);
    let engine = Engine::start(move |socket, _| {
        if slow.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(250));
        }
        answer(socket, "hello")
    });
    let mut snapshot = snapshot(&[Listed { address: engine.address, weight: 1.0, tags: &[] }]);
    snapshot.routes[0].shed_frac = 1.0;
    (snapshot.engines[0].full_ttft_ms, snapshot.engines[0].full_tbot_ms) = (10.0, 1.0);
    let world = World::of(io, ProxyConfig::default(), snapshot);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = world.client();
                until("shed is allowed", || client.ask("").status == 429);
            });
        }
    });
    is_slow.store(false, Ordering::Relaxed);
    let mut client = world.client();
    until("the engine has shown that it is quick again", || (0..20).all(|_| client.ask("").status == 200));
}
