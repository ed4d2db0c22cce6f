//! Whether an engine is lost to a whole data plane, which then changes its weights. Pure.
//!
//! A worker that finds an engine out passes it over at once, by rank. Changing weights is slower and dearer: tables are built, and
//! conversations move. So it takes what a worker needs to put an engine out, and it is taken back only after the engine has answered
//! several times in a row; as nothing is sent there meanwhile, it has to be asked.

/// Answers in a row that bring an engine back.
const ANSWERS: u32 = 3;

/// What a data plane thinks of one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    is_lost: bool,
    answers: u32,
    /// Connect failures that were known before.
    failures: u64,
}

impl Loss {
    /// Takes what the workers see: whether one of them has the engine out, and the connect failures of all since the start. An engine
    /// that has come back and was not asked since is still out to a worker; only failures that are new count.
    pub fn observe(&mut self, is_out: bool, failures: u64) {
        if is_out && failures > self.failures && !self.is_lost {
            (self.is_lost, self.answers) = (true, 0);
        }
        self.failures = failures;
    }

    /// Takes the outcome of asking a lost engine.
    pub fn asked(&mut self, has_answered: bool) {
        self.answers = if has_answered { self.answers + 1 } else { 0 };
        if self.answers >= ANSWERS {
            self.is_lost = false;
        }
    }

    pub fn is_lost(self) -> bool {
        self.is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_by_new_failures_and_back_after_answers_in_a_row() {
        let mut loss = Loss::default();
        loss.observe(false, 2);
        assert!(!loss.is_lost(), "failures that put no engine out");
        loss.observe(true, 3);
        assert!(loss.is_lost());
        for answer in [true, true, false, true, true] {
            loss.asked(answer);
            assert!(loss.is_lost());
        }
        loss.asked(true);
        loss.observe(true, 3);
        assert!(!loss.is_lost(), "what a worker remembers of before is no news");
        loss.observe(true, 4);
        assert!(loss.is_lost());
    }
}
