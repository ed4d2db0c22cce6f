//! The state of the kernel plane, read from the pins alone: with or without a daemon.

use std::{collections::BTreeMap, net::SocketAddr, path::Path};

use aya::maps::PerCpuArray;
use router_common::{
    layout,
    stats::{OUTCOMES, Outcome},
};
use serde::Serialize;

use super::banks::Banks;
use super::link::PinnedLink;
use super::load::{PROGRAMS, SERVICE, link_path};
use super::maps::{Maps, failed};
use super::{KernelError, pins};
use crate::kernel::endpoints;
use crate::model::Generation;

/// The state of the kernel plane.
#[derive(Clone, Debug, Serialize)]
pub struct KernelStatus {
    /// Whether every program is attached to a place that exists.
    pub attached: bool,
    /// Layout version of the pinned maps; `None` without pins.
    pub layout_version: Option<u32>,
    pub programs: Vec<ProgramStatus>,
    /// The virtual address that is steered.
    pub service: Option<SocketAddr>,
    /// Generation of the live table; 0 before the first. JSON has it as `EPOCH.COUNT`.
    #[serde(serialize_with = "as_text")]
    pub generation: u64,
    /// By address.
    pub engines: Vec<EngineStatus>,
    /// Connections and listeners by outcome, summed over CPUs, since the maps were made. Every
    /// outcome is listed.
    pub counters: BTreeMap<&'static str, u64>,
}

fn as_text<S: serde::Serializer>(generation: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    Generation(*generation).serialize(serializer)
}

/// One attached program.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramStatus {
    pub name: &'static str,
    /// Kernel hook: `sk_lookup` or `sock_ops`.
    pub hook: &'static str,
    /// The kernel's id of the program.
    pub id: u32,
    /// The network namespace or cgroup that it is attached to.
    pub place: String,
}

/// One engine of the live table.
#[derive(Clone, Debug, Serialize)]
pub struct EngineStatus {
    pub address: SocketAddr,
    /// The kernel's number of the address.
    pub endpoint_id: u16,
    /// Whether a listener of this engine is known to the kernel here.
    pub is_listening: bool,
    /// Connections steered to it.
    pub picks: u64,
}

impl KernelStatus {
    /// Reads the state from the pins in a directory. Without pins, nothing is attached.
    ///
    /// Errors: pins of another layout, or no permission to read them.
    pub fn read(pin_dir: &Path) -> Result<Self, KernelError> {
        match pins::check(pin_dir)? {
            None | Some(0) => Ok(Self::nothing()),
            Some(_) => Self::of_maps(pin_dir, &Maps::of_pins(pin_dir)?),
        }
    }

    pub(super) fn of_maps(pin_dir: &Path, maps: &Maps) -> Result<Self, KernelError> {
        let mut programs = Vec::new();
        for (name, hook) in PROGRAMS {
            let path = link_path(pin_dir, name);
            let action = || format!("read the pin {}", path.display());
            let Some(link) = PinnedLink::open(&path).map_err(KernelError::system(action()))? else { continue };
            let (place, id) = link.describe().map_err(KernelError::system(action()))?;
            if !place.is_gone() {
                programs.push(ProgramStatus { name, hook, id, place: place.to_string() });
            }
        }
        let service = maps.services.keys().next().transpose().map_err(failed("read", layout::SERVICES.name))?;
        let banks = Banks::map(maps.tables_fd(), maps.control_fd())?;
        Ok(Self {
            attached: programs.len() == PROGRAMS.len(),
            layout_version: Some(maps.layout.get(&0, 0).map_err(failed("read", layout::LAYOUT.name))?),
            programs,
            service: service.map(|key| endpoints::address(key.0)),
            generation: banks.control(SERVICE).generation(),
            engines: engines(maps)?,
            counters: counters(maps)?,
        })
    }

    fn nothing() -> Self {
        Self {
            attached: false,
            layout_version: None,
            programs: Vec::new(),
            service: None,
            generation: 0,
            engines: Vec::new(),
            counters: Outcome::ALL.into_iter().map(|outcome| (outcome.name(), 0)).collect(),
        }
    }
}

fn engines(maps: &Maps) -> Result<Vec<EngineStatus>, KernelError> {
    let listening = maps.listening()?;
    let mut engines = Vec::new();
    for entry in maps.engines.iter() {
        let (endpoint, list) = entry.map_err(failed("read", layout::ENGINES.name))?;
        let address = endpoints::address(endpoint.0);
        if address.ip().is_unspecified() {
            continue;
        }
        let id = list.0.ids[0];
        let picks = sum(&maps.picks, id.into(), layout::PICKS.name)?;
        let is_listening = listening.get(usize::from(id)) == Some(&true);
        engines.push(EngineStatus { address, endpoint_id: id, is_listening, picks });
    }
    engines.sort_by_key(|engine| engine.address);
    Ok(engines)
}

fn counters(maps: &Maps) -> Result<BTreeMap<&'static str, u64>, KernelError> {
    (0..OUTCOMES)
        .zip(Outcome::ALL)
        .map(|(index, outcome)| Ok((outcome.name(), sum(&maps.outcomes, index, layout::OUTCOME_COUNTERS.name)?)))
        .collect()
}

/// A counter's sum over all possible CPUs.
fn sum(counters: &PerCpuArray<aya::maps::MapData, u64>, index: u32, name: &'static str) -> Result<u64, KernelError> {
    Ok(counters.get(&index, 0).map_err(failed("read", name))?.iter().sum())
}
