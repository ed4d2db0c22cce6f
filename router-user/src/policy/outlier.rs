//! Outlier detection: what one data plane thinks of one engine, by how requests end there. Pure.
//!
//! A sequential probability ratio test (Wald 1945, as a CUSUM that starts anew at zero) tells an
//! engine that fails half of its requests from one that fails 1 %: three failures in a row are
//! enough at any rate of requests, one among a hundred never is. An engine that is found out is
//! ejected: it gets no requests for a time that doubles with every ejection in a row. Then one
//! request tests it (half-open), and after a good end its share grows back over some seconds
//! (ramp), because its caches are cold. Between the two extremes the share of an engine falls with
//! the fraction of requests that fail.
//!
//! What the client did wrong, and requests that fail on several engines, are no evidence; that is
//! for the caller to settle, who may take evidence back.

use serde::{Deserialize, Serialize};

use super::Millis;

/// Failure fractions that the test tells apart: of a sound engine, and of one that is at fault.
const SOUND_FRAC: f64 = 0.01;
const FAULTY_FRAC: f64 = 0.5;
/// Suspicion, as a log-likelihood ratio, at which an engine is ejected: less than the 11.7 of three
/// failures in a row, more than the 7.8 of two.
const EJECT_AT: f64 = 11.0;
/// Time of the first ejection, in ms: short, since a restart may soon be over.
const OUT_MIN_MS: Millis = 1_000;
/// Longest ejection, in ms: with the ramp, a sound engine has its share within a minute.
const OUT_MAX_MS: Millis = 30_000;
/// Longest rest that an engine may ask for (`Retry-After`), in ms. Linkerd allows 300 s, but its
/// engines do not share a KV cache with the conversations that wait.
const REST_MAX_MS: Millis = 60_000;
/// Time after its return in which another ejection is longer than the last, in ms: an engine that
/// fails every few seconds must not return each time as if it were new.
const FORGIVEN_MS: Millis = 60_000;
/// Time after which a test without an outcome no longer holds up the next one, in ms.
const TEST_MAX_MS: Millis = 10_000;
/// Length of the ramp, in ms, and the share with which it begins: Envoy's slow start has the same.
const RAMP_MS: Millis = 10_000;
const RAMP_FROM: f64 = 0.1;
/// Gain per request of the running failure fraction.
const FAILING_GAIN: f64 = 1.0 / 16.0;
/// Failure fraction up to which an engine keeps its share, and from which it keeps the least: one
/// failure (1/16) changes nothing.
const FAILING_FROM: f64 = 0.1;
const FAILING_TO: f64 = 0.5;
/// Running failure fraction that is as good as none.
const FAILING_NONE: f64 = 1e-3;
/// Least share of an engine that is not ejected: enough to see that it is well again.
const SHARE_MIN: f64 = 0.05;

/// How a request ended at an engine, as far as it says something of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// An answer came whole, or a stream has run for a while.
    Served,
    /// The connection was refused.
    Refused,
    /// The connection was not even refused, which costs a client the whole connect timeout.
    Unreachable,
    /// The connection was closed before a whole head of an answer, or before its body began.
    Closed,
    /// No first token in time.
    Late,
    /// Requests wait, and the engine gives none of them anything.
    Stalled,
    /// A status of 500 and above.
    ServerError,
    /// 429: more than it can do now.
    Busy,
    /// 404 for a model that it should have.
    ModelMissing,
    /// The answer was not HTTP.
    Malformed,
    /// The answer broke off after it had begun.
    Broken,
}

impl Evidence {
    /// Everything but [`Evidence::Served`].
    pub const FAILURES: [Self; 10] = [
        Self::Refused,
        Self::Unreachable,
        Self::Closed,
        Self::Late,
        Self::Stalled,
        Self::ServerError,
        Self::Busy,
        Self::ModelMissing,
        Self::Malformed,
        Self::Broken,
    ];

    /// As it is called in metrics and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Closed => "closed",
            Self::Late => "late",
            Self::Stalled => "stalled",
            Self::ServerError => "server_error",
            Self::Busy => "busy",
            Self::ModelMissing => "model_missing",
            Self::Malformed => "malformed",
            Self::Broken => "broken",
        }
    }

    /// Whether it may as well be a sign of too much load, or of a fault on the way: it never ejects
    /// most engines of a class at once.
    pub fn is_soft(self) -> bool {
        matches!(self, Self::Late | Self::Stalled | Self::Busy)
    }

    /// What it adds to the suspicion.
    fn step(self) -> f64 {
        match self {
            Self::Served => ((1.0 - FAULTY_FRAC) / (1.0 - SOUND_FRAC)).ln(),
            // One is certain enough.
            Self::Unreachable | Self::Stalled => EJECT_AT,
            _ => (FAULTY_FRAC / SOUND_FRAC).ln(),
        }
    }
}

