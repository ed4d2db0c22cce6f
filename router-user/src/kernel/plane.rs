//! The attached plane: apply tables, report, detach.

use std::{
    collections::{HashMap, HashSet},
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
};

use aya::{maps::PerCpuValues, util::nr_cpus};
use aya_log::EbpfLogger;
use router_common::{
    control::Control,
    engine::{Endpoint, EndpointIds},
    layout,
    limits::MAX_SCAN,
    service::Eligible,
    slot::{NO_ENGINE, SLOTS, Slot},
};

use super::banks::{Banks, wait_for_programs};
use super::load::{Events, SERVICE};
use super::maps::{Maps, Raw, failed, ignore_missing};
use super::namespace::{Cgroup, NetNamespace, is_local, missing_capabilities};
use super::pins::{DEFAULT_PIN_DIR, PinDir};
use super::{KernelError, KernelStatus, listeners, load};
use crate::kernel::endpoints;
use crate::kernel::endpoints::EndpointTable;

/// The service to steer, and the places of pins and programs.
#[derive(Clone, Debug)]
pub struct KernelConfig {
    /// The virtual address: a local address and a port that clients connect to.
    pub service: SocketAddr,
    /// Directory on a bpffs for the pins of this plane alone.
    pub pin_dir: PathBuf,
    /// Engines inside this cgroup register themselves. `None` is the root of the cgroup v2
    /// hierarchy.
    pub cgroup: Option<PathBuf>,
}

impl KernelConfig {
    /// Steers one virtual address, with the default pin directory and the root cgroup.
    pub fn new(service: SocketAddr) -> Self {
        Self { service, pin_dir: DEFAULT_PIN_DIR.into(), cgroup: None }
    }
}

/// The attached kernel plane. Dropping it leaves the kernel steering; [`KernelPlane::detach`] ends
/// that.
pub struct KernelPlane {
    pins: PinDir,
    maps: Maps,
    banks: Banks,
    endpoint_table: EndpointTable,
    netns_cookie: u64,
    events: EbpfLogger<Events>,
    /// Inodes of listeners that could not be taken. Each is reported once.
    untaken: HashSet<u64>,
}

