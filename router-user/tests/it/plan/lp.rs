//! What the program knows of requests, engines and places beyond demand and capacity.

use router_user::model::{ClassId, ClusterId, EngineId, Fleet, Ineligible};
use router_user::plan::explain::report;
use router_user::plan::explain::weights;
use router_user::plan::explain::weights::WeightReason;
use router_user::plan::verify::{Violation, legal};
use router_user::plan::{Inputs, Pin, Plan, Status, evaluate, nearest, plan, plan_greedily};
use router_user::publish::build;
use router_user::publish::routes::Routes;
use router_user::publish::snapshot::Snapshot;

use crate::plan::fleet::{class, three_regions};

fn planned(fleet: &Fleet, inputs: &Inputs) -> Plan {
    let plan = plan(fleet, inputs, None).expect("a plan");
    legal(fleet, inputs, &plan.weights()).expect("a legal plan");
    plan
}

#[test]
fn work_is_what_fills_an_engine() {
    let mut fleet = three_regions();
    let plain = planned(&fleet, &Inputs::from_fleet(&fleet));
    // Half as many requests of twice the work load the engines alike, so each of them takes as long
    // as before.
    fleet.classes[0].work = 2.0;
    fleet.clusters.iter_mut().for_each(|cluster| cluster.demand_rps[0] /= 2.0);
    let inputs = Inputs::from_fleet(&fleet);
    let heavy = planned(&fleet, &inputs);
    assert_eq!(heavy.status, Status::Optimal);
    let latency = |plan: &Plan, at: usize| (plan.engines[at].load_rps, plan.engines[at].latency_ms);
    for at in [0, 1] {
        let ((load, ms), (heavy_load, heavy_ms)) = (latency(&plain, at), latency(&heavy, at));
        assert!((load - heavy_load).abs() < 0.5 && (ms - heavy_ms).abs() < 30.0, "{load} {heavy_load} {ms} {heavy_ms}");
    }
    assert!((evaluate(&fleet, &inputs, &heavy.weights()).engines.iter().map(|e| e.load_rps).sum::<f64>() - 250.0).abs() < 1e-6);
    // 150 requests/s are 300 units of work: 20 too many, which are 10 requests/s.
    let inputs = Inputs { demand_rps: vec![vec![50.0]; 3], ..inputs };
    let full = planned(&fleet, &inputs);
    let shed: f64 = full.routes.iter().map(|route| route.shed_rps).sum();
    assert!((shed - 10.0).abs() < 1e-5, "{shed}");
    let error = legal(&fleet, &inputs, &nearest(&fleet, &inputs)).expect_err("100 units meet a capacity of 80");
    assert!(matches!(error, Violation::Capacity { ref engine, .. } if engine == "e3"), "{error}");
}

#[test]
fn weights_decide_between_a_near_engine_and_one_that_decodes_faster() {
    let mut fleet = three_regions();
    fleet.clusters.iter_mut().for_each(|cluster| cluster.demand_rps[0] = 0.0);
    fleet.clusters[0].demand_rps[0] = 95.0;
    let far = |fleet: &Fleet| {
        let plan = planned(fleet, &Inputs::from_fleet(fleet));
        let explanation = weights::explain(fleet, &Inputs::from_fleet(fleet), &plan);
        for row in explanation.routes[0].engines.iter().filter(|row| row.weight > 0.0) {
            assert!(row.reason == WeightReason::AtPrice && row.dearer_ms.expect("terms").abs() < 0.01, "{row:?}");
        }
        let near = plan.routes[0].weights.iter().find(|share| share.engine == EngineId(0)).map_or(0.0, |share| share.weight);
        (1.0 - near, plan.latency_ms, plan.objective_ms)
    };
    let (plain, latency_ms, objective_ms) = far(&fleet);
    assert_eq!(latency_ms, objective_ms);
    fleet.classes[0].decode_weight = 0.0;
    let (for_ttft, ttft_latency, ttft_objective) = far(&fleet);
    fleet.classes[0].decode_weight = 10.0;
    let (for_decode, ..) = far(&fleet);
    assert!(for_ttft < plain && plain < for_decode, "{for_ttft} {plain} {for_decode}");
    assert!(ttft_latency >= latency_ms - 1e-9 && ttft_objective < ttft_latency / 2.0, "{ttft_latency} {ttft_objective}");
}

