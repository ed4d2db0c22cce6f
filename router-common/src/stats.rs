//! Outcomes, each with one counter per CPU.

/// The outcome of one connection (first part), or of one socket that started to listen (second
/// part).
///
/// The value is the index of the counter, and is never shared as data. Every lookup and every
/// listener counts in exactly one counter. A connection is one lookup. A late segment of a
/// connection that is already closed is looked up too, and the kernel does not tell it from a new
/// connection.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Steered to the slot's owner, or to the next in rank.
    PickedRank0,
    PickedRank1,
    PickedRank2,
    PickedRank3,
    /// No rank of the slot had a listener; steered to another eligible engine of the service.
    PickedByScan,
    /// No eligible engine has a listener here: refused at once.
    RefusedNoListener,
    /// The service has no table yet: left to the ordinary lookup.
    PassedNoTable,
    /// Not for a service of ours: left to the ordinary lookup.
    PassedNotOurs,
    /// A map did not hold what it must hold: left to the ordinary lookup.
    PassedFault,
    /// A listener of an engine of ours was entered.
    Registered,
    /// A listener at an address that is no engine of ours.
    IgnoredAddress,
    /// A listener in another network namespace, where our addresses mean something else.
    IgnoredNamespace,
    /// The kernel refused to enter a listener of ours.
    RegisterFailed,
}

/// Number of outcomes.
pub const OUTCOMES: u32 = Outcome::RegisterFailed as u32 + 1;

impl Outcome {
    /// All outcomes, in the order of their counters.
    pub const ALL: [Self; OUTCOMES as usize] = [
        Self::PickedRank0,
        Self::PickedRank1,
        Self::PickedRank2,
        Self::PickedRank3,
        Self::PickedByScan,
        Self::RefusedNoListener,
        Self::PassedNoTable,
        Self::PassedNotOurs,
        Self::PassedFault,
        Self::Registered,
        Self::IgnoredAddress,
        Self::IgnoredNamespace,
        Self::RegisterFailed,
    ];

    /// The outcome's name in status output and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PickedRank0 => "picked_rank_0",
            Self::PickedRank1 => "picked_rank_1",
            Self::PickedRank2 => "picked_rank_2",
            Self::PickedRank3 => "picked_rank_3",
            Self::PickedByScan => "picked_by_scan",
            Self::RefusedNoListener => "refused_no_listener",
            Self::PassedNoTable => "passed_no_table",
            Self::PassedNotOurs => "passed_not_ours",
            Self::PassedFault => "passed_fault",
            Self::Registered => "registered",
            Self::IgnoredAddress => "ignored_address",
            Self::IgnoredNamespace => "ignored_namespace",
            Self::RegisterFailed => "register_failed",
        }
    }

    /// The outcome of a pick by the slot's n-th rank.
    #[inline(always)]
    pub const fn picked(rank: usize) -> Self {
        match rank {
            0 => Self::PickedRank0,
            1 => Self::PickedRank1,
            2 => Self::PickedRank2,
            _ => Self::PickedRank3,
        }
    }
}

const _: () = {
    let mut index = 0;
    while index < Outcome::ALL.len() {
        assert!(Outcome::ALL[index] as usize == index);
        index += 1;
    }
};
