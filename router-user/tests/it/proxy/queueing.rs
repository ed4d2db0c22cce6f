//! The queue in front of full engines.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use router_user::io::IoChoice;
use router_user::model::ClassId;
use router_user::proxy::ProxyConfig;
use rstest::rstest;

use super::world::{Client, Engine, Listed, Received, World, answer, class, gate, pass, route, snapshot, until};

/// An engine that answers one request each time it is told to.
fn on_command() -> (Engine, Sender<()>) {
    let (open, gate) = gate();
    let engine = Engine::start(move |socket, _| {
        pass(&gate);
        answer(socket, "hello")
    });
    (engine, open)
}

/// A world whose engines take one request at a time.
fn one_at_a_time(io: IoChoice, config: ProxyConfig, engines: &[&Engine]) -> World {
    World::with(io, ProxyConfig { max_in_flight_per_engine: 1, ..config }, engines)
}

fn waiting(world: &World) -> usize {
    world.stats().queue.lengths.iter().sum()
}

/// A client that asks, once all before it wait.
fn ask(world: &World, nth: usize, fields: &str) -> Client {
    let mut client = world.client();
    client.post(fields, r#"{"model":"demo"}"#);
    until("the request waits", || waiting(world) == nth);
    client
}

/// The values of a field of all requests that an engine has received, in order.
fn received(engine: &Engine, field: &str) -> Vec<String> {
    let of = |request: &Received| request.field(field).unwrap_or_default().to_owned();
    engine.received.lock().unwrap().iter().map(of).collect()
}

#[rstest]
fn a_request_waits_for_a_full_engine_and_a_user_with_one_goes_before_the_rest_of_a_flood(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
) {
    // The user is told by API key and name, as far as they are there.
    for (flood, other) in [
        ("authorization: Bearer a\r\n", "authorization: Bearer b\r\n"),
        ("x-api-key: a\r\nx-session-id: 1\r\n", "api-key: b\r\nx-session-id: 1\r\n"),
        ("x-session-id: a\r\n", "x-session-id: b\r\n"),
        ("", "x-session-id: b\r\n"),
    ] {
        let (engine, open) = on_command();
        let world = one_at_a_time(io, ProxyConfig::default(), &[&engine]);
        let mut clients: Vec<Client> = (0..8).map(|n| ask(&world, n, &format!("{flood}x-user: flood\r\n"))).collect();
        clients.push(ask(&world, 8, &format!("{other}x-user: other\r\n")));
        until("the first request is at the engine", || engine.count() == 1);
        (0..9).for_each(|_| open.send(()).unwrap());
        assert!(clients.iter_mut().all(|client| client.answer().text() == "hello"));
        let order = received(&engine, "x-user");
        let place = order.iter().position(|user| user == "other").unwrap();
        assert!(place <= 2, "{order:?}");
        let stats = world.check_outcomes(&[]);
        assert_eq!((stats.queue.waits.count(), waiting(&world)), (8, 0));
    }
}

#[rstest]
fn classes_of_a_higher_priority_go_first(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (engine, open) = on_command();
    let mut snapshot = snapshot(&[Listed { address: engine.address, weight: 1.0, tags: &[] }]);
    snapshot.classes.push(class("batch", "demo", &[]));
    snapshot.classes[1].priority = 200;
    snapshot.routes.push(route(1, 0.0, &[1.0]));
    let world = World::of(io, ProxyConfig { max_in_flight_per_engine: 1, ..Default::default() }, snapshot);
    let mut clients: Vec<Client> = (0..4).map(|n| ask(&world, n, "x-ilb-class: batch\r\nx-name: batch\r\n")).collect();
    clients.extend((4..7).map(|n| ask(&world, n, "x-ilb-class: chat\r\nx-name: chat\r\n")));
    assert_eq!(world.stats().queue.lengths, [3, 0, 0, 3]);
    (0..7).for_each(|_| open.send(()).unwrap());
    clients.iter_mut().for_each(|client| assert_eq!(client.answer().status, 200));
    assert_eq!(received(&engine, "x-name"), ["batch", "chat", "chat", "chat", "batch", "batch", "batch"]);
}

#[rstest]
fn what_does_not_get_a_place_in_time_is_refused_and_leaves_the_queue(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
    #[values("x-request-timeout-ms", "x-envoy-expected-rq-timeout-ms")] field: &str,
) {
    let (engine, open) = on_command();
    let world = one_at_a_time(io, ProxyConfig::default(), &[&engine]);
    let mut served = ask(&world, 0, "");
    until("the first request is at the engine", || engine.count() == 1);
    let answer = world.client().ask(&format!("{field}: 200\r\n"));
    assert_eq!((answer.status, answer.code().as_str()), (503, "queue_deadline"));
    assert!(answer.field("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
    drop(ask(&world, 1, ""));
    until("the client that left is out of the queue", || waiting(&world) == 0);
    open.send(()).unwrap();
    assert_eq!(served.answer().text(), "hello");
    let stats = world.check_outcomes(&[("client_gone", 1), ("queue_deadline", 1)]);
    assert_eq!((stats.queue.refusals["queue_deadline"], engine.count()), ([1, 0, 0, 0], 1));
}

#[rstest]
fn a_full_queue_refuses_the_user_with_the_most_requests(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (engine, open) = on_command();
    let world = one_at_a_time(io, ProxyConfig { max_waiting: 4, ..Default::default() }, &[&engine]);
    let mut flood: Vec<Client> = (0..5).map(|n| ask(&world, n, "x-session-id: flood\r\n")).collect();
    let answer = world.client().ask("x-session-id: flood\r\n");
    assert_eq!((answer.status, answer.code().as_str()), (429, "user_over_share"));
    let mut other = ask(&world, 4, "x-session-id: other\r\n");
    until("it has a place in the queue", || world.stats().queue.refusals["user_over_share"][0] == 2);
    (0..5).for_each(|_| open.send(()).unwrap());
    assert_eq!(other.answer().status, 200);
    let refused = flood.iter_mut().filter(|client| client.socket.peer_addr().is_ok()).map(|client| client.answer().status);
    assert_eq!(refused.filter(|&status| status == 429).count(), 1);
    world.check_outcomes(&[("user_over_share", 2)]);
}

#[rstest]
fn workers_share_the_queue_and_wake_each_others_requests(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (running, peak) = (Arc::clone(&now), Arc::clone(&most));
    let engine = Engine::start(move |socket, _| {
        peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(5));
        // Before the answer, after which the next request may come at once.
        running.fetch_sub(1, Ordering::SeqCst);
        answer(socket, "hello")
    });
    let world = one_at_a_time(io, ProxyConfig { workers: 3, ..Default::default() }, &[&engine]);
    std::thread::scope(|scope| {
        for user in 0..24 {
            let world = &world;
            scope.spawn(move || {
                for _ in 0..10 {
                    assert_eq!(world.client().ask(&format!("x-session-id: {user}\r\n")).text(), "hello");
                }
            });
        }
    });
    assert_eq!((engine.count(), waiting(&world)), (240, 0));
    let most = most.load(Ordering::SeqCst);
    assert!(most <= 5, "{most} at a time: one for each worker, and those of workers that looked in the same moment");
    assert!(world.check_outcomes(&[]).queue.waits.count() > 0);
}

/// An engine that answers, but not while it is held.
fn held() -> (Engine, Arc<AtomicBool>) {
    let is_held = Arc::new(AtomicBool::new(false));
    let holds = Arc::clone(&is_held);
    let engine = Engine::start(move |socket, _| {
        until("the engine is let go", || !holds.load(Ordering::SeqCst));
        answer(socket, "hello")
    });
    (engine, is_held)
}

/// A client whose request is at the engine that is held.
fn hold(world: &World, engine: &Engine, is_held: &AtomicBool) -> Client {
    is_held.store(true, Ordering::SeqCst);
    let (mut client, before) = (world.client(), engine.count());
    client.post("", r#"{"model":"demo"}"#);
    until("the request is at the engine", || engine.count() == before + 1);
    client
}

#[rstest]
fn an_ejected_engine_gets_none_of_those_that_wait_for_a_full_one(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (sound, is_held) = held();
    let bad = Engine::start(|socket, _| socket.write_all(b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n").is_ok());
    let world = one_at_a_time(io, ProxyConfig::default(), &[&sound, &bad]);
    let is_ejected = || serde_json::to_value(world.stats().engines[1].state).unwrap() == "ejected";
    let mut session = 0;
    until("the bad engine is ejected", || {
        session += 1;
        assert_eq!(world.client().ask(&format!("x-session-id: {session}\r\n")).status, 200);
        is_ejected()
    });
    let mut clients = vec![hold(&world, &sound, &is_held)];
    let before = bad.count();
    clients.extend((0..10).map(|n| ask(&world, n + 1, &format!("x-session-id: {n}\r\n"))));
    assert!(bad.count() <= before + 3, "{} requests, and not only tests", bad.count() - before);
    is_held.store(false, Ordering::SeqCst);
    clients.iter_mut().for_each(|client| assert_eq!(client.answer().text(), "hello"));
    world.check_outcomes(&[]);
}

#[rstest]
fn a_request_whose_engine_is_gone_waits_for_a_full_one(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (sound, is_held) = held();
    let gone = Engine::echo("gone");
    gone.kill();
    let world = one_at_a_time(io, ProxyConfig::default(), &[&gone, &sound]);
    let mut clients = [hold(&world, &sound, &is_held), ask(&world, 1, "")];
    is_held.store(false, Ordering::SeqCst);
    clients.iter_mut().for_each(|client| assert_eq!(client.answer().text(), "hello"));
    let stats = world.check_outcomes(&[]);
    assert!(stats.retries["connect_failed"] > 0);
}

#[rstest]
fn those_that_wait_get_an_engine_that_a_new_plan_adds(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let ((first, is_held), second) = (held(), Engine::echo("second"));
    let world = one_at_a_time(io, ProxyConfig::default(), &[&first]);
    let mut clients = [hold(&world, &first, &is_held), ask(&world, 1, "")];
    // The class has another number in it, too.
    let listed = |engine: &Engine| Listed { address: engine.address, weight: 0.5, tags: &[] };
    let mut plan = snapshot(&[listed(&first), listed(&second)]);
    plan.generation += 1;
    plan.classes.insert(0, class("other", "demo", &[]));
    plan.routes.insert(0, plan.routes[0].clone());
    plan.routes[1].class = ClassId(1);
    world.apply(plan);
    assert_eq!(clients[1].answer().text(), "second");
    is_held.store(false, Ordering::SeqCst);
    assert_eq!(clients[0].answer().text(), "hello");
    world.check_outcomes(&[]);
}

/// Ends the clients of a test, also when it fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[rstest]
fn what_queues_in_an_engine_is_held_back_until_its_first_tokens_are_in_time(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
) {
    // One at a time, in order, each 25 ms; more wait in the engine, where nobody is fair to them.
    let (tickets, served) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let most = Arc::new(AtomicUsize::new(0));
    let (turn, peak) = (Arc::clone(&served), Arc::clone(&most));
    let engine = Engine::start(move |socket, _| {
        let ticket = tickets.fetch_add(1, Ordering::SeqCst);
        peak.fetch_max(ticket + 1 - turn.load(Ordering::SeqCst), Ordering::SeqCst);
        while turn.load(Ordering::SeqCst) < ticket {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(25));
        turn.fetch_add(1, Ordering::SeqCst);
        answer(socket, "hello")
    });
    let mut snapshot = snapshot(&[Listed { address: engine.address, weight: 1.0, tags: &[] }]);
    (snapshot.engines[0].full_ttft_ms, snapshot.engines[0].full_tbot_ms) = (25.0, 1.0);
    snapshot.classes[0].ttft_budget_ms = 600_000.0;
    let world = World::of(io, ProxyConfig::default(), snapshot);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let done = Done(&is_done);
        for user in 0..40 {
            let (world, is_done) = (&world, &is_done);
            scope.spawn(move || {
                let mut client = world.client();
                while !is_done.load(Ordering::Relaxed) {
                    assert_eq!(client.ask(&format!("x-session-id: {user}\r\n")).status, 200);
                }
            });
        }
        until("most requests wait in front of the engine", || waiting(&world) > 25);
        most.store(0, Ordering::SeqCst);
        let before = engine.count();
        until("a hundred more are served", || engine.count() > before + 100);
        drop(done);
    });
    assert!(most.load(Ordering::SeqCst) < 30, "{} of 40 were in the engine", most.load(Ordering::SeqCst));
    world.check_outcomes(&[]);
}
