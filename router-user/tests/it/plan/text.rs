//! What people and scripts read of a plan: golden texts, and keys that the outside may count on.

use std::path::Path;

use router_user::config;
use router_user::model::{Class, Fleet};
use router_user::plan::decide::regions::region_losses;
use router_user::plan::explain::report;
use router_user::plan::explain::shed::shed_bill;
use router_user::plan::explain::weights;
use router_user::plan::explain::weights::{Hold, WeightReason};
use router_user::plan::{Inputs, evaluate, nearest, plan};
use serde_json::Value;

use crate::golden;
use crate::plan::fleet::{class, engine, tag, three_regions};

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
    assert!(matches!(rows[..], [row] if row.engine == "e3" && row.reason == WeightReason::AtPrice), "{rows:?}");
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
    assert_eq!((&row("e1").reason, &row("e4").reason), (&WeightReason::NotEligible { why }, &WeightReason::NotReady));
    let current: Vec<_> = explanation.routes.iter().flat_map(|route| &route.engines).filter_map(|row| row.held_by).collect();
    assert!(!current.is_empty() && current.iter().all(|hold| matches!(hold, Hold::Capacity { .. })), "{current:?}");
}

#[test]
fn an_idle_fleet_is_explained_by_latency_alone() {
    let fleet = example();
    for rps in [0.0, 1e-9, 1e-5] {
        let inputs = Inputs { demand_rps: vec![vec![rps]; 3], ..Inputs::from_fleet(&fleet) };
        let plan = plan(&fleet, &inputs, None).expect("a plan");
        let explanation = weights::explain(&fleet, &inputs, &plan);
        let text: String = explanation.routes.iter().map(ToString::to_string).collect();
        assert!(!text.contains("shed") && !text.contains("full"), "{text}");
        for row in explanation.routes.iter().flat_map(|route| &route.engines) {
            let terms = row.terms.expect("every engine may serve");
            assert!(terms.externality_ms.abs() < 0.01, "nobody is there to be delayed, {rps} requests/s: {row:?}");
            assert!((terms.own_latency_ms - 520.0).abs() < 0.01, "{row:?}");
        }
        for loss in region_losses(&fleet, &inputs) {
            let text = loss.to_string();
            assert!(!text.contains(" 0.0 requests/s"), "{text}");
            assert_eq!(text.contains("there is no demand"), rps < 1e-6, "{text}");
        }
    }
}

#[test]
fn a_fleet_of_one_region_is_told_that_nothing_is_left_without_it() {
    let mut fleet = example();
    fleet.engines.iter_mut().for_each(|engine| engine.region = "local".to_owned());
    let text = region_losses(&fleet, &Inputs::from_fleet(&fleet))[0].to_string();
    assert_eq!(text, "without region local nothing can be served: the demand of 250.0 requests/s would be shed");
    let rare = Inputs { demand_rps: vec![vec![1e-3]; 3], ..Inputs::from_fleet(&fleet) };
    let text = region_losses(&fleet, &rare)[0].to_string();
    assert_eq!(text, "without region local nothing can be served: the demand of less than 0.1 requests/s would be shed");
}

#[test]
fn a_detour_budget_that_cannot_be_kept_is_not_called_a_full_engine() {
    let mut fleet = three_regions();
    fleet.clusters.truncate(1);
    fleet.clusters[0].detour_budget_ms = Some(10.0);
    fleet.engines.truncate(2);
    fleet.classes = ["near", "far"].map(|name| Class { model: name.to_owned(), ..class(name, 50.0, 0) }).to_vec();
    fleet.clusters[0].demand_rps = vec![3.0, 2.0];
    fleet.rtt_ms = vec![vec![1.0, 150.0]];
    fleet.engines[0].models = vec!["near".to_owned()];
    fleet.engines[1].models = vec!["near".to_owned(), "far".to_owned()];
    let inputs = Inputs::from_fleet(&fleet);
    let plan = plan(&fleet, &inputs, None).expect("a plan");
    let text = weights::explain(&fleet, &inputs, &plan).to_string();
    assert!(text.contains("further above its detour budget") && !text.contains("the engines are full"), "{text}");
    let rows = report::detours(&fleet, &inputs, &plan);
    assert!(rows[0].to_string().ends_with("keeping it would shed requests"), "{}", rows[0]);
}

#[test]
fn what_is_refused_and_what_an_engine_lacks_have_their_units() {
    let mut fleet = three_regions();
    fleet.classes[0].work = 2.0;
    let inputs = Inputs::from_fleet(&fleet);
    let refused = plan(&fleet, &inputs, None).expect("a plan");
    let bill = shed_bill(&fleet, &inputs, &refused).join("\n");
    assert!(bill.contains("more reference requests/s (those of its profile) of e"), "{bill}");
    fleet.engines.iter_mut().for_each(|engine| engine.models = vec!["another".to_owned()]);
    let refused = plan(&fleet, &inputs, None).expect("a plan");
    let bill = shed_bill(&fleet, &inputs, &refused).join("\n");
    assert!(bill.contains("are refused: no engine may serve it") && !bill.contains("full"), "{bill}");
    let text: String = weights::explain(&fleet, &inputs, &refused).routes.iter().map(ToString::to_string).collect();
    assert!(text.contains("because no engine that may serve them is ready") && !text.contains("full"), "{text}");
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
