//! One of two or three engines misbehaves for twenty seconds, and is well again.

use anyhow::Result;

use crate::faults::analysis::{self, Record};
use crate::faults::figures::{Figures, Limit};
use crate::faults::fleet::{Class, Fleet};
use crate::faults::misbehaviour::{FLAP, Misbehaviour};
use crate::faults::rig::{Bed, Rig};
use crate::faults::traffic::{Flow, Traffic};

/// Capacity of each engine: enough requests at 1 % of it for a verdict, few enough at 70 % that
/// engines, client and proxy leave the machine idle.
const CAPACITY_RPS: f64 = 100.0;

/// The fault begins so long after the traffic, in s: several periods of the controller, and enough
/// requests to know the calm.
const CALM_S: f64 = 10.0;

/// The first seconds are not counted as calm: connections open, pools fill.
const WARM_UP_S: f64 = 2.0;

/// Length of the fault, in s.
const FAULT_S: f64 = 20.0;

/// Longest time that the return of the engine's share is watched, in s.
const RECOVERY_S: f64 = 60.0;

/// Failures count against their limit from so long after the beginning of the fault, in s.
const NOTICE_S: f64 = 2.0;

/// The engine's share counts against its limit from so long after the beginning of the fault, in s.
const AVOID_S: f64 = 5.0;

/// A request that has no end after so long hangs, in s, and counts as failed: ten times the slowest
/// sound answer.
const HANG_S: f64 = 10.0;

/// Part of its share before the fault that counts as the full share: two standard deviations of the
/// share in a window of a hundred requests.
const FULL_FRAC: f64 = 0.8;

/// The share is measured over at least so many requests, and at least so many s.
const WINDOW_REQUESTS: f64 = 20.0;
const WINDOW_S: f64 = 2.0;

/// A share before the fault counts as measured over at least so many requests; the equal part is
/// taken otherwise.
const MEASURED_REQUESTS: usize = 100;

/// One case.
#[derive(Clone, Copy, Debug)]
pub(in crate::faults) struct Case {
    pub(in crate::faults) misbehaviour: Misbehaviour,
    pub(in crate::faults) engines: usize,
    /// Offered load, in percent of the fleet's capacity.
    pub(in crate::faults) load_percent: f64,
}

/// Times of one run, in s from the start of its traffic.
struct Times {
    begin_s: f64,
    end_s: f64,
}

impl Case {
    fn offered_rps(&self) -> f64 {
        CAPACITY_RPS * self.engines as f64 * self.load_percent / 100.0
    }

    /// Part of the offered load that the engines without the bad one cannot carry.
    fn excess_frac(&self) -> f64 {
        let others_rps = CAPACITY_RPS * (self.engines as f64 - 1.0);
        (1.0 - others_rps / self.offered_rps()).max(0.0)
    }

    /// Part of the offered load that nobody can carry.
    fn unavoidable_frac(&self) -> f64 {
        let living_rps = CAPACITY_RPS * (self.engines as f64 - 1.0 + self.misbehaviour.living_frac());
        (1.0 - living_rps / self.offered_rps()).max(0.0)
    }
}

pub(in crate::faults) async fn run(case: &Case, bed: &Bed) -> Result<Figures> {
    let fleet = Fleet::new(case.engines, CAPACITY_RPS, vec![Class::chat(case.offered_rps())]);
    let rig = bed.start(&fleet).await?;
    let bad = usize::try_from(bed.seed).unwrap_or(0) % case.engines;
    let traffic = Traffic::start(rig.front, &[Flow::chats(case.offered_rps())], bed.seed);
    let times = misbehave(case, &rig, bad, &traffic).await?;
    watch_recovery(case, &rig.engines[bad].name, &traffic, times.end_s).await;
    let records = traffic.finish().await;
    let visitors = rig.engines[bad].arrivals()?.ids();
    rig.stop().await?;
    let is_at_bad = |record: &Record| visitors.contains(&record.id);
    Ok(figures(case, &times, &records, &is_at_bad))
}

