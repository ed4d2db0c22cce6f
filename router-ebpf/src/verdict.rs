//! The only place where an outcome becomes a verdict, a count and, if it is rare, a log line.
//!
//! The choice behind each: a connection to a virtual address with a table is steered or refused, since any other socket could be one that the
//! service's constraints exclude. A refusal is immediate (the client sees a reset), because a silent drop costs it a second per try.
//! Whatever is not ours, or not ours yet, goes the way it would go without us.

use aya_ebpf::{
    bindings::sk_action::{SK_DROP, SK_PASS},
    helpers::bpf_ktime_get_ns,
    programs::{SkLookupContext, SockOpsContext},
};
use aya_log_ebpf::{info, warn};
use router_common::stats::Outcome;

use crate::{
    listen,
    maps::{self, REPORTED},
    pick::{self, Picked},
};

/// What a `sock_ops` program returns when it has done, whatever it did: anything else would fail the socket's own operation.
pub(crate) const SOCK_OPS_DONE: u32 = 1;

/// A service that refuses connections says so at most this often.
const REPORT_INTERVAL_NS: u64 = 1_000_000_000;

/// The verdict on a new connection.
#[inline(always)]
pub(crate) fn of_connection(ctx: &SkLookupContext, result: Result<Picked, pick::Reason>) -> u32 {
    let (outcome, verdict) = match result {
        Ok(Picked { seat, outcome }) => {
            maps::count_pick(seat);
            (outcome, SK_PASS)
        }
        Err(pick::Reason::NotOurs) => (Outcome::PassedNotOurs, SK_PASS),
        Err(pick::Reason::NoTable) => (Outcome::PassedNoTable, SK_PASS),
        Err(pick::Reason::Fault) => (Outcome::PassedFault, SK_PASS),
        Err(pick::Reason::NoListener { service }) => {
            report_refusal(ctx, service);
            (Outcome::RefusedNoListener, SK_DROP)
        }
    };
    maps::count(outcome);
    verdict
}

/// Counts what became of a socket that started to listen.
#[inline(always)]
pub(crate) fn of_listener(ctx: &SockOpsContext, result: Result<u32, listen::Reason>) {
    maps::count(match result {
        Ok(seat) => {
            info!(ctx, "engine listens, seat {}", seat);
            Outcome::Registered
        }
        Err(listen::Reason::NotOurs) => Outcome::IgnoredAddress,
        Err(listen::Reason::OtherNamespace) => Outcome::IgnoredNamespace,
        Err(listen::Reason::Refused { seat, errno }) => {
            warn!(ctx, "listener of seat {} not entered: errno {}", seat, errno);
            Outcome::RegisterFailed
        }
    });
}

#[inline(always)]
fn report_refusal(ctx: &SkLookupContext, service: u32) {
    let Some(last) = REPORTED.get_ptr_mut(service) else { return };
    // SAFETY: the helper has no conditions; the map gives a valid, aligned pointer. Two CPUs at once may both report: harmless.
    unsafe {
        let now = bpf_ktime_get_ns();
        if now - *last < REPORT_INTERVAL_NS {
            return;
        }
        *last = now;
    }
    warn!(ctx, "service {} refuses connections: no eligible engine listens", service);
}
