//! How `ilb` starts and what it survives: places that are taken, and signals that do not ask it to
//! stop.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use router_user::admin::AdminClient;
use router_user::clock::Clock;

const EXAMPLE: &str = include_str!("../../../examples/three-regions.toml");
/// How long a process may take for what it does at once on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A configuration in `folder` with places of its own; `taken` overrides some of them.
fn configuration(folder: &Path, taken: &str) {
    let places = "[proxy]\nlisten = \"127.0.0.1:0\"\n[admin]\nsocket = \"ilb.sock\"\nlisten = \"127.0.0.1:0\"\n\
                  [control]\nlisten = \"127.0.0.1:0\"\n[store]\ndir = \"snapshots\"\n";
    let mut text = places.to_owned();
    if let Some((setting, value)) = taken.split_once('=') {
        let (section, key) = setting.split_once('.').expect("SECTION.KEY");
        let (before, after) = text.split_once(&format!("[{section}]\n")).expect("a section");
        let rest: Vec<&str> = after.lines().filter(|line| !line.starts_with(&format!("{key} ="))).collect();
        text = format!("{before}[{section}]\n{key} = \"{value}\"\n{}\n", rest.join("\n"));
    }
    std::fs::write(folder.join("ilb.toml"), format!("{EXAMPLE}\n{text}")).expect("written");
}

fn ilb(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ilb"));
    command.args(["run", "-c", "ilb.toml", "--cluster", "a"]).current_dir(folder).stdin(Stdio::null());
    command
}

fn run(folder: &Path) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = ilb(folder).output().expect("ilb runs");
    (status.code(), String::from_utf8(stderr).expect("UTF-8"))
}

/// A running `ilb`, killed when dropped.
struct Running(Child);

impl Running {
    async fn start(folder: &Path) -> Self {
        let log = std::fs::File::create(folder.join("log")).expect("a log");
        let running = Self(ilb(folder).stderr(log).stdout(Stdio::null()).spawn().expect("ilb starts"));
        let clock = Clock::start();
        while AdminClient::new(&folder.join("ilb.sock")).status().await.is_err() {
            assert!(clock.now() < PATIENCE, "{}", std::fs::read_to_string(folder.join("log")).unwrap_or_default());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        running
    }

    /// Sets how many descriptors it may have; those that it has stay open.
    fn limit_descriptors(&self, most: u64) {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: 4_096 };
        let id = libc::pid_t::try_from(self.0.id()).expect("a process number");
        // SAFETY: the limit is valid during the call, and nothing is written.
        let done = unsafe { libc::prlimit(id, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut()) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.0.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_port_that_is_taken_is_named_by_its_setting_and_its_cause_is_said_once() {
    let owner = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = owner.local_addr().expect("an address");
    for setting in ["proxy.listen", "admin.listen", "control.listen"] {
        let folder = tempfile::tempdir().expect("a folder");
        configuration(folder.path(), &format!("{setting}={address}"));
        let (code, err) = run(folder.path());
        let last = err.lines().last().unwrap_or_default();
        assert_eq!(code, Some(1), "{err}");
        assert!(last.contains(setting) && last.contains(&address.to_string()), "{err}");
        assert_eq!(last.matches("Address already in use").count(), 1, "{err}");
        let kept = std::fs::read_dir(folder.path().join("snapshots")).expect("a folder").count();
        assert_eq!(kept, 1, "only the lock is in the store: no controller has started");
    }
}

#[tokio::test]
async fn a_second_ilb_in_the_same_folder_ends_before_it_touches_anything() {
    let folder = tempfile::tempdir().expect("a folder");
    configuration(folder.path(), "");
    let first = Running::start(folder.path()).await;
    let (code, err) = run(folder.path());
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("error: store.dir: ") && err.contains(&format!("process number {}", first.0.id())), "{err}");

    configuration(folder.path(), "store.dir=others");
    let (code, err) = run(folder.path());
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("error: admin.socket") && err.contains("another ilb answers at ilb.sock already"), "{err}");
    assert!(!err.contains("proxy starts"), "{err}");
    AdminClient::new(&folder.path().join("ilb.sock")).status().await.expect("the first still answers");
}

#[tokio::test]
async fn a_socket_and_a_lock_that_a_dead_ilb_left_behind_do_not_keep_the_next_from_starting() {
    let folder = tempfile::tempdir().expect("a folder");
    configuration(folder.path(), "");
    drop(Running::start(folder.path()).await);
    assert!(folder.path().join("ilb.sock").exists() && folder.path().join("snapshots/control.lock").exists());
    Running::start(folder.path()).await;
}

#[tokio::test]
async fn a_controller_without_descriptors_does_not_say_that_engines_refuse() {
    let folder = tempfile::tempdir().expect("a folder");
    configuration(folder.path(), "");
    let mut config = std::fs::read_to_string(folder.path().join("ilb.toml")).expect("a configuration");
    for old in ["127.0.0.1:18001", "127.0.0.1:18002", "127.0.0.1:18003"] {
        let engine = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        config = config.replace(old, &engine.local_addr().expect("bound").to_string());
        let health = axum::Router::new().fallback(async || "ok");
        tokio::spawn(async move { axum::serve(engine, health).await });
    }
    let config = config.replace("[control]\n", "[control]\nhealth_period = \"100ms\"\n");
    std::fs::write(folder.path().join("ilb.toml"), config).expect("written");

    let running = Running::start(folder.path()).await;
    let client = AdminClient::new(&folder.path().join("ilb.sock"));
    let log = || std::fs::read_to_string(folder.path().join("log")).expect("a log");
    let probed = "failed to probe an engine for want of local resources";
    running.limit_descriptors(3);
    let clock = Clock::start();
    // One line per second at most: two lines are many probes of each engine.
    while log().matches(probed).count() < 2 {
        assert!(clock.now() < PATIENCE, "{}", log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    running.limit_descriptors(1_000);
    let engines = client.engines().await.expect("it answers again");
    assert!(engines.0.iter().all(|engine| engine.ready == Some(true)), "{engines:?}");
    assert!(!log().contains("refuses its health probe"), "{}", log());
}

#[tokio::test]
async fn a_signal_that_is_no_request_to_stop_is_logged_and_ignored() {
    let folder = tempfile::tempdir().expect("a folder");
    configuration(folder.path(), "");
    let mut running = Running::start(folder.path()).await;
    for name in ["HUP", "USR1", "USR2"] {
        running.signal(name);
        let clock = Clock::start();
        loop {
            let log = std::fs::read_to_string(folder.path().join("log")).expect("a log");
            if log.contains("signal ignored") && log.contains(&format!("SIG{name}")) {
                break;
            }
            assert_eq!(running.0.try_wait().expect("waited for"), None, "SIG{name} ended it\n{log}");
            assert!(clock.now() < PATIENCE, "SIG{name} is not in the log\n{log}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        AdminClient::new(&folder.path().join("ilb.sock")).status().await.expect("it still answers");
    }
    running.signal("TERM");
    assert!(running.0.wait().expect("waited for").success(), "SIGTERM stops it");
}
