//! From records of requests to figures: windows, shares, quantiles, the time until a share is back.

use crate::load::Failure;

/// One request as its client saw it. Times count from the start of the run.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    pub(super) id: u64,
    /// Index of the flow that it belongs to.
    pub(super) flow: usize,
    pub(super) due_s: f64,
    pub(super) failure: Option<Failure>,
    /// Content had come before the end.
    pub(super) has_begun: bool,
    pub(super) ttft_s: Option<f64>,
    pub(super) total_s: f64,
    /// The engine that the answer names.
    pub(super) engine: Option<String>,
}

impl Record {
    /// The client got no whole answer, or had to wait for its end longer than `patience_s`.
    pub(super) fn is_failed(&self, patience_s: f64) -> bool {
        self.failure.is_some() || self.total_s > patience_s
    }

    /// The answer was 429 or 503.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.failure, Some(Failure::Status(429 | 503)))
    }

    /// It failed while another engine could have been asked: the client had no content yet.
    pub(super) fn is_failed_before_content(&self, patience_s: f64) -> bool {
        let had_content = self.has_begun && (self.failure.is_some() || self.ttft_s.is_some_and(|ttft_s| ttft_s <= patience_s));
        self.is_failed(patience_s) && !had_content
    }
}

/// Requests due from the first time until before the second one, in s.
pub(super) fn within(records: &[Record], from_s: f64, until_s: f64) -> Vec<&Record> {
    records.iter().filter(|record| (from_s..until_s).contains(&record.due_s)).collect()
}

/// Part of `of` for which `claim` holds; `None` of nothing.
pub(super) fn part<'r>(of: &[&'r Record], claim: impl Fn(&'r Record) -> bool) -> Option<f64> {
    let count = of.iter().filter(|record| claim(record)).count();
    (!of.is_empty()).then(|| count as f64 / of.len() as f64)
}

/// `part`, in percent.
pub(super) fn percent<'r>(of: &[&'r Record], claim: impl Fn(&'r Record) -> bool) -> Option<f64> {
    part(of, claim).map(|part| part * 100.0)
}

/// Nearest-rank quantile of the times to first token of answered streams, in ms.
pub(super) fn ttft_ms(of: &[&Record], quantile: f64) -> Option<f64> {
    let answered = of.iter().filter(|record| record.failure.is_none());
    let mut values: Vec<f64> = answered.filter_map(|record| record.ttft_s).collect();
    values.sort_by(f64::total_cmp);
    let rank = (quantile * values.len() as f64).ceil() as usize;
    values.get(rank.max(1) - 1).map(|ttft_s| ttft_s * 1e3)
}

/// Longest time that a request took, whatever its end.
pub(super) fn longest_s(of: &[&Record]) -> Option<f64> {
    of.iter().map(|record| record.total_s).reduce(f64::max)
}

/// Whole answers per second that came in the window and no later than `useful_s` after they were
/// due.
pub(super) fn goodput_rps(records: &[Record], from_s: f64, until_s: f64, useful_s: f64) -> f64 {
    let is_good = |record: &&Record| !record.is_failed(useful_s) && (from_s..until_s).contains(&(record.due_s + record.total_s));
    records.iter().filter(is_good).count() as f64 / (until_s - from_s)
}

