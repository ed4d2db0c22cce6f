//! Where connections go.

use std::{net::SocketAddr, time::Duration};

use router_common::{
    limits::MAX_SCAN,
    slot::{NO_ENGINE, RANKS, SLOTS, Slot},
};

use crate::{
    client::{Tally, connect, connect_from, connect_times, connect_while},
    engine::Engine,
    world::{World, in_world, numbered, table, wait_until},
};

const ADDRESSES: [&str; 3] = ["127.0.0.1:18001", "127.0.0.1:18002", "127.0.0.1:18003"];
const WEIGHTS: [f64; 3] = [0.6, 0.3, 0.1];

fn addresses() -> Vec<SocketAddr> {
    ADDRESSES.iter().map(|address| address.parse().expect("a valid address")).collect()
}

fn start_three(world: &World) -> Vec<Engine> {
    ADDRESSES.iter().zip('a'..).map(|(address, name)| Engine::start(world, name, address)).collect()
}

fn assert_shares(tally: &Tally) {
    for (name, weight) in ('a'..).zip(WEIGHTS) {
        let share = tally.share(name);
        assert!((share - weight).abs() < 0.015, "engine {name} has a share of {share}, its weight is {weight}: {tally:?}");
    }
}

#[test]
fn shares_follow_the_weights() {
    in_world(|world| {
        let mut plane = world.attach();
        plane.apply(1, table(&WEIGHTS).slots(), &numbered(&addresses()), &[0, 1, 2]).unwrap();
        let _engines = start_three(world);
        let tally = connect_from(world.service, 20_000..30_000);
        assert_eq!((tally.answered(), tally.broken), (10_000, 0), "{tally:?}");
        assert_shares(&tally);

        let status = world.status();
        assert_eq!(status.counters["picked_rank_0"], 10_000);
        assert_eq!(status.counters["registered"], 3);
        for (engine, name) in status.engines.iter().zip('a'..) {
            assert!(engine.is_listening);
            assert_eq!(engine.picks, tally.by_engine[&name], "{status:?}");
        }
    });
}

#[test]
fn a_killed_engine_fails_no_connection() {
    in_world(|world| {
        let mut plane = world.attach();
        plane.apply(1, table(&WEIGHTS).slots(), &numbered(&addresses()), &[0, 1, 2]).unwrap();
        let mut engines = start_three(world);
        const CLIENTS: usize = 2;
        let (tally, ()) = connect_while(world.service, CLIENTS, || {
            assert!(wait_until(Duration::from_secs(10), || world.counter("picked_rank_0") > 2_000));
            engines.remove(0).kill();
            assert!(wait_until(Duration::from_secs(10), || world.counter("picked_rank_1") > 2_000));
        });
        assert_eq!(tally.failed, Vec::<String>::new());
        // Connections of the engine die with it: the one that it was answering, and those that it
        // had yet to accept, of which each client has one at most.
        assert!(tally.broken <= CLIENTS as u64 + 1, "{} connections broke", tally.broken);

        let status = world.status();
        let picked = status.counters["picked_rank_0"] + status.counters["picked_rank_1"];
        let made = tally.answered() + tally.broken;
        // A late segment of a connection that broke is looked up as well, and counts: the kernel
        // does not tell it from a new one.
        assert!((made..=made + 2 * tally.broken).contains(&picked), "{picked} picks for {made} connections: {status:?}");
        assert_eq!(status.counters["refused_no_listener"], 0);
        assert!(!status.engines[0].is_listening && status.engines[1].is_listening);

        // It comes back by listening, without anybody's help.
        let _back = Engine::start(world, 'a', ADDRESSES[0]);
        let tally = connect_times(world.service, 2_000);
        assert!(tally.share('a') > 0.5, "{tally:?}");
    });
}

