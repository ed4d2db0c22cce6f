//! The demonstration keeps what it promises: traffic follows the published weights, and the plan
//! beats nearest-only in the same run.

use std::process::Command;

use serde_json::Value;

/// The example's fleet at a scale two cores can carry, for one window of a minute and the seconds
/// before it is full.
const FLAGS: [&str; 9] =
    ["demo", "--config", "../examples/three-regions.toml", "--scale", "0.4", "--duration", "76s", "--free-ports", "--json"];

#[test]
fn achieved_shares_follow_the_plan_and_the_plan_beats_nearest_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ilb-bench"));
    command.args(FLAGS).arg("--dir").arg(folder.path()).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().expect("starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let last: Value = serde_json::from_str(text.lines().last().expect("intervals")).expect("JSON");

    let routes = last["routes"].as_array().expect("routes");
    assert_eq!(routes.len(), 3);
    for route in routes {
        let number = |path: &str| route.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {route}"));
        assert!(number("/planned/seconds") >= 58.0, "{route}");
        assert!(number("/planned/answered") > number("/demand_rps") * 50.0, "{route}");
        assert_eq!(number("/planned/failed"), 0.0, "{route}");
        assert!(number("/gap_frac") <= 0.02, "achieved shares are off the published weights: {route}");
    }
    // What the plan is for: b's own engine cannot carry b's demand.
    let away: f64 = (routes[1]["weights"].as_array().expect("weights").iter())
        .filter(|weight| weight["engine"] != "e2")
        .map(|weight| weight["achieved"].as_f64().expect("a number"))
        .sum();
    assert!(away > 20.0 / 120.0, "only {away} of cluster b's requests went elsewhere");
    let mean = |side: &str| last[side]["mean_ms"].as_f64().expect("a mean");
    assert!(mean("planned") < mean("nearest"), "planned {} ms, nearest {} ms", mean("planned"), mean("nearest"));
}