/// The state of an engine, in the terms of circuit breakers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineState {
    #[default]
    Healthy,
    /// It gets requests only when no other engine is left.
    Ejected,
    /// One request is on its way as a test.
    HalfOpen,
    /// Its share grows back.
    Ramp,
    /// An operator has drained it: it gets requests only when no other engine is left.
    Drained,
    /// An operator has ejected it: it gets no requests.
    EjectedByOperator,
}

impl EngineState {
    /// Whether an operator keeps requests from the engine, whatever it does.
    pub fn is_by_operator(self) -> bool {
        matches!(self, Self::Drained | Self::EjectedByOperator)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Healthy,
    Ejected {
        until: Millis,
    },
    /// `until`: when the test is given up.
    HalfOpen {
        until: Millis,
    },
    Ramp {
        since: Millis,
    },
    /// As an operator says.
    Ordered(EngineState),
}

/// What a data plane thinks of one engine.
#[derive(Clone, Debug)]
pub struct Judgement {
    phase: Phase,
    /// Log-likelihood ratio of the two failure fractions; >= 0, so that old good times do not hide
    /// a new fault.
    suspicion: f64,
    /// Running failure fraction, 0 to 1.
    failing_frac: f64,
    /// Length of the last ejection.
    out_ms: Millis,
    /// When the engine last returned to its whole share.
    returned: Option<Millis>,
    reason: Option<Evidence>,
}

impl Default for Judgement {
    fn default() -> Self {
        Self { phase: Phase::Healthy, suspicion: 0.0, failing_frac: 0.0, out_ms: 0, returned: None, reason: None }
    }
}

impl Judgement {
    /// Takes the end of a request. `is_test` says that the engine was picked although it was
    /// ejected: such an end decides whether it returns, while one of a request that was sent before
    /// tells nothing new.
    pub fn take(&mut self, evidence: Evidence, now: Millis, is_test: bool) {
        self.settle(now);
        let is_served = evidence == Evidence::Served;
        match self.phase {
            Phase::Ejected { .. } | Phase::HalfOpen { .. } if is_test && is_served => self.begin_ramp(now),
            Phase::HalfOpen { .. } if is_test => {
                self.reason = Some(evidence);
                self.suspicion = (self.suspicion + evidence.step()).min(2.0 * EJECT_AT);
                self.eject(now, 2 * self.out_ms);
            }
            Phase::Ejected { .. } | Phase::HalfOpen { .. } | Phase::Ordered(_) => {}
            Phase::Healthy | Phase::Ramp { .. } => {
                let failed = f64::from(u8::from(!is_served));
                self.failing_frac += FAILING_GAIN * (failed - self.failing_frac);
                self.suspicion = (self.suspicion + evidence.step()).max(0.0);
                if !is_served {
                    self.reason = Some(evidence);
                }
                if self.suspicion >= EJECT_AT {
                    let is_again = matches!(self.phase, Phase::Ramp { .. })
                        || self.returned.is_some_and(|returned| now.saturating_sub(returned) < FORGIVEN_MS);
                    self.eject(now, if is_again { 2 * self.out_ms } else { OUT_MIN_MS });
                }
            }
        }
    }

    /// Takes back evidence that turned out to be the request's fault and not the engine's.
    pub fn take_back(&mut self, evidence: Evidence, now: Millis) {
        self.failing_frac = (self.failing_frac - FAILING_GAIN).max(0.0);
        self.suspicion = (self.suspicion - evidence.step()).max(0.0);
        if let Phase::Ejected { .. } = self.phase {
            // A test that ended so has told nothing, and the next one has to wait all the same: no
            // request after another may pass for a test.
            let next = Phase::Ejected { until: now + OUT_MIN_MS };
            self.phase = if self.suspicion < EJECT_AT { Phase::Healthy } else { next };
        }
    }

    /// The engine asks to be left alone for a while. That is no failure.
    pub fn rest(&mut self, now: Millis, for_ms: Millis) {
        self.settle(now);
        let until = now + for_ms.min(REST_MAX_MS);
        match self.phase {
            Phase::Ordered(_) => {}
            Phase::Ejected { until: other } if other >= until => {}
            _ => {
                self.reason = Some(Evidence::Busy);
                self.phase = Phase::Ejected { until };
            }
        }
    }

