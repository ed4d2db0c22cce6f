//! The layout that pinned maps must have to be used by this build.

use crate::{
    Shared,
    control::Control,
    engine::{Endpoint, EndpointIds},
    limits::{BANKS, MAX_ENDPOINT_IDS, MAX_ENDPOINTS, MAX_SERVICES},
    service::{Eligible, Service},
    slot::SlotBank,
    stats::OUTCOMES,
};

/// Version of all shared types. Add one whenever the meaning, size or order of any of them changes.
pub const LAYOUT_VERSION: u32 = 1;

/// Settings that stay the same for as long as the programs are attached.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Cookie of the network namespace that is steered. Listeners of other namespaces are ignored.
    pub netns_cookie: u64,
}

// SAFETY: one u64 in a repr(C) struct: no padding, every bit pattern valid.
unsafe impl Shared for Settings {}

const _: () = assert!(size_of::<Settings>() == 8);

/// Map types, as in the kernel's `enum bpf_map_type`.
pub mod map_type {
    pub const HASH: u32 = 1;
    pub const ARRAY: u32 = 2;
    pub const PERCPU_ARRAY: u32 = 6;
    pub const SOCKHASH: u32 = 18;
}

/// `BPF_F_MMAPABLE`: the array can be mapped into user space.
pub const MMAPABLE: u32 = 1 << 10;

/// One pinned map: its name is also the name of its pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapShape {
    pub name: &'static str,
    pub map_type: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub flags: u32,
}

const fn shape<K, V>(name: &'static str, map_type: u32, max_entries: u32, flags: u32) -> MapShape {
    MapShape { name, map_type, key_size: size_of::<K>() as u32, value_size: size_of::<V>() as u32, max_entries, flags }
}

/// The layout version of the pins: `u32` at index 0, and 0 until an attach has finished. This map
/// never changes its shape.
pub const LAYOUT: MapShape = shape::<u32, u32>("LAYOUT", map_type::ARRAY, 1, 0);
/// [`Settings`] at index 0.
pub const SETTINGS: MapShape = shape::<u32, Settings>("SETTINGS", map_type::ARRAY, 1, 0);
/// Virtual address to service.
pub const SERVICES: MapShape = shape::<Endpoint, Service>("SERVICES", map_type::HASH, MAX_SERVICES, 0);
/// Control word of each service.
pub const CONTROL: MapShape = shape::<u32, Control>("CONTROL", map_type::ARRAY, MAX_SERVICES, MMAPABLE);
/// Slot tables, two banks per service (see [`SlotBank`]).
pub const TABLES: MapShape = shape::<u32, SlotBank>("TABLES", map_type::ARRAY, BANKS, MMAPABLE);
/// Eligible engines, one list per bank.
pub const ELIGIBLE: MapShape = shape::<u32, Eligible>("ELIGIBLE", map_type::ARRAY, BANKS, 0);
/// Engine address, or the wildcard address with its port, to endpoint ids.
pub const ENGINES: MapShape = shape::<Endpoint, EndpointIds>("ENGINES", map_type::HASH, MAX_ENDPOINTS, 0);
/// Endpoint id to listening socket; a closed socket leaves by itself.
pub const LISTENERS: MapShape = shape::<u32, u32>("LISTENERS", map_type::SOCKHASH, MAX_ENDPOINT_IDS as u32, 0);
/// Outcomes.
pub const OUTCOME_COUNTERS: MapShape = shape::<u32, u64>("OUTCOMES", map_type::PERCPU_ARRAY, OUTCOMES, 0);
/// Connections steered to each endpoint id.
pub const PICKS: MapShape = shape::<u32, u64>("PICKS", map_type::PERCPU_ARRAY, MAX_ENDPOINT_IDS as u32, 0);
/// Time of each service's last report that it refuses connections, in ns since boot. It limits the
/// reports.
pub const REPORTED: MapShape = shape::<u32, u64>("REPORTED", map_type::ARRAY, MAX_SERVICES, 0);

/// Every pinned map.
pub const MAPS: [MapShape; 11] =
    [LAYOUT, SETTINGS, SERVICES, CONTROL, TABLES, ELIGIBLE, ENGINES, LISTENERS, OUTCOME_COUNTERS, PICKS, REPORTED];