#[test]
fn an_engine_that_is_drained_first_stops_unnoticed() {
    in_world(|world| {
        let mut plane = world.attach();
        plane.apply(1, table(&WEIGHTS).slots(), &numbered(&addresses()), &[0, 1, 2]).unwrap();
        let mut engines = start_three(world);
        let picked = |at_least: u64| wait_until(Duration::from_secs(10), || world.counter("picked_rank_0") > at_least);
        let (tally, ()) = connect_while(world.service, 2, || {
            assert!(picked(1_000));
            let others = table(&[0.0, 0.75, 0.25]);
            plane.apply(2, others.slots(), &numbered(&addresses()), &[1, 2]).unwrap();
            // Long enough for whatever the engine had accepted by then.
            assert!(picked(world.counter("picked_rank_0") + 500));
            engines.remove(0).kill();
            assert!(picked(world.counter("picked_rank_0") + 500));
        });
        assert_eq!((tally.failed.as_slice(), tally.broken), ([].as_slice(), 0));
        assert_eq!(world.counter("picked_rank_0"), tally.answered());
    });
}

#[test]
fn swapping_tables_under_load_fails_no_connection() {
    in_world(|world| {
        let mut plane = world.attach();
        let _engines = start_three(world);
        let tables = [table(&[1.0, 0.0, 0.0]), table(&[0.0, 0.0, 1.0]), table(&WEIGHTS)];
        const SWAPS: u64 = 60;
        plane.apply(1, tables[0].slots(), &numbered(&addresses()), &[0, 1, 2]).unwrap();
        let (tally, ()) = connect_while(world.service, 2, || {
            for generation in 2..SWAPS {
                plane.apply(generation, tables[generation as usize % 3].slots(), &numbered(&addresses()), &[0, 1, 2]).unwrap();
            }
        });
        assert_eq!((tally.failed.as_slice(), tally.broken), ([].as_slice(), 0));
        assert!(tally.answered() > 1_000, "{tally:?}");
        assert_eq!(world.counter("picked_rank_0"), tally.answered(), "every table has a live owner in every slot");

        plane.apply(SWAPS, tables[1].slots(), &numbered(&addresses()), &[0, 1, 2]).unwrap();
        assert_eq!(connect_times(world.service, 500).by_engine, [('c', 500)].into());
    });
}

