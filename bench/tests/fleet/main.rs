//! Whole fleets of real processes, and what happens when a part of them dies.

mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;
use world::{World, kill, report};

fn run(test: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, test());
}

/// One short answer, asked for with a session of its own: the engine that served it.
async fn served_by(world: &World, session: &str) -> String {
    let body = r#"{"model":"demo","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}"#;
    let mut stream = TcpStream::connect(world.front).await.expect("connected");
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Session-Id: {session}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.expect("an answer");
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    let engine = reply.lines().find_map(|line| line.strip_prefix("x-ilb-engine: ")).expect("the engine is named");
    engine.trim().to_owned()
}

#[test]
fn a_dead_control_plane_costs_no_request_and_changes_no_weight() {
    run(async || {
        let mut world = World::start().await;
        let load = world.load(60, "6s", &[]);
        tokio::time::sleep(Duration::from_secs(2)).await;
        // Killed first, read afterwards: whatever was published last is what has to stay.
        kill(world.control.as_ref().expect("running"));
        let (generation, weights) = (world.generation(), world.weights());
        let all = report(load).all.expect("a sum");
        assert_eq!(all.failures, BTreeMap::new(), "{}", world.logs());
        assert!(all.answered > 200, "{all:?}");
        assert_eq!((world.generation(), world.weights()), (generation, weights.clone()));

        // A proxy that starts anew, with no controller to ask, goes on from its own disk.
        world.control = None;
        world.proxy = None;
        world.start_proxy().await;
        assert_eq!((world.generation(), world.weights()), (generation, weights));
        let again = report(world.load(40, "1s", &[])).all.expect("a sum");
        assert_eq!(again.failures, BTreeMap::new());
    });
}

#[test]
fn a_dead_engine_breaks_only_the_streams_it_was_sending() {
    run(async || {
        let mut world = World::start().await;
        let load = world.load(60, "8s", &[]);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let engines = world.json(&["engines", "--json"]);
        let dying = engines.as_array().expect("a list").iter().max_by_key(|e| e["live"]["in_flight"].as_u64()).expect("three");
        let (name, in_flight) =
            (dying["engine"].as_str().expect("a name").to_owned(), dying["live"]["in_flight"].as_u64().expect("a count"));
        let number = usize::from(name.as_bytes()[1] - b'1');
        kill(world.engines[number].as_ref().expect("running"));

        // Everything that begins from now on is served, before the controller has even noticed.
        let fresh = report(world.load(40, "1s", &["--seed", "7"])).all.expect("a sum");
        assert_eq!(fresh.failures, BTreeMap::new(), "{}", world.logs());
        let all = report(load).all.expect("a sum");
        let failed: u64 = all.failures.values().sum();
        // What was in flight a moment before the kill, and what may have joined it until then.
        assert!(failed <= in_flight + 10, "{failed} failed of {in_flight} in flight: {:?}", all.failures);
        assert!(all.failures.keys().all(|kind| kind == "error-event" || kind == "cut"), "{:?}", all.failures);

        // The controller notices, plans without the engine, and takes it back when it answers
        // again.
        world.until(|world| world.weights().iter().all(|(engine, _)| *engine != name)).await;
        world.engines[number] = None;
    });
}

#[test]
fn sessions_stick_and_weights_set_by_hand_hold_until_taken_back() {
    run(async || {
        let world = World::start().await;
        let pin = |weights: &[&str]| {
            let arguments = [&["weights", "set", "--cluster", "b", "--class", "chat"], weights].concat();
            let output = world.ask("control.sock", &arguments);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        pin(&["e1=0.5", "e2=0.3", "e3=0.2", "--ttl", "10m"]);
        let first = |world: &World| world.weights().first().map_or(0.0, |(_, weight)| *weight);
        world.until(|world| (first(world) - 0.5).abs() < 1e-6).await;
        let home = served_by(&world, "alice").await;
        for _ in 0..99 {
            assert_eq!(served_by(&world, "alice").await, home);
        }
        let mut served = Vec::new();
        for session in 0..200 {
            served.push(served_by(&world, &format!("s{session}")).await);
        }
        for (engine, weight) in [("e1", 0.5), ("e2", 0.3), ("e3", 0.2)] {
            let share = served.iter().filter(|e| *e == engine).count() as f64 / served.len() as f64;
            // Four standard deviations of a share of 200 sessions; the names are fixed, so the
            // outcome is too.
            assert!((share - weight).abs() < 0.14, "{engine} has {share} of the sessions at weight {weight}");
        }

        let refused = world.ask("control.sock", &["weights", "set", "--cluster", "b", "--class", "chat", "e9=1"]);
        assert_eq!(refused.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("unknown engine \"e9\""));
        let not_here = world.ask("proxy.sock", &["weights", "set", "--cluster", "b", "--class", "chat", "e1=1"]);
        assert!(String::from_utf8_lossy(&not_here.stderr).contains("no control plane"));
        let unpin = world.ask("control.sock", &["weights", "unpin"]);
        assert_eq!(String::from_utf8_lossy(&unpin.stdout), "1 taken back\n");
        world.until(|world| (first(world) - 0.5).abs() > 1e-6).await;
    });
}

#[test]
fn distances_that_are_measured_replace_those_in_the_file() {
    run(async || {
        // The file says 1 ms to each of three equal engines; the second is in truth 60 ms away.
        let world = World::start_with("measured_rtt = true\n", &[(1, 60)]).await;
        let weight = |world: &World| world.weights().iter().find(|(engine, _)| engine == "e2").map_or(0.0, |(_, weight)| *weight);
        assert!(weight(&world) > 0.2, "{:?}", world.weights());
        // Three measurements make a step of 25 ms and more, and two steps are needed; until then
        // the control plane says what it doubts.
        let says = |world: &World| String::from_utf8(world.ask("control.sock", &["status"]).stdout).expect("UTF-8");
        let is_doubted = |world: &World| says(world).contains("measures another distance to engine e2");
        world.until_within(Duration::from_secs(60), is_doubted).await;
        world.until_within(Duration::from_secs(60), |world| weight(world) < 0.01 && !is_doubted(world)).await;
    });
}
