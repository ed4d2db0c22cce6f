//! Finds the compiler and the linker for eBPF.
//!
//! Building for `bpfel-unknown-none` takes a compiler with the source of the standard library, and
//! a bpf-linker built with the same LLVM. Debian and Ubuntu have such a compiler as packages
//! (`rustc-web`, `cargo-web`, `rust-web-src`). Elsewhere it is rustup's nightly with rust-src.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};

use crate::command::{command, output};

/// A compiler that can build the standard library for another target.
#[derive(Clone, Debug)]
pub(crate) enum Compiler {
    /// The distribution's own rustc and cargo.
    Distribution,
    /// rustup's nightly toolchain.
    Nightly,
}

/// The compiler and the linker that build the object.
pub(crate) struct Toolchain {
    pub(crate) compiler: Compiler,
    pub(crate) linker: PathBuf,
}

pub(crate) const DISTRIBUTION_RUSTC: &str = "/usr/bin/rustc";
pub(crate) const DISTRIBUTION_CARGO: &str = "/usr/bin/cargo";

/// The oldest Rust 1.x that aya-ebpf 0.2 builds with. Distributions also carry far older ones.
const MIN_RUST_MINOR: u32 = 87;

impl Compiler {
    /// The compiler of this machine; `None` without one. The distribution's comes first, as its
    /// parts are updated together.
    pub(crate) fn find() -> Option<Self> {
        [Self::Distribution, Self::Nightly].into_iter().find(Self::is_complete)
    }

    fn is_complete(&self) -> bool {
        if matches!(self, Self::Distribution) && !Path::new(DISTRIBUTION_CARGO).exists() {
            return false;
        }
        let sysroot = self.rustc(&["--print", "sysroot"]);
        let version = self.rustc(&["-vV"]).unwrap_or_default();
        let release = version.lines().find_map(|line| line.strip_prefix("release: 1.")).and_then(major);
        if release.is_none_or(|minor| minor < MIN_RUST_MINOR) {
            return false;
        }
        sysroot.is_some_and(|sysroot| Path::new(&sysroot).join("lib/rustlib/src/rust/library/core").is_dir())
    }

    /// The output of this compiler's rustc for the given arguments; `None` if it is not there.
    fn rustc(&self, arguments: &[&str]) -> Option<String> {
        match self {
            Self::Distribution => output(&mut command(DISTRIBUTION_RUSTC, arguments)),
            Self::Nightly => {
                output(command("rustup", ["run", "nightly", "rustc"].iter().chain(arguments)).env_remove("RUSTUP_TOOLCHAIN"))
            }
        }
    }

    /// The major version of its LLVM.
    pub(crate) fn llvm(&self) -> anyhow::Result<u32> {
        let version = self.rustc(&["-vV"]).context("the eBPF compiler does not print its version")?;
        let llvm = version.lines().find_map(|line| line.strip_prefix("LLVM version: ")).and_then(major);
        llvm.with_context(|| format!("the eBPF compiler names no LLVM version:\n{version}"))
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Distribution => DISTRIBUTION_RUSTC,
            Self::Nightly => "rustup's nightly",
        }
    }
}

impl Toolchain {
    /// The toolchain of this machine.
    ///
    /// Errors: a part is missing; compiler and linker do not have the same LLVM.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let compiler = Compiler::find().context("no compiler with the standard library's source")?;
        let linker = linker().context("no bpf-linker on PATH or in cargo's bin folder")?;
        let wanted = compiler.llvm()?;
        match linker_llvm(&linker) {
            Some(found) if found != wanted => bail!(
                "{} was built with LLVM {found}, but {} has LLVM {wanted}: the linker cannot read what the compiler writes",
                linker.display(),
                compiler.name()
            ),
            _ => Ok(Self { compiler, linker }),
        }
    }
}

/// cargo's folder for installed programs.
pub(crate) fn cargo_bin() -> Option<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")))?;
    Some(home.join("bin"))
}

/// Path of bpf-linker; `None` if it is not installed.
pub(crate) fn linker() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    cargo_bin().into_iter().chain(env::split_paths(&path)).map(|folder| folder.join("bpf-linker")).find(|path| path.is_file())
}

/// The major version of the LLVM that a bpf-linker was built with; `None` if neither the library it
/// loads nor cargo's records tell.
pub(crate) fn linker_llvm(linker: &Path) -> Option<u32> {
    let libraries = output(&mut command("ldd", [linker])).unwrap_or_default();
    let linked =
        libraries.split_once("libLLVM").and_then(|(_, rest)| major(rest.trim_start_matches(|c: char| !c.is_ascii_digit())));
    linked.or_else(|| recorded_llvm(&std::fs::read_to_string(linker.parent()?.parent()?.join(".crates2.json")).ok()?))
}

/// The LLVM of bpf-linker by cargo's own record of what it has installed.
fn recorded_llvm(records: &str) -> Option<u32> {
    let records: serde_json::Value = serde_json::from_str(records).ok()?;
    let (_, record) = records["installs"].as_object()?.iter().find(|(name, _)| name.starts_with("bpf-linker "))?;
    let features = record["features"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str);
    let feature = features.filter_map(|feature| feature.strip_prefix("llvm-")).find_map(major);
    // Built with its default features it has the LLVM of the compiler that built it.
    let compiler = || record["rustc"].as_str()?.lines().find_map(|line| line.strip_prefix("LLVM version: "));
    feature.or_else(|| compiler().and_then(major))
}

/// The number at the beginning of a text.
fn major(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{major, recorded_llvm};

    #[test]
    fn versions_begin_with_their_major_number() {
        for (text, expected) in [("22.1.8", Some(22)), ("22\"]", Some(22)), ("22", Some(22)), ("x22", None), ("", None)] {
            assert_eq!(major(text), expected, "{text:?}");
        }
    }

    #[test]
    fn cargos_records_tell_the_llvm_of_the_linker() {
        let records = |features: &str| {
            format!(
                r#"{{"installs":{{"just 1.0.0 (registry)":{{"features":["llvm-9"],"rustc":""}},
                "bpf-linker 0.9.14 (registry+https://x)":{{"features":[{features}],"rustc":"rustc 1.90\nhost: x\nLLVM version: 20.1.8\n"}}}}}}"#
            )
        };
        assert_eq!(recorded_llvm(&records("\"llvm-21\",\"llvm-link-static\"")), Some(21));
        assert_eq!(recorded_llvm(&records("\"llvm-link-static\"")), Some(20));
        assert_eq!(recorded_llvm("{}"), None);
        assert_eq!(recorded_llvm("torn {"), None);
    }
}
