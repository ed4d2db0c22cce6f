//! Faults on command.
//!
//! `POST /fault` with one of
//!
//! ```json
//! {"kind":"stall","after_tokens":3}                        stop sending, keep the connection
//! {"kind":"reset","after_tokens":0}                        reset the connection
//! {"kind":"close","after_tokens":3}                        close it without the end of the body
//! {"kind":"status","status":503,"retry_after_s":7}         answer with an error
//! {"kind":"garbage"}                                       answer what is no HTTP, and close
//! {"kind":"model","name":"other"}                          serve this model and no other
//! {"kind":"deadly","text":"[poison]"}                      end at a request with this text
//! {"kind":"slow","factor":2}                               all work takes twice as long
//! {"kind":"slow","factor":5,"over_ms":10000}               latencies times 5, falling to 1 in 10 s
//! {"kind":"unhealthy"}                                     answer 503 on /health alone
//! ```
//!
//! replaces the fault before it. `"count":N` ends `stall`, `reset`, `close`, `status` and `garbage`
//! after N requests. `DELETE /fault` ends any.

use serde::Deserialize;
use tokio::time::Instant;

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Command {
    Stall { after_tokens: u32, count: Option<u64> },
    Reset { after_tokens: u32, count: Option<u64> },
    Close { after_tokens: u32, count: Option<u64> },
    Status { status: u16, retry_after_s: Option<u64>, count: Option<u64> },
    Garbage { count: Option<u64> },
    Model { name: String },
    Deadly { text: String },
    Slow { factor: f64, over_ms: Option<u64> },
    Unhealthy,
}

/// How a stream is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Break {
    Stall,
    Reset,
    Close,
}

/// The fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Break { how: Break, after_tokens: u32 },
    Status { status: u16, retry_after_s: Option<u64> },
    Garbage,
}

/// The active fault.
#[derive(Debug, Default)]
pub(super) struct Faults {
    active: Option<(Command, Instant)>,
}

impl Faults {
    /// Errors: the mistake in the command, for its sender.
    pub(super) fn set(&mut self, body: &[u8], now: Instant) -> Result<(), String> {
        let command: Command = serde_json::from_slice(body).map_err(|error| format!("no such fault: {error}"))?;
        match &command {
            Command::Slow { factor, .. } if !(factor.is_finite() && *factor >= 1.0) => {
                return Err(format!("factor is {factor}; wanted a number >= 1"));
            }
            Command::Status { status, .. } if !(400..600).contains(status) => {
                return Err(format!("status is {status}; wanted 400 to 599"));
            }
            _ => self.active = Some((command, now)),
        }
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.active = None;
    }

    /// The fault of the next request, which is counted.
    pub(super) fn next(&mut self) -> Option<Fault> {
        let (command, _) = self.active.as_mut()?;
        let (fault, count) = match command {
            Command::Stall { after_tokens, count } => (Fault::Break { how: Break::Stall, after_tokens: *after_tokens }, count),
            Command::Reset { after_tokens, count } => (Fault::Break { how: Break::Reset, after_tokens: *after_tokens }, count),
            Command::Close { after_tokens, count } => (Fault::Break { how: Break::Close, after_tokens: *after_tokens }, count),
            Command::Status { status, retry_after_s, count } => {
                (Fault::Status { status: *status, retry_after_s: *retry_after_s }, count)
            }
            Command::Garbage { count } => (Fault::Garbage, count),
            Command::Model { .. } | Command::Deadly { .. } | Command::Slow { .. } | Command::Unhealthy => return None,
        };
        match count {
            Some(0) => {
                self.active = None;
                return None;
            }
            Some(left) => *left -= 1,
            None => (),
        }
        Some(fault)
    }

