//! The kernel plane on a real kernel. Each test has a network namespace, a cgroup and a pin
//! directory of its own.
//!
//! Needs root. Without it every test says that it is skipped; where `ILB_KERNEL_TESTS_REQUIRED` is
//! set, a skip is a failure.

mod client;
mod engine;
mod lifecycle;
mod listening;
mod steering;
mod world;
