//! All maps, each with its writers and readers. Names, shapes and meanings are in
//! `router_common::layout`.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, PerCpuArray, SockHash},
};
use router_common::{
    control::Control,
    engine::{Endpoint, EndpointIds},
    layout::{self, MapShape, Settings},
    service::{Eligible, Service},
    slot::SlotBank,
    stats::Outcome,
};

/// Written and read by user space. No program reads it; it is here to be made and pinned with the
/// others.
#[map]
static LAYOUT: Array<u32> = Array::pinned(layout::LAYOUT.max_entries, layout::LAYOUT.flags);

/// Written by user space at attach; read by `register`.
#[map]
pub(crate) static SETTINGS: Array<Settings> = Array::pinned(layout::SETTINGS.max_entries, layout::SETTINGS.flags);

/// Written by user space at attach; read by `steer`.
#[map]
pub(crate) static SERVICES: HashMap<Endpoint, Service> = HashMap::pinned(layout::SERVICES.max_entries, layout::SERVICES.flags);

/// Written by user space, one store per publish; read by `steer`.
#[map]
pub(crate) static CONTROL: Array<Control> = Array::pinned(layout::CONTROL.max_entries, layout::CONTROL.flags);

/// Written by user space, the idle bank only; read by `steer`.
#[map]
pub(crate) static TABLES: Array<SlotBank> = Array::pinned(layout::TABLES.max_entries, layout::TABLES.flags);

/// Written by user space, the idle bank only; read by `steer`.
#[map]
pub(crate) static ELIGIBLE: Array<Eligible> = Array::pinned(layout::ELIGIBLE.max_entries, layout::ELIGIBLE.flags);

/// Written by user space; read by `register`.
#[map]
pub(crate) static ENGINES: HashMap<Endpoint, EndpointIds> = HashMap::pinned(layout::ENGINES.max_entries, layout::ENGINES.flags);

/// Written by `register`, and by user space for sockets that listened before the programs were
/// attached. The kernel removes sockets as they close. Read by `steer`.
#[map]
pub(crate) static LISTENERS: SockHash<u32> = SockHash::pinned(layout::LISTENERS.max_entries, layout::LISTENERS.flags);

/// Written by both programs; read by user space.
#[map]
static OUTCOMES: PerCpuArray<u64> = PerCpuArray::pinned(layout::OUTCOME_COUNTERS.max_entries, layout::OUTCOME_COUNTERS.flags);

/// Written by `steer`, cleared by user space when an endpoint id is freed; read by user space.
#[map]
static PICKS: PerCpuArray<u64> = PerCpuArray::pinned(layout::PICKS.max_entries, layout::PICKS.flags);

/// Written and read by `steer`.
#[map]
pub(crate) static REPORTED: Array<u64> = Array::pinned(layout::REPORTED.max_entries, layout::REPORTED.flags);

// The declarations above must equal the shapes that user space checks pins against.
const _: () = {
    assert!(same::<u32, u32>(layout::LAYOUT));
    assert!(same::<u32, Settings>(layout::SETTINGS));
    assert!(same::<Endpoint, Service>(layout::SERVICES));
    assert!(same::<u32, Control>(layout::CONTROL));
    assert!(same::<u32, SlotBank>(layout::TABLES));
    assert!(same::<u32, Eligible>(layout::ELIGIBLE));
    assert!(same::<Endpoint, EndpointIds>(layout::ENGINES));
    assert!(same::<u32, u32>(layout::LISTENERS));
    assert!(same::<u32, u64>(layout::OUTCOME_COUNTERS));
    assert!(same::<u32, u64>(layout::PICKS));
    assert!(same::<u32, u64>(layout::REPORTED));
};

const fn same<K, V>(shape: MapShape) -> bool {
    shape.key_size as usize == size_of::<K>() && shape.value_size as usize == size_of::<V>()
}

/// Adds one to an outcome's counter on this CPU.
#[inline(always)]
pub(crate) fn count(outcome: Outcome) {
    add_one(&OUTCOMES, outcome as u32);
}

/// Adds one to an endpoint id's counter on this CPU.
#[inline(always)]
pub(crate) fn count_pick(id: u32) {
    add_one(&PICKS, id);
}

#[inline(always)]
fn add_one(counters: &PerCpuArray<u64>, index: u32) {
    if let Some(counter) = counters.get_ptr_mut(index) {
        // SAFETY: the map gives a valid pointer to this CPU's counter. Programs are not preempted
        // by another one of the same hook, and a `register` that interrupts a `steer` touches other
        // counters.
        unsafe { *counter += 1 };
    }
}
