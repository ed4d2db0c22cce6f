//! Failures of one request. Whose fault they are shows in what the next engine does.
//!
//! When it serves the request, the first one was at fault. When it fails too, the request is the
//! likelier reason, and counts against neither; when two engines ended the connection, no third one
//! gets the request.

use crate::io::Stream;
use crate::model::EngineId;
use crate::policy::outlier::Evidence;
use crate::proxy::upstream::InFlight;

/// Engines that one request may take down with it: with one it may be chance.
pub(super) const DEATHS_MAX: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Those that may be the request's fault.
    of_engines: Vec<(EngineId, Evidence)>,
    /// Engines that ended the connection with this request.
    deaths: usize,
}

impl Faults {
    pub(super) fn died(&mut self) {
        self.deaths += 1;
    }

    /// Whether no further engine may get the request.
    pub(super) fn is_poison(&self) -> bool {
        self.deaths >= DEATHS_MAX
    }

    /// Counts a failure against its engine. The second failure of a request is the likelier its
    /// own, so the first is taken back.
    pub(super) fn note<S: Stream>(
        &mut self,
        flight: &InFlight<S>,
        engine: Option<EngineId>,
        evidence: Evidence,
        take_back: impl FnOnce(EngineId, Evidence),
    ) {
        flight.engine.counters.failed(evidence);
        if matches!(evidence, Evidence::Refused | Evidence::Unreachable) {
            // No request can be the reason for that.
            return flight.ended(evidence);
        }
        match self.of_engines[..] {
            [] => flight.ended(evidence),
            [(first, before)] => take_back(first, before),
            _ => {}
        }
        self.of_engines.extend(engine.map(|engine| (engine, evidence)));
    }

    /// The request is served, so the engines that failed it were at fault.
    pub(super) fn confirm(&self, take: impl Fn(EngineId, Evidence)) {
        if self.of_engines.len() > 1 {
            self.of_engines.iter().for_each(|&(engine, evidence)| take(engine, evidence));
        }
    }
}