#[test]
fn with_no_engine_left_connections_are_refused_at_once() {
    in_world(|world| {
        let mut plane = world.attach();
        plane.apply(1, table(&WEIGHTS).slots(), &numbered(&addresses()), &[0, 1, 2]).unwrap();
        let error = connect(world.service).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        assert_eq!(world.tcp_counter("TCPSynRetrans"), 0, "a dropped SYN would have been sent again");
        assert_eq!(world.counter("refused_no_listener"), 1);
        // Nor does a connection fall to whoever happens to listen at the virtual address: the
        // constraints may exclude it.
        let _bystander = Engine::start(world, 'p', &world.service.to_string());
        assert_eq!(connect(world.service).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
        assert_eq!(world.counter("refused_no_listener"), 2);
    });
}

#[test]
fn before_the_first_table_nothing_is_steered() {
    in_world(|world| {
        let _plane = world.attach();
        let _proxy = Engine::start(world, 'p', &world.service.to_string());
        assert_eq!(connect_times(world.service, 10).by_engine, [('p', 10)].into());
        assert_eq!(world.counter("passed_no_table"), 10);
        assert_eq!(world.counter("ignored_address"), 1);
    });
}

#[test]
fn connections_to_other_addresses_are_left_alone() {
    in_world(|world| {
        let mut plane = world.attach();
        plane.apply(1, table(&WEIGHTS).slots(), &numbered(&addresses()), &[0, 1, 2]).unwrap();
        let engines = start_three(world);
        assert_eq!(connect_times(engines[1].address, 10).by_engine, [('b', 10)].into());
        assert!(world.counter("passed_not_ours") >= 10);
    });
}

#[test]
fn an_engine_outside_the_table_is_never_used() {
    in_world(|world| {
        let mut plane = world.attach();
        let mut engines = start_three(world);
        // The slots know engines 0 and 1, and the fallback no other; 2 listens and has an address.
        let pair = table(&[0.5, 0.5]);
        plane.apply(1, pair.slots(), &numbered(&addresses()), &[0, 1]).unwrap();
        let tally = connect_times(world.service, 500);
        assert_eq!(tally.by_engine.keys().copied().collect::<String>(), "ab");
        engines.drain(..2).for_each(Engine::kill);
        let tally = connect_times(world.service, 200);
        assert_eq!((tally.answered(), tally.failed.len()), (0, 200), "{tally:?}");
        assert_eq!(world.counter("refused_no_listener"), 200);
        assert_eq!(world.status().engines[2].picks, 0);
    });
}

#[test]
fn when_a_slots_ranks_are_gone_the_other_eligible_engines_share() {
    in_world(|world| {
        let mut plane = world.attach();
        let mut engines = start_three(world);
        let mut only_first: Box<[Slot; SLOTS]> = vec![[NO_ENGINE; RANKS]; SLOTS].try_into().unwrap();
        only_first.iter_mut().for_each(|slot| slot[0] = 0);
        plane.apply(1, &only_first, &numbered(&addresses()), &[0, 1, 2]).unwrap();
        assert_eq!(connect_times(world.service, 100).by_engine, [('a', 100)].into());
        engines.remove(0).kill();
        let tally = connect_times(world.service, 1_000);
        assert_eq!(tally.answered(), 1_000, "{tally:?}");
        assert_eq!(world.counter("picked_by_scan"), 1_000);
        assert!(tally.by_engine[&'b'] > 300 && tally.by_engine[&'c'] > 250, "{tally:?}");
    });
}

#[test]
fn the_scan_reaches_its_last_engine_and_no_further() {
    in_world(|world| {
        let mut plane = world.attach();
        let all: Vec<SocketAddr> = (0..100).map(|index| SocketAddr::from(([127, 0, 0, 1], 20_000 + index))).collect();
        let mut only_first: Box<[Slot; SLOTS]> = vec![[NO_ENGINE; RANKS]; SLOTS].try_into().unwrap();
        only_first.iter_mut().for_each(|slot| slot[0] = 0);
        let eligible: Vec<u16> = (0..100).collect();
        plane.apply(1, &only_first, &numbered(&all), &eligible).unwrap();
        let beyond = Engine::start(world, 'x', &all[MAX_SCAN].to_string());
        assert_eq!(connect_times(world.service, 100).failed.len(), 100);
        assert_eq!(world.counter("refused_no_listener"), 100);
        let _last = Engine::start(world, 'a', &all[MAX_SCAN - 1].to_string());
        assert_eq!(connect_times(world.service, 100).by_engine, [('a', 100)].into());
        assert_eq!(world.counter("picked_by_scan"), 100);
        beyond.kill();
    });
}

#[test]
fn renumbering_engines_moves_no_listener() {
    in_world(|world| {
        let mut plane = world.attach();
        let _engines = start_three(world);
        let only_zero = table(&[1.0]);
        let all = addresses();
        plane.apply(1, only_zero.slots(), &[(0, all[0])], &[0]).unwrap();
        assert_eq!(connect_times(world.service, 100).by_engine, [('a', 100)].into());
        // Number 0 is another engine now, and the first is no longer known at all.
        plane.apply(2, only_zero.slots(), &[(0, all[2]), (1, all[1])], &[0]).unwrap();
        assert_eq!(connect_times(world.service, 100).by_engine, [('c', 100)].into());
        let known: Vec<_> = world.status().engines.iter().map(|engine| engine.address).collect();
        assert_eq!(known, all[1..]);
        // The endpoint id that was given up serves another address without a trace of the first.
        let fresh = Engine::start(world, 'd', "127.0.0.1:18004");
        plane.apply(3, only_zero.slots(), &[(0, fresh.address)], &[0]).unwrap();
        assert_eq!(connect_times(world.service, 100).by_engine, [('d', 100)].into());
        assert_eq!(world.status().engines[0].picks, 100);
    });
}
