//! Tests of what is measured and planned with.

use super::*;
use crate::control::engines::health::Answer;

fn measured() -> Measured {
    Measured::new(Arc::new(crate::config::parse(include_str!("../../../../../examples/three-regions.toml")).expect("legal")))
}

fn probe(measured: &mut Measured, engine: usize, answer: Answer, times: usize) {
    for _ in 0..times {
        measured.probe(Probe { engine: EngineId::of(engine), answer });
    }
}

#[test]
fn silence_of_more_than_half_of_the_capacity_is_not_believed_and_refusal_is() {
    let mut measured = measured();
    probe(&mut measured, 0, Answer::TimedOut, 5);
    let (inputs, anomalies) = measured.inputs(Duration::ZERO, Vec::new(), None);
    assert_eq!((inputs.ready, anomalies.len()), (vec![0, 1, 1], 0));
    probe(&mut measured, 1, Answer::TimedOut, 5);
    let (inputs, anomalies) = measured.inputs(Duration::ZERO, Vec::new(), None);
    assert_eq!((inputs.ready, anomalies[0].subject.as_str()), (vec![1, 1, 1], "health probes"));
    probe(&mut measured, 1, Answer::Refused, 2);
    assert_eq!(measured.inputs(Duration::ZERO, Vec::new(), None).0.ready, [0, 0, 1]);
    probe(&mut measured, 0, Answer::Refused, 2);
    probe(&mut measured, 2, Answer::Refused, 2);
    let (inputs, anomalies) = measured.inputs(Duration::ZERO, Vec::new(), None);
    assert_eq!((inputs.ready, anomalies.len()), (vec![1, 1, 1], 3), "every engine gone is the probe's fault, and says so");
}

#[test]
fn a_snapshot_of_other_clusters_and_classes_lends_the_demand_of_those_that_are_still_there() {
    let old = include_str!("../../../../../examples/three-regions.toml").replacen("name = \"c\"", "name = \"gone\"", 1);
    let old = crate::config::parse(&old).expect("legal").fleet;
    let inputs = Inputs { demand_rps: vec![vec![10.0], vec![20.0], vec![30.0]], ..Inputs::from_fleet(&old) };
    let plan = crate::plan::plan(&old, &inputs, None).expect("a plan");
    let snapshot = crate::publish::build::snapshot(&old, &plan, 7, 0, "test");
    let mut measured = measured();
    measured.start_from(Duration::ZERO, &snapshot);
    let found: Vec<_> = measured.clusters(Duration::ZERO).into_iter().map(|c| (c.freshness, c.demand_rps[0].1)).collect();
    let wanted = [(Freshness::Published, 10.0), (Freshness::Published, 20.0), (Freshness::Configured, 40.0)];
    assert_eq!(found, wanted);
}

#[test]
fn an_engine_that_counts_its_live_replicas_is_planned_with_those() {
    let source =
        include_str!("../../../../../examples/three-regions.toml").replacen("name = \"e2\"", "name = \"e2\"\nreplicas = 4", 1);
    let mut measured = Measured::new(Arc::new(crate::config::parse(&source).expect("legal")));
    let mut say = |at_s: u64, live: usize| {
        let page: String = (0..4).map(|n| format!("smg_worker_health{{worker=\"{n}\"}} {}\n", u8::from(n < live))).collect();
        let outcome = Ok(crate::probe::from_metrics(page.as_bytes()).expect("known"));
        let at = Duration::from_secs(at_s);
        let changed = measured.scrape(at, Scrape { engine: EngineId::of(1), outcome });
        (changed, measured.inputs(at, Vec::new(), None).0.ready)
    };
    assert_eq!(say(0, 3), (true, vec![1, 3, 1]));
    assert_eq!(say(5, 3), (false, vec![1, 3, 1]));
    assert_eq!(say(10, 4), (true, vec![1, 4, 1]));
    assert_eq!(say(15, 1), (true, vec![1, 1, 1]));
    let later = measured.inputs(Duration::from_secs(31), Vec::new(), None).0.ready;
    assert_eq!(later, [1, 4, 1], "what is old is not believed");
}

#[test]
fn an_engine_whose_probe_and_words_differ_is_named_and_planned_without() {
    let mut measured = measured();
    let mut say = |line: &str| {
        let outcome = Ok(crate::probe::from_metrics(line.as_bytes()).expect("known"));
        measured.scrape(Duration::ZERO, Scrape { engine: EngineId::of(1), outcome });
        measured.inputs(Duration::ZERO, Vec::new(), None)
    };
    let (inputs, anomalies) = say("smg_worker_health{worker=\"a\"} 0\n");
    assert_eq!((inputs.ready, anomalies[0].subject.as_str()), (vec![1, 0, 1], "engine e2"));
    assert!(anomalies[0].detail.contains("counts no live replica"), "{anomalies:?}");
    assert!(say("smg_worker_health{worker=\"a\"} 1\n").1.is_empty());
    probe(&mut measured, 1, Answer::Refused, 2);
    let outcome = Ok(crate::probe::from_metrics(b"vllm:num_requests_running 3\n").expect("known"));
    measured.scrape(Duration::ZERO, Scrape { engine: EngineId::of(1), outcome });
    let (inputs, anomalies) = measured.inputs(Duration::ZERO, Vec::new(), None);
    assert_eq!(inputs.ready, [1, 0, 1]);
    assert!(anomalies[0].detail.contains("works on requests"), "{anomalies:?}");
}

#[test]
fn a_report_that_names_what_is_unknown_changes_nothing() {
    let mut measured = measured();
    let report = |cluster: &str, class: &str| DemandReport {
        cluster: cluster.to_owned(),
        instance: "p".to_owned(),
        window_ms: 1_000,
        arrivals: vec![("chat".to_owned(), 5), (class.to_owned(), 5)],
        ..DemandReport::default()
    };
    assert!(matches!(measured.report(Duration::ZERO, &report("x", "chat")), Err(MeasureError::Cluster(name)) if name == "x"));
    assert!(matches!(measured.report(Duration::ZERO, &report("b", "y")), Err(MeasureError::Class(name)) if name == "y"));
    assert!(!measured.clusters(Duration::ZERO)[1].measured);
}
