//! Reads of the kernel's contexts.
//!
//! The verifier wants each field read at its own width and at a constant offset. So every read is
//! volatile, as the compiler would join neighbouring words into one wide load. And every read comes
//! before the first branch, as the compiler would join the loads of two branches into one of a
//! computed address. The fields of the other address family are zero, so reading both is harmless.

use core::ptr::{addr_of, read_volatile};

use aya_ebpf::{
    bindings::{BPF_SOCK_OPS_TCP_LISTEN_CB, bpf_sk_lookup, bpf_sock_ops},
    programs::{SkLookupContext, SockOpsContext},
};
use router_common::{engine::Endpoint, slot::mix64};

const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const IPPROTO_TCP: u32 = 6;

/// A connection about to be made.
pub(crate) struct Connection {
    /// The address that the client connects to.
    pub(crate) local: Endpoint,
    /// Full-avalanche mix of the client's address and port.
    pub(crate) key: u64,
}

/// The connection in a lookup's context; `None` unless it is TCP over IPv4 or IPv6.
#[inline(always)]
pub(crate) fn connection(ctx: &SkLookupContext) -> Option<Connection> {
    let raw: *const bpf_sk_lookup = ctx.lookup;
    // SAFETY: the context is valid for the program's run, and the verifier allows these fields at
    // these widths.
    let (protocol, family, remote_ip4, remote_ip6, remote_port_be, local_ip4, local_ip6, local_port) = unsafe {
        (
            read_volatile(addr_of!((*raw).protocol)),
            read_volatile(addr_of!((*raw).family)),
            read_volatile(addr_of!((*raw).remote_ip4)),
            words(addr_of!((*raw).remote_ip6)),
            read_volatile(addr_of!((*raw).remote_port)),
            read_volatile(addr_of!((*raw).local_ip4)),
            words(addr_of!((*raw).local_ip6)),
            read_volatile(addr_of!((*raw).local_port)) as u16,
        )
    };
    if protocol != IPPROTO_TCP {
        return None;
    }
    match family {
        AF_INET => Some(Connection {
            local: Endpoint::v4(local_ip4, local_port),
            key: mix64((remote_ip4 as u64) << 16 | remote_port_be as u64),
        }),
        AF_INET6 => {
            let high = (remote_ip6[0] as u64) << 32 | remote_ip6[1] as u64;
            let low = (remote_ip6[2] as u64) << 32 | remote_ip6[3] as u64;
            Some(Connection {
                local: Endpoint::v6(local_ip6, local_port),
                key: mix64(mix64(mix64(high) ^ low) ^ remote_port_be as u64),
            })
        }
        _ => None,
    }
}

/// Whether a `sock_ops` call announces a socket that starts to listen.
#[inline(always)]
pub(crate) fn starts_listening(ctx: &SockOpsContext) -> bool {
    let raw: *const bpf_sock_ops = ctx.ops;
    // SAFETY: as above.
    unsafe { read_volatile(addr_of!((*raw).op)) == BPF_SOCK_OPS_TCP_LISTEN_CB }
}

/// The address that a socket listens at, with the common form for wildcards of both families.
/// `None` unless IPv4 or IPv6.
#[inline(always)]
pub(crate) fn listen_address(ctx: &SockOpsContext) -> Option<Endpoint> {
    let raw: *const bpf_sock_ops = ctx.ops;
    // SAFETY: as above.
    let (family, ip4, ip6, port) = unsafe {
        (
            read_volatile(addr_of!((*raw).family)),
            read_volatile(addr_of!((*raw).local_ip4)),
            words(addr_of!((*raw).local_ip6)),
            read_volatile(addr_of!((*raw).local_port)) as u16,
        )
    };
    match family {
        AF_INET => Some(Endpoint::v4(ip4, port)),
        AF_INET6 if ip6[0] | ip6[1] | ip6[2] | ip6[3] == 0 => Some(Endpoint::wildcard(port)),
        AF_INET6 => Some(Endpoint::v6(ip6, port)),
        _ => None,
    }
}

/// The four words of an IPv6 address, one load each.
///
/// # Safety
///
/// `address` points into a context whose verifier rules allow these four loads.
#[inline(always)]
unsafe fn words(address: *const [u32; 4]) -> [u32; 4] {
    let first = address.cast::<u32>();
    // SAFETY: the caller's promise.
    unsafe { [read_volatile(first), read_volatile(first.add(1)), read_volatile(first.add(2)), read_volatile(first.add(3))] }
}
