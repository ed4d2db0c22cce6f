//! Bounded load: the excess of a hot key goes to its next engines, and little load stays together.

use std::collections::BTreeMap;
use std::sync::Arc;

use router_user::io::IoChoice;
use router_user::proxy::ProxyConfig;
use rstest::rstest;

use super::world::{Client, Engine, Received, World, answer, gate, pass, until};

/// Engines that hold each request until the gate lets it pass.
fn holding(count: usize) -> (std::sync::mpsc::Sender<()>, Vec<Engine>) {
    let (open, held) = gate();
    let hold = Arc::new(move |socket: &mut std::net::TcpStream, _: &Received| {
        pass(&held);
        answer(socket, "done")
    });
    let engine = || {
        let hold = Arc::clone(&hold);
        Engine::start(move |socket, request| hold(socket, request))
    };
    (open, (0..count).map(|_| engine()).collect())
}

#[rstest]
fn a_hot_key_puts_no_engine_above_the_load_factor_times_the_mean(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    const AT_ONCE: usize = 32;
    for (factor, most) in [(1.25, 10), (1.0, 8), (100.0, AT_ONCE)] {
        let (open, engines) = holding(4);
        let config = ProxyConfig { load_factor: factor, ..Default::default() };
        let world = World::with(io, config, &engines.iter().collect::<Vec<_>>());
        let mut clients: Vec<Client> = (0..AT_ONCE).map(|_| world.client()).collect();
        for (n, client) in clients.iter_mut().enumerate() {
            client.post("x-session-id: hot\r\n", r#"{"model":"demo"}"#);
            until("it is in flight", || engines.iter().map(Engine::count).sum::<usize>() == n + 1);
        }
        let loads: Vec<usize> = engines.iter().map(Engine::count).collect();
        assert_eq!(loads.iter().max(), Some(&most), "{loads:?} with a factor of {factor}");
        (0..AT_ONCE).for_each(|_| open.send(()).unwrap());
        clients.iter_mut().for_each(|client| assert_eq!(client.answer().text(), "done"));
        let stats = world.check_outcomes(&[]);
        assert_eq!(stats.classes[0].spills, (AT_ONCE - most) as u64, "each past its first engine counts once");
        assert_eq!(stats.engines.iter().map(|engine| engine.in_flight).sum::<u64>(), 0);
    }
}

#[rstest]
fn what_all_workers_have_in_flight_counts(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    const AT_ONCE: usize = 32;
    let (open, engines) = holding(4);
    let world = World::with(io, ProxyConfig { workers: 4, ..Default::default() }, &engines.iter().collect::<Vec<_>>());
    let mut clients: Vec<Client> = (0..AT_ONCE).map(|_| world.client()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.post("x-session-id: hot\r\n", r#"{"model":"demo"}"#);
        until("it is in flight", || engines.iter().map(Engine::count).sum::<usize>() == n + 1);
    }
    let loads: Vec<usize> = engines.iter().map(Engine::count).collect();
    assert_eq!(loads.iter().max(), Some(&10), "{loads:?}");
    (0..AT_ONCE).for_each(|_| open.send(()).unwrap());
    clients.iter_mut().for_each(|client| assert_eq!(client.answer().text(), "done"));
}

#[rstest]
fn a_session_alone_stays_with_its_engine(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engines = ["e0", "e1", "e2", "e3"].map(Engine::echo);
    let world = World::with(io, ProxyConfig { workers: 2, ..Default::default() }, &engines.iter().collect::<Vec<_>>());
    for session in 0..5 {
        let mut clients = [world.client(), world.client()];
        let mut homes = BTreeMap::new();
        for n in 0..100 {
            let answer = clients[n % 2].ask(&format!("x-session-id: {session}\r\n"));
            *homes.entry(answer.engine().to_owned()).or_insert(0) += 1;
        }
        assert_eq!(homes.len(), 1, "{homes:?}");
    }
    assert_eq!(world.check_outcomes(&[]).classes[0].spills, 0);
}

#[rstest]
fn an_engine_above_its_capacity_hands_over_and_nothing_is_refused(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    const AT_ONCE: usize = 40;
    let (open, engines) = holding(2);
    // At capacity an engine has 10 requests in flight, by Little's law; all of the plan's go to
    // one.
    let mut snapshot = super::world::snapshot(&[
        super::world::Listed { address: engines[0].address, weight: 1.0, tags: &[] },
        super::world::Listed { address: engines[1].address, weight: 0.0, tags: &[] },
    ]);
    for engine in &mut snapshot.engines {
        (engine.capacity_rps, engine.full_ttft_ms, engine.full_tbot_ms) = (10.0, 500.0, 50.0);
    }
    let world = World::of(io, ProxyConfig::default(), snapshot);
    let mut clients: Vec<Client> = (0..AT_ONCE).map(|_| world.client()).collect();
    let mut loads = Vec::new();
    for (n, client) in clients.iter_mut().enumerate() {
        client.post("", r#"{"model":"demo"}"#);
        until("it is in flight", || engines.iter().map(Engine::count).sum::<usize>() == n + 1);
        loads.push(engines[0].count());
    }
    assert_eq!(loads[12], 13, "1.25 times what it has at capacity");
    assert_eq!(loads[13], 13, "the next goes elsewhere, though the plan would not");
    assert_eq!(engines[1].count(), 2, "a second engine without a share takes the few that never move");
    assert_eq!(loads[AT_ONCE - 1], AT_ONCE - 2, "and the best rank takes the rest");
    (0..AT_ONCE).for_each(|_| open.send(()).unwrap());
    clients.iter_mut().for_each(|client| assert_eq!(client.answer().text(), "done"));
    world.check_outcomes(&[]);
}
