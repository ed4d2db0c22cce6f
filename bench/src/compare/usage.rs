//! CPU time and memory of processes, and the cores they run on.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// CPU time and memory of the processes of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    /// User plus system time since they started, in the kernel's ticks of 10 ms.
    pub(super) cpu: Duration,
    /// Resident memory.
    pub(super) memory_kib: u64,
}

impl Usage {
    /// Sums over all processes of the group, from `/proc/PID/stat`; its fields are described in
    /// proc(5).
    pub(super) fn of(group: u32) -> Result<Self> {
        // SAFETY: sysconf takes no pointers.
        let (ticks, page) = unsafe { (libc::sysconf(libc::_SC_CLK_TCK), libc::sysconf(libc::_SC_PAGESIZE)) };
        let mut sum = Self { cpu: Duration::ZERO, memory_kib: 0 };
        let mut found = 0;
        for entry in std::fs::read_dir("/proc").context("failed to read /proc")?.flatten() {
            let is_process = entry.file_name().to_str().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()));
            // A process may end while this reads.
            let Some(text) = is_process.then(|| std::fs::read_to_string(entry.path().join("stat")).ok()).flatten() else {
                continue;
            };
            // The name, in parentheses, may hold anything; the fields after it are numbers.
            let fields: Vec<&str> = text.rsplit(") ").next().unwrap_or_default().split(' ').collect();
            let field = |number: usize| fields.get(number - 3).and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
            if field(5) != u64::from(group) {
                continue;
            }
            found += 1;
            sum.cpu += Duration::from_secs_f64((field(14) + field(15)) as f64 / ticks as f64);
            sum.memory_kib += field(24) * page.unsigned_abs() / 1024;
        }
        ensure!(found > 0, "process group {group} is gone");
        Ok(sum)
    }
}

/// The cores this process may run on.
pub(super) fn allowed_cores() -> Result<Vec<usize>> {
    let size = std::mem::size_of::<libc::cpu_set_t>();
    // SAFETY: an all-zero cpu_set_t is a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is writable and `size` is its size.
    let status = unsafe { libc::sched_getaffinity(0, size, &raw mut set) };
    ensure!(status == 0, "failed to read the allowed cores: {}", std::io::Error::last_os_error());
    // SAFETY: CPU_ISSET reads `set` within its bounds for numbers below CPU_SETSIZE.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect())
}

/// Keeps this process to `cores`; empty: no change.
pub(super) fn pin_self(cores: &[usize]) -> Result<()> {
    set_affinity(cores).context("failed to keep to some cores")
}

/// Keeps the coming process to `cores`; empty: no change.
pub(super) fn pin(command: &mut Command, cores: Vec<usize>) -> &mut Command {
    // SAFETY: the closure runs between fork and exec; it calls only sched_setaffinity and allocates
    // nothing.
    unsafe { command.pre_exec(move || set_affinity(&cores)) }
}

/// Where Linux keeps the nice value of a session's scheduling group; see sched(7), "The autogroup
/// feature".
const AUTOGROUP: &str = "/proc/self/autogroup";

/// A nice value for this process and all it starts; the session's own comes back when this is
/// dropped.
#[derive(Debug)]
pub(super) struct Nice {
    /// The session's value before, where sessions have one.
    before: Option<String>,
}

impl Nice {
    pub(super) fn set(nice: i32) -> Result<Self> {
        // SAFETY: setpriority takes no pointers.
        let status = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
        ensure!(status == 0, "failed to set nice to {nice}: {}", std::io::Error::last_os_error());
        // With autogroups a process's own value counts within its session only, and the session's
        // counts against the others'.
        let before = std::fs::read_to_string(AUTOGROUP).ok();
        let before = before.and_then(|text| text.trim().rsplit(' ').next().map(str::to_owned));
        if before.is_some() {
            std::fs::write(AUTOGROUP, nice.to_string()).with_context(|| format!("failed to write {nice} to {AUTOGROUP}"))?;
        }
        Ok(Self { before })
    }
}

impl Drop for Nice {
    fn drop(&mut self) {
        if let Some(before) = &self.before
            && let Err(error) = std::fs::write(AUTOGROUP, before)
        {
            tracing::warn!(%error, before, "failed to give the session its nice value back");
        }
    }
}

fn set_affinity(cores: &[usize]) -> std::io::Result<()> {
    if cores.is_empty() {
        return Ok(());
    }
    // SAFETY: an all-zero cpu_set_t is a valid, empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &core in cores {
        // SAFETY: CPU_SET writes within `set`; the numbers come from `allowed_cores`, which stays
        // below CPU_SETSIZE.
        unsafe { libc::CPU_SET(core, &mut set) };
    }
    // SAFETY: `set` is readable and the size is its size.
    match unsafe { libc::sched_setaffinity(0, std::mem::size_of::<libc::cpu_set_t>(), &raw const set) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Child;

    #[test]
    fn cpu_of_a_busy_group_grows_and_includes_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "sh -c 'while :; do :; done' & wait"]);
        let child = Child::spawn("busy", &mut command).expect("sh starts");
        let give_up = crate::clock::now() + Duration::from_secs(20);
        let mut cpu = Duration::ZERO;
        while cpu < Duration::from_millis(30) && crate::clock::now() < give_up {
            std::thread::sleep(Duration::from_millis(20));
            cpu = Usage::of(child.group()).expect("it runs").cpu;
        }
        assert!(cpu >= Duration::from_millis(30), "{cpu:?} after 20 s of a busy loop");
    }
}
