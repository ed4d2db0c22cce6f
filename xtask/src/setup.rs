//! Installs the tools for building and testing on Debian and Ubuntu, as root. Elsewhere it prints
//! the commands.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};
use clap::Args;

use crate::{
    command::{command, is_root, output, run, text},
    toolchain::{Compiler, Toolchain, linker, linker_llvm},
};

#[derive(Args, Default)]
pub(crate) struct Options {
    /// Install the rival proxies and the load generator that the benchmarks compare with, too.
    #[arg(long)]
    bench: bool,
}

/// Packages for building and testing: for HiGHS cmake, make, a C++ compiler and libclang; for
/// bpf-linker the three libraries of LLVM; for the etcd client protoc and its standard messages;
/// and the tools of the tests.
const PACKAGES: [&str; 12] = [
    "cmake",
    "make",
    "g++",
    "libclang-dev",
    "zlib1g-dev",
    "libzstd-dev",
    "libxml2-dev",
    "protobuf-compiler",
    "libprotobuf-dev",
    "python3-venv",
    "iproute2",
    "etcd-server",
];
/// Packages for `ilb-bench compare`.
const BENCH_PACKAGES: [&str; 3] = ["haproxy", "nginx", "wrk"];
/// A Rust compiler with the source of its standard library.
const COMPILER_PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "rust-web-src"];
/// Major version of the LLVM of [`COMPILER_PACKAGES`], to name its packages before the compiler is
/// installed.
const PACKAGED_LLVM: u32 = 22;
/// Version of bpf-linker that this workspace is tested with.
const BPF_LINKER_VERSION: &str = "0.13.0";

/// Installs missing tools for building and testing. Takes less than a second without any.
pub(crate) fn ensure() -> anyhow::Result<()> {
    setup(&Options::default())
}

/// Installs missing tools.
///
/// Errors: the machine is neither Debian nor Ubuntu, or this is not root; the text has the
/// commands.
pub(crate) fn setup(options: &Options) -> anyhow::Result<()> {
    if is_debian() { on_debian(options) } else { elsewhere() }?;
    // Names the remaining faults, above all a linker of another LLVM.
    Toolchain::find().map(drop)
}

fn on_debian(options: &Options) -> anyhow::Result<()> {
    let mut packages: Vec<String> = PACKAGES.map(str::to_owned).to_vec();
    if options.bench {
        packages.extend(BENCH_PACKAGES.map(str::to_owned));
    }
    let compiler = Compiler::find();
    let mut wants_nightly = false;
    match &compiler {
        None if has_candidate(COMPILER_PACKAGES[0]) => packages.extend(COMPILER_PACKAGES.map(str::to_owned)),
        None => wants_nightly = true,
        Some(_) => {}
    }
    let is_distribution = !wants_nightly && !matches!(compiler, Some(Compiler::Nightly));
    let llvm = compiler.as_ref().map_or(Ok(PACKAGED_LLVM), Compiler::llvm)?;
    let wants_linker = linker().is_none_or(|linker| linker_llvm(&linker).is_some_and(|found| found != llvm));
    if wants_linker && is_distribution {
        packages.push(format!("llvm-{llvm}-dev"));
    }

    let missing = missing_packages(&packages);
    let mut commands = Vec::new();
    if !missing.is_empty() {
        commands.push(command("apt-get", ["update", "-qq"]));
        let mut install = command("apt-get", ["install", "-y", "-qq", "--no-install-recommends"]);
        install.args(&missing).env("DEBIAN_FRONTEND", "noninteractive");
        commands.push(install);
    }
    if wants_nightly {
        commands.push(install_nightly());
    }
    if wants_linker {
        commands.push(install_linker(is_distribution.then_some(llvm)));
    }
    if !missing.is_empty() && !is_root() {
        bail!("{}", instructions("as root", &commands));
    }
    let policy = (!missing.is_empty()).then(NoServices::new).transpose()?;
    for command in &mut commands {
        eprintln!("setup: {}", text(command));
        run(command)?;
    }
    drop(policy);
    Ok(())
}