    /// An operator keeps requests from the engine: whatever happens there tells nothing until
    /// [`Self::readmit`].
    pub fn order(&mut self, state: EngineState) {
        *self = Self { phase: Phase::Ordered(state), ..Self::default() };
    }

    /// An operator says that the engine is well, or keeps requests from it no more. If it has none
    /// of its share, that grows back; else what is left of it becomes the whole.
    pub fn readmit(&mut self, now: Millis) {
        let is_out = self.multiplier(now) == 0.0;
        *self = Self { phase: self.phase, ..Self::default() };
        if is_out {
            self.begin_ramp(now);
        }
    }

    /// Begins a test if one is due.
    pub fn begin_test(&mut self, now: Millis) -> bool {
        let is_due = self.test_due().is_some_and(|due| now >= due);
        if is_due {
            self.phase = Phase::HalfOpen { until: now + TEST_MAX_MS };
        }
        is_due
    }

    /// Notes that a test ended without telling anything; the next may begin at once.
    pub fn test_lapsed(&mut self) {
        if let Phase::HalfOpen { .. } = self.phase {
            self.phase = Phase::Ejected { until: 0 };
        }
    }

    /// When the next test may begin; `None` for an engine that is not ejected.
    pub fn test_due(&self) -> Option<Millis> {
        match self.phase {
            Phase::Ejected { until } | Phase::HalfOpen { until } => Some(until),
            Phase::Healthy | Phase::Ramp { .. } | Phase::Ordered(_) => None,
        }
    }

    /// Factor on the engine's share of requests, 0 to 1.
    pub fn multiplier(&self, now: Millis) -> f64 {
        let ramp = match self.phase {
            Phase::Ejected { .. } | Phase::HalfOpen { .. } | Phase::Ordered(_) => return 0.0,
            Phase::Healthy => 1.0,
            Phase::Ramp { since } => {
                let passed = now.saturating_sub(since) as f64 / RAMP_MS as f64;
                (RAMP_FROM + (1.0 - RAMP_FROM) * passed).min(1.0)
            }
        };
        let failing = ((self.failing_frac - FAILING_FROM) / (FAILING_TO - FAILING_FROM)).max(0.0);
        ramp * (1.0 - failing).max(SHARE_MIN)
    }

    pub fn state(&self, now: Millis) -> EngineState {
        match self.phase {
            Phase::Healthy => EngineState::Healthy,
            Phase::Ejected { .. } => EngineState::Ejected,
            Phase::HalfOpen { .. } => EngineState::HalfOpen,
            Phase::Ramp { since } if now.saturating_sub(since) < RAMP_MS => EngineState::Ramp,
            Phase::Ramp { .. } => EngineState::Healthy,
            Phase::Ordered(state) => state,
        }
    }

    /// Why the engine has less than its share: the last failure; `None` where it has all of it.
    pub fn reason(&self, now: Millis) -> Option<Evidence> {
        self.reason.filter(|_| self.multiplier(now) < 1.0)
    }

    /// Whether one more served request would change nothing.
    pub fn is_clean(&self) -> bool {
        self.phase == Phase::Healthy && self.suspicion == 0.0 && self.failing_frac < FAILING_NONE
    }

    /// Ends a ramp that is over.
    pub fn settle(&mut self, now: Millis) {
        if let Phase::Ramp { since } = self.phase
            && now.saturating_sub(since) >= RAMP_MS
        {
            self.phase = Phase::Healthy;
            self.returned = Some(since + RAMP_MS);
        }
    }

    fn eject(&mut self, now: Millis, for_ms: Millis) {
        self.out_ms = for_ms.clamp(OUT_MIN_MS, OUT_MAX_MS);
        self.phase = Phase::Ejected { until: now + self.out_ms };
    }

    fn begin_ramp(&mut self, now: Millis) {
        self.phase = Phase::Ramp { since: now };
        self.failing_frac = 0.0;
        // One more failure is enough.
        self.suspicion = EJECT_AT - Evidence::Closed.step() / 2.0;
    }
}

/// Whether so many engines of a class are ejected that ilb, the network or the load is the likelier
/// fault: more than half, as in Envoy.
pub fn is_panic(ejected: usize, engines: usize) -> bool {
    2 * ejected > engines
}

#[cfg(test)]
mod tests;
