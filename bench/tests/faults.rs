//! The harness of faults gives an engine its fault, knows where each request went, and counts each
//! once. What the proxy makes of it is judged by the harness's own limits, not here.

use std::process::Command;

use serde_json::Value;

#[test]
fn a_fault_reaches_its_engine_and_every_request_is_counted() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ilb-bench"));
    command.args(["faults", "engines", "--fault", "500", "--engines", "2", "--load", "22", "--seeds", "2", "--io", "epoll"]);
    let output = command.arg("--json").output().expect("starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert_eq!(lines.len(), 2, "the origin, and one case: {text}");
    let row = &lines[1];
    assert_eq!((&row["scenario"], &row["case"]), (&"engines".into(), &"500, 1 of 2, 22 %".into()));
    assert_eq!((&row["front"], &row["errors"]), (&"ilb-epoll".into(), &serde_json::json!([])), "{told}");
    let runs = row["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 2);
    for run in runs {
        let figure = |name: &str| {
            let figures = run.as_array().expect("figures");
            let figure = figures.iter().find(|figure| figure["name"] == name).unwrap_or_else(|| panic!("no {name} in {run}"));
            figure["value"].as_f64().unwrap_or_else(|| panic!("{name} has no value in {run}"))
        };
        // 880 expected; a Poisson count is within 240 of it but once in ten to the fifteenth.
        assert!((640.0..1120.0).contains(&figure("requests")), "{run}");
        assert!(figure("at the engine") > 0.0, "the engine got none of the requests that it was to fail: {run}");
        assert!(figure("at the engine") <= figure("requests"), "{run}");
        assert!((0.0..=100.0).contains(&figure("failed %")), "{run}");
        assert!(figure("retriable failed %") <= figure("failed %"), "{run}");
        assert!(figure("calm TTFT p50 ms") >= 59.0, "no first token comes sooner than the engine gives it: {run}");
        assert_eq!(figure("failed after %"), 0.0, "requests fail on engines that are well: {run}");
    }
}