#[test]
fn no_engine_beyond_the_cap_is_used_by_plan_fallback_or_data_plane() {
    let mut fleet = three_regions();
    fleet.classes = vec![class("chat", 50.0, 0), class("near", 50.0, 0)];
    fleet.classes[1].rtt_cap_ms = Some(59.0);
    let mut inputs = Inputs::from_fleet(&fleet);
    inputs.demand_rps = vec![vec![40.0, 40.0], vec![0.0, 150.0], vec![0.0, 40.0]];
    // b reaches e1 and e2 within 59 ms, and not e3.
    inputs.ready = vec![1, 1, 0];
    for plan in [planned(&fleet, &inputs), plan_greedily(&fleet, &inputs, None).expect("a plan")] {
        let route =
            |cluster: u16| plan.routes.iter().find(|r| (r.cluster, r.class) == (ClusterId(cluster), ClassId(1))).expect("one");
        assert_eq!((&route(1).too_far[..], &route(2).too_far[..]), (&[EngineId(2)][..], &[EngineId(0), EngineId(1)][..]));
        assert!(route(2).weights.is_empty() && route(2).shed_rps == 40.0, "only e3 is near c: {:?}", route(2));
        assert!(route(1).weights.iter().all(|share| share.engine != EngineId(2)));
        let explanation = weights::explain(&fleet, &inputs, &plan).only(Some("c"), Some("near"), Some("e2"));
        let why = "is 60 ms away, cap 59 ms".to_owned();
        assert_eq!(explanation.routes[0].engines[0].reason, WeightReason::NotEligible { why });
        let snapshot = build::snapshot(&fleet, &plan, 1, 0, "test").sealed();
        snapshot.validate().expect("legal");
        let snapshot = Snapshot::from_json(&snapshot.to_json()).expect("as written");
        let routes = Routes::build(std::sync::Arc::new(snapshot), ClusterId(1), None);
        let engines = |class: usize| routes.classes[class].candidates.iter().map(|c| c.engine.0).collect::<Vec<_>>();
        assert_eq!((engines(0), engines(1)), (vec![0, 1, 2], vec![0, 1]));
        assert!(routes.classes[1].table.slots().iter().flatten().all(|&engine| engine != 2));
    }
    let mut weights = nearest(&fleet, &inputs);
    let of_c = weights.iter_mut().find(|r| (r.cluster, r.class) == (ClusterId(2), ClassId(1))).expect("one");
    assert!(of_c.weights.is_empty(), "nearest-only has no engine for it either");
    of_c.weights = vec![(EngineId(1), 1.0)];
    assert!(matches!(legal(&fleet, &inputs, &weights), Err(Violation::Ineligible { ref why, .. }) if why.contains("cap 59 ms")));
    // A pin is no way around it; one that has come to be too far is forgotten.
    inputs.pins = vec![Pin { cluster: ClusterId(2), class: ClassId(1), weights: vec![(EngineId(1), 1.0)] }];
    assert!(plan(&fleet, &inputs, None).expect_err("too far").to_string().contains("cap 59 ms"));
    assert_eq!((inputs.drop_far_pins(&fleet), inputs.pins.len()), (1, 0));
    let too_far = inputs.ineligible(&fleet, ClusterId(2), ClassId(1), EngineId(1));
    assert_eq!(too_far, Some(Ineligible::TooFar { rtt_ms: 60.0, cap_ms: 59.0 }));
}

/// Engines of one region whose memory is full before their capacity.
fn short_of_memory() -> Fleet {
    let mut fleet = three_regions();
    fleet.classes = vec![class("chat", 50.0, 0), class("long", 50.0, 1)];
    (fleet.classes[0].prompt_tokens, fleet.classes[1].prompt_tokens) = (100.0, 4_000.0);
    // At capacity a request stays 900 + 50 x 20 = 1,900 ms, so that one request/s of `long` holds
    // 4,025 x 1.9 tokens.
    for profile in &mut fleet.profiles {
        profile.kv_tokens = Some(4_025.0 * 1.9 * profile.capacity_rps / 2.0);
    }
    fleet
}

#[test]
fn memory_is_a_limit_beside_capacity() {
    let fleet = short_of_memory();
    let memory = fleet.profiles[0].memory(&fleet.classes[1]).expect("known");
    assert!((memory - 2.0).abs() < 1e-9, "half of the capacity in such requests fills it: {memory}");
    let mut inputs = Inputs::from_fleet(&fleet);
    inputs.demand_rps = vec![vec![0.0, 80.0], vec![0.0, 20.0], vec![0.0, 5.0]];
    inputs.rtt_ms[0] = vec![1.0, 600.0, 800.0];
    let plan = planned(&fleet, &inputs);
    assert_eq!(plan.status, Status::Optimal, "105 of 140 that fit");
    let full = &plan.engines[0];
    assert!(full.load_rps < 50.1 && full.memory_rps > 99.9 && full.memory_price_ms > 1.0, "{full:?}");
    let explanation = weights::explain(&fleet, &inputs, &plan);
    let row = &explanation.routes.iter().find(|r| (&r.cluster[..], &r.class[..]) == ("a", "long")).expect("one").engines;
    let at = |name: &str| row.iter().find(|row| row.engine == name).expect("every engine has a row");
    assert!(matches!(at("e1").held_by, Some(weights::Hold::Memory { .. })), "{:?}", at("e1"));
    assert!(at("e1").terms.expect("terms").memory_ms > 1.0 && at("e1").dearer_ms.expect("terms").abs() < 0.01);
    assert!(explanation.to_string().contains("for its memory") && explanation.to_string().contains("its memory is full"));
    assert!(
        matches!(legal(&fleet, &inputs, &nearest(&fleet, &inputs)), Err(Violation::Memory { ref engine, .. }) if engine == "e1")
    );
    let greedy = plan_greedily(&fleet, &inputs, None).expect("legal");
    assert!(greedy.engines.iter().all(|load| load.memory_rps <= load.capacity_rps * (1.0 + 1e-6)));
}

