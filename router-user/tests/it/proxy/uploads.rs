//! Request bodies: the room they take while they come, and their way to an engine while its answer
//! comes.

use std::io::{Read, Write};

use router_user::io::IoChoice;
use router_user::proxy::ProxyConfig;
use rstest::rstest;

use super::world::{Client, Engine, Listed, PATIENCE, World, answer, gate, pass, read_head, snapshot, until};

/// A body of `length` bytes.
fn body(length: usize) -> String {
    format!(r#"{{"model":"demo","prompt":"{}"}}"#, "x".repeat(length - r#"{"model":"demo","prompt":""}"#.len()))
}

fn announce(client: &mut Client, length: usize) {
    client.send(format!("POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n"));
}

#[rstest]
fn announced_bodies_take_no_room(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("hello");
    let config = ProxyConfig { max_bodies_bytes: 2 << 20, max_body_bytes: 1 << 20, ..Default::default() };
    let world = World::with(io, config, &[&engine]);
    let mut announcing: Vec<Client> = (0..32).map(|_| world.client()).collect();
    announcing.iter_mut().for_each(|client| announce(client, 1 << 20));
    until("all have announced", || world.stats().requests == 32);
    for _ in 0..3 {
        let mut client = world.client();
        client.post("", &body(1 << 20));
        assert_eq!(client.answer().text(), "hello");
    }
    // Who has announced may still send.
    let mut late = announcing.swap_remove(7);
    late.send(body(1 << 20));
    assert_eq!(late.answer().text(), "hello");
    drop(announcing);
    world.check_outcomes(&[("client_gone", 31)]);
}

#[rstest]
fn bodies_held_at_one_time_are_bounded(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (open, gate) = gate();
    let engine = Engine::start(move |socket, request| {
        if request.body.len() > 16 {
            pass(&gate);
        }
        answer(socket, "hello")
    });
    let world = World::with(io, ProxyConfig { max_bodies_bytes: 50, ..Default::default() }, &[&engine]);
    let mut first = world.client();
    first.post("", &body(40));
    until("the engine works on the first", || engine.count() == 1);
    // A whole body may have to be sent again, so it keeps its place until the answer begins.
    for request in [
        "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 16\r\n\r\n{\"model\":\"demo\"}",
        "POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n10\r\n{\"model\":\"demo\"}\r\n0\r\n\r\n",
    ] {
        let mut client = world.client();
        client.send(request);
        let answer = client.answer();
        assert_eq!((answer.status, answer.code().as_str(), answer.field("retry-after")), (503, "bodies_full", Some("1")));
    }
    open.send(()).unwrap();
    assert_eq!(first.answer().text(), "hello");
    // All room is given back.
    for _ in 0..5 {
        assert_eq!(world.client().ask("").text(), "hello");
    }
    world.check_outcomes(&[("bodies_full", 2)]);
}

#[rstest]
fn a_body_that_stalls_gives_up_its_place(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
    #[values(false, true)] is_chunked: bool,
) {
    let engine = Engine::echo("hello");
    let world = World::with(io, ProxyConfig { max_bodies_bytes: 50, ..Default::default() }, &[&engine]);
    let mut stalled = world.client();
    if is_chunked {
        stalled.send("POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n20\r\n");
    } else {
        announce(&mut stalled, 40);
    }
    stalled.send(&body(40)[..32]);
    // Not at once: for all anybody knows the rest is on its way.
    until("the stalled body has made way", || {
        let mut client = world.client();
        client.post("", &body(36));
        let answer = client.answer();
        assert!(answer.status == 200 || answer.code() == "bodies_full", "{answer:?}");
        // Before the stalled body has come, there is room.
        answer.status == 200 && world.stats().outcomes["bodies_full"] > 0
    });
    let answer = stalled.answer();
    assert_eq!((answer.status, answer.code().as_str(), answer.field("connection")), (503, "bodies_full", Some("close")));
    assert!(stalled.is_closed());
}

#[rstest]
fn a_streamed_answer_holds_no_room_for_its_request(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let (open, gate) = gate();
    let engine = Engine::start(move |socket, _| {
        socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nbegin").unwrap();
        pass(&gate);
        socket.write_all(b"+done").is_ok()
    });
    let world = World::with(io, ProxyConfig { max_bodies_bytes: 50, ..Default::default() }, &[&engine]);
    let mut clients = [world.client(), world.client(), world.client()];
    for client in &mut clients {
        client.post("", &body(40));
        assert_eq!(client.head().status, 200);
        let mut begin = [0; 5];
        if client.held.is_empty() {
            client.socket.read_exact(&mut begin).unwrap();
            client.held.extend_from_slice(&begin);
        }
    }
    (0..3).for_each(|_| open.send(()).unwrap());
    for client in &mut clients {
        let mut rest = vec![0; 10 - client.held.len()];
        client.socket.read_exact(&mut rest).unwrap();
        assert_eq!([client.held.split_off(0), rest].concat(), b"begin+done");
        client.post("", &body(40));
        open.send(()).unwrap();
        assert_eq!(client.answer().text(), "begin+done", "the connection goes on after its body was let go");
    }
    world.check_outcomes(&[]);
}

/// A server that pings while it takes an upload answers before it has the whole body.
#[rstest]
fn a_body_goes_on_after_the_answer_has_begun(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
    #[values(40, 12 << 20)] length: usize,
) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (open, gate) = gate();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut held = Vec::new();
            while read_head(&mut socket, &mut held).is_some() {
                socket.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nbegun.\r\n").unwrap();
                // The client has the beginning before the engine reads another byte.
                pass(&gate);
                let mut rest = vec![0; length - held.len()];
                socket.read_exact(&mut rest).unwrap();
                let is_whole = [&held[..], &rest].concat() == body(length).as_bytes();
                held.clear();
                let end = format!("{} got {length}", if is_whole { "well" } else { "badly" });
                socket.write_all(format!("{:x}\r\n{end}\r\n0\r\n\r\n", end.len()).as_bytes()).unwrap();
            }
        }
    });
    let listed = Listed { address, weight: 1.0, tags: &[] };
    let world = World::of(io, ProxyConfig::default(), snapshot(&[listed]));
    let mut client = world.client();
    for _ in 0..2 {
        client.post("", &body(length));
        client.head();
        assert_eq!(client.chunk(), Ok(Some(b"begun.".to_vec())));
        open.send(()).unwrap();
        assert_eq!(client.chunks(), Ok(format!("well got {length}").into_bytes()));
    }
    let stats = world.check_outcomes(&[]);
    assert_eq!(stats.engines[0].connects, 1, "a connection on which all was sent and read is used again");
}
