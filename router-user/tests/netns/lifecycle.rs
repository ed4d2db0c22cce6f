//! Attach, restart, refuse, detach.

use std::{
    env, fs, io,
    net::SocketAddr,
    process::Command,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use router_common::layout;
use router_user::kernel::{self, KernelConfig, KernelError, KernelPlane, KernelStatus};

use crate::{
    client::{connect, connect_times, connect_while},
    engine::{Engine, start_and_wait, this_test},
    world::{World, in_world, numbered, table, wait_until},
};

const ENGINE: &str = "127.0.0.1:18001";
const OTHER_ENGINE: &str = "127.0.0.1:18002";
const READY: &str = "daemon steers";
/// The generation it publishes first, 7 unless set.
const FIRST: &str = "ILB_TEST_DAEMON_FIRST";
/// Set for a daemon that publishes without end.
const RESTLESS: &str = "ILB_TEST_DAEMON_RESTLESS";
const CONFIG: [&str; 3] = ["ILB_TEST_DAEMON_SERVICE", "ILB_TEST_DAEMON_PINS", "ILB_TEST_DAEMON_CGROUP"];

fn one_engine() -> Vec<(u16, SocketAddr)> {
    numbered(&[ENGINE.parse().expect("a valid address")])
}

/// Not a test of its own: a daemon that attaches, publishes and then waits to be killed, or
/// publishes on until it is.
#[test]
#[ignore = "the body of the daemon process that another test starts"]
fn daemon_process() {
    let [service, pins, cgroup] = CONFIG.map(|name| env::var(name).expect("started by a test that sets the variables"));
    let config = KernelConfig { service: service.parse().unwrap(), pin_dir: pins.into(), cgroup: Some(cgroup.into()) };
    let mut plane = KernelPlane::attach(&config).unwrap();
    let first = env::var(FIRST).map_or(7, |first| first.parse().expect("a generation"));
    plane.apply(first, table(&[1.0]).slots(), &one_engine(), &[0]).unwrap();
    println!("{READY}");
    if env::var_os(RESTLESS).is_none() {
        loop {
            thread::park();
        }
    }
    // Two engines change places and numbers with every generation.
    let tables = [table(&[1.0, 0.0]), table(&[0.0, 1.0])];
    let mut engines = two_engines();
    for generation in first + 1.. {
        plane.apply(generation, tables[generation as usize % 2].slots(), &engines, &[0, 1]).unwrap();
        engines = vec![(0, engines[1].1), (1, engines[0].1)];
    }
}

fn two_engines() -> Vec<(u16, SocketAddr)> {
    numbered(&[ENGINE, OTHER_ENGINE].map(|address| address.parse().expect("a valid address")))
}

#[test]
fn a_daemon_killed_while_it_publishes_harms_nobody() {
    in_world(|world| {
        let _engines = [Engine::start(world, 'a', ENGINE), Engine::start(world, 'b', OTHER_ENGINE)];
        let mut generation = 0;
        for round in 0..5 {
            let mut command = daemon(world);
            if round > 0 {
                // Where the last one left off.
                command.env(FIRST, (generation + 1).to_string());
            }
            let mut daemon = start_and_wait(command.env(RESTLESS, "1"), READY);
            let (tally, ()) = connect_while(world.service, 2, || {
                let start = world.status().generation;
                assert!(wait_until(Duration::from_secs(10), || world.status().generation > start + 3), "nothing is published");
                daemon.kill().unwrap();
                daemon.wait().unwrap();
                let steered = world.counter("picked_rank_0");
                assert!(wait_until(Duration::from_secs(10), || world.counter("picked_rank_0") > steered + 200), "nobody steers");
            });
            assert_eq!((tally.failed.as_slice(), tally.broken), ([].as_slice(), 0));
            generation = world.status().generation;
        }
        assert_eq!(world.counter("refused_no_listener"), 0);
        let mut plane = world.attach();
        assert_eq!(plane.generation(), generation);
        plane.apply(generation + 1, table(&[0.0, 1.0]).slots(), &two_engines(), &[0, 1]).unwrap();
        assert_eq!(connect_times(world.service, 100).by_engine, [('b', 100)].into());
    });
}

fn daemon(world: &World) -> Command {
    let mut command = this_test("lifecycle::daemon_process");
    command.env(CONFIG[0], world.service.to_string()).env(CONFIG[1], &world.pin_dir).env(CONFIG[2], &world.cgroup);
    command
}

#[test]
fn the_kernel_steers_on_while_the_daemon_is_dead_and_restarts() {
    in_world(|world| {
        let mut daemon = start_and_wait(&mut daemon(world), READY);
        let engine = Engine::start(world, 'a', ENGINE);
        assert!(matches!(KernelPlane::attach(&world.config()), Err(KernelError::InUse { .. })), "one daemon at a time");
        let before = world.status();

        let (tally, mut plane) = connect_while(world.service, 2, || {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
            let steered = world.counter("picked_rank_0");
            assert!(wait_until(Duration::from_secs(10), || world.counter("picked_rank_0") > steered + 500), "nobody steers");
            let plane = world.attach();
            let steered = world.counter("picked_rank_0");
            assert!(wait_until(Duration::from_secs(10), || world.counter("picked_rank_0") > steered + 500), "nobody steers");
            plane
        });
        assert_eq!((tally.failed.as_slice(), tally.broken), ([].as_slice(), 0));

        assert_eq!(plane.generation(), 7);
        let after = world.status();
        assert_eq!(after.counters["picked_rank_0"], tally.answered(), "the counters went on");
        assert_eq!(after.engines[0].address, engine.address);
        for (old, new) in before.programs.iter().zip(&after.programs) {
            assert_ne!(old.id, new.id, "{} was replaced by the new daemon's", new.name);
        }
        assert!(matches!(
            plane.apply(6, table(&[1.0]).slots(), &one_engine(), &[0]),
            Err(KernelError::OldGeneration { offered: 6, live: 7 })
        ));
        plane.apply(8, table(&[1.0]).slots(), &one_engine(), &[0]).unwrap();
        assert_eq!(world.status().generation, 8);
    });
}

#[test]
fn a_refused_table_changes_nothing() {
    in_world(|world| {
        let mut plane = world.attach();
        let _engine = Engine::start(world, 'a', ENGINE);
        let slots = table(&[1.0]);
        assert!(matches!(plane.apply(0, slots.slots(), &one_engine(), &[0]), Err(KernelError::GenerationRange { offered: 0 })));
        plane.apply(5, slots.slots(), &one_engine(), &[0]).unwrap();
        let unreachable = "0.0.0.0:80".parse().unwrap();
        let refused = [
            plane.apply(4, slots.slots(), &one_engine(), &[0]),
            plane.apply(6, slots.slots(), &[], &[]),
            plane.apply(6, slots.slots(), &one_engine(), &[3]),
            plane.apply(6, slots.slots(), &numbered(&[unreachable]), &[0]),
        ];
        assert!(matches!(refused[0], Err(KernelError::OldGeneration { .. })));
        assert!(matches!(refused[1], Err(KernelError::UnknownEngine { engine: 0 })));
        assert!(matches!(refused[2], Err(KernelError::UnknownEngine { engine: 3 })));
        assert!(matches!(refused[3], Err(KernelError::EngineAddress { engine: 0, .. })));
        assert_eq!(world.status().generation, 5);
        assert_eq!(connect_times(world.service, 10).by_engine, [('a', 10)].into());
        plane.apply(5, slots.slots(), &one_engine(), &[0]).expect("the same generation again is a new table for it");
    });
}

#[test]
fn detach_leaves_nothing_behind() {
    in_world(|world| {
        let mut plane = world.attach();
        let _engine = Engine::start(world, 'a', ENGINE);
        plane.apply(1, table(&[1.0]).slots(), &one_engine(), &[0]).unwrap();
        assert_eq!(connect_times(world.service, 10).answered(), 10);
        let status = world.status();
        assert!(status.attached);
        let programs: Vec<_> = status.programs.iter().map(|program| program.id).collect();
        assert!(matches!(kernel::detach(&world.pin_dir), Err(KernelError::InUse { .. })), "not while a daemon uses it");

        drop(plane);
        assert!(kernel::detach(&world.pin_dir).unwrap());
        assert!(!world.pin_dir.exists());
        assert!(connect(world.service).is_err());
        let is_loaded = |id: &u32| aya::programs::loaded_programs().flatten().any(|program| program.id() == *id);
        let has_link = |id: &u32| aya::programs::loaded_links().flatten().any(|link| link.program_id() == *id);
        let gone = wait_until(Duration::from_secs(5), || !programs.iter().any(|id| is_loaded(id) || has_link(id)));
        assert!(gone, "programs or links are still in the kernel");
        assert!(!KernelStatus::read(&world.pin_dir).unwrap().attached);
        assert!(!kernel::detach(&world.pin_dir).unwrap(), "there is nothing left to remove");

        let plane = world.attach();
        assert_eq!(plane.generation(), 0, "generations begin anew");
    });
}

#[test]
fn pins_of_another_layout_are_refused_until_detached() {
    in_world(|world| {
        drop(world.attach());
        let path = world.pin_dir.join(layout::LAYOUT.name);
        let pinned = || aya::maps::MapData::from_pin(&path).unwrap();
        let mut version = aya::maps::Array::<_, u32>::try_from(aya::maps::Map::Array(pinned())).unwrap();
        version.set(0, 99, 0).unwrap();
        let error = KernelPlane::attach(&world.config()).err().expect("another version is refused");
        assert!(matches!(error, KernelError::LayoutVersion { found: 99, .. }) && error.to_string().contains("ilb kernel detach"));
        assert!(kernel::detach(&world.pin_dir).unwrap());

        // A map of another shape under one of our names.
        drop(world.attach());
        let (from, to) = (world.pin_dir.join(layout::SETTINGS.name), world.pin_dir.join(layout::CONTROL.name));
        fs::remove_file(&to).unwrap();
        aya::maps::MapData::from_pin(&from).unwrap().pin(&to).unwrap();
        let error = KernelPlane::attach(&world.config()).err().expect("another shape is refused");
        assert!(matches!(error, KernelError::MapShape { .. }) && error.to_string().contains("ilb kernel detach"), "{error}");
    });
}

#[test]
fn another_namespace_does_not_take_pins_over() {
    in_world(|world| {
        drop(world.attach());
        let config = world.config();
        let error = thread::spawn(move || {
            crate::world::enter_network_namespace();
            KernelPlane::attach(&config).err().map(|error| error.to_string())
        });
        let error = error.join().unwrap().expect("another namespace is refused");
        assert!(error.contains("network namespace") && error.contains("ilb kernel detach"), "{error}");
        world.attach();
    });
}

#[test]
fn without_capabilities_the_reason_is_one_line() {
    in_world(|world| {
        let config = world.config();
        let error = thread::spawn(move || {
            keep_capabilities(0);
            KernelPlane::attach(&config).err().expect("nothing can be attached without capabilities").to_string()
        });
        let error = error.join().unwrap();
        assert!(error.contains("CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON") && !error.contains('\n'), "{error}");
        assert!(!world.pin_dir.exists());
    });
}

#[test]
fn three_capabilities_are_enough() {
    in_world(|world| {
        // Mounting bpffs takes more capabilities. Once it is mounted, these are enough.
        drop(world.attach());
        assert!(kernel::detach(&world.pin_dir).unwrap());
        const CAP_NET_ADMIN: u64 = 1 << 12;
        const CAP_PERFMON: u64 = 1 << 38;
        const CAP_BPF: u64 = 1 << 39;
        let config = world.config();
        let attached = thread::spawn(move || {
            keep_capabilities(CAP_BPF | CAP_NET_ADMIN | CAP_PERFMON);
            let mut plane = KernelPlane::attach(&config)?;
            plane.apply(1, table(&[1.0]).slots(), &one_engine(), &[0])?;
            plane.status()
        });
        let status = attached.join().unwrap().unwrap();
        assert!(status.attached);
        let _engine = Engine::start(world, 'a', ENGINE);
        assert_eq!(connect_times(world.service, 10).by_engine, [('a', 10)].into());
    });
}

/// Takes every capability but the given ones from the calling thread.
fn keep_capabilities(kept: u64) {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header { version: VERSION_3, pid: 0 };
    let (low, high) = (kept as u32, (kept >> 32) as u32);
    // Effective, permitted and inheritable; first of the capabilities below 32, then of the others.
    let sets = [low, low, 0, high, high, 0_u32];
    // SAFETY: both structures are laid out as version 3 of the call wants them, and outlive it.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) }, 0);
}

#[test]
fn a_service_needs_an_address_and_a_port() {
    in_world(|world| {
        for service in ["0.0.0.0:9000", "[::]:9000", "127.0.0.1:0"] {
            let config = KernelConfig { service: service.parse().unwrap(), ..world.config() };
            let error = KernelPlane::attach(&config).err().expect("such a service is refused");
            assert!(matches!(error, KernelError::ServiceAddress { .. }) && error.to_string().contains(service), "{error}");
        }
    });
}

#[test]
fn a_restart_may_move_the_service() {
    in_world(|world| {
        let mut plane = world.attach();
        let _engine = Engine::start(world, 'a', ENGINE);
        plane.apply(1, table(&[1.0]).slots(), &one_engine(), &[0]).unwrap();
        drop(plane);
        let moved: SocketAddr = "127.0.0.101:9001".parse().unwrap();
        let plane = KernelPlane::attach(&KernelConfig { service: moved, ..world.config() }).unwrap();
        assert_eq!(connect_times(moved, 10).by_engine, [('a', 10)].into());
        assert!(connect(world.service).is_err(), "the old address is nobody's");
        let status = plane.status().unwrap();
        assert_eq!((status.service, status.generation), (Some(moved), 1));
    });
}

#[test]
fn rare_events_reach_the_log() {
    in_world(|world| {
        let mut plane = world.attach();
        plane.apply(1, table(&[1.0]).slots(), &one_engine(), &[0]).unwrap();
        assert_eq!(connect_times(world.service, 100).failed.len(), 100);
        let _engine = Engine::start(world, 'a', ENGINE);
        assert_eq!(connect_times(world.service, 100).answered(), 100);

        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || plane.maintain()).unwrap();
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert_eq!(log.matches("engine listens, endpoint id 0").count(), 1, "{log}");
        // A hundred refusals, at most one report a second.
        assert!((1..=2).contains(&log.matches("refuses connections").count()), "{log}");
        assert_eq!(log.lines().count(), log.matches("kernel: ").count(), "{log}");
    });
}

/// Where the log goes in a test.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
