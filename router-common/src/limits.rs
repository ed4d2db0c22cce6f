//! Sizes that both sides build into their code, each with its reason.

use crate::slot::MAX_ENGINES;

/// Services (virtual addresses) that can be steered at once. Two banks of 512 KiB each are reserved
/// per service.
pub const MAX_SERVICES: u32 = 4;

/// Banks per service, see [`crate::slot::SlotBank`].
pub const BANKS_PER_SERVICE: u32 = 2;

/// Banks of all services.
pub const BANKS: u32 = MAX_SERVICES * BANKS_PER_SERVICE;

/// Engines tried after a slot's ranks, when none of the ranks has a listener. Listeners are on this
/// host, and a host has a few tens of engines at most. The bound keeps the longest scan at some
/// microseconds.
pub const MAX_SCAN: usize = 64;

/// Engines of one host that one wildcard listener can stand for: all at its port, each with its own
/// address. Further engines have to listen at their own address. Outside of tests, hosts have a few
/// engines at one port at most.
pub const ENGINES_PER_ENDPOINT: usize = 8;

/// Endpoint ids for engine addresses. Twice the largest fleet, so that a fleet can be replaced
/// whole while the slot table of the old one is still live.
pub const MAX_ENDPOINT_IDS: usize = 2 * MAX_ENGINES;

/// Entries of the map of engines: the address of each endpoint id, and the wildcard address of its
/// port.
pub const MAX_ENDPOINTS: u32 = 2 * MAX_ENDPOINT_IDS as u32;

const _: () = assert!(MAX_ENDPOINT_IDS < crate::slot::NO_ENGINE as usize);
const _: () = assert!(MAX_SCAN.is_power_of_two());
