//! The addresses that the workers listen on.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use router_user::io::IoChoice;
use router_user::proxy::{DataPlane, ProxyConfig, ProxyError, ProxyHandle, start};
use rstest::rstest;

use super::world::Client;

fn listening(io: IoChoice, workers: usize, listen: &[SocketAddr]) -> Result<ProxyHandle, ProxyError> {
    let config = ProxyConfig { listen: listen.to_vec(), workers, ..Default::default() };
    start(&config, io, DataPlane::new("a".to_owned(), std::collections::HashMap::new()), 1)
}

#[rstest]
fn both_families_may_be_listened_on_at_one_port(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
    #[values(1, 3)] workers: usize,
) {
    // A port that is free now may be taken when it is asked for; then another one is tried.
    let handle = (0..100).find_map(|_| {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        listening(io, workers, &[(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()]).ok()
    });
    let handle = handle.expect("no port could be listened on for both families");
    let port = handle.local_addrs()[0].port();
    assert_eq!(handle.local_addrs()[1].port(), port);
    for address in [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), (Ipv6Addr::LOCALHOST, port).into()] {
        assert_eq!(Client::new(address).get("/healthz").text(), "ok\n", "{address}");
    }
}

#[rstest]
fn the_unspecified_address_of_ipv6_alone_takes_both_families(#[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice) {
    let handle = listening(io, 2, &[(Ipv6Addr::UNSPECIFIED, 0).into()]).unwrap();
    let port = handle.local_addrs()[0].port();
    for address in [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), (Ipv6Addr::LOCALHOST, port).into()] {
        assert_eq!(Client::new(address).get("/healthz").text(), "ok\n", "{address}");
    }
}

#[rstest]
fn a_port_of_another_proxy_is_not_shared_and_the_error_names_it_and_the_setting(
    #[values(IoChoice::Uring, IoChoice::Epoll)] io: IoChoice,
    #[values(1, 2)] workers: usize,
) {
    let first = listening(io, 2, &[(Ipv4Addr::LOCALHOST, 0).into()]).unwrap();
    let address = first.local_addrs()[0];
    let error = listening(io, workers, &[address]).err().expect("two proxies share a port").to_string();
    assert!(error.starts_with(&format!("proxy.listen: failed to listen on {address}: Address already in use")), "{error}");
}
