//! The choice of an engine for a new connection: the slot's ranks in order, then a bounded scan over the service's eligible engines.
//! Nothing outside the service's own table and list is ever tried.

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

/// A connection that has its engine.
pub(crate) struct Picked {
    pub(crate) seat: u32,
    pub(crate) outcome: Outcome,
}

/// Why a connection has none.
pub(crate) enum Reason {
    NotOurs,
    NoTable,
    NoListener { service: u32 },
    Fault,
}

/// Assigns the listener of the engine that this connection belongs to.
#[inline(always)]
pub(crate) fn pick(ctx: &SkLookupContext) -> Result<Picked, Reason> {
    let connection = parse::connection(ctx).ok_or(Reason::NotOurs)?;
    // SAFETY: services are written before the programs are attached and are never changed in place.
    let service = unsafe { SERVICES.get(connection.local) }.ok_or(Reason::NotOurs)?.index;
    let control = CONTROL.get_ptr(service).ok_or(Reason::Fault)?;
    // SAFETY: the map gives a valid, aligned pointer. One load: generation and bank belong together.
    let control: Control = unsafe { read_volatile(control) };
    if control.generation() == 0 {
        return Err(Reason::NoTable);
    }
    let bank = service * BANKS_PER_SERVICE + control.bank();

    let ranks = read_slot(TABLES.get_ptr(bank).ok_or(Reason::Fault)?, slot_of(connection.key));
    for rank in 0..RANKS {
        let seat = (ranks >> (16 * rank)) as u16;
        if seat == NO_ENGINE {
            break;
        }
        if assign(ctx, seat) {
            return Ok(Picked { seat: seat as u32, outcome: Outcome::picked(rank) });
        }
    }
    scan(ctx, ELIGIBLE.get_ptr(bank).ok_or(Reason::Fault)?, connection.key).ok_or(Reason::NoListener { service })
}

/// Tries every eligible engine once, beginning at a place that the connection's key decides, so that what is left shares the load.
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
        // SAFETY: the list has MAX_SCAN entries, a power of two. `at` is below `count`; the mask says so to the verifier.
        let seat = unsafe { read_volatile((&raw const (*eligible).seats).cast::<u16>().add(at as usize & (MAX_SCAN - 1))) };
        if seat != NO_ENGINE && assign(ctx, seat) {
            return Some(Picked { seat: seat as u32, outcome: Outcome::PickedByScan });
        }
    }
    None
}

/// Gives the connection to a seat's listener; false if the seat has none, or one that the kernel refuses (wrong family, just closed).
#[inline(always)]
fn assign(ctx: &SkLookupContext, seat: u16) -> bool {
    LISTENERS.redirect_sk_lookup(ctx, seat as u32, 0).is_ok()
}

/// One slot's ranks in one load, the owner in the lowest 16 bits: never half old and half new.
#[inline(always)]
fn read_slot(bank: *const SlotBank, slot: usize) -> u64 {
    // SAFETY: the map gives a valid pointer to SLOTS slots of 8 bytes each, aligned to 8, and a slot's number is below SLOTS.
    unsafe { read_volatile(bank.cast::<u64>().add(slot)) }
}