    /// Factor on latencies at `now`; >= 1.
    pub(super) fn slowness(&self, now: Instant) -> f64 {
        match &self.active {
            Some((Command::Slow { factor, over_ms: None }, _)) => *factor,
            Some((Command::Slow { factor, over_ms: Some(over_ms) }, since)) => {
                let left = 1.0 - now.saturating_duration_since(*since).as_secs_f64() * 1e3 / (*over_ms).max(1) as f64;
                1.0 + (factor - 1.0) * left.max(0.0)
            }
            _ => 1.0,
        }
    }

    /// Factor on the time that admitted requests keep the engine busy; >= 1. A slowness that fades
    /// is one of latencies alone.
    pub(super) fn work_factor(&self) -> f64 {
        match &self.active {
            Some((Command::Slow { factor, over_ms: None }, _)) => *factor,
            _ => 1.0,
        }
    }

    /// The one model that is served in place of the engine's own.
    pub(super) fn model(&self) -> Option<&str> {
        match &self.active {
            Some((Command::Model { name }, _)) => Some(name),
            _ => None,
        }
    }

    /// True when a request with this body ends the process.
    pub(super) fn is_deadly(&self, body: &[u8]) -> bool {
        matches!(&self.active, Some((Command::Deadly { text }, _)) if memchr::memmem::find(body, text.as_bytes()).is_some())
    }

    pub(super) fn is_healthy(&self) -> bool {
        !matches!(&self.active, Some((Command::Unhealthy, _)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock;

    #[test]
    fn counted_faults_end_and_slowness_fades() {
        let (mut faults, start) = (Faults::default(), clock::now());
        faults.set(br#"{"kind":"status","status":503,"retry_after_s":7,"count":2}"#, start).expect("good");
        let wanted = Some(Fault::Status { status: 503, retry_after_s: Some(7) });
        assert_eq!([faults.next(), faults.next(), faults.next()], [wanted, wanted, None]);
        faults.set(br#"{"kind":"slow","factor":5,"over_ms":1000}"#, start).expect("good");
        for (ms, wanted) in [(0, 5.0), (500, 3.0), (1000, 1.0), (9000, 1.0)] {
            let found = faults.slowness(start + Duration::from_millis(ms));
            assert!((found - wanted).abs() < 1e-9, "{found} after {ms} ms, wanted {wanted}");
        }
    }

    #[test]
    fn slowness_without_an_end_slows_the_work_too() {
        let (mut faults, start) = (Faults::default(), clock::now());
        faults.set(br#"{"kind":"slow","factor":3}"#, start).expect("good");
        assert_eq!((faults.slowness(start + Duration::from_secs(3600)), faults.work_factor()), (3.0, 3.0));
        faults.set(br#"{"kind":"slow","factor":3,"over_ms":1000}"#, start).expect("good");
        assert_eq!((faults.slowness(start), faults.work_factor()), (3.0, 1.0));
    }

    #[test]
    fn only_the_deadly_text_kills_and_only_while_it_is_set() {
        let mut faults = Faults::default();
        assert!(!faults.is_deadly(b"[poison]"));
        faults.set(br#"{"kind":"deadly","text":"[poison]"}"#, clock::now()).expect("good");
        assert!(faults.is_deadly(b"a [poison] here") && !faults.is_deadly(b"bread"));
    }

    #[test]
    fn bad_commands_change_nothing() {
        let (mut faults, now) = (Faults::default(), clock::now());
        faults.set(br#"{"kind":"stall","after_tokens":3}"#, now).expect("good");
        for body in [
            &br#"{"kind":"flood"}"#[..],
            br#"{"kind":"status","status":200}"#,
            br#"{"kind":"slow","factor":0,"over_ms":1}"#,
            b"x",
        ] {
            assert!(faults.set(body, now).is_err(), "{}", String::from_utf8_lossy(body));
        }
        assert_eq!(faults.next(), Some(Fault::Break { how: Break::Stall, after_tokens: 3 }));
        faults.clear();
        assert_eq!(faults.next(), None);
    }
}
