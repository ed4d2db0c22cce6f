use proptest::prelude::*;

use super::*;
use Evidence::{Busy, Closed, Refused, Served, ServerError, Stalled, Unreachable};

const SEQUENCE_STEP_MS: Millis = 10;

/// A judgement after the given ends, one every 10 ms, and the time.
fn after(ends: impl IntoIterator<Item = Evidence>) -> (Judgement, Millis) {
    let (mut judgement, mut now) = (Judgement::default(), 0);
    for end in ends {
        judgement.take(end, now, false);
        now += SEQUENCE_STEP_MS;
    }
    (judgement, now)
}

fn repeat(evidence: Evidence, times: usize) -> impl Iterator<Item = Evidence> {
    std::iter::repeat_n(evidence, times)
}

/// An engine that has just been ejected.
fn ejected() -> Judgement {
    let mut judgement = Judgement::default();
    (0..3).for_each(|_| judgement.take(ServerError, 0, false));
    assert_eq!(judgement.state(0), EngineState::Ejected);
    judgement
}

#[test]
fn three_failures_in_a_row_eject_and_two_do_not_whatever_came_before() {
    for good in [0, 1, 10, 1_000, 100_000] {
        for failure in Evidence::FAILURES {
            let (judgement, now) = after(repeat(Served, good).chain(repeat(failure, 3)));
            assert_eq!((judgement.multiplier(now), judgement.reason(now)), (0.0, Some(failure)), "{failure:?}");
        }
        let (judgement, now) = after(repeat(Served, good).chain([Closed, Refused]));
        assert_eq!(judgement.state(now), EngineState::Healthy);
    }
    for certain in [Unreachable, Stalled] {
        assert_eq!(after([certain]).0.state(0), EngineState::Ejected, "one client has waited long for it");
    }
}

#[test]
fn one_failure_in_a_hundred_costs_an_engine_nothing() {
    let hundred = || repeat(Served, 99).chain([ServerError]);
    let (judgement, now) = after((0..1_000).flat_map(|_| hundred()));
    assert_eq!((judgement.multiplier(now), judgement.reason(now)), (1.0, None));
}

#[test]
fn an_engine_that_fails_some_requests_gets_fewer_and_one_that_fails_many_none() {
    // The least share on the way, when one in n fails.
    let share = |n: usize| {
        let mut judgement = Judgement::default();
        let mut shares = (0..210).map(|i| {
            judgement.take(if i % n == n - 1 { ServerError } else { Served }, i as Millis, false);
            judgement.multiplier(i as Millis)
        });
        shares.by_ref().fold(1.0, f64::min)
    };
    assert_eq!((share(20), share(5), share(2)), (1.0, 0.0, 0.0));
    let few = [share(7), share(8), share(10), share(20)];
    assert!(few.is_sorted() && (0.5..0.9).contains(&few[0]), "{few:?}");
}

#[test]
fn one_test_at_a_time_decides_and_each_failed_one_doubles_the_time() {
    let mut judgement = ejected();
    let mut now = 0;
    for expected in [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
        assert!(!judgement.begin_test(now + expected - 1));
        now += expected;
        assert!(judgement.begin_test(now));
        assert!(!judgement.begin_test(now + 1), "a second request must wait for the test");
        judgement.take(Served, now, false);
        assert_eq!(judgement.state(now), EngineState::HalfOpen, "a request that was sent before tells nothing");
        judgement.take(Closed, now, true);
    }
    judgement.begin_test(now + OUT_MAX_MS);
    judgement.take(Served, now + OUT_MAX_MS, true);
    assert_eq!(judgement.state(now + OUT_MAX_MS), EngineState::Ramp);
    // Within a minute after an engine is well it has its whole share, whenever it was tested last.
    assert_eq!(judgement.multiplier(now + OUT_MAX_MS + RAMP_MS), 1.0);
    const { assert!(OUT_MAX_MS + RAMP_MS < 60_000) };
}

#[test]
fn a_test_without_an_outcome_neither_locks_the_engine_out_nor_brings_it_back() {
    let mut judgement = ejected();
    assert!(judgement.begin_test(OUT_MIN_MS));
    assert!(judgement.begin_test(OUT_MIN_MS + TEST_MAX_MS), "a test that never ends");
    judgement.test_lapsed();
    assert_eq!(judgement.state(20_000), EngineState::Ejected);
    assert!(judgement.begin_test(20_000));
}

#[test]
fn a_share_comes_back_slowly_and_one_failure_on_the_way_takes_it_again() {
    let mut judgement = ejected();
    judgement.begin_test(1_000);
    judgement.take(Served, 1_000, true);
    let shares: Vec<f64> = (0..=10).map(|s| judgement.multiplier(1_000 + 1_000 * s)).collect();
    assert!(shares.is_sorted() && shares[0] == RAMP_FROM && shares[10] == 1.0, "{shares:?}");
    judgement.take(ServerError, 3_000, false);
    assert_eq!(judgement.multiplier(3_000), 0.0);
    assert_eq!(judgement.test_due(), Some(5_000), "twice as long as before");
}

