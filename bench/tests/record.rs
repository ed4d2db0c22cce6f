//! Profiles of a running fleet: what is recorded under varying load gives the engine's own curves
//! back, and an engine that has become slower is noticed.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use bench::net::Reserved;
use bench::process::{self, Child};
use router_user::model::Curve;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const TTFT_MS: &str = "[[0, 60], [40, 100], [60, 200]]";
const TBOT_MS: &str = "[[0, 10], [60, 25]]";
/// Loads in requests/s, each for as long as three windows.
const LOADS: [u32; 9] = [4, 12, 20, 28, 34, 40, 46, 51, 55];
const LEVEL: &str = "15s";

/// One engine behind one ilb.
struct World {
    engine: SocketAddr,
    front: SocketAddr,
    folder: tempfile::TempDir,
    _children: [Child; 2],
}

impl World {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let addresses = Reserved::new(3).expect("free ports");
        let (engine, front, control) = (addresses[0], addresses[1], addresses[2]);
        let (file, dir) = (folder.path().join("ilb.toml"), folder.path().display());
        let text = format!(
            "[[cluster]]\nname = \"a\"\nregion = \"here\"\ndemand_rps = {{ chat = 10 }}\n\
             [[engine]]\nname = \"e1\"\nregion = \"here\"\naddress = \"{engine}\"\nmodels = [\"demo\"]\nprofile = \"true\"\n\
             [rtt_ms.here]\nhere = 1\n\
             [profile.true]\ncapacity_rps = 60\nttft_ms = {TTFT_MS}\ntbot_ms = {TBOT_MS}\n\
             [[class]]\nname = \"chat\"\nmodel = \"demo\"\noutput_tokens = 20\n\
             [proxy]\nlisten = [\"{front}\"]\n[admin]\nsocket = \"{dir}/ilb.sock\"\nlisten = \"off\"\n\
             [control]\nlisten = \"{control}\"\nperiod = \"500ms\"\nscrape_period = \"500ms\"\n[store]\ndir = \"{dir}/snapshots\"\n"
        );
        std::fs::write(&file, text).expect("writable");
        let logged = |program: &str, log: &str| {
            process::logged(&process::sibling(program).expect("built"), &folder.path().join(log)).expect("a log")
        };
        let mut command = logged("ilb-bench", "engine.log");
        command.args(["engine", "--engine", "e1", "-c"]).arg(&file);
        let mut false_engine = Child::spawn("e1", &mut command).expect("started");
        false_engine.answers(engine, "/health", 200).await.expect("the engine answers");
        let mut command = logged("ilb", "ilb.log");
        command.args(["run", "-c"]).arg(&file);
        let mut ilb = Child::spawn("ilb", &mut command).expect("started");
        ilb.keep_ports(addresses);
        ilb.answers(front, "/v1/models", 200).await.expect("ilb serves");
        Self { engine, front, folder, _children: [false_engine, ilb] }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ilb(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(process::sibling("ilb").expect("built"));
        command.args(arguments).env("ILB_SOCKET", self.path("ilb.sock")).stdin(Stdio::null());
        command
    }

    fn load(&self, rps: u32, duration: &str) -> std::process::Child {
        let mut command = Command::new(process::sibling("ilb-bench").expect("built"));
        command.args(["load", "--url", &format!("http://{}", self.front), "--rps", &rps.to_string(), "--duration", duration]);
        command.args(["--max-tokens", "20", "--seed", &rps.to_string(), "--json"]).stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().expect("the load starts")
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The curve `key` of a profile file.
fn curve(file: &Path, key: &str) -> Curve {
    let text = std::fs::read_to_string(file).expect("a profile");
    let line =
        text.lines().find_map(|line| line.strip_prefix(&format!("{key} = "))).unwrap_or_else(|| panic!("no {key} in\n{text}"));
    Curve::new(serde_json::from_str(line).expect("knots")).expect("a curve")
}

async fn post(address: SocketAddr, path: &str, body: &str) {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let length = body.len();
    let request = format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.expect("an answer");
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
}

#[tokio::test]
async fn a_recording_gives_the_engines_own_curves_and_a_slower_engine_is_noticed() {
    let world = World::start().await;
    let samples = world.path("samples.csv");
    let mut recorder = world.ilb(&["profile", "record", "--window", "5s"]);
    let mut recorder = recorder.arg(&samples).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    for rps in LOADS {
        assert!(world.load(rps, LEVEL).wait().expect("the load ends").success());
    }
    assert!(recorder.try_wait().expect("asked").is_none(), "it records until it is told to stop");
    let status = Command::new("kill").args(["-INT", &recorder.id().to_string()]).status().expect("kill runs");
    assert!(status.success());
    let output = recorder.wait_with_output().expect("it ends");
    assert!(output.status.success() && text(&output).contains("windows added to"), "{}", text(&output));

    let profile = world.path("profile.toml");
    let mut fit = world.ilb(&["profile", "fit", "--name", "found", "-o"]);
    let output = fit.arg(&profile).arg(&samples).output().expect("it ends");
    assert!(output.status.success(), "{}\n{}", text(&output), std::fs::read_to_string(&samples).expect("samples"));
    for (key, truth, most) in [("ttft_ms", TTFT_MS, 0.2), ("tbot_ms", TBOT_MS, 0.1)] {
        let truth = Curve::new(serde_json::from_str(truth).expect("knots")).expect("a curve");
        let found = curve(&profile, key);
        for load in [8.0, 16.0, 24.0, 32.0, 40.0, 48.0, 52.0] {
            let error = found.value(load) / truth.value(load) - 1.0;
            eprintln!("{key} at {load}/s: {:.1} ms, {:+.1} %", found.value(load), 100.0 * error);
            assert!(error.abs() < most, "{key} at {load}/s: {}, wanted {}", found.value(load), truth.value(load));
        }
    }

    post(world.engine, "/fault", r#"{"kind":"slow","factor":2,"over_ms":1000000000}"#).await;
    let mut load = world.load(24, "60s");
    let mut seen = serde_json::Value::Null;
    for _ in 0..110 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let status: serde_json::Value =
            serde_json::from_slice(&world.ilb(&["status", "--json"]).output().expect("it ends").stdout).expect("JSON");
        seen = status["control"]["engines"][0]["drift"].clone();
        if seen["ratio"].as_f64().is_some_and(|ratio| (1.7..2.4).contains(&ratio)) {
            break;
        }
    }
    load.kill().expect("stopped");
    load.wait().expect("reaped");
    assert!(seen["ratio"].as_f64().is_some_and(|ratio| (1.7..2.4).contains(&ratio)), "{seen}");
    let told = text(&world.ilb(&["status"]).output().expect("it ends"));
    assert!(told.contains("times as long as its profile true says; planned so; refit it"), "{told}");
}
