//! What crosses the border between the kernel and user space.
//!
//! Rules: every shared type is `#[repr(C)]`, has no padding, no Rust enum and no pointer, and its size is asserted here.
//! There is no logic beyond checked constructors. Numbers are in host byte order unless the field name says `_be`.
#![no_std]

pub mod slot;
