//! Loads the programs and attaches them, or replaces the programs that an earlier daemon left
//! attached.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf, EbpfLoader,
    programs::{CgroupAttachMode, Program, SkLookup, SockOps, links::FdLink},
};
use aya_log::EbpfLogger;
use router_common::{
    layout::{self, LAYOUT_VERSION, Settings},
    service::Service,
};

use super::KernelError;
use super::link::{PinnedLink, Place};
use super::maps::{Maps, Raw, failed, ignore_missing};
use super::namespace::{Cgroup, NetNamespace};
use super::pins::LINK_SUFFIX;
use crate::kernel::endpoints;

/// The ELF object of the two programs, embedded in the binary; build.rs checks that it is there and
/// fresh.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("ILB_EBPF_OBJECT"));

/// Programs by name, each with its hook.
pub(super) const PROGRAMS: [(&str, &str); 2] = [(STEER, "sk_lookup"), (REGISTER, "sock_ops")];
const STEER: &str = "steer";
const REGISTER: &str = "register";

/// Index of the one service there is.
pub(super) const SERVICE: u32 = 0;

/// Path of the pin of a program's link.
pub(super) fn link_path(pin_dir: &Path, program: &str) -> PathBuf {
    pin_dir.join(format!("{program}{LINK_SUFFIX}"))
}

/// Checks that pinned links are attached to this network namespace and cgroup. Removes links whose
/// place is gone.
///
/// Errors: a link is attached elsewhere.
pub(super) fn check_links(pin_dir: &Path, netns: &NetNamespace, cgroup: &Cgroup) -> Result<(), KernelError> {
    for (program, wanted) in [(STEER, Place::NetNamespace(netns.inode)), (REGISTER, Place::Cgroup(cgroup.id))] {
        let path = link_path(pin_dir, program);
        let Some(link) = open_link(&path)? else { continue };
        let (place, _) = link.describe().map_err(KernelError::system(format!("read the pin {}", path.display())))?;
        if place.is_gone() {
            fs::remove_file(&path).map_err(KernelError::system(format!("remove {}", path.display())))?;
        } else if place != wanted {
            return Err(KernelError::OtherPlace { path, found: place.to_string(), wanted: wanted.to_string() });
        }
    }
    Ok(())
}

/// Loads the object with the pinned maps, and attaches its programs in place of earlier ones.
pub(super) fn load(
    pin_dir: &Path,
    service: SocketAddr,
    netns: &NetNamespace,
    cgroup: &Cgroup,
) -> Result<(Maps, EbpfLogger<Events>), KernelError> {
    let mut object =
        EbpfLoader::new().default_map_pin_directory(pin_dir).load(OBJECT).map_err(KernelError::bpf("load the eBPF object"))?;
    // Loading a program needs every map of the object, so the maps are taken afterwards.
    let action = |name| format!("load the program {name}");
    steer(&mut object).load().map_err(KernelError::bpf(action(STEER)))?;
    register(&mut object).load().map_err(KernelError::bpf(action(REGISTER)))?;
    let events = EbpfLogger::init_with_logger(&mut object, Events).map_err(KernelError::bpf("open the event ring"))?;
    let mut maps = Maps::of_object(&mut object)?;

    let settings = Raw(Settings { netns_cookie: netns.cookie });
    maps.settings.set(0, settings, 0).map_err(failed("write", layout::SETTINGS.name))?;
    set_service(&mut maps, service)?;
    attach_register(register(&mut object), cgroup, pin_dir)?;
    attach_steer(steer(&mut object), netns, pin_dir)?;
    maps.layout.set(0, LAYOUT_VERSION, 0).map_err(failed("write", layout::LAYOUT.name))?;
    Ok((maps, events))
}

fn steer(object: &mut Ebpf) -> &mut SkLookup {
    match object.program_mut(STEER) {
        Some(Program::SkLookup(program)) => program,
        _ => unreachable!("the embedded object has an sk_lookup program {STEER}"),
    }
}

fn register(object: &mut Ebpf) -> &mut SockOps {
    match object.program_mut(REGISTER) {
        Some(Program::SockOps(program)) => program,
        _ => unreachable!("the embedded object has a sock_ops program {REGISTER}"),
    }
}

fn attach_steer(program: &mut SkLookup, netns: &NetNamespace, pin_dir: &Path) -> Result<(), KernelError> {
    let path = link_path(pin_dir, STEER);
    if let Some(link) = open_link(&path)? {
        let fd = program.fd().map_err(KernelError::bpf(format!("load the program {STEER}")))?;
        return link.replace_program(fd).map_err(KernelError::system(format!("replace the program of {}", path.display())));
    }
    let action = || format!("attach {STEER} to the network namespace");
    let id = program.attach(&netns.file).map_err(KernelError::bpf(action()))?;
    let link = program.take_link(id).map_err(KernelError::bpf(action()))?;
    pin(FdLink::from(link), &path)
}

fn attach_register(program: &mut SockOps, cgroup: &Cgroup, pin_dir: &Path) -> Result<(), KernelError> {
    let path = link_path(pin_dir, REGISTER);
    if let Some(link) = open_link(&path)? {
        let fd = program.fd().map_err(KernelError::bpf(format!("load the program {REGISTER}")))?;
        return link.replace_program(fd).map_err(KernelError::system(format!("replace the program of {}", path.display())));
    }
    let action = || format!("attach {REGISTER} to the cgroup {}", cgroup.path.display());
    // A link always stands beside those of others; the kernel takes no flags with it
    // (`cgroup_bpf_link_attach`).
    let id = program.attach(&cgroup.file, CgroupAttachMode::Single).map_err(KernelError::bpf(action()))?;
    let link = program.take_link(id).map_err(KernelError::bpf(action()))?;
    pin(FdLink::try_from(link).map_err(KernelError::bpf(action()))?, &path)
}

/// Pins a link, which then outlives this process.
fn pin(link: FdLink, path: &Path) -> Result<(), KernelError> {
    link.pin(path).map(drop).map_err(KernelError::bpf(format!("pin {}", path.display())))
}

fn open_link(path: &Path) -> Result<Option<PinnedLink>, KernelError> {
    PinnedLink::open(path).map_err(KernelError::system(format!("open the pin {}", path.display())))
}

/// Makes this virtual address the service. The address of an earlier configuration is removed after
/// that.
fn set_service(maps: &mut Maps, service: SocketAddr) -> Result<(), KernelError> {
    let wanted = endpoints::endpoint(service);
    let known = maps.services.keys().collect::<Result<Vec<_>, _>>().map_err(failed("read", layout::SERVICES.name))?;
    maps.services.insert(Raw(wanted), Raw(Service { index: SERVICE }), 0).map_err(failed("write", layout::SERVICES.name))?;
    for old in known.into_iter().filter(|old| old.0 != wanted) {
        ignore_missing(maps.services.remove(&old), layout::SERVICES.name)?;
    }
    Ok(())
}

/// Writes the programs' reports to the process's own log.
pub(super) struct Events;

impl log::Log for Events {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        match record.level() {
            log::Level::Error => tracing::error!("kernel: {}", record.args()),
            log::Level::Warn => tracing::warn!("kernel: {}", record.args()),
            _ => tracing::info!("kernel: {}", record.args()),
        }
    }

    fn flush(&self) {}
}
