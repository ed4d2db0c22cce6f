//! Generations: numbers of snapshots that only grow, whoever publishes and whatever state was lost.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bits of the counter. With the epoch's 21 bits a generation stays below 2^53, so JSON readers
/// that know only doubles show it exactly.
const COUNTER_BITS: u32 = 32;
const COUNTER_MOST: u64 = (1 << COUNTER_BITS) - 1;
const EPOCH_MOST: u64 = (1 << 21) - 1;

/// A snapshot's number: the epoch in which it was published, then a count within it.
///
/// An epoch belongs to one publisher. A leader opens a new epoch when it is elected. A controller
/// that has lost its store opens one when it learns of a generation that it does not know. So two
/// different snapshots never share a number. The text form is `EPOCH.COUNT`, or the count alone in
/// epoch 0; the JSON form is that text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Generation(pub u64);

impl Generation {
    pub fn epoch(self) -> u64 {
        self.0 >> COUNTER_BITS
    }

    pub fn count(self) -> u64 {
        self.0 & COUNTER_MOST
    }

    /// The first generation of an epoch; `None` if the epochs are used up.
    pub fn first_of(epoch: u64) -> Option<Self> {
        (epoch <= EPOCH_MOST).then_some(Self(epoch << COUNTER_BITS | 1))
    }

    /// True if a publisher should go above this number because a data plane reports it. Half of all
    /// epochs are reserved, so that one faulty data plane cannot use them up.
    pub fn is_plausible(self) -> bool {
        self.epoch() <= EPOCH_MOST / 2
    }

    /// The generation after `held` for a publisher of `epoch`; `held` is the last one that it
    /// published or adopted. `None` if `held` belongs to a later epoch, which is another
    /// publisher's, or if the numbers are used up.
    pub fn after(held: Self, epoch: u64) -> Option<Self> {
        match held.epoch().cmp(&epoch) {
            std::cmp::Ordering::Less => Self::first_of(epoch),
            std::cmp::Ordering::Equal if held.count() < COUNTER_MOST => Some(Self(held.0 + 1)),
            std::cmp::Ordering::Equal | std::cmp::Ordering::Greater => None,
        }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.epoch() {
            0 => write!(f, "{}", self.count()),
            epoch => write!(f, "{epoch}.{}", self.count()),
        }
    }
}

impl From<Generation> for String {
    fn from(generation: Generation) -> Self {
        generation.to_string()
    }
}

impl TryFrom<String> for Generation {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Generation {
    type Err = String;

    /// Reads `EPOCH.COUNT`, or a plain number: the whole generation as one integer.
    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || format!("is {text:?}; wanted a generation as `ilb snapshots` shows it, such as 17 or 3.17");
        let number = |text: &str| text.parse::<u64>().map_err(|_| wanted());
        match text.split_once('.') {
            None => Ok(Self(number(text)?)),
            Some((epoch, count)) => {
                let (epoch, count) = (number(epoch)?, number(count)?);
                if epoch > EPOCH_MOST || count > COUNTER_MOST {
                    return Err(wanted());
                }
                Ok(Self(epoch << COUNTER_BITS | count))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(text: &str) -> Generation {
        text.parse().expect("legal")
    }

    #[test]
    fn counts_within_an_epoch_and_rises_across_them() {
        assert_eq!(Generation::after(Generation(0), 0), Some(Generation(1)));
        assert_eq!(Generation::after(generation("3.17"), 3), Some(generation("3.18")));
        assert_eq!(Generation::after(generation("3.17"), 9), Some(generation("9.1")));
        assert!(generation("4.1") > generation("3.4294967295"));
    }

    #[test]
    fn never_counts_in_an_epoch_of_somebody_else_or_past_the_end() {
        assert_eq!(Generation::after(generation("3.17"), 2), None);
        assert_eq!(Generation::after(generation("3.4294967295"), 3), None);
        assert_eq!(Generation::first_of(EPOCH_MOST + 1), None);
        let last = Generation::first_of(EPOCH_MOST).expect("the last epoch");
        assert!(last.0 < 1 << 53, "exact as a double");
    }

    #[test]
    fn prints_and_reads_back() {
        for text in ["0", "17", "3.17", "2097151.4294967295"] {
            assert_eq!(generation(text).to_string(), text);
            assert_eq!(serde_json::to_string(&generation(text)).expect("JSON"), format!("{text:?}"));
        }
        assert_eq!(generation("12884901905"), generation("3.17"), "the number that snapshots have");
        for text in ["", "a", "1.", "1.2.3", "-1", "2097152.1", "1.4294967296"] {
            text.parse::<Generation>().expect_err(text);
        }
    }
}
