//! What a data plane tells a controller, as JSON.

use serde::{Deserialize, Serialize};

/// What one data plane saw since its last report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DemandReport {
    pub cluster: String,
    /// Tells the data planes of one cluster apart; their demand is summed.
    pub instance: String,
    /// Length of time the counts cover, in ms; > 0.
    pub window_ms: u64,
    /// Requests that arrived, by class name, refused ones included; retries are not arrivals.
    pub arrivals: Vec<(String, u64)>,
    /// Generation in use there: a controller that has lost its store learns from it above what it
    /// must publish.
    #[serde(default)]
    pub generation: u64,
    /// Engines that had requests, or whose distance was measured.
    #[serde(default)]
    pub engines: Vec<EngineReport>,
}

/// What one data plane saw of an engine since its last report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineReport {
    pub engine: String,
    /// Requests sent to it, retries included, and those that failed there: not connected, reset,
    /// broken off, or a status of 500 and above.
    pub attempts: u64,
    pub failures: u64,
    /// Whole answers, and the sum of the times from sending a request to the last byte of its
    /// answer, in ms.
    pub answers: u64,
    pub latency_ms_sum: f64,
    /// Round-trip time, in ms, where it was measured.
    pub rtt_ms: Option<f64>,
    /// Factor on its share of requests there, 0 to 1, by which its failures are answered; older
    /// data planes do not tell.
    pub multiplier: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_reads_back_as_it_was_written_and_without_what_older_data_planes_leave_out() {
        let engine = EngineReport {
            engine: "e1".to_owned(),
            attempts: 12,
            failures: 1,
            answers: 10,
            latency_ms_sum: 1_234.5,
            rtt_ms: Some(30.25),
            multiplier: Some(0.5),
        };
        let report = DemandReport {
            cluster: "a".to_owned(),
            instance: "7-1".to_owned(),
            window_ms: 2_000,
            arrivals: vec![("chat".to_owned(), 180)],
            generation: 1 << 32 | 17,
            engines: vec![engine],
        };
        let json = serde_json::to_vec(&report).expect("written");
        assert_eq!(serde_json::from_slice::<DemandReport>(&json).expect("read"), report);
        let old = br#"{"cluster":"a","instance":"p","window_ms":5,"arrivals":[["chat",3]]}"#;
        let read: DemandReport = serde_json::from_slice(old).expect("read");
        assert_eq!((read.generation, read.engines.len(), read.arrivals[0].1), (0, 0, 3));
    }
}
