//! No descriptor is left behind, however connections end.

use std::io::{Read, Write};
use std::process::Command;
use std::time::Duration;

use router_user::io::IoChoice;
use router_user::proxy::ProxyConfig;
use rstest::rstest;

use super::world::{Client, Engine, World, answer, reset, until};

/// Set in the process in which the test runs alone: descriptors can be counted only where nobody
/// else opens any.
const ALONE: &str = "ILB_TEST_ALONE";

fn open_descriptors() -> usize {
    // Less the one that reads the list.
    std::fs::read_dir("/proc/self/fd").unwrap().count() - 1
}

#[rstest]
fn a_thousand_aborted_connections(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    if std::env::var_os(ALONE).is_none() {
        let name = std::thread::current().name().unwrap().to_owned();
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let output = alone.args(["--exact", &name, "--nocapture"]).env(ALONE, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let engine = Engine::start(|socket, request| match request.field("x-case").unwrap() {
        "answer" => answer(socket, "hello"),
        "reset" => {
            reset(socket);
            false
        }
        "break" => {
            socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbegin").unwrap();
            false
        }
        // Says nothing until the proxy closes.
        _ => socket.read(&mut [0; 16]).is_err(),
    });
    let config = ProxyConfig {
        ttft_timeout: Duration::from_millis(100),
        head_timeout: Duration::from_millis(100),
        engine_idle_timeout: Duration::from_millis(200),
        ..Default::default()
    };
    let world = World::with(io, config, &[&engine]);
    // The worker is up, with all that it holds for itself, once it answers.
    assert_eq!(world.client().get("/healthz").status, 200);
    until("the first connection is gone", || world.stats().connections == 0);
    let before = open_descriptors();
    const ROUNDS: u64 = 10;
    const EACH: u64 = 10;
    for round in 0..ROUNDS {
        let mut groups: Vec<Vec<Client>> = (0..10).map(|_| (0..EACH).map(|_| world.client()).collect()).collect();
        let [_idle, half, answered, resets, breaks, late, closes, leaves, half_closes, sends_more] = &mut groups[..] else {
            panic!()
        };
        let cases = [
            (&mut *answered, "answer"),
            (resets, "reset"),
            (breaks, "break"),
            (&mut *late, "silent"),
            (closes, "silent"),
            (&mut *leaves, "silent"),
            (&mut *half_closes, "silent"),
            (&mut *sends_more, "silent"),
        ];
        half.iter_mut().for_each(|c| c.send("POST /v1/comp"));
        for (clients, case) in cases {
            clients.iter_mut().for_each(|c| c.post(&format!("x-case: {case}\r\n"), r#"{"model":"demo"}"#));
        }
        // One for the check that the worker is up.
        until("all requests are under way", || world.stats().requests > (round * 9 + 8) * EACH);
        leaves.iter().for_each(|c| reset(&c.socket));
        half_closes.iter().for_each(|c| c.socket.shutdown(std::net::Shutdown::Write).unwrap());
        sends_more.iter_mut().for_each(|c| c.send(vec![b'x'; 50_000]));
        late.iter_mut().for_each(|c| assert_eq!(c.answer().status, 504));
        half.iter_mut().for_each(|c| assert_eq!(c.answer().status, 408));
        answered.iter_mut().for_each(|c| assert_eq!(c.answer().text(), "hello"));
    }
    let stats = world.settled();
    assert!(stats.outcomes["client_gone"] > 0 && stats.outcomes["engine_broke_mid_stream"] > 0, "{stats:?}");
    until("every connection is counted out", || world.stats().connections == 0);
    // The engine's own copies.
    engine.close_connections();
    until("every descriptor is closed", || open_descriptors() <= before);
    assert_eq!(open_descriptors(), before);
}
