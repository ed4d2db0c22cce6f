//! Lives of fleets on a virtual clock: whatever happens, every plan is certified, and a seed tells
//! all.

use std::path::Path;

use bench::sim::{Kind, Life, Policy, Scenario, live};

fn scenario(name: &str, seed: u64) -> Scenario {
    Scenario { seed, ..Scenario::find(Path::new(name)).expect("it comes with the tool") }
}

/// The same life in a smaller fleet, for speed.
fn small(name: &str, seed: u64) -> Scenario {
    let mut scenario = scenario(name, seed);
    (scenario.fleet.clusters, scenario.fleet.engines) = (7, 42);
    scenario
}

fn lived(scenario: &Scenario, policy: Policy) -> Life {
    live(scenario, policy).unwrap_or_else(|error| panic!("{error:#}"))
}

#[test]
fn an_hour_with_most_of_what_a_year_brings_holds_for_several_seeds() {
    for seed in 1..=3 {
        let scenario = small("hour", seed);
        let life = lived(&scenario, Policy::Optimiser);
        assert!(life.plans > 1_000 && life.gap_max <= 5e-4, "{life:?}");
        let nearest = lived(&scenario, Policy::Nearest);
        // The same demand meets both; what comes of it is drawn flow by flow, so a few deviations
        // of the sums lie between them.
        let of = |life: &Life| life.total.requests as f64;
        assert!((of(&nearest) / of(&life) - 1.0).abs() < 5e-3, "{} and {}", of(&nearest), of(&life));
        assert!(
            life.total.mean_ms < nearest.total.mean_ms,
            "seed {seed}: {} ms, nearest {}",
            life.total.mean_ms,
            nearest.total.mean_ms
        );
    }
}

#[test]
fn the_same_seed_decides_the_same_and_another_one_does_not() {
    let mut scenario = small("hour", 11);
    scenario.duration_s = 900;
    scenario.events.retain(|event| event.at_s + event.for_s <= 900);
    let (one, again) = (lived(&scenario, Policy::Optimiser), lived(&scenario, Policy::Optimiser));
    assert_eq!((&one.digest, &one.phases), (&again.digest, &again.phases));
    assert_ne!(one.digest, lived(&Scenario { seed: 12, ..scenario }, Policy::Optimiser).digest);
}

/// docs/model.md, section 7: what a controller that is dead for ten minutes costs, and what the
/// loss of an engine does meanwhile.
#[test]
fn ten_minutes_without_a_controller_cost_next_to_nothing() {
    let mut with = small("outage", 5);
    with.duration_s = 900;
    with.events.retain(|event| event.kind == Kind::ControllerDown {});
    with.events[0].for_s = 600;
    let mut without = with.clone();
    without.events.clear();
    let mean = |life: &Life| {
        let within: Vec<_> =
            life.phases.iter().filter(|phase| phase.name == "controller down" || life.phases.len() == 1).collect();
        within[0].mean_ms
    };
    // The same seconds: calm before and after is left out of the life without an outage, too.
    without.duration_s = with.events[0].at_s + with.events[0].for_s;
    let (dead, alive) = (lived(&with, Policy::Optimiser), lived(&without, Policy::Optimiser));
    let worse = mean(&dead) / mean(&alive) - 1.0;
    assert!(worse < 0.01, "{worse}");
    let mut lost = with.clone();
    lost.events.push(scenario("outage", 5).events[1].clone());
    (lost.events[1].at_s, lost.events[1].for_s) = (400, 300);
    let life = lived(&lost, Policy::Optimiser);
    let overload: u32 = life.phases.iter().filter(|phase| phase.name.contains(" down")).map(|phase| phase.overload_s).sum();
    assert_eq!(overload, 0, "{:#?}", life.phases);
    assert_eq!(life.total.full + life.total.unreachable, 0);
}

#[test]
fn a_breach_names_the_second_and_the_command_that_replays_it() {
    let mut scenario = small("hour", 1);
    scenario.duration_s = 120;
    scenario.events.clear();
    scenario.expect.published_frac = 0.0;
    let error = format!("{:#}", live(&scenario, Policy::Optimiser).expect_err("something is published at the start"));
    assert!(error.contains("second 120: something is published"), "{error}");
    assert!(error.contains("replay: ilb-bench sim --scenario hour --seed 1 --duration 120s"), "{error}");
}
