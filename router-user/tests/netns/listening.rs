//! How listeners become known.

use std::{
    net::{SocketAddr, TcpListener},
    thread,
};

use router_user::kernel::{KernelConfig, KernelPlane};

use crate::{
    client::connect_times,
    engine::{Engine, answer},
    world::{World, in_world, numbered, table},
};

fn apply_one(world: &World, address: &str) -> KernelPlane {
    let mut plane = world.attach();
    let address: SocketAddr = address.parse().expect("a valid address");
    plane.apply(1, table(&[1.0]).slots(), &numbered(&[address]), &[0]).unwrap();
    plane
}

#[test]
fn an_engine_that_listened_before_is_found() {
    in_world(|world| {
        let _engine = Engine::start(world, 'a', "127.0.0.1:18001");
        let _plane = apply_one(world, "127.0.0.1:18001");
        assert_eq!(connect_times(world.service, 100).by_engine, [('a', 100)].into());
        assert_eq!(world.counter("registered"), 0, "the program never saw it listen");
    });
}

#[test]
fn an_engine_outside_the_cgroup_is_found_by_maintenance() {
    in_world(|world| {
        let mut plane = apply_one(world, "127.0.0.1:18001");
        // This process is not in the test's cgroup.
        let listener = TcpListener::bind("127.0.0.1:18001").unwrap();
        assert!(!world.status().engines[0].is_listening);
        plane.maintain().unwrap();
        assert!(world.status().engines[0].is_listening);
        thread::spawn(move || listener.incoming().for_each(|client| answer(client.unwrap(), "x")));
        assert_eq!(connect_times(world.service, 10).by_engine, [('x', 10)].into());
    });
}

#[test]
fn of_sockets_that_share_an_address_another_takes_over() {
    in_world(|world| {
        let mut plane = apply_one(world, "127.0.0.1:18001");
        let _older = Engine::start_sharing(world, 'a', "127.0.0.1:18001");
        let newer = Engine::start_sharing(world, 'b', "127.0.0.1:18001");
        let tally = connect_times(world.service, 400);
        assert!(tally.share('a') > 0.3 && tally.share('b') > 0.3, "the kernel spreads within the group: {tally:?}");
        newer.kill();
        assert!(!world.status().engines[0].is_listening);
        plane.maintain().unwrap();
        assert_eq!(connect_times(world.service, 50).by_engine, [('a', 50)].into());
    });
}

#[test]
fn wildcard_listeners_count_for_their_port() {
    for wildcard in ["0.0.0.0:18001", "[::]:18001"] {
        in_world(move |world| {
            let plane = apply_one(world, "127.0.0.1:18001");
            let engine = Engine::start(world, 'a', wildcard);
            assert_eq!(connect_times(world.service, 50).by_engine, [('a', 50)].into(), "{wildcard} registers itself");
            assert_eq!(world.counter("registered"), 1);
            plane.detach().unwrap();
            let _plane = apply_one(world, "127.0.0.1:18001");
            assert_eq!(connect_times(world.service, 50).by_engine, [('a', 50)].into(), "{wildcard} is found");
            engine.kill();
        });
    }
}

#[test]
fn a_listener_in_another_network_namespace_is_ignored() {
    in_world(|world| {
        let _plane = apply_one(world, "127.0.0.1:18001");
        let _elsewhere = Engine::start_elsewhere(world, 'x', "0.0.0.0:18001");
        assert_eq!(world.counter("ignored_namespace"), 1);
        assert!(!world.status().engines[0].is_listening);
        assert_eq!(connect_times(world.service, 10).failed.len(), 10);
    });
}

#[test]
fn ipv6_services_and_engines_are_steered() {
    in_world(|world| {
        let service = "[::1]:9000".parse().unwrap();
        let mut plane = KernelPlane::attach(&KernelConfig { service, ..world.config() }).unwrap();
        let addresses = ["[::1]:18001", "[::1]:18002"].map(|address| address.parse().unwrap());
        plane.apply(1, table(&[0.5, 0.5]).slots(), &numbered(&addresses), &[0, 1]).unwrap();
        let _engines = [Engine::start(world, 'a', "[::1]:18001"), Engine::start(world, 'b', "[::1]:18002")];
        let tally = connect_times(service, 1_000);
        assert_eq!(tally.answered(), 1_000, "{tally:?}");
        // Four standard deviations of a fair coin.
        assert!((tally.share('a') - 0.5).abs() < 0.064, "{tally:?}");
    });
}
