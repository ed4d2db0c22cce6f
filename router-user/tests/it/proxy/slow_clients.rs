//! Clients that send or read too slowly, and clients that leave behind what they sent ahead.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use router_user::io::IoChoice;
use router_user::proxy::ProxyConfig;
use rstest::rstest;

use super::world::{Client, Engine, PATIENCE, World, answer, reset, until};

const SSE_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// Whether the proxy has sent something, or closed.
fn has_come(client: &Client) -> bool {
    client.socket.set_nonblocking(true).unwrap();
    let peeked = client.socket.peek(&mut [0; 1]);
    client.socket.set_nonblocking(false).unwrap();
    peeked.is_ok()
}

#[rstest]
fn a_body_below_the_minimum_rate_is_refused(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
    #[values(false, true)] is_chunked: bool,
) {
    let engine = Engine::echo("hello");
    let gap = Duration::from_millis(300);
    let config = ProxyConfig { body_gap_timeout: gap, min_upload_bytes_per_s: 1_000, ..Default::default() };
    let world = World::with(io, config, &[&engine]);
    // No gap is too long, but all of this would take minutes.
    let mut client = world.client();
    let framing = if is_chunked { "transfer-encoding: chunked" } else { "content-length: 10000" };
    client.send(format!("POST /v1/completions HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n"));
    let mut sent = 0;
    while !has_come(&client) {
        client.send(if is_chunked { "1\r\nx\r\n" } else { "x" });
        sent += 1;
        assert!(sent < 10_000, "a drip was waited for to its end");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(client.answer().code(), "request_timeout");
    world.check_outcomes(&[("client_timeout", 1)]);
}

#[rstest]
fn a_body_above_the_minimum_rate_may_take_long(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("hello");
    let gap = Duration::from_millis(500);
    let config = ProxyConfig { body_gap_timeout: gap, min_upload_bytes_per_s: 1_000, ..Default::default() };
    let world = World::with(io, config, &[&engine]);
    let mut client = world.client();
    let body = format!(r#"{{"model":"demo","prompt":"{}"}}"#, "x".repeat(60_000));
    client.send(format!("POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len()));
    // Twice as long as the gap, in pieces.
    for piece in body.as_bytes().chunks(body.len() / 50 + 1) {
        client.send(piece);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(client.answer().text(), "hello");
    world.check_outcomes(&[]);
}

/// A client whose kernel holds next to nothing for it.
fn small_reader(world: &World) -> Client {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    socket.connect(&world.handle.local_addrs()[0].into()).unwrap();
    socket.set_tcp_nodelay(true).unwrap();
    let socket = TcpStream::from(socket);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    Client { socket, held: Vec::new() }
}

/// The kernel takes megabytes for a client that reads nothing, so no send ever waits.
#[rstest]
fn a_reader_that_takes_nothing_is_cut_off_while_the_kernel_still_buffers(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
    #[values(false, true)] reads_a_little: bool,
) {
    let (ended, is_ended) = channel();
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let engine = Engine::start(move |socket, _| {
        socket.write_all(SSE_HEAD).unwrap();
        let event = format!("400\r\ndata: {}\n\n\r\n", "x".repeat(1024 - 8));
        while socket.write_all(event.as_bytes()).is_ok() {
            counter.fetch_add(event.len(), Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(5));
        }
        ended.send(()).unwrap();
        false
    });
    let stall = Duration::from_millis(300);
    let config = ProxyConfig { client_stall_timeout: stall, min_download_bytes_per_s: 50_000, ..Default::default() };
    let world = World::with(io, config, &[&engine]);
    let mut client = small_reader(&world);
    client.post("", r#"{"model":"demo"}"#);
    while is_ended.try_recv().is_err() {
        if reads_a_little {
            let _n = client.socket.read(&mut [0; 16]);
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(sent.load(Ordering::Relaxed) < 2 << 20, "the engine was not cut off before the kernel's buffers were full");
    }
    world.check_outcomes(&[("client_stalled", 1)]);
}

#[rstest]
fn a_reader_that_keeps_up_is_never_cut_off(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    const EVENTS: usize = 300;
    let engine = Engine::start(move |socket, _| {
        socket.write_all(SSE_HEAD).unwrap();
        for n in 0..EVENTS {
            // Slower than the rate that is asked for: there is nothing more to take.
            socket.write_all(format!("d\r\ndata: {n:05}\n\n\r\n").as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        socket.write_all(b"0\r\n\r\n").is_ok()
    });
    let stall = Duration::from_millis(100);
    let config = ProxyConfig { client_stall_timeout: stall, min_download_bytes_per_s: 1 << 20, ..Default::default() };
    let world = World::with(io, config, &[&engine]);
    let mut client = small_reader(&world);
    client.post("", r#"{"model":"demo"}"#);
    client.head();
    assert_eq!(client.chunks().unwrap().len(), 13 * EVENTS);
    world.check_outcomes(&[]);
}

/// How a client leaves.
#[derive(Clone, Copy, Debug)]
enum Leave {
    Close,
    HalfClose,
    Reset,
}

#[rstest]
fn a_client_that_leaves_behind_what_it_sent_ahead_is_noticed(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
    #[values(Leave::Close, Leave::HalfClose, Leave::Reset)] leave: Leave,
    #[values(1_000, 64 << 10, 70_000, 140_000)] ahead: usize,
) {
    let (ended, is_ended) = channel();
    let engine = Engine::start(move |socket, _| {
        // Only the end of the connection ends this: every clock of the proxy is longer than the
        // test waits.
        ended.send(socket.read(&mut [0; 16]).unwrap_or(0)).unwrap();
        false
    });
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    client.post("", r#"{"model":"demo"}"#);
    until("the engine has the request", || engine.count() == 1);
    let next = "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n";
    client.send(&next.repeat(ahead / next.len() + 1)[..ahead]);
    match leave {
        Leave::Close => drop(client),
        Leave::HalfClose => client.socket.shutdown(Shutdown::Write).unwrap(),
        Leave::Reset => reset(&client.socket),
    }
    assert_eq!(is_ended.recv_timeout(PATIENCE), Ok(0), "the engine works on for nobody");
    world.check_outcomes(&[("client_gone", 1)]);
}

#[rstest]
fn all_that_was_sent_ahead_is_answered_in_order(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    const AHEAD: usize = 4000;
    let (open, gate) = super::world::gate();
    let engine = Engine::start(move |socket, _| {
        super::world::pass(&gate);
        answer(socket, "hello")
    });
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    client.post("", r#"{"model":"demo"}"#);
    // Far more than is read ahead, so the proxy stops reading and must go on where it stopped.
    let mut writer = client.socket.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        let next = "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n";
        writer.write_all(next.repeat(AHEAD).as_bytes()).unwrap();
    });
    until("the engine has the request", || engine.count() == 1);
    std::thread::sleep(Duration::from_millis(100));
    open.send(()).unwrap();
    assert_eq!(client.answer().text(), "hello");
    for _ in 0..AHEAD {
        assert_eq!(client.answer().text(), "ok\n");
    }
    sending.join().unwrap();
    world.check_outcomes(&[]);
}
