//! `/readyz`: whether this process can do its job now.

use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};

use super::{World, config, engine, run};

/// A port that is taken, and refuses connections until it listens.
fn port() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    let address = socket.local_addr().expect("bound").as_socket().expect("an IP address");
    (socket, address)
}

#[test]
fn readyz_is_red_while_no_engine_can_be_reached_and_says_why() {
    run(async {
        let (one, two) = (port(), port());
        let world = World::start(config(&[one.1, two.1]), false).await;
        let is_red = |status: u16, body: &str| status == 503 && body.contains("connections to all 2 fail");
        world.until("/readyz", is_red).await;
        world.until("/metrics", |_, text| text.contains("ilb_ready 0")).await;
        // One of two is enough, though no request is sent.
        two.0.listen(8).expect("listens");
        let body = world.until("/readyz", |status, _| status == 200).await;
        assert_eq!(body, "generation 0\n");
        drop(two);
        world.until("/readyz", is_red).await;
        assert_eq!(world.get("/healthz").await, (200, "ok\n".to_owned()), "the process itself is well");
    });
}

#[test]
fn the_proxys_port_says_ready_exactly_when_the_admin_port_does_and_gives_the_same_reason() {
    run(async {
        let (one, two) = (port(), port());
        let world = World::start(config(&[one.1, two.1]), false).await;
        let proxy = format!("http://{}/readyz", world.proxy.local_addrs()[0]);
        let says = async || {
            let response = reqwest::get(&proxy).await.expect("the proxy answers");
            (response.status().as_u16(), response.text().await.expect("a body"))
        };
        for (engine, _) in [two, one] {
            let reason = world.until("/readyz", |status, body| status == 503 && body.contains("all 2 fail")).await;
            let (status, body) = says().await;
            assert!(status == 503 && body.contains("\"not_ready\"") && body.contains(reason.trim_end()), "{body}");
            engine.listen(8).expect("listens");
            world.until("/readyz", |status, _| status == 200).await;
            assert_eq!(says().await, (200, "ready\n".to_owned()));
            // It is gone with the end of this round, and the other comes in the next.
        }
    });
}

#[test]
fn readyz_is_green_with_an_engine_that_answers_and_names_the_generation() {
    run(async {
        let world = World::start(config(&[engine().await]), true).await;
        let is_published = |status: u16, body: &str| status == 200 && body.starts_with("generation ") && body != "generation 0\n";
        world.until("/readyz", is_published).await;
    });
}