fn elsewhere() -> anyhow::Result<()> {
    let mut commands = Vec::new();
    let compiler = Compiler::find();
    if compiler.is_none() {
        commands.push(install_nightly());
    }
    let llvm = compiler.as_ref().map(Compiler::llvm).transpose()?;
    let is_usable = |found: Option<u32>| found.is_none() || llvm.is_none() || found == llvm;
    if !linker().is_some_and(|linker| is_usable(linker_llvm(&linker))) {
        commands.push(install_linker(None));
    }
    let missing: Vec<_> =
        ["cmake", "make", "c++", "protoc", "etcd", "ip", "python3"].into_iter().filter(|program| !is_on_path(program)).collect();
    if commands.is_empty() && missing.is_empty() {
        return Ok(());
    }
    let mut message = instructions("here (this is neither Debian nor Ubuntu)", &commands);
    if !missing.is_empty() {
        message.push_str(&format!("\nand, with the system's package manager, what provides {}", missing.join(", ")));
    }
    bail!("{message}");
}

fn install_nightly() -> Command {
    command("rustup", ["toolchain", "install", "nightly", "--profile", "minimal", "--component", "rust-src"])
}

/// bpf-linker, with the given LLVM of the distribution or with the one it brings itself.
fn install_linker(llvm: Option<u32>) -> Command {
    let mut install = command("cargo", ["install", "bpf-linker", "--version", BPF_LINKER_VERSION, "--locked", "--force"]);
    if let Some(llvm) = llvm {
        install.args(["--no-default-features", "--features", &format!("llvm-{llvm}")]);
        install.env("LLVM_PREFIX", format!("/usr/lib/llvm-{llvm}"));
    }
    // Its build must not land among this workspace's.
    install.env_remove("CARGO_TARGET_DIR");
    install
}

/// The commands to type.
fn instructions(place: &str, commands: &[Command]) -> String {
    let mut message = format!("some tools are missing; run {place}:");
    for command in commands {
        message.push_str("\n    ");
        for (name, value) in command.get_envs().filter_map(|(name, value)| Some((name, value?))) {
            message.push_str(&format!("{}={} ", name.display(), value.display()));
        }
        message.push_str(&text(command));
    }
    message
}

fn is_debian() -> bool {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let is_like = |line: &str| {
        let value = line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE="));
        value.is_some_and(|value| value.trim_matches('"').split(' ').any(|id| id == "debian" || id == "ubuntu"))
    };
    release.lines().any(is_like)
}

/// Whether apt knows a version of a package; its lists may be empty on a fresh image, so they are
/// fetched once if it does not.
fn has_candidate(package: &str) -> bool {
    let known = || output(&mut command("apt-cache", ["show", "--no-all-versions", package])).is_some_and(|text| !text.is_empty());
    known() || (is_root() && run(&mut command("apt-get", ["update", "-qq"])).is_ok() && known())
}

fn missing_packages(wanted: &[String]) -> Vec<String> {
    let mut query = command("dpkg-query", ["-W", "-f", "${Package} ${db:Status-Status}\n"]);
    // It fails when a package is unknown, and still lists the others.
    let listed = query.args(wanted).output().map(|output| output.stdout).unwrap_or_default();
    let listed = String::from_utf8_lossy(&listed);
    let installed: Vec<_> = listed.lines().filter_map(|line| line.strip_suffix(" installed")).collect();
    wanted.iter().filter(|package| !installed.contains(&package.as_str())).cloned().collect()
}

fn is_on_path(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

/// While this lives, packages that are installed do not start their services: etcd would take port
/// 2379, haproxy and nginx 80 and more.
struct NoServices {
    made: Option<PathBuf>,
}

impl NoServices {
    fn new() -> anyhow::Result<Self> {
        const FORBIDDEN: &str = "#!/bin/sh\nexit 101\n";
        let policy = Path::new("/usr/sbin/policy-rc.d");
        if policy.exists() {
            return Ok(Self { made: None });
        }
        let context = || format!("cannot write {}", policy.display());
        fs::write(policy, FORBIDDEN).with_context(context)?;
        fs::set_permissions(policy, fs::Permissions::from_mode(0o755)).with_context(context)?;
        Ok(Self { made: Some(policy.to_owned()) })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if let Some(policy) = &self.made
            && let Err(error) = fs::remove_file(policy)
        {
            eprintln!("setup: cannot remove {}: {error}", policy.display());
        }
    }
}
