//! Services: a virtual address, its place among the banks, and what a pick may fall back on.

use crate::{Shared, limits::MAX_SCAN, slot::NO_ENGINE};

/// What the kernel knows about one virtual address.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Index of the service: its control word is at this index, its banks at twice this index and the next.
    pub index: u32,
}

// SAFETY: one u32 in a repr(C) struct: no padding, every bit pattern valid.
unsafe impl Shared for Service {}

const _: () = assert!(size_of::<Service>() == 4);

/// The engines of this host that a service may use when all ranks of a slot are gone: seats, the first `count` of them valid.
///
/// Kept per bank and switched with it, so that the fallback obeys the same constraints as the table beside it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Eligible {
    pub count: u32,
    pub seats: [u16; MAX_SCAN],
}

impl Eligible {
    pub const EMPTY: Self = Self { count: 0, seats: [NO_ENGINE; MAX_SCAN] };

    /// Adds a seat; false if the list is full.
    pub const fn add(&mut self, seat: u16) -> bool {
        if self.count as usize >= MAX_SCAN {
            return false;
        }
        self.seats[self.count as usize] = seat;
        self.count += 1;
        true
    }
}

// SAFETY: a u32 and an even number of u16 in a repr(C) struct: no padding, every bit pattern valid.
unsafe impl Shared for Eligible {}

const _: () = assert!(size_of::<Eligible>() == 4 + 2 * MAX_SCAN && MAX_SCAN.is_multiple_of(2));
