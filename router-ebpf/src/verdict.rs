//! Turns an outcome into a verdict, a count and, for rare outcomes, a log line. No other file does.
//!
//! A connection to a virtual address with a table is steered or refused, because the service's
//! constraints may exclude any other socket. A refusal is immediate, and the client sees a reset: a
//! silent drop would cost it a second per try. All other connections go the way that they would go
//! without ilb.

use aya_ebpf::{
    bindings::sk_action::{SK_DROP, SK_PASS},
    helpers::bpf_ktime_get_ns,
    programs::{SkLookupContext, SockOpsContext},
};
use aya_log_ebpf::{info, warn};
use router_common::stats::Outcome;

use crate::{
    listeners,
    maps::{self, REPORTED},
    pick::{self, Picked},
};

/// The only value that a `sock_ops` program may return: any other would fail the socket's own
/// operation.
pub(crate) const SOCK_OPS_DONE: u32 = 1;

/// Shortest time between two reports of a service that refuses connections, in ns: one line per
/// second shows it.
const REPORT_INTERVAL_NS: u64 = 1_000_000_000;

/// The verdict on a new connection.
#[inline(always)]
pub(crate) fn of_connection(ctx: &SkLookupContext, result: Result<Picked, pick::Reason>) -> u32 {
    let (outcome, verdict) = match result {
        Ok(Picked { id, outcome }) => {
            maps::count_pick(id);
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

/// Counts the outcome of a socket that started to listen.
#[inline(always)]
pub(crate) fn of_listener(ctx: &SockOpsContext, result: Result<u32, listeners::Reason>) {
    maps::count(match result {
        Ok(id) => {
            info!(ctx, "engine listens, endpoint id {}", id);
            Outcome::Registered
        }
        Err(listeners::Reason::NotOurs) => Outcome::IgnoredAddress,
        Err(listeners::Reason::OtherNamespace) => Outcome::IgnoredNamespace,
        Err(listeners::Reason::Refused { id, errno }) => {
            warn!(ctx, "listener of endpoint id {} not entered: errno {}", id, errno);
            Outcome::RegisterFailed
        }
    });
}

#[inline(always)]
fn report_refusal(ctx: &SkLookupContext, service: u32) {
    let Some(last) = REPORTED.get_ptr_mut(service) else { return };
    // SAFETY: the helper has no conditions; the map gives a valid, aligned pointer. Two CPUs at
    // once may both report: harmless.
    unsafe {
        let now = bpf_ktime_get_ns();
        if now - *last < REPORT_INTERVAL_NS {
            return;
        }
        *last = now;
    }
    warn!(ctx, "service {} refuses connections: no eligible engine listens", service);
}
