//! Where, when and of what a measurement was made: what has to stand beside every figure.

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::clock;

#[derive(Clone, Debug, Serialize)]
pub struct Origin {
    machine: String,
    kernel: String,
    cores: usize,
    /// The machine's load average before anything was started here: what else ran beside the
    /// measurement.
    load_before: f64,
    pub date: String,
    commit: String,
    command: String,
}

impl Origin {
    /// Errors: no load average to be read.
    pub fn here() -> Result<Self> {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let machine = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Ok(Self {
            machine: machine.trim_start_matches(['\t', ' ', ':']).to_owned(),
            kernel: kernel.trim().to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            load_before: load_average()?,
            date: humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + clock::unix_time()).to_string(),
            commit: commit(),
            command: command(),
        })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machine, kernel, cores, load_before, date, commit, command } = self;
        write!(
            f,
            "{machine}, {cores} cores, Linux {kernel}; load average before {load_before:.1}; {date}; commit {commit}; `{command}`."
        )
    }
}

/// The machine's load average over the last minute.
fn load_average() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").context("failed to read /proc/loadavg")?;
    let first = text.split(' ').next().unwrap_or_default();
    first.parse().with_context(|| format!("/proc/loadavg starts with {first:?}; wanted a number"))
}

/// The commit of the working tree, marked when it has changes.
fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(hash) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".to_owned() };
    let is_changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
    if is_changed { format!("{hash} with changes") } else { hash }
}

/// The command line, without the path of the program.
fn command() -> String {
    let mut words = std::env::args();
    let program = words.next().unwrap_or_default();
    let name = Path::new(&program).file_name().map_or_else(|| program.clone(), |name| name.to_string_lossy().into_owned());
    std::iter::once(name).chain(words).collect::<Vec<_>>().join(" ")
}
