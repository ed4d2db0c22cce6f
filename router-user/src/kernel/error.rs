//! Failures between ilb and the kernel, each with its remedy where there is one.

use std::{io, net::SocketAddr, path::PathBuf};

use router_common::{control::MAX_GENERATION, limits::MAX_ENDPOINT_IDS};

/// A failure of the kernel plane. Its text is one line.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The process lacks the capabilities to load or attach programs.
    #[error("use the kernel plane: this process lacks {missing} (run as root, or grant it with setcap or AmbientCapabilities)")]
    NotPermitted { missing: String },
    /// A virtual address that no client can connect to.
    #[error("steer {service}: wanted one address and a port that clients connect to")]
    ServiceAddress { service: SocketAddr },
    /// No cgroup v2 hierarchy to attach to.
    #[error("find a cgroup v2 mount in /proc/self/mounts: mount one, or name a cgroup in [kernel]")]
    NoCgroup,
    /// The pin directory is not on a bpffs and none could be mounted.
    #[error("use {path} for pins: not on a bpf file system (mount -t bpf bpf /sys/fs/bpf)")]
    NotBpffs { path: PathBuf },
    /// Another daemon holds the pin directory.
    #[error("lock {path}: another ilb uses it")]
    InUse { path: PathBuf },
    /// The pins were made by a build with another layout.
    #[error(
        "use the pins in {path}: they have layout version {found}, this build wants {wanted}; `ilb kernel detach` removes them"
    )]
    LayoutVersion { path: PathBuf, found: u32, wanted: u32 },
    /// A pinned map has another shape than this build's.
    #[error("use the pinned map {path}: it has {found}, this build wants {wanted}; `ilb kernel detach` removes it")]
    MapShape { path: PathBuf, found: String, wanted: String },
    /// A pinned link belongs to another network namespace or cgroup.
    #[error("use the pinned link {path}: it is attached to {found}, not to {wanted}; `ilb kernel detach` removes it")]
    OtherPlace { path: PathBuf, found: String, wanted: String },
    /// A generation below the live one. Generations only grow.
    #[error("apply generation {offered}: the kernel already has {live}; `ilb kernel detach` forgets it")]
    OldGeneration { offered: u64, live: u64 },
    /// A generation beyond the control word.
    #[error("apply generation {offered}: wanted 1 to {MAX_GENERATION}")]
    GenerationRange { offered: u64 },
    /// A slot or the eligible list names an engine that has no address.
    #[error("apply a table: it names engine {engine}, which has no address")]
    UnknownEngine { engine: u16 },
    /// An engine has an address that nobody can connect to.
    #[error("apply a table: engine {engine} has the address {address}, wanted one that can be connected to")]
    EngineAddress { engine: u16, address: SocketAddr },
    /// Too many engine addresses, old and new together.
    #[error("apply a table: more than {MAX_ENDPOINT_IDS} engine addresses, old and new together")]
    TooManyEngines,
    /// A system call failed.
    #[error("{action}: {source}")]
    System {
        action: String,
        #[source]
        source: io::Error,
    },
    /// A call of aya failed: loading, the verifier, a map.
    #[error("{action}: {}", one_line(source.as_ref()))]
    Bpf {
        action: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl KernelError {
    pub(super) fn system(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::System { action, source }
    }

    pub(super) fn bpf<E: std::error::Error + Send + Sync + 'static>(action: impl Into<String>) -> impl FnOnce(E) -> Self {
        let action = action.into();
        move |source| Self::Bpf { action, source: Box::new(source) }
    }
}

/// An error and its causes on one line. Of a verifier log it keeps the last line, which is the
/// verdict.
fn one_line(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = String::new();
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = next {
        let message = error.to_string();
        let mut lines = message.lines().filter(|line| !line.trim().is_empty());
        let first = lines.next().unwrap_or_default();
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(first.trim());
        if let Some(last) = lines.rfind(|line| !line.starts_with("processed") && !line.starts_with("verification time")) {
            text.push_str(" … ");
            text.push_str(last.trim());
        }
        next = error.source();
    }
    text
}
