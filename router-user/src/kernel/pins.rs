//! The pin directory: its file system, its lock, and the check that its pins fit this build.

use std::{
    ffi::CStr,
    fs::{self, File, TryLockError},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use aya::maps::{Array, Map, MapData, MapInfo};
use router_common::layout::{self, LAYOUT_VERSION, MapShape};
use rustix::{
    fs::{FsWord, statfs},
    mount::{MountFlags, mount},
};

use super::{KernelError, link::PinnedLink};

/// Default directory of pins.
pub const DEFAULT_PIN_DIR: &str = "/sys/fs/bpf/ilb";

/// End of the names of pinned links. bpffs allows no dots in names.
pub(super) const LINK_SUFFIX: &str = "_link";

/// The usual mount point of bpffs.
const BPFFS: &str = "/sys/fs/bpf";

/// `BPF_FS_MAGIC` of linux/magic.h.
const BPFFS_MAGIC: FsWord = 0xcafe_4a11;

/// A locked pin directory.
pub(super) struct PinDir {
    path: PathBuf,
    lock: File,
}

impl Drop for PinDir {
    fn drop(&mut self) {
        // Not left to the descriptor's close: a process that is just being started may hold a copy
        // of it a moment longer.
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, "cannot unlock {}", self.path.display());
        }
    }
}

impl PinDir {
    /// Locks the directory. Makes it, and mounts bpffs at its usual place, where they are missing.
    pub(super) fn create(path: &Path) -> Result<Self, KernelError> {
        if !is_on_bpffs(path) {
            if !path.starts_with(BPFFS) {
                return Err(KernelError::NotBpffs { path: path.to_owned() });
            }
            mount_bpffs()?;
        }
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(path).map_err(KernelError::system(format!("make the directory {}", path.display())))?;
        Self::lock(path)
    }

    /// Locks an existing directory; `None` if it does not exist.
    pub(super) fn existing(path: &Path) -> Result<Option<Self>, KernelError> {
        match path.try_exists() {
            Ok(true) if is_on_bpffs(path) => Self::lock(path).map(Some),
            Ok(true) => Err(KernelError::NotBpffs { path: path.to_owned() }),
            Ok(false) => Ok(None),
            Err(source) => Err(KernelError::System { action: format!("look at {}", path.display()), source }),
        }
    }

    fn lock(path: &Path) -> Result<Self, KernelError> {
        let lock = File::open(path).map_err(KernelError::system(format!("open {}", path.display())))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => KernelError::InUse { path: path.to_owned() },
            TryLockError::Error(source) => KernelError::System { action: format!("lock {}", path.display()), source },
        })?;
        Ok(Self { path: path.to_owned(), lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks the pins, see [`check`]. Returns whether a finished attach has left them.
    pub(super) fn check(&self) -> Result<bool, KernelError> {
        check(&self.path).map(|version| version == Some(LAYOUT_VERSION))
    }

    /// Removes every pin and the directory.
    pub(super) fn remove(self) -> Result<(), KernelError> {
        let action = |path: &Path| format!("remove {}", path.display());
        let entries = fs::read_dir(&self.path).map_err(KernelError::system(format!("list {}", self.path.display())))?;
        let mut paths = Vec::new();
        for entry in entries {
            paths.push(entry.map_err(KernelError::system(format!("list {}", self.path.display())))?.path());
        }
        let is_link = |path: &PathBuf| path.as_os_str().as_bytes().ends_with(LINK_SUFFIX.as_bytes());
        // A link is detached before its pin goes, as the kernel frees an unpinned one only some
        // time later.
        for path in paths.iter().filter(|path| is_link(path)) {
            let detach = || PinnedLink::open(path)?.map_or(Ok(()), |link| link.detach());
            detach().map_err(KernelError::system(format!("detach {}", path.display())))?;
        }
        for path in paths {
            fs::remove_file(&path).map_err(KernelError::system(action(&path)))?;
        }
        fs::remove_dir(&self.path).map_err(KernelError::system(action(&self.path)))
    }
}

/// Checks the pins in a directory against this build's layout: a pinned map may have any shape.
///
/// Returns the layout version; `None` without pins, 0 if an attach was cut short.
pub(super) fn check(pin_dir: &Path) -> Result<Option<u32>, KernelError> {
    let version = layout_version(pin_dir)?;
    if let Some(found) = version.filter(|found| ![0, LAYOUT_VERSION].contains(found)) {
        return Err(KernelError::LayoutVersion { path: pin_dir.to_owned(), found, wanted: LAYOUT_VERSION });
    }
    for wanted in layout::MAPS {
        let path = pin_dir.join(wanted.name);
        if let Some(found) = map_shape(&path, wanted.name)?.filter(|found| *found != wanted) {
            return Err(KernelError::MapShape { path, found: describe(&found), wanted: describe(&wanted) });
        }
    }
    Ok(version)
}

/// The layout version pinned in a directory; `None` without pins.
fn layout_version(pin_dir: &Path) -> Result<Option<u32>, KernelError> {
    let path = pin_dir.join(layout::LAYOUT.name);
    match map_shape(&path, layout::LAYOUT.name)? {
        None => Ok(None),
        Some(found) if found == layout::LAYOUT => {
            let action = || format!("read {}", path.display());
            let map = MapData::from_pin(&path).map_err(KernelError::bpf(action()))?;
            let map = Array::<_, u32>::try_from(Map::Array(map)).map_err(KernelError::bpf(action()))?;
            map.get(&0, 0).map(Some).map_err(KernelError::bpf(action()))
        }
        Some(found) => Err(KernelError::MapShape { path, found: describe(&found), wanted: describe(&layout::LAYOUT) }),
    }
}

/// The shape of a pinned map; `None` if the pin does not exist.
fn map_shape(path: &Path, name: &'static str) -> Result<Option<MapShape>, KernelError> {
    let action = || format!("read the pin {}", path.display());
    if !path.try_exists().map_err(KernelError::system(action()))? {
        return Ok(None);
    }
    let info = MapInfo::from_pin(path).map_err(KernelError::bpf(action()))?;
    Ok(Some(MapShape {
        name,
        map_type: info.map_type().map_err(KernelError::bpf(action()))? as u32,
        key_size: info.key_size(),
        value_size: info.value_size(),
        max_entries: info.max_entries(),
        flags: info.map_flags(),
    }))
}

fn describe(shape: &MapShape) -> String {
    let MapShape { map_type, key_size, value_size, max_entries, flags, .. } = shape;
    format!("type {map_type}, {max_entries} entries of {key_size}+{value_size} bytes, flags {flags:#x}")
}

/// Whether a path, or the nearest directory above it that exists, is on a bpffs.
fn is_on_bpffs(path: &Path) -> bool {
    let Some(existing) = path.ancestors().find(|path| path.exists()) else { return false };
    statfs(existing).is_ok_and(|stats| stats.f_type == BPFFS_MAGIC)
}

fn mount_bpffs() -> Result<(), KernelError> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("bpf", BPFFS, "bpf", flags, None::<&CStr>)
        .map_err(|error| KernelError::system(format!("mount bpffs at {BPFFS}"))(error.into()))?;
    // Others on the host may use the mount as well; the kernel's default mode would let everybody
    // create files.
    fs::set_permissions(BPFFS, fs::Permissions::from_mode(0o700)).map_err(KernelError::system(format!("set the mode of {BPFFS}")))
}