impl KernelPlane {
    /// Loads and attaches the programs in the calling thread's network namespace, or takes over the
    /// pins of an earlier daemon.
    ///
    /// Errors: one line each. Earlier pins stay, and pins of this call are removed again.
    pub fn attach(config: &KernelConfig) -> Result<Self, KernelError> {
        if config.service.port() == 0 || config.service.ip().is_unspecified() {
            return Err(KernelError::ServiceAddress { service: config.service });
        }
        let missing = missing_capabilities()?;
        if !missing.is_empty() {
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            return Err(KernelError::NotPermitted { missing: missing.join(", ") });
        }
        let netns = NetNamespace::current()?;
        let cgroup = Cgroup::open(config.cgroup.as_deref())?;
        let pins = PinDir::create(&config.pin_dir)?;
        let had_pins = pins.check()?;
        load::check_links(pins.path(), &netns, &cgroup)?;
        let loaded = load::load(pins.path(), config.service, &netns, &cgroup)
            .and_then(|(maps, events)| Ok((Banks::map(maps.tables_fd(), maps.control_fd())?, maps, events)));
        let (banks, maps, events) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                if !had_pins && let Err(error) = pins.remove() {
                    tracing::warn!(%error, "an attach that failed has left pins");
                }
                return Err(error);
            }
        };
        let endpoint_table = EndpointTable::new(known_engines(&maps)?);
        let mut plane = Self { pins, maps, banks, endpoint_table, netns_cookie: netns.cookie, events, untaken: HashSet::new() };
        plane.enter_listeners()?;
        if !is_local(config.service.ip()) {
            let service = config.service;
            tracing::warn!(%service, "the service's address is not on this host, so nothing arrives for it: ip addr add {} dev lo", service.ip());
        }
        tracing::info!(
            service = %config.service, pins = %plane.pins.path().display(), cgroup = %cgroup.path.display(),
            generation = plane.generation(), "kernel plane attached"
        );
        Ok(plane)
    }

    /// Makes a table the live one, whole: a connection is picked by the table before or by this
    /// one.
    ///
    /// Shape: `slots` has engine numbers, best first, `NO_ENGINE` after the last; `engines` gives
    /// each number its address; `eligible` are the engines that may serve the service when no rank
    /// of a slot can (of those on this host, the first `MAX_SCAN`). Blocks for some milliseconds,
    /// while programs that may still read the bank to be written finish. Errors: a generation below
    /// the live one (the same again is a new table for it: ready replicas or penalties have
    /// changed); a number without an address. The live table is then unchanged.
    pub fn apply(
        &mut self,
        generation: u64,
        slots: &[Slot; SLOTS],
        engines: &[(u16, SocketAddr)],
        eligible: &[u16],
    ) -> Result<(), KernelError> {
        let live = self.generation();
        if generation < live {
            return Err(KernelError::OldGeneration { offered: generation, live });
        }
        let bank = self.banks.idle(SERVICE);
        let control = Control::new(generation, bank & 1).ok_or(KernelError::GenerationRange { offered: generation })?;
        let addresses = checked_addresses(slots, engines, eligible)?;
        let local = local_addresses(addresses.values());
        let eligible: Vec<_> = eligible.iter().filter(|engine| local.contains(&addresses[engine].ip())).collect();

        let mut id_of = HashMap::with_capacity(addresses.len());
        for (engine, address) in &addresses {
            id_of.insert(*engine, self.endpoint_table.id(*address)?);
        }
        // The scan leaves out engines beyond the bound. Those within it are enough to find one that
        // is left.
        let mut list = Eligible::EMPTY;
        for engine in eligible.iter().take(MAX_SCAN) {
            list.add(id_of[*engine]);
        }
        let current: HashMap<SocketAddr, u16> = addresses.iter().map(|(engine, address)| (*address, id_of[engine])).collect();
        // New addresses first: an engine that starts to listen from here on registers itself, and
        // an earlier one is found below.
        let endpoints = endpoints::endpoints(current.iter().map(|(address, id)| (*address, *id)), |ip| local.contains(&ip));
        for (endpoint, ids) in &endpoints {
            self.maps.engines.insert(Raw(*endpoint), Raw(*ids), 0).map_err(failed("write", layout::ENGINES.name))?;
        }
        self.enter_listeners()?;

        wait_for_programs();
        let id = |engine: u16| if engine == NO_ENGINE { NO_ENGINE } else { id_of[&engine] };
        self.banks.write(bank, slots.iter().map(|ranks| ranks.map(id)));
        self.maps.eligible.set(bank, Raw(list), 0).map_err(failed("write", layout::ELIGIBLE.name))?;
        self.banks.switch(SERVICE, control);

        self.forget_engines(&current, &endpoints)
    }

    /// The live generation; 0 before the first. Survives the daemon.
    pub fn generation(&self) -> u64 {
        self.banks.control(SERVICE).generation()
    }

    /// The state of the kernel plane.
    pub fn status(&self) -> Result<KernelStatus, KernelError> {
        KernelStatus::of_maps(self.pins.path(), &self.maps)
    }

    /// Upkeep, to be called about once a second. Writes the programs' reports to the log (engines
    /// that started to listen, a service that refuses), and enters listeners that the kernel has
    /// not seen, such as those of engines outside the cgroup.
    ///
    /// Cheap when there is nothing to do. The ring of reports holds 128 KiB, and reports are rare.
    pub fn maintain(&mut self) -> Result<(), KernelError> {
        self.events.flush();
        self.enter_listeners()
    }

    /// Stops steering and removes every pin.
    pub fn detach(self) -> Result<(), KernelError> {
        self.pins.remove()
    }

    /// Enters listeners of known engines that the kernel has not seen, because they listened before
    /// the programs were attached.
    fn enter_listeners(&mut self) -> Result<(), KernelError> {
        let listening = self.maps.listening()?;
        let missing: Vec<_> = self.endpoint_table.all().filter(|(_, id)| !listening[usize::from(*id)]).collect();
        let local = local_addresses(missing.iter().map(|(address, _)| address));
        let missing = missing.into_iter().filter(|(address, _)| local.contains(&address.ip()));
        let mut wanted_at = endpoints::endpoints(missing, |_| true);
        if wanted_at.is_empty() {
            return Ok(());
        }
        let sockets = listeners::listening_sockets().map_err(KernelError::system("list listening sockets"))?;
        let mut wanted: HashMap<u64, Vec<u16>> = HashMap::new();
        for (endpoint, inode) in sockets {
            // The first socket of an address is enough.
            if let Some(list) = wanted_at.remove(&endpoint) {
                wanted.insert(inode, list.ids.into_iter().filter(|id| *id != NO_ENGINE).collect());
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let map = &mut self.maps.listeners;
        let untaken = listeners::borrow(&wanted, self.netns_cookie, |socket, ids| {
            ids.iter().try_for_each(|id| map.insert(u32::from(*id), socket.as_raw_fd(), 0).map_err(io::Error::other))
        });
        // A listener that was taken by now is reported again if it fails again.
        self.untaken.retain(|inode| untaken.iter().any(|listener| listener.inode == *inode));
        let address_of: HashMap<u16, SocketAddr> = self.endpoint_table.all().map(|(address, id)| (id, address)).collect();
        for listeners::Untaken { inode, error } in untaken {
            if self.untaken.insert(inode) {
                let engines: Vec<_> = wanted[&inode].iter().map(|id| address_of[id]).collect();
                tracing::warn!(?engines, %error, "the engine listens but its socket cannot be taken; restart it to have it steered");
            }
        }
        Ok(())
    }

    /// Frees the endpoint ids of engines that the live table does not name.
    fn forget_engines(
        &mut self,
        current: &HashMap<SocketAddr, u16>,
        kept: &HashMap<Endpoint, EndpointIds>,
    ) -> Result<(), KernelError> {
        let known = self.maps.engines.keys().collect::<Result<Vec<_>, _>>().map_err(failed("read", layout::ENGINES.name))?;
        for old in known.into_iter().filter(|key| !kept.contains_key(&key.0)) {
            ignore_missing(self.maps.engines.remove(&old), layout::ENGINES.name)?;
        }
        let gone: Vec<_> = self.endpoint_table.all().filter(|(address, _)| !current.contains_key(address)).collect();
        if gone.is_empty() {
            return Ok(());
        }
        // A run of `steer` may still use the table before, and a run of `register` may be about to
        // enter a listener under an endpoint id that is freed here.
        wait_for_programs();
        let cpus = nr_cpus().map_err(|(path, source)| KernelError::System { action: format!("read {path}"), source })?;
        for (address, id) in gone {
            ignore_missing(self.maps.listeners.remove(&id.into()), layout::LISTENERS.name)?;
            let zero = PerCpuValues::try_from(vec![0_u64; cpus]).map_err(KernelError::system("clear a counter"))?;
            self.maps.picks.set(id.into(), zero, 0).map_err(failed("write", layout::PICKS.name))?;
            self.endpoint_table.release(address);
        }
        Ok(())
    }
}

/// Stops steering and removes all pins in a directory. Returns false if the directory does not
/// exist.
///
/// Errors: `InUse` while a daemon holds the directory.
pub fn detach(pin_dir: &Path) -> Result<bool, KernelError> {
    match PinDir::existing(pin_dir)? {
        Some(pins) => pins.remove().map(|()| true),
        None => Ok(false),
    }
}

/// The address of every engine number.
///
/// Errors: an address cannot be connected to, or the table or the list names an engine without one.
fn checked_addresses(
    slots: &[Slot; SLOTS],
    engines: &[(u16, SocketAddr)],
    eligible: &[u16],
) -> Result<HashMap<u16, SocketAddr>, KernelError> {
    let mut addresses = HashMap::with_capacity(engines.len());
    for (engine, address) in engines {
        if address.port() == 0 || address.ip().is_unspecified() {
            return Err(KernelError::EngineAddress { engine: *engine, address: *address });
        }
        addresses.insert(*engine, SocketAddr::new(address.ip().to_canonical(), address.port()));
    }
    let in_table = slots.iter().flatten().filter(|engine| **engine != NO_ENGINE);
    match in_table.chain(eligible).find(|engine| !addresses.contains_key(engine)) {
        Some(engine) => Err(KernelError::UnknownEngine { engine: *engine }),
        None => Ok(addresses),
    }
}

/// The addresses that belong to this host.
fn local_addresses<'a>(addresses: impl Iterator<Item = &'a SocketAddr>) -> HashSet<IpAddr> {
    let all: HashSet<_> = addresses.map(SocketAddr::ip).collect();
    all.into_iter().filter(|ip| is_local(*ip)).collect()
}

/// The engines that an earlier daemon has entered, with their endpoint ids.
fn known_engines(maps: &Maps) -> Result<Vec<(SocketAddr, u16)>, KernelError> {
    let mut known = Vec::new();
    for entry in maps.engines.iter() {
        let (endpoint, list) = entry.map_err(failed("read", layout::ENGINES.name))?;
        let address = endpoints::address(endpoint.0);
        if !address.ip().is_unspecified() {
            known.push((address, list.0.ids[0]));
        }
    }
    Ok(known)
}
