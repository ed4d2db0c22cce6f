//! The kernel half of `ilb`. Two hooks, no state of their own: maps say what is ours, user space writes them.
//!
//! - `steer` (`sk_lookup`, one network namespace): a new connection to a virtual address goes to the listener that owns its slot.
//! - `register` (`sock_ops`, one cgroup and all below): a socket that starts to listen at an engine's address is entered as that engine's
//!   listener. Only listeners are ever entered: a stream in a socket map can lose its tail.
//!
//! Each hook calls, counts and returns the verdict; the decisions are in `pick` and `listen`, their consequences in `verdict`.
#![no_std]
#![no_main]

mod listen;
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
        verdict::of_listener(&ctx, listen::enter(&ctx));
    }
    verdict::SOCK_OPS_DONE
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier proves that no path panics; a path that could would not load.
    loop {}
}

// The helpers used here are open to GPL-compatible programs alone.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
