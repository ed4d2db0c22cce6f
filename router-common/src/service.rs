//! Services: a virtual address, its banks, and the engines that a pick may fall back on.

use crate::{Shared, limits::MAX_SCAN, slot::NO_ENGINE};

/// The service at one virtual address.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Index of the service. Its control word is at this index, and its banks are at twice this
    /// index and the next.
    pub index: u32,
}

// SAFETY: one u32 in a repr(C) struct: no padding, every bit pattern valid.
unsafe impl Shared for Service {}

const _: () = assert!(size_of::<Service>() == 4);

/// The engines of this host that a service may use when no rank of a slot has a listener: endpoint
/// ids, of which the first `count` are valid.
///
/// There is one list per bank, switched with it, so that the fallback obeys the same constraints as
/// the table.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Eligible {
    pub count: u32,
    pub ids: [u16; MAX_SCAN],
}

impl Eligible {
    pub const EMPTY: Self = Self { count: 0, ids: [NO_ENGINE; MAX_SCAN] };

    /// Adds an endpoint id; false if the list is full.
    pub const fn add(&mut self, id: u16) -> bool {
        if self.count as usize >= MAX_SCAN {
            return false;
        }
        self.ids[self.count as usize] = id;
        self.count += 1;
        true
    }
}

// SAFETY: a u32 and an even number of u16 in a repr(C) struct: no padding, every bit pattern valid.
unsafe impl Shared for Eligible {}

const _: () = assert!(size_of::<Eligible>() == 4 + 2 * MAX_SCAN && MAX_SCAN.is_multiple_of(2));
