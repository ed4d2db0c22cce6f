//! The slot table, from which user space and the kernel pick engines alike.

/// Slots of one table. A power of two, so that a slot is the top 16 bits of a mixed key. Weights
/// are exact to 0.002 %.
pub const SLOTS: usize = 1 << 16;

/// Engines per slot: its owner, and the next in rank for when the owner is down.
pub const RANKS: usize = 4;

/// Engine number of an empty rank.
pub const NO_ENGINE: u16 = u16::MAX;

/// Most engines of a fleet. Engine numbers are dense, so this also bounds every table that is
/// indexed by engine.
pub const MAX_ENGINES: usize = 4096;

/// One slot: engine numbers, best first, padded with [`NO_ENGINE`].
pub type Slot = [u16; RANKS];

/// A bank: one of the two copies of a service's slot table (a double buffer). Programs read the
/// live bank while user space writes the idle one; one store of the control word then makes the
/// idle bank the live one.
///
/// Aligned so that a slot is one 8-byte word, read and written whole.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct SlotBank {
    pub slots: [Slot; SLOTS],
}

// SAFETY: an array of u16 whose size is a multiple of the alignment: no padding, every bit pattern
// valid.
unsafe impl crate::Shared for SlotBank {}

const _: () = assert!(size_of::<SlotBank>() == SLOTS * RANKS * 2);
const _: () = assert!(size_of::<Slot>() == size_of::<u64>());
const _: () = assert!(MAX_ENGINES < NO_ENGINE as usize);

/// The slot of a mixed 64-bit key.
#[inline]
pub const fn slot_of(mixed_key: u64) -> usize {
    (mixed_key >> 48) as usize
}

/// Full-avalanche mix of 64 bits (the finaliser of SplitMix64). A multiplicative hash alone maps
/// neighbouring ports to one slot.
#[inline]
pub const fn mix64(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
