//! Builds the eBPF object that `ilb` embeds: another target, another compiler and a lock file of
//! its own.

use std::{env, fs, path::Path, process::Command};

use anyhow::Context as _;

use crate::{
    command::{command, run},
    setup,
    toolchain::{Compiler, DISTRIBUTION_CARGO, DISTRIBUTION_RUSTC, Toolchain},
};

#[path = "../../router-ebpf/source_digest.rs"]
mod source_digest;

use source_digest::{OBJECT, source_digest};

/// 64-bit little-endian eBPF, the byte order of every host we build for.
const TARGET: &str = "bpfel-unknown-none";

/// Builds the object, unless there is one of these sources.
pub(crate) fn build_ebpf(root: &Path) -> anyhow::Result<()> {
    let object = root.join(OBJECT);
    let record = object.with_extension("sources");
    let digest = source_digest(root).context("cannot read the sources of the eBPF object")?;
    if object.exists() && fs::read_to_string(&record).is_ok_and(|built_from| built_from == digest) {
        return Ok(());
    }
    setup::ensure()?;
    let toolchain = Toolchain::find()?;
    let folder = root.join("router-ebpf");
    let mut cargo = cargo(&toolchain);
    cargo.args(["-Z", "build-std=core", "build", "--release", "--locked", "--target", TARGET, "--target-dir"]);
    run(cargo.arg(folder.join("target")).current_dir(&folder))?;

    let built = folder.join("target").join(TARGET).join("release/router-ebpf");
    let context = || format!("cannot put the eBPF object at {}", object.display());
    // The record of the sources is removed first and written last, so that an interrupted build
    // never looks finished.
    if record.exists() {
        fs::remove_file(&record).with_context(context)?;
    }
    fs::copy(&built, &object).with_context(context)?;
    fs::write(&record, digest).with_context(context)
}

fn cargo(toolchain: &Toolchain) -> Command {
    let mut cargo = match toolchain.compiler {
        Compiler::Distribution => {
            let mut cargo = Command::new(DISTRIBUTION_CARGO);
            // A release compiler builds the standard library only with the features of a nightly.
            cargo.env("RUSTC", DISTRIBUTION_RUSTC).env("RUSTC_BOOTSTRAP", "1");
            cargo
        }
        Compiler::Nightly => command("rustup", ["run", "nightly", "cargo"]),
    };
    // This task runs under cargo, whose variables name another compiler, target folder and flags.
    for name in [
        "CARGO",
        "RUSTUP_TOOLCHAIN",
        "CARGO_TARGET_DIR",
        "CARGO_BUILD_TARGET_DIR",
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTC_WRAPPER",
    ] {
        cargo.env_remove(name);
    }
    if matches!(toolchain.compiler, Compiler::Nightly) {
        cargo.env_remove("RUSTC");
    }
    let linker_folder = toolchain.linker.parent().map(Path::to_owned);
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(linker_folder.into_iter().chain(env::split_paths(&path))).unwrap_or(path);
    cargo.env("PATH", path);
    cargo
}
