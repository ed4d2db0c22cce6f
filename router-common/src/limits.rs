//! Sizes that both sides build into their code, each with its reason.

use crate::slot::MAX_ENGINES;

/// Services (virtual addresses) that can be steered at once. Two banks of 512 KiB each are reserved per service.
pub const MAX_SERVICES: u32 = 4;

/// Banks per service: one is live, the other is being written.
pub const BANKS_PER_SERVICE: u32 = 2;

/// Banks of all services.
pub const BANKS: u32 = MAX_SERVICES * BANKS_PER_SERVICE;

/// Engines tried, over and above a slot's ranks, when none of the ranks has a listener. Listeners are on this host, and a host has
/// a few tens of engines at most; the bound keeps the longest scan at some microseconds.
pub const MAX_SCAN: usize = 64;

/// Engines of one host that one wildcard listener can stand for, all with its port and each with an address of its own. Further ones have
/// to listen at their own address; more than a few on one port are not met outside of tests.
pub const ENGINES_PER_ENDPOINT: usize = 8;

/// Seats for engine addresses. Twice the largest fleet, so that a fleet can be replaced whole while the old one's table is still live.
pub const MAX_SEATS: usize = 2 * MAX_ENGINES;

/// Endpoints that can be looked up: one per seat, and one wildcard per port of a seat.
pub const MAX_ENDPOINTS: u32 = 2 * MAX_SEATS as u32;

const _: () = assert!(MAX_SEATS < crate::slot::NO_ENGINE as usize);
const _: () = assert!(MAX_SCAN.is_power_of_two());
