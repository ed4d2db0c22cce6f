//! Reads SGLang's `/v1/loads` and its predecessor `/get_load`: JSON with a load per data-parallel
//! rank.

use serde_json::Value;

use super::signals::{EngineSignals, Family, amount, usage};

/// Reads the answer of either path; `None` if it is neither.
pub fn from_loads(body: &[u8]) -> Option<EngineSignals> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let ranks = body.get("loads").unwrap_or(&body).as_array().filter(|ranks| !ranks.is_empty())?;
    // A signal that one rank lacks is not known of the whole.
    let each = |read: &dyn Fn(&Value) -> Option<f64>| ranks.iter().map(read).collect::<Option<Vec<f64>>>();
    let sum = |read: &dyn Fn(&Value) -> Option<f64>| each(read).map(|values| values.iter().sum::<f64>());
    let waiting = |rank: &Value| number(rank, "num_waiting_reqs");
    // The predecessor counts waiting requests among all.
    let running = |rank: &Value| number(rank, "num_running_reqs").or_else(|| amount(number(rank, "num_reqs")? - waiting(rank)?));
    let signals = EngineSignals {
        running: sum(&running),
        waiting: sum(&waiting),
        kv_usage_frac: sum(&|rank| number(rank, "token_usage")).and_then(|sum| usage(sum / ranks.len() as f64)),
        ranks: u32::try_from(ranks.len()).ok(),
        ..EngineSignals::nothing(Family::Sglang)
    };
    (!signals.is_empty()).then_some(signals)
}

fn number(rank: &Value, name: &str) -> Option<f64> {
    rank.get(name)?.as_f64().and_then(amount)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_summed() {
        let body = br#"{"timestamp":"2026-01-12T10:30:00+00:00","version":"0.5","dp_rank_count":2,"loads":[
            {"dp_rank":0,"num_running_reqs":5,"num_waiting_reqs":2,"token_usage":0.25,"num_used_tokens":9},
            {"dp_rank":1,"num_running_reqs":7,"num_waiting_reqs":0,"token_usage":0.75,"num_used_tokens":9}],
            "aggregate":{"total_running_reqs":12}}"#;
        let found = from_loads(body).expect("known");
        assert_eq!((found.running, found.waiting, found.kv_usage_frac, found.ranks), (Some(12.0), Some(2.0), Some(0.5), Some(2)));
    }

    #[test]
    fn the_predecessor_counts_waiting_requests_among_all() {
        let found = from_loads(br#"[{"dp_rank":0,"num_reqs":5,"num_waiting_reqs":2,"num_tokens":77}]"#).expect("known");
        assert_eq!((found.running, found.waiting, found.kv_usage_frac, found.ranks), (Some(3.0), Some(2.0), None, Some(1)));
    }

    #[test]
    fn what_a_rank_leaves_out_is_not_known_of_all() {
        let found = from_loads(br#"{"loads":[{"num_running_reqs":5,"num_waiting_reqs":2},{"num_running_reqs":1}]}"#);
        assert_eq!(found.map(|s| (s.running, s.waiting)), Some((Some(6.0), None)));
        for body in [
            "",
            "{}",
            "[]",
            "[1,2]",
            r#"{"load":5}"#,
            r#"[{"num_reqs":1,"num_waiting_reqs":5}]"#,
            r#"{"loads":[{"num_running_reqs":-1}]}"#,
        ] {
            assert!(from_loads(body.as_bytes()).is_none_or(|s| s.running.is_none()), "{body}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(body in proptest::collection::vec(proptest::num::u8::ANY, 0..256)) {
            from_loads(&body);
        }
    }
}
