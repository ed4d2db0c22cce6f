//! A whole fleet of real processes: false engines, a control plane, one proxy.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use bench::load::Report;
use bench::net::Reserved;
use bench::process::{self, Child};
use router_user::publish::Generation;

/// Three engines, any two of which carry the demand.
pub(crate) struct World {
    pub(crate) front: SocketAddr,
    pub(crate) engines: Vec<Option<Child>>,
    pub(crate) control: Option<Child>,
    pub(crate) proxy: Option<Child>,
    relays: Vec<Child>,
    via: Vec<String>,
    folder: tempfile::TempDir,
    file: PathBuf,
    admin: SocketAddr,
    _ports: Reserved,
}

impl World {
    /// Starts everything and waits until the proxy serves a snapshot that the controller has
    /// published.
    pub(crate) async fn start() -> Self {
        Self::start_with("", &[]).await
    }

    /// The same with more lines for `[control]`, and with engines that are reached by a relay of
    /// that many ms.
    pub(crate) async fn start_with(control_lines: &str, far: &[(usize, u32)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let ports = Reserved::new(7 + far.len()).expect("free ports");
        let addresses = ports.to_vec();
        let (engines, rest) = addresses.split_at(3);
        let (front, admin, control) = (rest[0], rest[1], rest[2]);
        let file = folder.path().join("ilb.toml");
        std::fs::write(&file, config(folder.path(), engines, front, admin, control, rest[3]) + control_lines).expect("writable");
        let mut world = Self {
            front,
            engines: Vec::new(),
            control: None,
            proxy: None,
            relays: Vec::new(),
            via: Vec::new(),
            folder,
            file,
            admin,
            _ports: ports,
        };
        for (number, &address) in engines.iter().enumerate() {
            let name = format!("e{}", number + 1);
            let mut command = world.command("ilb-bench", &format!("engine-{name}.log"));
            command.args(["engine", "--engine", &name, "-c"]).arg(&world.file);
            let mut child = Child::spawn(&name, &mut command).expect("started");
            child.answers(address, "/health", 200).await.expect("the engine answers");
            world.engines.push(Some(child));
        }
        for (&(number, ms), relay) in far.iter().zip(&rest[4..]) {
            let mut command = world.command("ilb-bench", "relay.log");
            command.args(["relay", "--link", &format!("{relay}={}@{ms}", engines[number])]);
            let mut child = Child::spawn("relay", &mut command).expect("started");
            child.answers(*relay, "/health", 200).await.expect("the relay answers");
            world.relays.push(child);
            world.via.push(format!("e{}={relay}", number + 1));
        }
        let mut command = world.command("ilb", "control.log");
        command.args(["control", "-c"]).arg(&world.file).arg("--socket").arg(world.folder.path().join("control.sock"));
        command.args(["--admin-listen", &rest[3].to_string()]);
        let mut child = Child::spawn("control", &mut command).expect("started");
        child.answers(control, "/v1/snapshot", 200).await.expect("the controller publishes");
        world.control = Some(child);
        world.start_proxy().await;
        world
    }

    /// Starts the proxy; its snapshots are on its own disk.
    pub(crate) async fn start_proxy(&mut self) {
        let mut command = self.command("ilb", "proxy.log");
        command.args(["proxy", "-c"]).arg(&self.file);
        command.args(self.via.iter().flat_map(|via| ["--via", via]));
        let mut child = Child::spawn("proxy", &mut command).expect("started");
        child.answers(self.admin, "/readyz", 200).await.expect("the proxy is ready");
        self.proxy = Some(child);
        if self.control.is_some() {
            self.until(|world| world.generation() > 0).await;
        }
    }

    fn command(&self, program: &str, log: &str) -> Command {
        process::logged(&process::sibling(program).expect("built"), &self.folder.path().join(log)).expect("a log")
    }

    /// Runs `ilb` against the proxy's or the controller's socket.
    pub(crate) fn ask(&self, socket: &str, arguments: &[&str]) -> Output {
        let program = process::sibling("ilb").expect("built");
        let mut command = Command::new(program);
        command.args(arguments).arg("--socket").arg(self.folder.path().join(socket)).stdin(Stdio::null());
        command.output().expect("ilb runs")
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let output = self.ask("proxy.sock", arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    pub(crate) fn generation(&self) -> u64 {
        let status = self.json(&["status", "--json"]);
        let generation: Generation = status["generation"].as_str().expect("a generation").parse().expect("EPOCH.COUNT");
        generation.0
    }

    /// Engine -> weight, as the proxy applies them.
    pub(crate) fn weights(&self) -> Vec<(String, f64)> {
        let weights = self.json(&["weights", "--json"]);
        let route = &weights["routes"][0];
        let weight =
            |w: &serde_json::Value| (w["engine"].as_str().expect("a name").to_owned(), w["weight"].as_f64().expect("a number"));
        route["weights"].as_array().expect("a list").iter().map(weight).collect()
    }

    /// Waits for something that the processes are about to do.
    pub(crate) async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        self.until_within(Duration::from_secs(20), is_so).await;
    }

    pub(crate) async fn until_within(&self, patience: Duration, is_so: impl Fn(&Self) -> bool) {
        let give_up = bench::clock::now() + patience;
        while !is_so(self) {
            assert!(bench::clock::now() < give_up, "it did not happen within {patience:?}; logs:\n{}", self.logs());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) fn logs(&self) -> String {
        let read =
            |name: &str| format!("--- {name}\n{}", std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default());
        [read("control.log"), read("proxy.log")].join("\n")
    }

    /// Starts open-loop load on the proxy.
    pub(crate) fn load(&self, rps: u32, duration: &str, more: &[&str]) -> std::process::Child {
        let program = process::sibling("ilb-bench").expect("built");
        let mut command = Command::new(program);
        command.args(["load", "--url", &format!("http://{}", self.front), "--rps", &rps.to_string(), "--duration", duration]);
        command.args(["--max-tokens", "20", "--json"]).args(more).stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().expect("the load starts")
    }
}

/// Waits for load to end; what it reports of all targets together.
pub(crate) fn report(load: std::process::Child) -> Report {
    let output = load.wait_with_output().expect("the load ends");
    assert!(output.status.success(), "the load failed: {:?} {:?}", output.status.code(), output.status.signal());
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    serde_json::from_str(text.lines().last().expect("a summary")).expect("a report")
}

/// Kills with SIGKILL, as a crash or the OOM killer would.
pub(crate) fn kill(child: &Child) {
    let status = Command::new("kill").args(["-9", &child.group().to_string()]).status().expect("kill runs");
    assert!(status.success());
}

fn config(
    folder: &std::path::Path,
    engines: &[SocketAddr],
    front: SocketAddr,
    admin: SocketAddr,
    control: SocketAddr,
    control_admin: SocketAddr,
) -> String {
    let engine = |(number, address): (usize, &SocketAddr)| {
        format!(
            "[[engine]]\nname = \"e{}\"\nregion = \"here\"\naddress = \"{address}\"\nmodels = [\"demo\"]\nprofile = \"small\"\n\n",
            number + 1
        )
    };
    let engines: String = engines.iter().enumerate().map(engine).collect();
    let folder = folder.display();
    assert_ne!(admin, control_admin);
    format!(
        r#"[[cluster]]
name = "b"
region = "here"
demand_rps = {{ chat = 60 }}

{engines}[rtt_ms.here]
here = 1

[profile.small]
capacity_rps = 60
ttft_ms = [[0, 20], [40, 30], [60, 200]]
tbot_ms = [[0, 2], [60, 5]]

[[class]]
name = "chat"
model = "demo"
output_tokens = 20

[proxy]
listen = ["{front}"]

[admin]
socket = "{folder}/proxy.sock"
listen = "{admin}"

[store]
dir = "{folder}/snapshots"

[control]
listen = "{control}"
period = "500ms"
health_period = "200ms"
"#
    )
}