#[test]
fn what_memory_refuses_is_shared_fairly_and_priority_goes_first() {
    let mut fleet = short_of_memory();
    let mut inputs = Inputs::from_fleet(&fleet);
    // `chat` fills next to none of it: all of it is served, and `long` is served the same share
    // everywhere.
    inputs.demand_rps = vec![vec![20.0, 200.0], vec![20.0, 20.0], vec![0.0, 60.0]];
    let plan = planned(&fleet, &inputs);
    assert_eq!(plan.status, Status::Degraded);
    let shares = |class: u16| -> Vec<f64> {
        let of_class = plan.routes.iter().filter(|route| route.class == ClassId(class) && route.demand_rps > 0.0);
        of_class.map(|route| 1.0 - route.shed_rps / route.demand_rps).collect()
    };
    assert_eq!(shares(0), [1.0, 1.0]);
    // What `chat` leaves of 280 units of memory is for 280 requests/s that take 2 each.
    let chat = 40.0 * fleet.profiles[0].memory(&fleet.classes[0]).expect("known");
    let wanted = (280.0 - chat) / 2.0 / 280.0;
    assert!(shares(1).iter().all(|share| (share - wanted).abs() < 1e-3), "{:?}, wanted {wanted}", shares(1));
    // c alone may use e3 and nobody else may: it is served what fits there, and the others share
    // the rest.
    fleet.rtt_ms = vec![vec![1.0, 30.0, 80.0], vec![30.0, 1.0, 80.0], vec![80.0, 80.0, 1.0]];
    fleet.classes[1].rtt_cap_ms = Some(79.0);
    let inputs = Inputs { demand_rps: vec![vec![0.0, 200.0], vec![0.0, 20.0], vec![0.0, 60.0]], ..Inputs::from_fleet(&fleet) };
    let plan = planned(&fleet, &inputs);
    let served: Vec<f64> = plan.routes.iter().filter(|r| r.class == ClassId(1)).map(|r| r.demand_rps - r.shed_rps).collect();
    for (found, wanted) in served.iter().zip([200.0 * 100.0 / 220.0, 20.0 * 100.0 / 220.0, 40.0]) {
        assert!((found - wanted).abs() < 0.01, "{served:?}");
    }
}

#[test]
fn a_budget_of_detours_is_kept_unless_requests_would_be_shed_for_it() {
    let mut fleet = three_regions();
    let mean = |fleet: &Fleet, plan: &Plan, cluster: usize| {
        let shares = &plan.routes[cluster].weights;
        shares.iter().map(|share| share.weight * fleet.rtt_ms[cluster][share.engine.index()]).sum::<f64>()
    };
    let free = planned(&fleet, &Inputs::from_fleet(&fleet));
    let before = mean(&fleet, &free, 1);
    let (budget, inputs) = (before * 0.9, Inputs::from_fleet(&fleet));
    fleet.clusters[1].detour_budget_ms = Some(budget);
    let kept = planned(&fleet, &inputs);
    assert!((mean(&fleet, &kept, 1) - budget).abs() < 1e-3, "{} for {budget}", mean(&fleet, &kept, 1));
    assert!(kept.status == Status::Optimal && kept.objective_ms > free.objective_ms && kept.certificate.gap_frac < 1e-5);
    assert!(report::detours(&fleet, &inputs, &kept).is_empty());
    let explanation = weights::explain(&fleet, &inputs, &kept);
    let terms = |name: &str| {
        let row = explanation.routes[1].engines.iter().find(|row| row.engine == name).expect("every engine has a row");
        assert!(row.weight == 0.0 || row.dearer_ms.expect("terms").abs() < 0.01, "{row:?}");
        row.terms.expect("terms")
    };
    assert!(terms("e2").detour_ms < 0.0 && terms("e3").detour_ms > 0.0, "near engines earn it, far ones pay");
    assert!(explanation.to_string().contains("for the detour"));
    // 120 requests/s meet an engine for 100 nearby: a sixth has to go 30 ms at least.
    fleet.clusters[1].detour_budget_ms = Some(2.0);
    let most = planned(&fleet, &inputs);
    assert_eq!(most.status, Status::Optimal, "nothing is shed for a budget");
    let least = (100.0 * 1.0 + 20.0 * 30.0) / 120.0;
    assert!((mean(&fleet, &most, 1) - least).abs() < 1e-2, "{}, {least} is the least", mean(&fleet, &most, 1));
    let rows = report::detours(&fleet, &inputs, &most);
    assert!(matches!(&rows[..], [row] if row.cluster == "b" && row.budget_ms == 2.0), "{rows:?}");
    let nearest = evaluate(&fleet, &inputs, &nearest(&fleet, &inputs));
    assert!(
        report::table(&fleet, &inputs, &most, &nearest).contains("cluster b: 5.8 ms mean round trip, above its budget of 2 ms")
    );
}
