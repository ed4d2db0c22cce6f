//! Typed handles of the pinned maps.

use std::{
    fmt::Display,
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
};

use aya::{
    Ebpf,
    maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, SockHash},
};
use router_common::{
    Shared,
    engine::{Endpoint, EndpointIds},
    layout::{self, MapShape, Settings},
    limits::MAX_ENDPOINT_IDS,
    service::{Eligible, Service},
};

use super::KernelError;

/// A shared type in the form in which aya copies it.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Raw<T>(pub(super) T);

// SAFETY: `Shared` promises what `Pod` asks for: plain bytes, no padding, every bit pattern valid.
unsafe impl<T: Shared> aya::Pod for Raw<T> {}

/// Handles of all maps that user space writes or reads by system call. Tables and control words are
/// memory-mapped, see [`super::banks`].
pub(super) struct Maps {
    pub(super) layout: Array<MapData, u32>,
    pub(super) settings: Array<MapData, Raw<Settings>>,
    pub(super) services: HashMap<MapData, Raw<Endpoint>, Raw<Service>>,
    control: MapData,
    tables: MapData,
    pub(super) eligible: Array<MapData, Raw<Eligible>>,
    pub(super) engines: HashMap<MapData, Raw<Endpoint>, Raw<EndpointIds>>,
    pub(super) listeners: SockHash<MapData, u32>,
    pub(super) outcomes: PerCpuArray<MapData, u64>,
    pub(super) picks: PerCpuArray<MapData, u64>,
}

impl Maps {
    /// The maps of a loaded object.
    pub(super) fn of_object(object: &mut Ebpf) -> Result<Self, KernelError> {
        Self::build(|shape| {
            object
                .take_map(shape.name)
                .ok_or_else(|| MapError::InvalidName { name: format!("{} (not in the object)", shape.name) })
        })
    }

    /// The maps pinned in a directory. The caller has checked their shapes.
    pub(super) fn of_pins(pin_dir: &Path) -> Result<Self, KernelError> {
        Self::build(|shape| {
            let data = MapData::from_pin(pin_dir.join(shape.name))?;
            Ok(match shape.map_type {
                layout::map_type::HASH => Map::HashMap(data),
                layout::map_type::PERCPU_ARRAY => Map::PerCpuArray(data),
                layout::map_type::SOCKHASH => Map::SockHash(data),
                _ => Map::Array(data),
            })
        })
    }

    fn build(mut open: impl FnMut(MapShape) -> Result<Map, MapError>) -> Result<Self, KernelError> {
        let mut array = |shape: MapShape| match open(shape).map_err(failed("open", shape.name))? {
            Map::Array(data) => Ok(data),
            _ => unreachable!("the shape of {} has been checked", shape.name),
        };
        let (control, tables) = (array(layout::CONTROL)?, array(layout::TABLES)?);
        let mut typed = |shape: MapShape| open(shape).map_err(failed("open", shape.name));
        Ok(Self {
            layout: typed(layout::LAYOUT)?.try_into().map_err(failed("open", layout::LAYOUT.name))?,
            settings: typed(layout::SETTINGS)?.try_into().map_err(failed("open", layout::SETTINGS.name))?,
            services: typed(layout::SERVICES)?.try_into().map_err(failed("open", layout::SERVICES.name))?,
            control,
            tables,
            eligible: typed(layout::ELIGIBLE)?.try_into().map_err(failed("open", layout::ELIGIBLE.name))?,
            engines: typed(layout::ENGINES)?.try_into().map_err(failed("open", layout::ENGINES.name))?,
            listeners: typed(layout::LISTENERS)?.try_into().map_err(failed("open", layout::LISTENERS.name))?,
            outcomes: typed(layout::OUTCOME_COUNTERS)?.try_into().map_err(failed("open", layout::OUTCOME_COUNTERS.name))?,
            picks: typed(layout::PICKS)?.try_into().map_err(failed("open", layout::PICKS.name))?,
        })
    }

    /// The slot tables, for a memory mapping.
    pub(super) fn tables_fd(&self) -> BorrowedFd<'_> {
        self.tables.fd().as_fd()
    }

    /// The control words, for a memory mapping.
    pub(super) fn control_fd(&self) -> BorrowedFd<'_> {
        self.control.fd().as_fd()
    }

    /// For each endpoint id, whether it has a listener now.
    pub(super) fn listening(&self) -> Result<Vec<bool>, KernelError> {
        let mut listening = vec![false; MAX_ENDPOINT_IDS];
        // Sockets come and go while the keys are read. A key that is gone makes the kernel start
        // over, so twice the size is the bound.
        for id in self.listeners.keys().take(2 * MAX_ENDPOINT_IDS) {
            let id = id.map_err(failed("read", layout::LISTENERS.name))?;
            if let Some(is_listening) = listening.get_mut(id as usize) {
                *is_listening = true;
            }
        }
        Ok(listening)
    }
}

/// A map error with the action and the map.
pub(super) fn failed(verb: &'static str, map: impl Display) -> impl FnOnce(MapError) -> KernelError {
    KernelError::bpf(format!("{verb} the map {map}"))
}

/// The result of a removal. A key that is not there counts as removed.
pub(super) fn ignore_missing(result: Result<(), MapError>, map: &'static str) -> Result<(), KernelError> {
    match result {
        Err(MapError::KeyNotFound | MapError::ElementNotFound) => Ok(()),
        Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(failed("remove from", map)),
    }
}
