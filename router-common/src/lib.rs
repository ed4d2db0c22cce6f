//! The types that the eBPF programs and user space share.
//!
//! Rules: every shared type is `#[repr(C)]` and has no padding, no Rust enum and no pointer. Its
//! size is asserted beside it. There is no logic beyond checked constructors. Numbers are in host
//! byte order unless the field name ends in `_be`.
#![no_std]

pub mod control;
pub mod engine;
pub mod layout;
pub mod limits;
pub mod service;
pub mod slot;
pub mod stats;

/// A type that may be copied between the kernel and user space byte for byte.
///
/// # Safety
///
/// The type is `#[repr(C)]`, has no padding, and every bit pattern is a valid value.
pub unsafe trait Shared: Copy + 'static {}