#[test]
fn an_engine_that_fails_every_few_seconds_is_away_ever_longer() {
    let (mut judgement, mut served, mut failed) = (Judgement::default(), 0, 0);
    for now in (0..300_000).step_by(20) {
        let is_test = judgement.begin_test(now);
        // In the first half of every 10 s all fail.
        let is_sound = now % 10_000 >= 5_000;
        let passes = (now / 20 * 7 % 100) as f64 / 100.0 < judgement.multiplier(now);
        if is_test || passes {
            judgement.take(if is_sound { Served } else { Closed }, now, is_test);
            *(if is_sound { &mut served } else { &mut failed }) += 1;
        }
    }
    assert!(failed <= 40 && served > failed, "{served} served, {failed} failed of 15,000");
}

#[test]
fn a_rest_lasts_as_long_as_asked_within_bounds_and_counts_as_no_failure() {
    for (asked, expected) in [(5_000, 5_000), (0, 0), (Millis::MAX / 2, REST_MAX_MS)] {
        let mut judgement = Judgement::default();
        judgement.rest(100, asked);
        assert_eq!((judgement.multiplier(100), judgement.test_due()), (0.0, Some(100 + expected)));
        assert_eq!(judgement.reason(100), Some(Busy));
        judgement.begin_test(100 + expected);
        judgement.take(Served, 100 + expected, true);
        assert_eq!(judgement.multiplier(100 + expected + RAMP_MS), 1.0);
        // A shorter wish does not shorten a time out.
        let mut out = ejected();
        out.rest(0, 10);
        assert_eq!(out.test_due(), Some(OUT_MIN_MS));
    }
}

#[test]
fn evidence_that_is_taken_back_leaves_nothing() {
    let (mut judgement, now) = after(repeat(Served, 10).chain(repeat(Closed, 3)));
    assert_eq!(judgement.state(now), EngineState::Ejected);
    judgement.take_back(Closed, now);
    assert_eq!(judgement.state(now), EngineState::Healthy);
    judgement.take_back(Closed, now);
    judgement.take_back(Closed, now);
    assert_eq!(judgement.multiplier(now), 1.0);
    judgement.take(Closed, now, false);
    judgement.take(Closed, now, false);
    assert_eq!(judgement.state(now), EngineState::Healthy);
}

#[test]
fn a_test_whose_failure_is_taken_back_may_be_made_again_after_a_second() {
    let mut judgement = ejected();
    judgement.begin_test(1_000);
    judgement.take(Closed, 1_500, true);
    assert_eq!(judgement.test_due(), Some(3_500));
    judgement.take_back(Closed, 1_600);
    assert_eq!((judgement.state(1_600), judgement.test_due()), (EngineState::Ejected, Some(1_600 + OUT_MIN_MS)));
}

#[test]
fn panic_is_more_than_half() {
    for (ejected, engines, expected) in [(0, 0, false), (1, 1, true), (1, 2, false), (2, 3, true), (2, 4, false), (3, 4, true)] {
        assert_eq!(is_panic(ejected, engines), expected, "{ejected} of {engines}");
    }
}

proptest! {
    #[test]
    fn multipliers_stay_in_range_and_time_alone_never_lowers_them(
        ends in prop::collection::vec((0..11_usize, 0..5_000_u64, any::<bool>()), 0..200),
    ) {
        let (mut judgement, mut now) = (Judgement::default(), 0);
        for (kind, pause, may_test) in ends {
            let before = judgement.multiplier(now);
            now += pause;
            prop_assert!(judgement.multiplier(now) >= before);
            let is_test = may_test && judgement.begin_test(now);
            let evidence = Evidence::FAILURES.get(kind).copied().unwrap_or(Served);
            judgement.take(evidence, now, is_test);
            prop_assert!((0.0..=1.0).contains(&judgement.multiplier(now)));
            if let Some(due) = judgement.test_due() {
                prop_assert!(due <= now + OUT_MAX_MS);
            }
        }
    }
}

#[test]
fn an_operators_word_outweighs_what_requests_say_until_it_is_taken_back() {
    for state in [EngineState::Drained, EngineState::EjectedByOperator] {
        let mut judgement = Judgement::default();
        judgement.order(state);
        for evidence in [Evidence::Served, Evidence::Closed, Evidence::Closed, Evidence::Closed] {
            judgement.take(evidence, 10, true);
        }
        judgement.rest(10, 1_000);
        judgement.take_back(Evidence::Closed, 10);
        assert!(!judgement.begin_test(1_000_000), "nothing tests it");
        assert_eq!((judgement.state(1_000_000), judgement.multiplier(1_000_000)), (state, 0.0));
        assert!(state.is_by_operator());
        judgement.readmit(1_000_000);
        assert_eq!((judgement.state(1_000_000), judgement.multiplier(1_000_000)), (EngineState::Ramp, RAMP_FROM));
        assert_eq!(judgement.multiplier(1_000_000 + RAMP_MS), 1.0);
    }
}

#[test]
fn an_operator_lifts_an_ejection_and_changes_nothing_of_a_sound_engine() {
    let mut judgement = Judgement::default();
    (0..3).for_each(|_| judgement.take(Evidence::Closed, 0, false));
    assert_eq!(judgement.state(0), EngineState::Ejected);
    judgement.readmit(10);
    assert_eq!((judgement.state(10), judgement.reason(10)), (EngineState::Ramp, None));
    let mut sound = Judgement::default();
    sound.readmit(10);
    assert_eq!((sound.state(10), sound.multiplier(10)), (EngineState::Healthy, 1.0));
}
