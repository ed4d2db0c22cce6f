//! What people and scripts read of a plan: golden texts, and keys that the outside may count on.

use std::path::Path;

use router_user::config;
use router_user::model::Fleet;
use router_user::plan::explain::report;
use router_user::plan::explain::weights;
use router_user::plan::explain::weights::{Hold, Reason};
use router_user::plan::{Inputs, evaluate, nearest, plan};
use serde_json::Value;

use crate::golden;
use crate::plan_fleet::{engine, tag, three_regions};

fn example() -> Fleet {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/three-regions.toml");
    config::load(&file).expect("the example is a configuration").fleet
}

#[test]
fn the_example_is_the_fleet_of_these_tests() {
    let (found, wanted) = (example(), three_regions());
    assert_eq!((&found.clusters, &found.classes, &found.profiles), (&wanted.clusters, &wanted.classes, &wanted.profiles));
    assert_eq!(found.rtt_ms, wanted.rtt_ms);
}

#[test]
fn solve_prints_a_table_and_stable_keys() {
    let fleet = example();
    let inputs = Inputs::from_fleet(&fleet);
    let plan = plan(&fleet, &inputs, None).expect("a plan");
    let nearest = evaluate(&fleet, &inputs, &nearest(&fleet, &inputs));
    golden::compare("three-regions.solve.txt", &report::table(&fleet, &inputs, &plan, &nearest));
    let mut json = serde_json::to_value(report::solution(&fleet, &inputs, &plan)).expect("a value");
    let certificate = json.as_object_mut().expect("an object").remove("certificate").expect("a certificate");
    assert!(certificate["gap_frac"].as_f64().expect("a number") < 1e-8);
    round(&mut json);
    golden::compare("three-regions.solve.json", &(serde_json::to_string_pretty(&json).expect("text") + "\n"));
}

#[test]
fn explain_tells_a_newcomer_why() {
    let fleet = example();
    let inputs = Inputs::from_fleet(&fleet);
    let explanation = weights::explain(&fleet, &inputs, &plan(&fleet, &inputs, None).expect("a plan"));
    golden::compare("three-regions.explain.txt", &explanation.to_string());
    let only = explanation.only(Some("b"), Some("chat"), Some("e3"));
    let rows: Vec<_> = only.routes.iter().flat_map(|route| &route.engines).collect();
    assert!(matches!(rows[..], [row] if row.engine == "e3" && row.reason == Reason::AtPrice), "{rows:?}");
}

#[test]
fn explain_names_masks_full_engines_and_shed() {
    let mut fleet = three_regions();
    fleet.engines.push(engine("e4", "r3", 1));
    fleet.engines[0].tags = tag("residency", "us");
    fleet.engines[1].tags = tag("residency", "eu");
    fleet.engines[2].tags = tag("residency", "eu");
    fleet.engines[3].tags = tag("residency", "eu");
    fleet.classes[0].require = tag("residency", "eu");
    fleet.rtt_ms.iter_mut().for_each(|row| row.push(row[2]));
    let mut inputs = Inputs::from_fleet(&fleet);
    inputs.ready[3] = 0;
    let explanation = weights::explain(&fleet, &inputs, &plan(&fleet, &inputs, None).expect("a plan"));
    golden::compare("masked-and-full.explain.txt", &explanation.to_string());
    let route = &explanation.routes[0];
    assert!(route.is_price_of_shed);
    let row = |name: &str| route.engines.iter().find(|row| row.engine == name).expect("every engine has a row");
    let why = "has residency=us, wanted residency=eu".to_owned();
    assert_eq!((&row("e1").reason, &row("e4").reason), (&Reason::NotEligible { why }, &Reason::NotReady));
    let held: Vec<_> = explanation.routes.iter().flat_map(|route| &route.engines).filter_map(|row| row.held_by).collect();
    assert!(!held.is_empty() && held.iter().all(|hold| matches!(hold, Hold::Capacity { .. })), "{held:?}");
}

/// Rounds every number to a thousandth, so that a golden file does not depend on the last bits.
fn round(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let rounded = (number.as_f64().expect("a number") * 1e3).round() / 1e3;
            *value = serde_json::json!(rounded);
        }
        Value::Array(values) => values.iter_mut().for_each(round),
        Value::Object(values) => values.values_mut().for_each(round),
        _ => {}
    }
}
