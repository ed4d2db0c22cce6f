//! Fuzzing with libFuzzer, on the stable compiler and in the folder of every other build.
//!
//! cargo calls this program in the place of rustc for the workspace's own crates
//! (`RUSTC_WORKSPACE_WRAPPER`), and it adds the flags of coverage. Dependencies keep their builds,
//! HiGHS above all, which takes minutes to compile.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, bail, ensure};
use clap::Args;

use crate::{
    build_ebpf,
    command::{command, run, text},
    run::target_dir,
    setup,
};

#[derive(Args)]
pub(crate) struct Options {
    /// Targets, by their folders in fuzz/corpus [default: all of them, side by side].
    targets: Vec<String>,
    /// Seconds that each target searches.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = parse_seconds)]
    time: u64,
    /// Keep the fewest and smallest of the inputs found so far that reach what all of them reach,
    /// in fuzz/corpus.
    #[arg(long)]
    keep: bool,
}

/// Tells this program that cargo calls it in the place of rustc; the value is the folder of
/// libFuzzer's archive.
const COMPILES: &str = "ILB_FUZZ_LIBFUZZER";
/// Tells the program that fuzzes its target.
const TARGET: &str = "ILB_FUZZ_TARGET";
/// The crates that are watched: the product, and the targets with what they check.
const WATCHED: [&str; 3] = ["router_common", "router_user", "fuzz"];
/// Longest input, in bytes: heads and bodies are interesting long before, and short inputs are
/// searched faster.
const INPUT_BYTES_MAX: u32 = 4096;
/// Longest time of one input, in seconds: slower is a fault.
const INPUT_SECONDS_MAX: u32 = 10;
/// Most memory of one target, in MiB.
const MEMORY_MIB_MAX: u32 = 2048;
/// Lines of a log that are shown when its target has failed.
const LOG_LINES: usize = 60;

/// "30", "30s" or "30m".
fn parse_seconds(text: &str) -> Result<u64, String> {
    let (number, factor) = match text.strip_suffix('m') {
        Some(minutes) => (minutes, 60),
        None => (text.strip_suffix('s').unwrap_or(text), 1),
    };
    let seconds = number.parse::<u32>().ok().filter(|&seconds| seconds > 0).map(|number| u64::from(number) * factor);
    seconds.ok_or_else(|| format!("is {text:?}; wanted seconds or minutes, such as 30s or 30m"))
}

/// Searches in every target for as many seconds.
pub(crate) fn all(root: &Path, time: u64) -> anyhow::Result<()> {
    fuzz(root, &Options { targets: Vec::new(), time, keep: false })
}

/// Builds the targets, then searches in all of them side by side.
///
/// Errors: an input breaks a target; the text names the file it lies in.
pub(crate) fn fuzz(root: &Path, options: &Options) -> anyhow::Result<()> {
    let corpus = root.join("fuzz/corpus");
    let known = folders(&corpus)?;
    let wanted = if options.targets.is_empty() { &known } else { &options.targets };
    if let Some(unknown) = wanted.iter().find(|name| !known.contains(name)) {
        bail!("no target {unknown:?}; wanted one of {}", known.join(", "));
    }
    let target = target_dir(root)?;
    let program = build(root, &target)?;
    let work = Work { program, corpus, found: target.join("fuzz") };
    let mut searches = Vec::new();
    for name in wanted {
        searches.push((name, work.search(name, options.time)?));
    }
    let mut failed = Vec::new();
    for (name, mut search) in searches {
        let status = search.wait().context("cannot wait for a target")?;
        println!("{name}: {}", work.summary(name));
        if !status.success() {
            eprintln!("{}", last_lines(&work.log(name)));
            failed.push(name.as_str());
        }
    }
    ensure!(failed.is_empty(), "inputs in {} break {}", work.crashes().display(), failed.join(", "));
    if options.keep {
        wanted.iter().try_for_each(|name| work.keep(name))?;
    }
    Ok(())
}

/// Builds the program of all targets, and libFuzzer for it.
fn build(root: &Path, target: &Path) -> anyhow::Result<PathBuf> {
    setup::ensure()?;
    build_ebpf::build_ebpf(root)?;
    let folder = target.join("fuzz/libfuzzer");
    let mut libfuzzer = command("cargo", ["build", "--release", "--locked", "--manifest-path", "fuzz/libfuzzer/Cargo.toml"]);
    run(libfuzzer.arg("--target-dir").arg(&folder).current_dir(root))?;
    let archive = archive(&folder.join("release/build")).context("libfuzzer-sys made no libfuzzer.a")?;
    // Of the whole workspace, so that the features of dependencies are those of every other build.
    let mut cargo = command("cargo", ["build", "--release", "--workspace", "--bin", "fuzz", "--features", "fuzz/libfuzzer"]);
    cargo.current_dir(root).env("RUSTC_WORKSPACE_WRAPPER", env::current_exe().context("cannot find this program")?);
    run(cargo.env(COMPILES, archive))?;
    Ok(target.join("release/fuzz"))
}

/// The newest folder with libFuzzer's archive among the outputs of build scripts.
fn archive(builds: &Path) -> Option<PathBuf> {
    let folders = fs::read_dir(builds).ok()?.filter_map(|entry| Some(entry.ok()?.path().join("out")));
    let dated = folders.filter_map(|folder| Some((folder.join("libfuzzer.a").metadata().ok()?.modified().ok()?, folder)));
    dated.max().map(|(_, folder)| folder)
}

