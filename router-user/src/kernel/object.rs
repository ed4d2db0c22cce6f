//! The eBPF object, embedded in the binary; build.rs checks that it is there and fresh.

/// The ELF object of the two programs.
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("ILB_EBPF_OBJECT"));
