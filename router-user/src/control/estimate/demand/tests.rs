//! Tests of demand estimates.

use super::*;
use crate::config;

const A: ClusterId = ClusterId(0);
const B: ClusterId = ClusterId(1);

fn estimate() -> DemandEstimate {
    let config = config::parse(include_str!("../../../../../examples/three-regions.toml")).expect("legal");
    DemandEstimate::new(&config.fleet, Duration::from_secs(2))
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Reports `count` requests in two seconds from cluster `b`, over and over from `from` to `to`.
/// They differ by one, as counts do.
fn report(demand: &mut DemandEstimate, instance: &str, count: u64, from: u64, to: u64) {
    for now in (from..to).step_by(2) {
        demand.report(at(now), B, instance, 2_000, &[count + now / 2 % 2]).expect("legal");
    }
}

fn planned(demand: &DemandEstimate, now: u64) -> f64 {
    demand.demand_rps(at(now))[B.index()][0]
}

#[track_caller]
fn near(found: f64, wanted: f64, share: f64) {
    assert!((found - wanted).abs() <= share * wanted, "{found}, wanted {wanted} within {share}");
}

#[test]
fn starts_at_the_configured_value_and_changes_of_the_size_of_noise_are_followed_slowly() {
    let mut demand = estimate();
    assert_eq!((planned(&demand, 0), demand.freshness(at(0), B)), (120.0, Freshness::Configured));
    report(&mut demand, "p", 240, 2, 4);
    near(planned(&demand, 2), 120.0, 0.01);
    assert_eq!(demand.freshness(at(2), B), Freshness::Fresh);
    report(&mut demand, "p", 248, 4, 24);
    near(planned(&demand, 22), 120.8, 0.005);
    report(&mut demand, "p", 248, 24, 600);
    near(planned(&demand, 598), 124.2, 0.005);
    assert_eq!(demand.demand_rps(at(598))[A.index()], [90.0], "others stand still");
}

#[test]
fn a_restarted_controller_plans_with_the_published_demand_until_it_has_heard_for_a_time_constant() {
    let mut demand = estimate();
    demand.start_from(at(0), B, &[Some(300.0)]);
    assert_eq!((planned(&demand, 0), demand.freshness(at(0), B)), (300.0, Freshness::Published));
    assert_eq!(demand.demand_rps(at(0))[A.index()], [90.0], "a cluster that the snapshot does not know");
    report(&mut demand, "p", 600, 5, 15);
    assert_eq!((planned(&demand, 14), demand.freshness(at(14), B)), (300.0, Freshness::Published));
    report(&mut demand, "p", 600, 15, 16);
    assert_eq!(demand.freshness(at(15), B), Freshness::Fresh);
    near(planned(&demand, 15), 300.0, 0.01);
    demand.start_from(at(16), B, &[Some(7.0)]);
    near(planned(&demand, 16), 300.0, 0.01);
}

#[test]
fn a_cluster_that_never_reports_to_a_restarted_controller_keeps_its_published_demand_for_ten_minutes() {
    let mut demand = estimate();
    demand.start_from(at(0), B, &[Some(300.0)]);
    assert!(demand.anomalies(at(11), B).is_empty(), "nobody can have been heard yet");
    assert!(demand.anomalies(at(12), B)[0].contains("nothing is heard of it"));
    assert_eq!((planned(&demand, 599), demand.freshness(at(599), B)), (300.0, Freshness::Published));
    assert_eq!((planned(&demand, 600), demand.freshness(at(600), B)), (120.0, Freshness::Configured));
}

#[test]
fn reports_that_contradict_an_old_snapshot_are_believed_after_a_time_constant() {
    for (published, truth, within) in [(300.0, 120.0, 0.03), (120.0, 300.0, 0.03), (0.0, 20.0, 0.1)] {
        let mut demand = estimate();
        demand.start_from(at(0), B, &[Some(published)]);
        report(&mut demand, "p", 2 * truth as u64, 2, 14);
        assert_eq!(demand.freshness(at(13), B), Freshness::Fresh);
        near(planned(&demand, 13), truth, within);
    }
}

#[test]
fn several_data_planes_of_a_cluster_share_the_published_demand_they_start_from() {
    let mut demand = estimate();
    demand.start_from(at(0), B, &[Some(300.0)]);
    for now in (2..40).step_by(2) {
        for instance in ["p1", "p2", "p3"] {
            demand.report(at(now), B, instance, 2_000, &[200 + now / 2 % 2]).expect("legal");
        }
        near(planned(&demand, now), 300.0, 0.03);
    }
}

#[test]
fn a_step_is_followed_within_half_a_minute() {
    let mut demand = estimate();
    report(&mut demand, "p", 240, 0, 600);
    report(&mut demand, "p", 480, 600, 630);
    near(planned(&demand, 630), 225.0, 0.05);
    report(&mut demand, "p", 480, 630, 1_200);
    near(planned(&demand, 1_200), 240.0, 0.01);
}

#[test]
fn traffic_that_goes_to_another_data_plane_of_the_cluster_is_the_same_traffic() {
    let mut demand = estimate();
    report(&mut demand, "p1", 240, 0, 600);
    for now in (600..660).step_by(2) {
        report(&mut demand, "p2", 240, now, now + 1);
        // For two periods nobody knows that the other one is gone.
        near(planned(&demand, now), 120.0, 0.3);
    }
    report(&mut demand, "p2", 240, 660, 1_300);
    near(planned(&demand, 1_300), 120.0, 0.01);
    report(&mut demand, "p3", 120, 1_300, 1_302);
    assert_eq!(demand.clusters[B.index()].instances.len(), 2, "who is silent for ten minutes is forgotten");
}

#[test]
fn what_is_not_heard_is_planned_higher_then_kept_then_configured() {
    let mut demand = estimate();
    report(&mut demand, "p", 100, 0, 602);
    let fresh = planned(&demand, 603);
    near(fresh, 50.2, 0.02);
    assert_eq!((demand.freshness(at(604), B), planned(&demand, 604)), (Freshness::Late, fresh * 1.04));
    assert_eq!(demand.freshness(at(611), B), Freshness::Late);
    assert_eq!(demand.freshness(at(612), B), Freshness::Stale);
    let kept = planned(&demand, 612);
    near(kept, fresh * 1.07, 0.01);
    assert_eq!((demand.freshness(at(1_199), B), planned(&demand, 1_199)), (Freshness::Stale, kept));
    assert_eq!((demand.freshness(at(1_200), B), planned(&demand, 1_200)), (Freshness::Configured, 120.0));
}

#[test]
fn a_spike_counts_in_part_and_moves_the_demand_only_if_it_goes_on() {
    let mut demand = estimate();
    report(&mut demand, "p", 240, 0, 600);
    report(&mut demand, "p", 2_400, 600, 602);
    near(planned(&demand, 600), 123.0, 0.04);
    assert!(demand.anomalies(at(600), B)[0].contains("many times the usual"));
    report(&mut demand, "p", 240, 602, 640);
    near(planned(&demand, 638), 123.0, 0.04);
    assert!(demand.anomalies(at(638), B).is_empty());
    report(&mut demand, "p", 2_400, 640, 644);
    assert!(planned(&demand, 642) < 120.0 * 2.4, "two reports of four times the mean, a fifth of each");
    report(&mut demand, "p", 2_400, 644, 680);
    assert!(planned(&demand, 678) > 1_000.0, "but not for ever");
}

#[test]
fn zeros_are_let_go_slowly_while_others_go_on_and_believed_when_nobody_has_any() {
    let mut demand = estimate();
    let others = |demand: &mut DemandEstimate, count: u64, now: u64| {
        demand.report(at(now), A, "a", 2_000, &[count + now / 2 % 2]).expect("legal");
    };
    report(&mut demand, "p", 240, 0, 600);
    for now in (600..660).step_by(2) {
        others(&mut demand, 100, now);
        demand.report(at(now), B, "p", 2_000, &[0]).expect("legal");
    }
    near(planned(&demand, 658), 120.0 * (-0.5_f64).exp(), 0.01);
    assert!(demand.anomalies(at(658), B)[0].contains("no arrivals"));
    let mut quiet = demand.clone();
    others(&mut quiet, 0, 660);
    assert!(planned(&quiet, 660) < 25.0 && quiet.anomalies(at(660), B).is_empty(), "the whole fleet is quiet");
    for now in (660..722).step_by(2) {
        others(&mut demand, 100, now);
        demand.report(at(now), B, "p", 2_000, &[0]).expect("legal");
    }
    assert!(planned(&demand, 720) < 25.0, "two minutes of zeros are true");
}

#[test]
fn counters_that_are_stuck_are_named_and_planned_a_little_higher() {
    let mut demand = estimate();
    report(&mut demand, "p", 240, 0, 600);
    for now in (600..700).step_by(2) {
        demand.report(at(now), B, "p", 2_000, &[240]).expect("legal");
    }
    assert!(demand.anomalies(at(698), B)[0].contains("again and again"));
    near(planned(&demand, 698), 120.0 * 1.07, 0.01);
    report(&mut demand, "p", 239, 700, 704);
    assert!(demand.anomalies(at(702), B).is_empty());
}

#[test]
fn a_clock_that_runs_away_does_not_thin_out_the_demand() {
    let mut demand = estimate();
    report(&mut demand, "p", 240, 0, 600);
    for now in (600..700).step_by(2) {
        demand.report(at(now), B, "p", 20_000, &[240 + now / 2 % 2]).expect("legal");
    }
    assert!(demand.anomalies(at(698), B)[0].contains("more time than has passed"));
    near(planned(&demand, 698), 120.0, 0.1);
    report(&mut demand, "p", 240, 700, 900);
    assert!(demand.anomalies(at(898), B).is_empty());
}

#[test]
fn bursts_do_not_move_the_demand_and_are_measured() {
    let mut demand = estimate();
    // Batches of 140 in one of every seven reports, at no fixed distance: ten a second.
    let (mut sum, mut most) = (0.0, 0.0_f64);
    for now in (0..7_200).step_by(2) {
        let lucky = router_common::slot::mix64(now).is_multiple_of(7);
        demand.report(at(now), B, "p", 2_000, &[if lucky { 140 } else { 0 }]).expect("legal");
        if now >= 3_600 {
            sum += planned(&demand, now) / 1_800.0;
            most = most.max(planned(&demand, now));
        }
    }
    near(sum, 10.0, 0.1);
    assert!(most < 20.0, "{most}");
    let index = demand.dispersion(B).next().expect("one class");
    assert!((60.0..250.0).contains(&index), "{index}");
}

/// From 0 to 32 requests/s at once, which stays: what is planned with comes closer, or stays where
/// it is but for noise.
#[test]
fn an_estimate_does_not_fall_away_from_a_rate_that_stands_still() {
    for seed in 0..20_u64 {
        let mut random = seed;
        let mut uniform = || {
            random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            (router_common::slot::mix64(random) >> 11) as f64 / (1_u64 << 53) as f64
        };
        let mut demand = estimate();
        for now in (0..600).step_by(2) {
            demand.report(at(now), B, "p", 2_000, &[0]).expect("legal");
        }
        let mut most = 0.0_f64;
        for now in (600..1_200).step_by(2) {
            // A sum of twelve uniform numbers is nearly normal, as a Poisson count of 64 is.
            let noise: f64 = (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
            demand.report(at(now), B, "p", 2_000, &[(64.0 + 8.0 * noise).round() as u64]).expect("legal");
            let planned = planned(&demand, now);
            assert!(planned > 0.8 * most, "seed {seed}: {planned} after {most}, {} s after the step", now - 600);
            most = most.max(planned);
            assert!(now < 630 || planned > 21.0, "seed {seed}: {planned} of 32, {} s after the step", now - 600);
        }
        near(planned(&demand, 1_198), 32.0, 0.1);
    }
}

#[test]
fn refuses_windows_counts_and_crowds_out_of_bounds() {
    let mut demand = estimate();
    assert_eq!(demand.report(at(1), B, "p", 0, &[1]), Err(ReportError::Window { window_ms: 0 }));
    assert_eq!(demand.report(at(1), B, "p", 600_001, &[1]), Err(ReportError::Window { window_ms: 600_001 }));
    let count = 2_000_001;
    assert_eq!(demand.report(at(1), B, "p", 2_000, &[count]), Err(ReportError::Count { count, window_ms: 2_000 }));
    for n in 0..MAX_INSTANCES {
        demand.report(at(1), B, &format!("p{n}"), 1_000, &[0]).expect("within the bound");
    }
    assert_eq!(demand.report(at(1), B, "one more", 1_000, &[0]), Err(ReportError::Instances));
    demand.report(at(602), B, "one more", 1_000, &[0]).expect("the silent ones made room");
}
