//! Pages of Prometheus metrics: every number is unknown or believable, and comments, blanks and
//! line ends change nothing.

use router_user::probe::{EngineSignals, from_metrics};

/// Largest number that is believed; as in the reader.
const MOST: f64 = 9e15;
/// Most series that one sum is made of; as in the reader.
const SERIES_MAX: f64 = 4096.0;

pub(crate) fn run(page: &[u8]) {
    let signals = from_metrics(page);
    if let Some(signals) = &signals {
        check_signals(signals);
    }
    let commented = [b"# HELP a b\n\n", page, b"\n# EOF"].concat();
    assert_eq!(from_metrics(&commented), signals, "comments and empty lines say nothing");
    if !page.contains(&b'\r') {
        let lines: Vec<&[u8]> = page.split(|&byte| byte == b'\n').collect();
        assert_eq!(from_metrics(&lines.join(&b"\r\n"[..])), signals, "CR LF ends a line as LF does");
    }
}

/// Whatever an engine says, what is taken from it can be true.
pub(crate) fn check_signals(signals: &EngineSignals) {
    let timings = [signals.ttft, signals.itl, signals.e2e].into_iter().flatten().flat_map(|t| [t.sum_s, t.count]);
    let prefix = signals.prefix.into_iter().flat_map(|p| [p.queries, p.hits]);
    for amount in [signals.running, signals.waiting].into_iter().flatten().chain(timings).chain(prefix) {
        // Misses and hits are added up.
        assert!((0.0..=2.0 * MOST * SERIES_MAX).contains(&amount), "{amount} in {signals:?}");
    }
    assert!(signals.kv_usage_frac.is_none_or(|frac| (0.0..=1.0).contains(&frac)), "{signals:?}");
    assert!(signals.ranks.is_none_or(|ranks| ranks > 0), "{signals:?}");
}
