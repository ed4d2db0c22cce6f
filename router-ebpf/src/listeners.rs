//! Enters the listeners of engines as they start to listen.

use aya_ebpf::{EbpfContext as _, helpers::bpf_get_netns_cookie, programs::SockOpsContext};
use router_common::{limits::ENGINES_PER_ENDPOINT, slot::NO_ENGINE};

use crate::{
    maps::{ENGINES, LISTENERS, SETTINGS},
    parse,
};

/// `BPF_ANY`: the newest listener of an address takes the endpoint id.
const REPLACE: u64 = 0;

/// Why a listener is not entered.
pub(crate) enum Reason {
    NotOurs,
    OtherNamespace,
    Refused { id: u32, errno: i32 },
}

/// Enters the socket under every endpoint id that its address stands for. Returns the first of
/// them.
#[inline(always)]
pub(crate) fn enter(ctx: &SockOpsContext) -> Result<u32, Reason> {
    let address = parse::listen_address(ctx).ok_or(Reason::NotOurs)?;
    // SAFETY: entries are replaced whole by user space; a value that is going away is still
    // readable until the program ends.
    let ids = unsafe { ENGINES.get(address) }.ok_or(Reason::NotOurs)?.ids;
    let settings = SETTINGS.get(0).ok_or(Reason::NotOurs)?;
    // SAFETY: the helper takes this hook's context.
    if unsafe { bpf_get_netns_cookie(ctx.as_ptr()) } != settings.netns_cookie {
        return Err(Reason::OtherNamespace);
    }
    let mut first = None;
    for index in 0..ENGINES_PER_ENDPOINT {
        if ids[index] == NO_ENGINE {
            break;
        }
        let id = ids[index] as u32;
        // SAFETY: the context is valid for the program's run; the helper only takes its address.
        LISTENERS.update(id, unsafe { &mut *ctx.ops }, REPLACE).map_err(|errno| Reason::Refused { id, errno })?;
        first = first.or(Some(id));
    }
    first.ok_or(Reason::NotOurs)
}
