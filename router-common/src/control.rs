//! The control word: which bank of a service's table is live, and the generation it holds.

use crate::Shared;

/// Generations a control word can hold: one bit of its 64 names the bank.
pub const MAX_GENERATION: u64 = u64::MAX >> 1;

/// Live bank and generation in one word, so that no reader sees one without the other.
///
/// The lowest bit is the live bank, the other bits are the generation. 0 means that nothing has
/// been published yet. User space writes it with one aligned store, and programs read it with one
/// aligned load.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    pub word: u64,
}

impl Control {
    /// The word for a generation in a bank; `None` if the generation is 0 or does not fit.
    pub const fn new(generation: u64, bank: u32) -> Option<Self> {
        if generation == 0 || generation > MAX_GENERATION || bank > 1 {
            return None;
        }
        Some(Self { word: generation << 1 | bank as u64 })
    }

    /// The published generation; 0 before the first.
    #[inline(always)]
    pub const fn generation(self) -> u64 {
        self.word >> 1
    }

    /// The live bank, 0 or 1.
    #[inline(always)]
    pub const fn bank(self) -> u32 {
        (self.word & 1) as u32
    }
}

// SAFETY: one u64 in a repr(C) struct: no padding, every bit pattern valid.
unsafe impl Shared for Control {}

const _: () = assert!(size_of::<Control>() == 8 && align_of::<Control>() == 8);
