//! What crosses the border between the kernel and user space.
//!
//! Rules: every shared type is `#[repr(C)]`, has no padding, no Rust enum and no pointer, and its size is asserted beside it.
//! There is no logic beyond checked constructors. Numbers are in host byte order unless the field name says `_be`.
#![no_std]

pub mod control;
pub mod engine;
pub mod layout;
pub mod limits;
pub mod service;
pub mod slot;
pub mod stats;

/// A type that may be copied across the border byte for byte.
///
/// # Safety
///
/// The type is `#[repr(C)]`, has no padding, and every bit pattern is a valid value.
pub unsafe trait Shared: Copy + 'static {}
