//! Picks an engine for a new connection: the slot's ranks in order, then a bounded scan over the
//! service's eligible engines. No engine outside the service's own table and list is tried.

use core::ptr::read_volatile;

use aya_ebpf::programs::SkLookupContext;
use router_common::{
    control::Control,
    limits::{BANKS_PER_SERVICE, MAX_SCAN},
    service::Eligible,
    slot::{NO_ENGINE, RANKS, SlotBank, slot_of},
    stats::Outcome,
};

use crate::{
    maps::{CONTROL, ELIGIBLE, LISTENERS, SERVICES, TABLES},
    parse,
};

/// The engine of a connection.
pub(crate) struct Picked {
    pub(crate) id: u32,
    pub(crate) outcome: Outcome,
}

/// Why a connection has no engine.
pub(crate) enum Reason {
    NotOurs,
    NoTable,
    NoListener { service: u32 },
    Fault,
}

/// Picks an engine and hands the connection to its listener.
#[inline(always)]
pub(crate) fn pick(ctx: &SkLookupContext) -> Result<Picked, Reason> {
    let connection = parse::connection(ctx).ok_or(Reason::NotOurs)?;
    // SAFETY: services are written before the programs are attached and are never changed in place.
    let service = unsafe { SERVICES.get(connection.local) }.ok_or(Reason::NotOurs)?.index;
    let control = CONTROL.get_ptr(service).ok_or(Reason::Fault)?;
    // SAFETY: the map gives a valid, aligned pointer. One load: generation and bank belong
    // together.
    let control: Control = unsafe { read_volatile(control) };
    if control.generation() == 0 {
        return Err(Reason::NoTable);
    }
    let bank = service * BANKS_PER_SERVICE + control.bank();

    let ranks = read_slot(TABLES.get_ptr(bank).ok_or(Reason::Fault)?, slot_of(connection.key));
    for rank in 0..RANKS {
        let id = (ranks >> (16 * rank)) as u16;
        if id == NO_ENGINE {
            break;
        }
        if assign(ctx, id) {
            return Ok(Picked { id: id as u32, outcome: Outcome::picked(rank) });
        }
    }
    scan(ctx, ELIGIBLE.get_ptr(bank).ok_or(Reason::Fault)?, connection.key).ok_or(Reason::NoListener { service })
}

/// Tries every eligible engine once. The connection's key decides where to begin, so that the
/// engines left share the load.
#[inline(always)]
fn scan(ctx: &SkLookupContext, eligible: *const Eligible, key: u64) -> Option<Picked> {
    // SAFETY: the map gives a valid pointer.
    let count = unsafe { read_volatile(&raw const (*eligible).count) };
    if count == 0 || count > MAX_SCAN as u32 {
        return None;
    }
    // The low half of the key: the slot has used the high one.
    let start = (key as u32) % count;
    for tried in 0..MAX_SCAN as u32 {
        if tried >= count {
            break;
        }
        let at = if start + tried < count { start + tried } else { start + tried - count };
        // SAFETY: the list has MAX_SCAN entries, a power of two. `at` is below `count`; the mask
        // says so to the verifier.
        let id = unsafe { read_volatile((&raw const (*eligible).ids).cast::<u16>().add(at as usize & (MAX_SCAN - 1))) };
        if id != NO_ENGINE && assign(ctx, id) {
            return Some(Picked { id: id as u32, outcome: Outcome::PickedByScan });
        }
    }
    None
}

/// Hands the connection to the listener of an endpoint id. False if there is none, or if the kernel
/// refuses it because its family is another or it has just closed.
#[inline(always)]
fn assign(ctx: &SkLookupContext, id: u16) -> bool {
    LISTENERS.redirect_sk_lookup(ctx, id as u32, 0).is_ok()
}

/// One slot's ranks, the owner in the lowest 16 bits. One load, so that a slot is never half old
/// and half new.
#[inline(always)]
fn read_slot(bank: *const SlotBank, slot: usize) -> u64 {
    // SAFETY: the map gives a valid pointer to SLOTS slots of 8 bytes each, aligned to 8, and a
    // slot's number is below SLOTS.
    unsafe { read_volatile(bank.cast::<u64>().add(slot)) }
}