async fn misbehave(case: &Case, rig: &Rig, bad: usize, traffic: &Traffic) -> Result<Times> {
    let engine = &rig.engines[bad];
    traffic.until(CALM_S).await;
    engine.begin(case.misbehaviour).await?;
    let begin_s = traffic.at_s();
    if case.misbehaviour == Misbehaviour::Flap {
        let mut turn = 1.0;
        while turn * FLAP.as_secs_f64() < FAULT_S {
            traffic.until(begin_s + turn * FLAP.as_secs_f64()).await;
            if turn % 2.0 == 0.0 {
                engine.begin(case.misbehaviour).await?
            } else {
                engine.end(case.misbehaviour).await?
            }
            turn += 1.0;
        }
    }
    traffic.until(begin_s + FAULT_S).await;
    engine.end(case.misbehaviour).await?;
    Ok(Times { begin_s, end_s: traffic.at_s() })
}

/// Requests that a share is measured over.
fn window(case: &Case) -> usize {
    (case.offered_rps() * WINDOW_S).max(WINDOW_REQUESTS) as usize
}

/// Share of the engine before the fault.
fn share_before(case: &Case, records: &[Record], is_at_bad: &dyn Fn(&Record) -> bool, begin_s: f64) -> f64 {
    let calm = analysis::within(records, WARM_UP_S, begin_s);
    let equal = 1.0 / case.engines as f64;
    if calm.len() < MEASURED_REQUESTS { equal } else { analysis::part(&calm, is_at_bad).unwrap_or(equal) }
}

fn time_back(case: &Case, records: &[Record], is_at_bad: &dyn Fn(&Record) -> bool, times: (f64, f64)) -> f64 {
    let wanted = FULL_FRAC * share_before(case, records, is_at_bad, times.0);
    let mut visits: Vec<(f64, bool)> = records.iter().map(|record| (record.due_s, is_at_bad(record))).collect();
    visits.sort_by(|a, b| a.0.total_cmp(&b.0));
    analysis::time_until_share(&visits, times.1, window(case), wanted)
}

/// Waits until the engine has its share again, by what answers say, and for one window more.
async fn watch_recovery(case: &Case, bad: &str, traffic: &Traffic, end_s: f64) {
    let is_at_bad = |record: &Record| record.engine.as_deref() == Some(bad);
    let window_s = (window(case) as f64 / case.offered_rps()).min(RECOVERY_S);
    let give_up_s = end_s + RECOVERY_S + window_s;
    while traffic.at_s() < give_up_s {
        let back_s = time_back(case, &traffic.so_far(), &is_at_bad, (CALM_S, end_s));
        if back_s.is_finite() {
            traffic.until(traffic.at_s() + WINDOW_S).await;
            return;
        }
        traffic.until(traffic.at_s() + 0.5).await;
    }
}

