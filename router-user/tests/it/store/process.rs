//! An `ilb` as a process of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use router_user::admin::{AdminClient, StatusView};
use router_user::clock::Clock;

use super::PATIENCE;
use crate::ports::Reserved;

pub(crate) struct Process {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) listen: SocketAddr,
    pub(crate) process: Child,
    _port: Reserved,
}

/// An `ilb` with its own disk, socket and ports; ended with this.
impl Process {
    pub(crate) fn start(role: &[&str], config: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("ilb.toml"), config).expect("written");
        let port = Reserved::new();
        let listen = port.address;
        let process = Self::spawn(folder.path(), listen, role);
        Self { folder, listen, process, _port: port }
    }

    /// Starts it anew with what is on its disk.
    pub(crate) fn restart(&mut self, role: &[&str]) {
        self.process = Self::spawn(self.folder.path(), self.listen, role);
    }

    fn spawn(folder: &Path, listen: SocketAddr, role: &[&str]) -> Child {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_ilb"));
        command.args(role).args(["-c", "ilb.toml", "--socket", "ilb.sock", "--admin-listen", "127.0.0.1:0"]);
        command.args(["--listen", &listen.to_string()]);
        command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.spawn().expect("ilb starts")
    }

    /// Ends it as a crash or the OOM killer would.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("killed");
        self.process.wait().expect("waited for");
    }

    /// Waits until what it says of itself is as wanted.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&StatusView) -> bool) -> StatusView {
        let clock = Clock::start();
        loop {
            let status = AdminClient::new(&self.socket()).status().await;
            match status {
                Ok(status) if wanted(&status) => return status,
                last => assert!(clock.now() < PATIENCE, "waited in vain until {what}: {last:?}\n{}", self.log()),
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// What a command prints that asks this process.
    pub(crate) fn ask(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ilb"));
        let output = command.args(arguments).arg("--socket").arg(self.socket()).stdin(Stdio::null()).output().expect("ilb runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("ilb.sock")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            let log = self.log();
            eprintln!("--- the last of a log\n{}", &log[log.len().saturating_sub(4_000)..]);
        }
    }
}
