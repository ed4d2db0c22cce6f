//! Fields on the way to an engine: which are dropped, kept, rewritten and added.

use router_user::io::IoChoice;
use rstest::rstest;

use super::world::{Engine, World};

#[rstest]
fn offers_to_upgrade_are_ignored_and_not_passed_on(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("hello");
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    for offer in ["h2c", "TLS/1.2", "TLS/1.2, HTTP/1.1", "h2c, TLS/1.3", "HTTP/2.0", "websocket", "", "a b\r\nupgrade: c"] {
        let fields = format!(
            "Upgrade: {offer}\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMA\r\nUpgrade-Insecure-Requests: 1\r\n"
        );
        assert_eq!(client.ask(&fields).text(), "hello", "{offer:?}");
        let received = engine.received.lock().unwrap().pop().unwrap();
        for name in ["upgrade", "http2-settings", "connection"] {
            assert_eq!(received.field(name), None, "{offer:?}");
        }
        assert_eq!(received.field("upgrade-insecure-requests"), Some("1"), "another field");
    }
    assert_eq!(world.check_outcomes(&[]).outcomes["ok"], 8);
}

#[rstest]
fn names_with_underscores_cannot_pass_for_framing_own_or_identity_fields(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
) {
    let engine = Engine::echo("hello");
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    client.ask(
        "transfer_encoding: chunked\r\ncontent_length: 0\r\nX_Ilb_Class: x\r\nX_Request_Id: forged\r\nX_Forwarded_For: 6.6.6.6\r\n\
         Authorization: mine\r\nsession_id: 7\r\n",
    );
    let received = engine.received.lock().unwrap().pop().unwrap();
    let names: Vec<&str> = received.head.lines().skip(1).filter_map(|l| l.split_once(':')).map(|(name, _)| name).collect();
    assert_eq!(
        names,
        ["host", "Authorization", "session_id", "x-forwarded-for", "via", "x-request-id", "content-length"],
        "{received:?}"
    );
}

#[rstest]
fn a_client_cannot_nominate_away_what_a_tier_in_front_has_set(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let engine = Engine::echo("hello");
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    for name in ["x-api-key", "x-forwarded-proto", "x-real-ip", "traceparent", "forwarded", "authorization", "x-tenant"] {
        assert_eq!(client.ask(&format!("connection: keep-alive, {name}\r\n{name}: v\r\n")).text(), "hello");
        let received = engine.received.lock().unwrap().pop().unwrap();
        assert_eq!((received.field(name), received.field("connection")), (Some("v"), None), "{name}");
    }
    client.ask("connection: x-forwarded-for\r\nx-forwarded-for: 10.0.0.1\r\n");
    let received = engine.received.lock().unwrap().pop().unwrap();
    assert_eq!(received.field("x-forwarded-for"), Some("10.0.0.1, 127.0.0.1"));
}

#[rstest]
fn engines_learn_the_clients_address_and_this_hop_but_not_its_proxy_credentials(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
) {
    let engine = Engine::echo("hello");
    let world = World::new(io, &[&engine]);
    let mut client = world.client();
    client.ask("Proxy-Authorization: Basic x\r\n");
    client.ask("X-Forwarded-For: 10.0.0.1\r\nx-forwarded-for: 10.0.0.2\r\nVia: 1.1 edge\r\n");
    let received = engine.received.lock().unwrap();
    assert_eq!(
        (received[0].field("x-forwarded-for"), received[0].field("via"), received[0].field("proxy-authorization")),
        (Some("127.0.0.1"), Some("1.1 ilb"), None)
    );
    assert_eq!(received[1].field("x-forwarded-for"), Some("10.0.0.1, 10.0.0.2, 127.0.0.1"));
    assert!(received[1].head.contains("\r\nVia: 1.1 edge\r\n") && received[1].head.contains("\r\nvia: 1.1 ilb\r\n"));
}
