//! The only place that reads a clock.

use std::time::{Duration, UNIX_EPOCH};

use tokio::time::Instant;

/// Now, for measuring durations.
pub fn now() -> Instant {
    Instant::now()
}

/// Time since the Unix epoch, for records that people read.
pub fn unix_time() -> Duration {
    UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// `CLOCK_MONOTONIC`, in nanoseconds: the same clock in every process of one machine, so that one
/// process can time what another wrote.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid, writable timespec for the length of the call, and the call keeps
    // no pointer to it.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    assert_eq!(status, 0, "CLOCK_MONOTONIC exists on every Linux");
    let seconds = u64::try_from(time.tv_sec).expect("the monotonic clock starts at boot");
    let nanos = u64::try_from(time.tv_nsec).expect("nanoseconds are not negative");
    seconds * 1_000_000_000 + nanos
}