/// Whether cargo calls this program in the place of rustc.
pub(crate) fn is_compiler() -> bool {
    env::var_os(COMPILES).is_some()
}

/// Compiles one crate of the workspace as cargo asks, with the flags of coverage where it is
/// watched.
pub(crate) fn compile() -> anyhow::Result<()> {
    let mut arguments = env::args_os().skip(1);
    let rustc = arguments.next().context("cargo names no compiler")?;
    let arguments: Vec<OsString> = arguments.collect();
    let after = |flag: &str| arguments.iter().position(|a| a == flag).and_then(|at| arguments.get(at + 1)?.to_str());
    let mut compiler = command(rustc, &arguments);
    if after("--crate-name").is_some_and(|name| WATCHED.contains(&name)) {
        compiler.args([
            "-C",
            "passes=sancov-module",
            "-C",
            "debug-assertions=on",
            "-C",
            "overflow-checks=on",
            "-C",
            "opt-level=3",
        ]);
        for option in ["level=4", "inline-8bit-counters", "pc-table", "trace-compares"] {
            compiler.args(["-C", &format!("llvm-args=-sanitizer-coverage-{option}")]);
        }
        if after("--crate-type") == Some("bin") {
            let folder = env::var(COMPILES).context("the folder of libFuzzer is no text")?;
            compiler.args(["-L", &format!("native={folder}"), "-l", "static=fuzzer", "-l", "stdc++"]);
        }
    }
    run(&mut compiler)
}

/// Where inputs come from and go to.
struct Work {
    program: PathBuf,
    /// The inputs that the repository keeps, a folder per target.
    corpus: PathBuf,
    /// The inputs that searches have found on this machine, a folder per target, their logs and the
    /// inputs that break something.
    found: PathBuf,
}

impl Work {
    fn log(&self, name: &str) -> PathBuf {
        self.found.join(format!("{name}.log"))
    }

    fn crashes(&self) -> PathBuf {
        self.found.join("crashes")
    }

    fn command(&self, name: &str, arguments: &[String]) -> anyhow::Result<Command> {
        let log = self.log(name);
        let found = self.found.join("corpus").join(name);
        for folder in [&found, &self.crashes()] {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = command(&self.program, arguments);
        command.env(TARGET, name).stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        Ok(command)
    }

    /// Starts a search that lasts `seconds` and ends at the first input that breaks the target.
    fn search(&self, name: &str, seconds: u64) -> anyhow::Result<Child> {
        let mut search = self.command(
            name,
            &[
                format!("-max_total_time={seconds}"),
                format!("-max_len={INPUT_BYTES_MAX}"),
                format!("-timeout={INPUT_SECONDS_MAX}"),
                format!("-rss_limit_mb={MEMORY_MIB_MAX}"),
                format!("-artifact_prefix={}/{name}-", self.crashes().display()),
                "-print_final_stats=1".to_owned(),
            ],
        )?;
        search.arg(self.found.join("corpus").join(name)).arg(self.corpus.join(name));
        search.spawn().with_context(|| format!("cannot start {}", text(&search)))
    }

    /// Puts the fewest inputs that reach everything in the place of the kept ones.
    fn keep(&self, name: &str) -> anyhow::Result<()> {
        let kept = self.corpus.join(name);
        let merged = self.found.join("merged").join(name);
        let _ = fs::remove_dir_all(&merged);
        fs::create_dir_all(&merged).with_context(|| format!("cannot make {}", merged.display()))?;
        let mut merge = self.command(name, &["-merge=1".to_owned(), format!("-max_len={INPUT_BYTES_MAX}")])?;
        run(merge.arg(&merged).arg(&kept).arg(self.found.join("corpus").join(name)))?;
        for folder in [&kept, &merged] {
            println!("{name}: {} inputs in {}", fs::read_dir(folder)?.count(), folder.display());
        }
        fs::remove_dir_all(&kept)?;
        fs::create_dir_all(&kept)?;
        for entry in fs::read_dir(&merged)? {
            let entry = entry?;
            fs::copy(entry.path(), kept.join(entry.file_name()))?;
        }
        Ok(())
    }

    /// Executions and speed, as libFuzzer counts them.
    fn summary(&self, name: &str) -> String {
        let log = fs::read_to_string(self.log(name)).unwrap_or_default();
        let value = |stat: &str| {
            let mut values = log.lines().filter_map(|line| line.strip_prefix("stat::")?.strip_prefix(stat)?.strip_prefix(':'));
            values.next_back().map_or("?", str::trim).to_owned()
        };
        format!("{} inputs tried, {} per second", value("number_of_executed_units"), value("average_exec_per_sec"))
    }
}

fn last_lines(path: &Path) -> String {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

/// The folders in a folder, by name.
fn folders(parent: &Path) -> anyhow::Result<Vec<String>> {
    let context = || format!("cannot list {}", parent.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(parent).with_context(context)? {
        let entry = entry.with_context(context)?;
        if entry.path().is_dir() {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::parse_seconds;

    #[test]
    fn times_are_seconds_or_minutes() {
        for (text, expected) in [("30", Some(30)), ("5s", Some(5)), ("30m", Some(1800)), ("0", None), ("-1", None), ("1h", None)]
        {
            assert_eq!(parse_seconds(text).ok(), expected, "{text:?}");
        }
    }
}
