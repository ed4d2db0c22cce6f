//! The running world of one run: engines as processes of their own, a proxy in front of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::fleet::Fleet;
use super::front::{Front, Running};
use super::misbehaviour::{Means, Misbehaviour};
use crate::net::Reserved;
use crate::process::{self, Child};

/// What a run is started from.
pub(super) struct Bed {
    pub(super) front: Front,
    pub(super) seed: u64,
    folder: tempfile::TempDir,
}

/// One engine.
pub(super) struct Engine {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    pub(super) child: Child,
    journal: PathBuf,
}

/// Everything that runs.
pub(super) struct Rig {
    pub(super) engines: Vec<Engine>,
    pub(super) front: SocketAddr,
    pub(super) admin: Option<SocketAddr>,
    proxy: Child,
}

/// Requests that reached an engine, from its journal.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals {
    /// In the order of arrival: number of the request, and requests that it found in the engine.
    pub(super) list: Vec<(u64, u64)>,
}

impl Arrivals {
    fn read(text: &str) -> Self {
        let line = |line: &str| {
            let mut words = line.split(' ').skip(1);
            Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
        };
        Self { list: text.lines().filter_map(line).collect() }
    }

    pub(super) fn ids(&self) -> BTreeSet<u64> {
        self.list.iter().map(|(id, _)| *id).collect()
    }
}

/// How often each request was sent to an engine.
pub(super) fn sends(arrivals: &[Arrivals]) -> BTreeMap<u64, usize> {
    let mut sends = BTreeMap::new();
    for (id, _) in arrivals.iter().flat_map(|arrivals| &arrivals.list) {
        *sends.entry(*id).or_default() += 1;
    }
    sends
}

impl Bed {
    /// Errors: no folder for its files.
    pub(super) fn new(front: Front, seed: u64) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("ilb-faults-").tempdir().context("failed to make a working folder")?;
        Ok(Self { front, seed, folder })
    }

    pub(super) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Starts engines and proxy; returns when all answer.
    pub(super) async fn start(&self, fleet: &Fleet) -> Result<Rig> {
        let engines = self.engines(fleet).await?;
        let addresses: Vec<SocketAddr> = engines.iter().map(|engine| engine.address).collect();
        let Running { child, front, admin } = self.front.start(fleet, &addresses, self.folder()).await?;
        Ok(Rig { engines, front, admin, proxy: child })
    }

    pub(super) async fn engines(&self, fleet: &Fleet) -> Result<Vec<Engine>> {
        let own = process::sibling("ilb-bench")?;
        let mut engines = Vec::new();
        for number in 0..fleet.engines {
            let name = format!("e{number}");
            let ports = Reserved::new(1)?;
            let address = ports[0];
            let journal = self.folder().join(format!("{name}.journal"));
            let mut command = process::logged(&own, &self.folder().join(format!("{name}.log")))?;
            command.args(["engine", "--name", &name, "--listen", &address.to_string()]).args(fleet.engine_flags());
            command.arg("--journal").arg(&journal);
            let mut child = Child::spawn(&name, &mut command)?;
            child.keep_ports(ports);
            child.answers(address, "/health", 200).await?;
            engines.push(Engine { name, address, child, journal });
        }
        Ok(engines)
    }
}

impl Engine {
    pub(super) async fn begin(&self, misbehaviour: Misbehaviour) -> Result<()> {
        match misbehaviour.means() {
            Means::Command(body) => self.command(body).await,
            Means::Stop => {
                self.child.signal(libc::SIGSTOP);
                Ok(())
            }
        }
    }

    pub(super) async fn end(&self, misbehaviour: Misbehaviour) -> Result<()> {
        match misbehaviour.means() {
            Means::Command(_) => self.fault("DELETE", "").await,
            Means::Stop => {
                self.child.signal(libc::SIGCONT);
                Ok(())
            }
        }
    }

    /// Ends the process at once.
    pub(super) fn kill(&self) {
        self.child.signal(libc::SIGKILL);
    }

    /// Gives the engine the fault of a `POST /fault`.
    pub(super) async fn command(&self, body: &str) -> Result<()> {
        self.fault("POST", body).await
    }

    async fn fault(&self, method: &str, body: &str) -> Result<()> {
        let (status, answer) = process::request(self.address, method, "/fault", body).await?;
        ensure!(
            status == 200,
            "engine {} answered {method} /fault {body} with {status}: {}",
            self.name,
            String::from_utf8_lossy(&answer)
        );
        Ok(())
    }

    /// The requests that reached it so far.
    pub(super) fn arrivals(&self) -> Result<Arrivals> {
        match std::fs::read_to_string(&self.journal) {
            Ok(text) => Ok(Arrivals::read(&text)),
            Err(error) => Err(error).with_context(|| format!("failed to read {}", self.journal.display())),
        }
    }
}

impl Rig {
    pub(super) fn arrivals(&self) -> Result<Vec<Arrivals>> {
        self.engines.iter().map(Engine::arrivals).collect()
    }

    /// Ends all processes. They take some time to end, in which other runs go on.
    ///
    /// Errors: the proxy ended by itself.
    pub(super) async fn stop(mut self) -> Result<()> {
        let is_running = self.proxy.is_running();
        tokio::task::spawn_blocking(move || drop(self)).await.context("failed to end the processes")?;
        ensure!(is_running, "the proxy ended by itself");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_count_marked_requests_once_per_send() {
        let first = Arrivals::read("1 7 0\n2 - 3\n3 8 1\n4 7 2\n5");
        assert_eq!(first.list, [(7, 0), (8, 1), (7, 2)]);
        assert_eq!(first.ids(), BTreeSet::from([7, 8]));
        let second = Arrivals::read("9 8 0\n");
        assert_eq!(sends(&[first, second]), BTreeMap::from([(7, 2), (8, 2)]));
    }
}
