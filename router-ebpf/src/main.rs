//! The kernel half of `ilb`: two programs without state of their own. They read maps that user
//! space writes.
//!
//! - `steer` (`sk_lookup`, one network namespace): a new connection to a virtual address goes to
//!   the listener that owns its slot.
//! - `register` (`sock_ops`, one cgroup and all below it): a socket that starts to listen at an
//!   engine's address is entered as that engine's listener. Only listeners are entered, because a
//!   stream in a socket map can lose its last bytes.
//!
//! Each program calls, counts and returns the verdict; the decisions are in `pick` and `listeners`,
//! their consequences in `verdict`.
#![no_std]
#![no_main]

mod listeners;
mod maps;
mod parse;
mod pick;
mod verdict;

use aya_ebpf::{
    macros::{sk_lookup, sock_ops},
    programs::{SkLookupContext, SockOpsContext},
};

#[sk_lookup]
fn steer(ctx: SkLookupContext) -> u32 {
    verdict::of_connection(&ctx, pick::pick(&ctx))
}

#[sock_ops]
fn register(ctx: SockOpsContext) -> u32 {
    if parse::starts_listening(&ctx) {
        verdict::of_listener(&ctx, listeners::enter(&ctx));
    }
    verdict::SOCK_OPS_DONE
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier proves that no path panics: a program with such a path does not load.
    loop {}
}

// The kernel offers the helpers used here to GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
