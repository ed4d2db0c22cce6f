//! Whether an engine is down for a whole data plane, which then changes its weights. Pure.
//!
//! A worker that cannot connect to an engine skips it at once, by rank. Changing weights is slower
//! and costs more: tables are built, and conversations move. So an engine is down as soon as a
//! worker has stopped picking it, and up again only after it has answered several probes in a row.
//! Nothing else is sent to it meanwhile.

/// Probes that an engine must answer in a row before it is up again: at one probe per second, 3 s
/// without a failure.
const ANSWERS_UP: u32 = 3;

/// The state of one engine as a data plane sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outage {
    is_down: bool,
    /// Probes answered in a row.
    answers: u32,
    /// Connect failures counted so far.
    failures: u64,
}

impl Outage {
    /// Takes the workers' view: whether one of them does not pick the engine, and the connect
    /// failures of all since the start.
    ///
    /// Only new failures count: a worker that has sent nothing since the engine came back still
    /// calls it out.
    pub fn observe(&mut self, is_out: bool, failures: u64) {
        if is_out && failures > self.failures && !self.is_down {
            (self.is_down, self.answers) = (true, 0);
        }
        self.failures = failures;
    }

    /// Takes the outcome of a probe.
    pub fn probed(&mut self, has_answered: bool) {
        self.answers = if has_answered { self.answers + 1 } else { 0 };
        if self.answers >= ANSWERS_UP {
            self.is_down = false;
        }
    }

    pub fn is_down(self) -> bool {
        self.is_down
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn down_by_new_failures_and_up_after_answers_in_a_row() {
        let mut outage = Outage::default();
        outage.observe(false, 2);
        assert!(!outage.is_down(), "failures that put no engine out");
        outage.observe(true, 3);
        assert!(outage.is_down());
        for answer in [true, true, false, true, true] {
            outage.probed(answer);
            assert!(outage.is_down());
        }
        outage.probed(true);
        outage.observe(true, 3);
        assert!(!outage.is_down(), "failures from before the outage ended are not new");
        outage.observe(true, 4);
        assert!(outage.is_down());
    }
}
