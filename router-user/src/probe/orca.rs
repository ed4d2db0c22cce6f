//! Reads the response header `endpoint-load-metrics` (ORCA), in which vLLM and Triton report their
//! load with each answer.

use serde_json::Value;

use super::signals::{EngineSignals, Family, amount, usage};

/// Longest header value that is read, in bytes. A report has a few numbers.
const MAX_BYTES: usize = 4_096;

const RUNNING: [&str; 1] = ["num_requests_running"];
const WAITING: [&str; 1] = ["num_requests_waiting"];
const KV_USAGE: [&str; 3] = ["kv_cache_usage_perc", "gpu_cache_usage_perc", "kv_cache_utilization"];

/// Reads the header's value: `TEXT named_metrics.kv_cache_usage_perc=0.4, ...` or `JSON
/// {"named_metrics": {...}}`. `None` if it is neither, or has no known metric.
pub fn from_orca(value: &[u8]) -> Option<EngineSignals> {
    let value = std::str::from_utf8(value).ok().filter(|value| value.len() <= MAX_BYTES)?.trim();
    let (format, report) = value.split_once(' ')?;
    let signals = match format {
        "TEXT" => read(|name| {
            let mut pairs = report.split(',').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| key.trim().strip_prefix("named_metrics.") == Some(name))?.1.trim().parse().ok()
        }),
        "JSON" => {
            let report: Value = serde_json::from_str(report).ok()?;
            read(|name| report.get("named_metrics")?.get(name)?.as_f64())
        }
        _ => return None,
    };
    (!signals.is_empty()).then_some(signals)
}

fn read(named: impl Fn(&str) -> Option<f64>) -> EngineSignals {
    let first = |names: &[&str]| names.iter().find_map(|name| named(name));
    EngineSignals {
        running: first(&RUNNING).and_then(amount),
        waiting: first(&WAITING).and_then(amount),
        kv_usage_frac: first(&KV_USAGE).and_then(usage),
        ..EngineSignals::nothing(Family::Orca)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_json_say_the_same() {
        let text = from_orca(b"TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=3.0");
        let json = from_orca(br#"JSON {"named_metrics": {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 3.0}}"#);
        assert_eq!(text, json);
        let found = text.expect("known");
        assert_eq!((found.kv_usage_frac, found.waiting, found.running), (Some(0.4), Some(3.0), None));
        assert_eq!(
            from_orca(b"TEXT named_metrics.kv_cache_utilization=0.4,cpu_utilization=0.1").and_then(|s| s.kv_usage_frac),
            Some(0.4)
        );
    }

    #[test]
    fn anything_else_says_nothing() {
        let long = format!("TEXT {}", "a=1,".repeat(2_000));
        for value in [
            "",
            "TEXT",
            "TEXT x",
            "BIN abc",
            "JSON {",
            "JSON []",
            "TEXT cpu_utilization=0.3",
            "TEXT named_metrics.num_requests_waiting=-3",
            &long,
        ] {
            assert_eq!(from_orca(value.as_bytes()), None, "{value:.40}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(tail in proptest::collection::vec(proptest::num::u8::ANY, 0..128)) {
            for head in ["", "TEXT ", "JSON ", "JSON {\"named_metrics\":"] {
                from_orca(&[head.as_bytes(), &tail].concat());
            }
        }
    }
}
