//! `/metrics`: what Prometheus reads.

use std::collections::BTreeSet;

use router_user::admin::FAMILIES;

use super::{World, config, engine, exposition, run};

/// Families that this fleet has no samples of: nothing drifts, no engine tells its replicas, no
/// failover, no engine is full, no kernel plane, and no operator has ordered anything.
const ABSENT: [&str; 8] = [
    "ilb_plan_engine_order",
    "ilb_proxy_engine_waiting_limit",
    "ilb_control_engine_drift_ratio",
    "ilb_control_engine_ready_replicas",
    "ilb_proxy_failover",
    "ilb_kernel_generation",
    "ilb_kernel_outcomes_total",
    "ilb_kernel_engine_picks_total",
];

#[test]
fn metrics_obey_prometheus_and_are_those_of_the_table() {
    run(async {
        let world = World::start(config(&[engine().await]), true).await;
        assert!(world.chat().await.contains("\"c\""));
        let signals = |_, text: &str| text.contains("ilb_control_engine_kv_usage_ratio") && text.contains("ilb_ready 1");
        let text = world.until("/metrics", signals).await;
        let read = exposition::read(&text);
        for family in FAMILIES {
            let Some(shown) = read.get(family.name) else {
                assert!(ABSENT.contains(&family.name), "{} is not shown", family.name);
                continue;
            };
            assert_eq!((&*shown.kind, &*shown.help), (&*family.kind.to_string(), family.help), "{}", family.name);
            let labels: BTreeSet<&str> = shown.samples[0].1.keys().map(String::as_str).filter(|&label| label != "le").collect();
            assert_eq!(labels, family.labels.iter().copied().collect(), "{}", family.name);
        }
        let declared: BTreeSet<&str> = FAMILIES.iter().map(|family| family.name).collect();
        assert!(read.keys().all(|name| declared.contains(name.as_str())), "{:?}", read.keys());
    });
}

#[test]
fn each_request_counts_once_in_the_histograms_of_its_engine() {
    run(async {
        let world = World::start(config(&[engine().await]), false).await;
        for _ in 0..3 {
            world.chat().await;
        }
        let counts = |text: &str| {
            let read = exposition::read(text);
            ["ilb_proxy_engine_ttft_seconds", "ilb_proxy_engine_itl_seconds", "ilb_proxy_engine_e2e_seconds"].map(|name| {
                let samples = &read[name].samples;
                let count = samples.iter().find(|(sample, ..)| sample.ends_with("_count")).expect("a count");
                assert_eq!(samples.len(), 16 + 3, "{name}: 16 buckets, +Inf, sum and count");
                count.2
            })
        };
        // Three answers of three events each, between which are two gaps.
        world.until("/metrics", |_, text| counts(text) == [3.0, 6.0, 3.0]).await;
    });
}
