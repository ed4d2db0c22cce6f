//! The false engine and the load generator as programs: what routers are measured and tested
//! against has to be right itself.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use bench::clock;
use bench::load::{Kind, Report};
use bench::net::{Reserved, reset_on_close};
use bench::process::{Child, get};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ilb-bench");

/// Waiting for something to show in `/metrics` gives up after this.
const PATIENCE: Duration = Duration::from_secs(10);

async fn engine(flags: &[&str]) -> (Child, SocketAddr) {
    let ports = Reserved::new(1).expect("a free port");
    let address = ports[0];
    let mut command = Command::new(PROGRAM);
    command.args(["engine", "--listen", &address.to_string()]).args(flags).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = Child::spawn("engine", &mut command).expect("starts");
    child.keep_ports(ports);
    child.answers(address, "/health", 200).await.expect("answers");
    (child, address)
}

async fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let request =
        format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.expect("sends");
    stream
}

async fn chat(address: SocketAddr, tokens: u32) -> TcpStream {
    let body = format!(r#"{{"model":"demo","messages":[],"stream":true,"max_tokens":{tokens}}}"#);
    send(address, "POST", "/v1/chat/completions", &body).await
}

/// All of a reply until the end of the connection, and whether that end was orderly.
async fn rest(mut stream: TcpStream) -> (String, bool) {
    let mut reply = Vec::new();
    let is_orderly = stream.read_to_end(&mut reply).await.is_ok();
    (String::from_utf8(reply).expect("ASCII"), is_orderly)
}

async fn metric(address: SocketAddr, name: &str) -> f64 {
    let (_, body) = get(address, "/metrics").await.expect("answers");
    let text = String::from_utf8(body).expect("ASCII");
    let line = text.lines().find(|line| line.starts_with(&format!("{name}{{"))).unwrap_or_else(|| panic!("no {name} in\n{text}"));
    line.rsplit(' ').next().expect("a value").parse().expect("a number")
}

/// Waits until the metric is as wanted.
async fn until(address: SocketAddr, name: &str, wanted: impl Fn(f64) -> bool) {
    let start = clock::now();
    loop {
        let found = metric(address, name).await;
        if wanted(found) {
            return;
        }
        assert!(clock::now() - start < PATIENCE, "{name} is still {found} after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}

#[test]
fn a_client_that_goes_during_prefill_stops_its_request_at_once() {
    run(async {
        let (_engine, address) = engine(&["--prefill-ms", "3600000"]).await;
        for (gone, is_reset) in [(1.0, false), (2.0, true)] {
            let client = chat(address, 10).await;
            until(address, "vllm:num_requests_running", |running| running == 1.0).await;
            if is_reset {
                reset_on_close(&client).expect("linger");
            }
            drop(client);
            // The prefill would last an hour.
            until(address, "false_engine_client_gone_total", |count| count == gone).await;
            assert_eq!(metric(address, "vllm:num_requests_running").await, 0.0);
            assert_eq!(metric(address, "vllm:kv_cache_usage_perc").await, 0.0);
        }
    });
}

#[test]
fn above_capacity_a_queue_builds_up_and_leavers_leave_it() {
    run(async {
        let (_engine, address) =
            engine(&["--capacity-rps", "4", "--load-window", "500ms", "--prefill-ms", "1", "--tbot", "0:1"]).await;
        let mut clients = Vec::new();
        for _ in 0..20 {
            clients.push(chat(address, 1).await);
        }
        until(address, "vllm:num_requests_waiting", |waiting| waiting >= 14.0).await;
        clients.truncate(6);
        until(address, "vllm:num_requests_waiting", |waiting| waiting <= 4.0).await;
        let staying = clients.len();
        for client in clients {
            let (reply, _) = rest(client).await;
            assert!(reply.contains("[DONE]"), "{reply}");
        }
        // Those that left took no turn of those that stayed.
        assert_eq!(metric(address, "vllm:request_success_total").await, staying as f64);
    });
}

#[test]
fn faults_happen_on_command_and_end() {
    run(async {
        let (_engine, address) = engine(&["--prefill-ms", "1", "--tbot", "0:1"]).await;
        let fault = async |body: &str| rest(send(address, "POST", "/fault", body).await).await.0;
        let tokens = |reply: &str| reply.matches("\"content\":\" ").count();

        assert!(fault(r#"{"kind":"reset","after_tokens":3,"count":1}"#).await.starts_with("HTTP/1.1 200"));
        let (reply, is_orderly) = rest(chat(address, 10).await).await;
        assert!(!is_orderly && tokens(&reply) <= 3 && !reply.contains("[DONE]"), "{reply}");

        fault(r#"{"kind":"close","after_tokens":3,"count":1}"#).await;
        let (reply, is_orderly) = rest(chat(address, 10).await).await;
        assert_eq!((tokens(&reply), is_orderly, reply.ends_with("0\r\n\r\n")), (3, true, false), "{reply}");

        fault(r#"{"kind":"status","status":503,"retry_after_s":7,"count":1}"#).await;
        let (reply, _) = rest(chat(address, 10).await).await;
        assert!(reply.starts_with("HTTP/1.1 503") && reply.contains("retry-after: 7\r\n"), "{reply}");

        fault(r#"{"kind":"stall","after_tokens":3}"#).await;
        let stalled = tokio::time::timeout(Duration::from_millis(500), rest(chat(address, 10).await)).await;
        assert!(stalled.is_err(), "the stalled stream ended: {stalled:?}");
        rest(send(address, "DELETE", "/fault", "").await).await;

        fault(r#"{"kind":"unhealthy"}"#).await;
        assert_eq!(get(address, "/health").await.expect("answers").0, 503);
        rest(send(address, "DELETE", "/fault", "").await).await;

        let (reply, _) = rest(chat(address, 10).await).await;
        assert!(tokens(&reply) == 10 && reply.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "{reply}");
        assert!(fault("{}").await.starts_with("HTTP/1.1 400"));
    });
}

#[test]
fn load_measures_the_latencies_the_engine_was_given() {
    run(async {
        let (_engine, address) = engine(&["--name", "e7", "--prefill-ms", "60", "--tbot", "0:10"]).await;
        let target = format!("a=http://{address}@40");
        let flags =
            ["load", "--target", &target, "--duration", "2s", "--max-tokens", "5", "--json", "--live", "--interval", "500ms"];
        let output = Command::new(PROGRAM).args(flags).output().expect("runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let reports: Vec<Report> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        let (summary, intervals) = reports.split_last().expect("a summary");
        assert_eq!(summary.kind, Kind::Summary);
        let row = &summary.targets[0];
        // 80 expected; a Poisson count is within 50 of it but once in ten million.
        assert!(row.answered > 30 && row.answered < 130, "{} requests in 2 s at 40/s", row.answered);
        assert!(row.failures.is_empty(), "{:?}", row.failures);
        assert!((row.engines["e7"].share_frac - 1.0).abs() < 1e-9);
        let within = |what: &str, found: Option<f64>, from: f64, to: f64| {
            let found = found.expect(what);
            assert!((from..to).contains(&found), "{what}: {found} ms, wanted {from} to {to}");
        };
        // Medians, because a busy machine delays some; never early, but for the timers'
        // millisecond.
        within("TTFT", row.ttft.p50_ms, 59.0, 80.0);
        within("TBOT", row.tbot.p50_ms, 8.0, 15.0);
        within("total", row.total.p50_ms, 108.0, 140.0);
        assert_eq!(row.tbot.count, row.answered * 4);
        assert!(!intervals.is_empty());
        assert!(intervals.iter().map(|report| report.targets[0].answered).sum::<u64>() <= row.answered);
    });
}
