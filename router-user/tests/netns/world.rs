//! A test's own corner of the kernel.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use router_user::{
    kernel::{self, KernelConfig, KernelPlane, KernelStatus},
    model::EngineId,
    publish::slots::{Candidate, SlotTable, engine_key},
};

/// The virtual address of every test; each has a namespace of its own.
pub(crate) const SERVICE: &str = "127.0.0.100:9000";

/// A network namespace (that of the test's thread and of those it starts), a cgroup and a pin
/// directory.
pub(crate) struct World {
    pub(crate) cgroup: PathBuf,
    pub(crate) pin_dir: PathBuf,
    pub(crate) service: SocketAddr,
}

/// Runs a test in a new world, or says why it cannot.
pub(crate) fn in_world(test: impl FnOnce(&World) + Send + 'static) {
    if let Some(reason) = reason_to_skip() {
        assert!(std::env::var_os("ILB_KERNEL_TESTS_REQUIRED").is_none(), "kernel tests are required here, but {reason}");
        eprintln!("skipped: {reason}");
        return;
    }
    // A thread of its own, as a thread cannot leave its namespace without being able to come back.
    let result = thread::spawn(|| {
        enter_network_namespace();
        let world = World::new();
        test(&world);
    })
    .join();
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

fn reason_to_skip() -> Option<&'static str> {
    // SAFETY: the call has no conditions and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Some("this needs root: run `cargo xtask test` as root");
    }
    None
}

/// Moves the calling thread into a new network namespace whose loopback is up.
pub(crate) fn enter_network_namespace() {
    // SAFETY: the call changes the calling thread's namespace alone, and no socket of it is open.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "unshare: {}", io::Error::last_os_error());
    let status = Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("the program ip starts");
    assert!(status.success(), "ip: {status}");
}

impl World {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("ilb-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts are listed");
        let root = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|fields| fields[2] == "cgroup2");
        let cgroup = Path::new(root.expect("a cgroup v2 hierarchy is mounted")[1]).join(&name);
        fs::create_dir(&cgroup).expect("a cgroup can be made");
        Self { cgroup, pin_dir: Path::new("/sys/fs/bpf").join(name), service: SERVICE.parse().expect("a valid address") }
    }

    pub(crate) fn config(&self) -> KernelConfig {
        KernelConfig { service: self.service, pin_dir: self.pin_dir.clone(), cgroup: Some(self.cgroup.clone()) }
    }

    pub(crate) fn attach(&self) -> KernelPlane {
        KernelPlane::attach(&self.config()).expect("the plane attaches")
    }

    /// The status as any process sees it.
    pub(crate) fn status(&self) -> KernelStatus {
        KernelStatus::read(&self.pin_dir).expect("the pins can be read")
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.status().counters[name]
    }

    /// One of the kernel's own TCP counters, of this network namespace alone.
    pub(crate) fn tcp_counter(&self, name: &str) -> u64 {
        let text = fs::read_to_string("/proc/thread-self/net/netstat").expect("the kernel counts");
        let mut rows = text.lines().filter(|line| line.starts_with("TcpExt:")).map(|line| line.split(' '));
        let (names, values) = (rows.next().expect("names"), rows.next().expect("values"));
        let value = names.zip(values).find_map(|(found, value)| (found == name).then_some(value));
        value.expect("a counter of this kernel").parse().expect("a number")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Err(error) = kernel::detach(&self.pin_dir) {
            eprintln!("pins left behind: {error}");
        }
        // Processes that were killed take a moment to leave their cgroup.
        let removed = wait_until(Duration::from_secs(5), || fs::remove_dir(&self.cgroup).is_ok());
        if !removed {
            eprintln!("cgroup left behind: {}", self.cgroup.display());
        }
    }
}

/// A slot table in which engine number i has the i-th weight.
pub(crate) fn table(weights: &[f64]) -> SlotTable {
    let candidate = |(index, &weight): (usize, &f64)| {
        let key = engine_key(&format!("e{index}"));
        Candidate { engine: EngineId(index as u16), key, weight }
    };
    SlotTable::build(&weights.iter().enumerate().map(candidate).collect::<Vec<_>>())
}

/// Addresses numbered from 0.
pub(crate) fn numbered(addresses: &[SocketAddr]) -> Vec<(u16, SocketAddr)> {
    (0..).zip(addresses.iter().copied()).collect()
}

/// Tries until something holds or the time is over; whether it held.
pub(crate) fn wait_until(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    const STEP: Duration = Duration::from_millis(5);
    (0..limit.as_millis() / STEP.as_millis()).any(|_| {
        let held = holds();
        if !held {
            thread::sleep(STEP);
        }
        held
    })
}