fn figures(case: &Case, times: &Times, records: &[Record], is_at_bad: &dyn Fn(&Record) -> bool) -> Figures {
    let Times { begin_s, end_s } = *times;
    let failed = |record: &Record| record.is_failed(HANG_S);
    let calm = analysis::within(records, WARM_UP_S, begin_s);
    let during = analysis::within(records, begin_s, end_s);
    let noticed = analysis::within(records, begin_s + NOTICE_S, end_s);
    let avoided = analysis::within(records, begin_s + AVOID_S, end_s);
    let all = analysis::within(records, 0.0, f64::INFINITY);
    // Requests on their way when the fault began fail in its first seconds.
    let first = analysis::within(records, begin_s - HANG_S, begin_s + NOTICE_S);
    let unavoidable = case.unavoidable_frac() * 100.0;
    let allowed_share = if case.misbehaviour.living_frac() > 0.0 { case.excess_frac() * 100.0 } else { 0.0 };

    let mut found = Figures::default();
    found.note("requests", during.len() as f64);
    found.note("at the engine", during.iter().filter(|record| is_at_bad(record)).count() as f64);
    found.note("failed first 2 s", first.iter().filter(|record| failed(record)).count() as f64);
    found.judge("failed %", analysis::percent(&noticed, failed), Limit::AtMost(1.0 + unavoidable));
    let retriable = analysis::percent(&noticed, |record| record.is_failed_before_content(HANG_S));
    found.judge("retriable failed %", retriable, Limit::AtMost(0.1 + unavoidable));
    let share = analysis::percent(&avoided, is_at_bad);
    found.judge("share after 5 s %", share, Limit::AtMost(allowed_share.max(5.0)));
    found.judge("share back s", time_back(case, records, is_at_bad, (begin_s, end_s)), Limit::AtMost(RECOVERY_S));
    found.note("failed after %", analysis::percent(&analysis::within(records, end_s, f64::INFINITY), failed));
    found.note("hung", all.iter().filter(|record| record.total_s > HANG_S).count() as f64);
    found.note("longest s", analysis::longest_s(&all));
    found.note("calm TTFT p50 ms", analysis::ttft_ms(&calm, 0.5));
    found.note("calm p99", analysis::ttft_ms(&calm, 0.99));
    found.note("fault TTFT p50 ms", analysis::ttft_ms(&during, 0.5));
    found.note("fault p99", analysis::ttft_ms(&during, 0.99));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(misbehaviour: Misbehaviour, engines: usize, load_percent: f64) -> Case {
        Case { misbehaviour, engines, load_percent }
    }

    #[test]
    fn what_no_engine_can_carry_is_not_held_against_the_proxy() {
        let frac = |misbehaviour, engines, load| case(misbehaviour, engines, load).unavoidable_frac();
        assert_eq!(frac(Misbehaviour::Error, 2, 22.0), 0.0);
        // 140 requests/s, and one engine of 100.
        assert!((frac(Misbehaviour::Error, 2, 70.0) - 2.0 / 7.0).abs() < 1e-9);
        // At half speed the fleet still carries 150.
        assert_eq!(frac(Misbehaviour::Half, 2, 70.0), 0.0);
        assert!((case(Misbehaviour::Half, 2, 70.0).excess_frac() - 2.0 / 7.0).abs() < 1e-9);
    }

    #[test]
    fn figures_come_from_the_windows_they_are_named_after() {
        let case = case(Misbehaviour::Error, 2, 22.0);
        // Ten requests/s for 40 s, every second one at the bad engine but from 15 s to 30 s; all of
        // those that reach it between 10 s and 30 s fail.
        let record = |number: u64| {
            let due_s = number as f64 / 10.0 + 0.05;
            let is_at_bad = number % 2 == 1 && !(15.0..30.0).contains(&due_s);
            let failure = (is_at_bad && (10.0..30.0).contains(&due_s)).then_some(crate::load::Failure::Status(500));
            Record {
                id: u64::from(is_at_bad),
                flow: 0,
                due_s,
                failure,
                has_begun: false,
                ttft_s: Some(0.1),
                total_s: 0.2,
                engine: None,
            }
        };
        let records: Vec<Record> = (0..400).map(record).collect();
        let found = figures(&case, &Times { begin_s: 10.0, end_s: 30.0 }, &records, &|record| record.id == 1);
        let value = |name| found.iter().find(|figure| figure.name == name).expect(name).value.expect(name);
        assert_eq!(value("requests"), 200.0);
        assert_eq!(value("failed first 2 s"), 10.0);
        assert!((value("failed %") - 15.0 / 180.0 * 100.0).abs() < 1e-9);
        assert_eq!(value("retriable failed %"), value("failed %"));
        assert_eq!((value("share after 5 s %"), value("failed after %")), (0.0, 0.0));
        assert!((3.0..10.0).contains(&value("share back s")), "a window of 88 requests takes {} s", value("share back s"));
    }
}
