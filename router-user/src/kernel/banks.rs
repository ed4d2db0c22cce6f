//! The slot tables and control words, mapped into this process, so that a whole table is written
//! without a system call.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _},
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use router_common::{
    control::Control,
    limits::{BANKS, BANKS_PER_SERVICE, MAX_SERVICES},
    slot::{SLOTS, Slot, SlotBank},
};
use rustix::thread::{MembarrierCommand, membarrier};

use super::KernelError;

/// Both mapped arrays.
pub(super) struct Banks {
    tables: Mapping,
    control: Mapping,
}

impl Banks {
    /// Maps the two arrays. The caller has checked their shapes.
    pub(super) fn map(tables: impl AsFd, control: impl AsFd) -> Result<Self, KernelError> {
        Ok(Self {
            tables: Mapping::new(tables, size_of::<SlotBank>() * BANKS as usize)
                .map_err(KernelError::system("map the slot tables"))?,
            control: Mapping::new(control, size_of::<Control>() * MAX_SERVICES as usize)
                .map_err(KernelError::system("map the control words"))?,
        })
    }

    /// The control word of a service.
    pub(super) fn control(&self, service: u32) -> Control {
        Control { word: self.control.word(service as usize).load(Ordering::Acquire) }
    }

    /// The number of the idle bank of a service.
    pub(super) fn idle(&self, service: u32) -> u32 {
        service * BANKS_PER_SERVICE + (1 - self.control(service).bank())
    }

    /// Writes a whole bank, slot by slot in single stores.
    pub(super) fn write(&self, bank: u32, slots: impl Iterator<Item = Slot>) {
        let first = bank as usize * SLOTS;
        for (slot, ranks) in slots.take(SLOTS).enumerate() {
            let word = ranks.iter().rev().fold(0, |word, id| word << 16 | u64::from(*id));
            self.tables.word(first + slot).store(word, Ordering::Relaxed);
        }
    }

    /// Makes another bank and generation live. From this store on, new connections read the new
    /// table.
    pub(super) fn switch(&self, service: u32, control: Control) {
        self.control.word(service as usize).store(control.word, Ordering::Release);
    }
}

/// Waits until every program run that was in progress at the call has ended. Memory that such a run
/// may have looked up can then be reused.
///
/// Programs run inside an RCU read-side section, and `MEMBARRIER_CMD_GLOBAL` waits for a grace
/// period of some milliseconds (`kernel/sched/membarrier.c`, `synchronize_rcu`). Where the kernel
/// refuses the command, a pause stands in.
pub(super) fn wait_for_programs() {
    /// Far longer than a run of a program, which the verifier bounds to well below 1 ms.
    const PAUSE: Duration = Duration::from_millis(50);
    if membarrier(MembarrierCommand::Global).is_err() {
        std::thread::sleep(PAUSE);
    }
}

/// A shared, writable mapping of an array map.
struct Mapping {
    first: NonNull<AtomicU64>,
    /// In bytes.
    length: usize,
}

// SAFETY: the mapping is memory that stays valid until it is dropped, accessed through atomics
// alone.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(map: impl AsFd, length: usize) -> io::Result<Self> {
        let fd = map.as_fd().as_raw_fd();
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let first = NonNull::new(address.cast()).expect("a mapping never starts at address zero");
        Ok(Self { first, length })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.length / size_of::<u64>(), "word {index} is outside a mapping of {} bytes", self.length);
        // SAFETY: inside the mapping, aligned since mappings start on a page, and shared with the
        // kernel alone, which reads it atomically.
        unsafe { self.first.add(index).as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this address and length, and no reference to it
        // outlives self.
        unsafe { libc::munmap(self.first.as_ptr().cast(), self.length) };
    }
}