/// Time from `from_s` until the last `count` requests had `wanted` as their share at the engine;
/// infinite when they never had.
///
/// `visits` are times at which requests were due and whether the engine got them, in order of time.
pub(super) fn time_until_share(visits: &[(f64, bool)], from_s: f64, count: usize, wanted: f64) -> f64 {
    let after: Vec<&(f64, bool)> = visits.iter().filter(|(due_s, _)| *due_s >= from_s).collect();
    let full = after.windows(count.max(1)).find(|window| {
        let there = window.iter().filter(|(_, is_there)| *is_there).count();
        there as f64 >= wanted * window.len() as f64
    });
    full.and_then(|window| window.last()).map_or(f64::INFINITY, |(due_s, _)| due_s - from_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(due_s: f64, failure: Option<Failure>, has_begun: bool, ttft_s: Option<f64>) -> Record {
        Record { due_s, failure, has_begun, ttft_s, total_s: due_s / 10.0, ..Record::default() }
    }

    #[test]
    fn windows_hold_their_start_and_not_their_end() {
        let records: Vec<Record> = [0.0, 1.0, 1.5, 2.0].map(|due_s| record(due_s, None, true, None)).to_vec();
        let due: Vec<f64> = within(&records, 1.0, 2.0).iter().map(|record| record.due_s).collect();
        assert_eq!(due, [1.0, 1.5]);
        assert_eq!(longest_s(&within(&records, 0.0, 9.0)), Some(0.2));
        assert_eq!(longest_s(&[]), None);
    }

    #[test]
    fn failures_are_told_apart_by_what_the_client_had() {
        let records = [
            record(0.0, None, true, None),
            record(0.0, Some(Failure::Cut), true, None),
            record(0.0, Some(Failure::Status(500)), false, None),
            record(0.0, Some(Failure::Timeout), false, None),
        ];
        let all: Vec<&Record> = records.iter().collect();
        assert_eq!(percent(&all, |record| record.is_failed(10.0)), Some(75.0));
        assert_eq!(percent(&all, |record| record.is_failed_before_content(10.0)), Some(50.0));
        assert_eq!(percent(&[], |record| record.is_failed(10.0)), None);
    }

    #[test]
    fn an_answer_that_takes_too_long_is_a_failure() {
        let late = |ttft_s| Record { total_s: 20.0, ..record(0.0, None, true, ttft_s) };
        // A stream that hung after its first token, one that hung before it, and a whole answer.
        for (ttft_s, is_before) in [(Some(1.0), false), (Some(19.0), true), (None, true)] {
            let record = late(ttft_s);
            assert!(record.is_failed(10.0) && !record.is_failed(30.0));
            assert_eq!(record.is_failed_before_content(10.0), is_before, "{ttft_s:?}");
        }
    }

    #[test]
    fn goodput_counts_answers_when_they_come_and_only_while_they_are_of_use() {
        let answer = |due_s, total_s, failure| Record { due_s, total_s, failure, ..Record::default() };
        let records = [
            answer(0.0, 11.0, None),
            answer(9.0, 2.0, None),
            answer(12.0, 1.0, Some(Failure::Status(429))),
            answer(14.0, 1.0, None),
            answer(19.0, 2.0, None),
        ];
        assert_eq!(goodput_rps(&records, 10.0, 20.0, 10.0), 0.2);
        assert_eq!(goodput_rps(&records, 10.0, 20.0, 60.0), 0.3);
    }

    #[test]
    fn quantiles_are_of_answered_streams_by_nearest_rank() {
        let mut records: Vec<Record> = (1..=100).map(|ms| record(0.0, None, true, Some(f64::from(ms) / 1e3))).collect();
        records.push(record(0.0, Some(Failure::Cut), true, Some(9.0)));
        records.push(record(0.0, None, true, None));
        let all: Vec<&Record> = records.iter().collect();
        assert_eq!((ttft_ms(&all, 0.5), ttft_ms(&all, 0.99), ttft_ms(&all, 1.0)), (Some(50.0), Some(99.0), Some(100.0)));
        assert_eq!(ttft_ms(&[], 0.5), None);
    }

    #[test]
    fn a_share_is_back_when_a_whole_window_has_it() {
        // Nothing until 10 s, then every second request.
        let visits: Vec<(f64, bool)> = (0..40).map(|n| (f64::from(n), n >= 10 && n % 2 == 0)).collect();
        assert_eq!(time_until_share(&visits, 5.0, 4, 0.5), 7.0, "requests 9 to 12 are the first window with two visits");
        assert_eq!(time_until_share(&visits, 20.0, 4, 0.5), 3.0, "it was never away: the window itself takes 3 s");
        assert_eq!(time_until_share(&visits, 5.0, 4, 0.6), f64::INFINITY);
        assert_eq!(time_until_share(&visits, 38.0, 4, 0.1), f64::INFINITY, "fewer requests than a window");
    }
}
