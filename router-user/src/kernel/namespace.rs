//! The places that programs attach to: the caller's network namespace and a cgroup.

use std::{
    fs::File,
    io,
    net::{IpAddr, UdpSocket},
    os::{
        fd::{AsFd, AsRawFd as _},
        unix::fs::MetadataExt as _,
    },
    path::{Path, PathBuf},
};

use caps::{CapSet, Capability};

use super::KernelError;

/// The network namespace of the calling thread.
pub(super) struct NetNamespace {
    pub(super) file: File,
    /// Its inode: links name it by this number.
    pub(super) inode: u64,
    /// Its cookie: programs know it by this number.
    pub(super) cookie: u64,
}

impl NetNamespace {
    pub(super) fn current() -> Result<Self, KernelError> {
        let path = "/proc/thread-self/ns/net";
        let file = File::open(path).map_err(KernelError::system(format!("open {path}")))?;
        let inode = file.metadata().map_err(KernelError::system(format!("read {path}")))?.ino();
        let socket = UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("[::]:0"));
        let cookie =
            socket.and_then(|socket| cookie_of(&socket)).map_err(KernelError::system("read the network namespace's cookie"))?;
        Ok(Self { file, inode, cookie })
    }
}

/// Cookie of the network namespace that a socket belongs to (`SO_NETNS_COOKIE`, Linux 5.14).
pub(super) fn cookie_of(socket: &impl AsFd) -> io::Result<u64> {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and value and length are valid for writes of the size named.
    let result = unsafe {
        let value = (&raw mut cookie).cast();
        libc::getsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, value, &raw mut length)
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// Whether an address belongs to this host. The kernel decides: only a local address can be bound
/// to.
pub(super) fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// A cgroup and its id.
pub(super) struct Cgroup {
    pub(super) file: File,
    pub(super) id: u64,
    pub(super) path: PathBuf,
}

impl Cgroup {
    /// Opens the cgroup named, or the root of the cgroup v2 hierarchy.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, KernelError> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => mount_of_type("cgroup2")?.ok_or(KernelError::NoCgroup)?,
        };
        let action = || format!("open the cgroup {}", path.display());
        let file = File::open(&path).map_err(KernelError::system(action()))?;
        // The id of a cgroup is the inode number of its directory.
        let id = file.metadata().map_err(KernelError::system(action()))?.ino();
        Ok(Self { file, id, path })
    }
}

/// The first mount point of a file system type.
fn mount_of_type(wanted: &str) -> Result<Option<PathBuf>, KernelError> {
    let mounts = procfs::mounts().map_err(|error| KernelError::system("list the mounts")(io::Error::other(error)))?;
    let found = mounts.into_iter().find(|mount| mount.fs_vfstype == wanted);
    // The kernel writes spaces in octal, which `procfs` leaves as they are.
    Ok(found.map(|mount| PathBuf::from(mount.fs_file.replace("\\040", " "))))
}

/// The capabilities that loading and attaching need and this thread lacks. CAP_SYS_ADMIN stands for
/// all of them.
///
/// CAP_PERFMON is for the verifier: without it, it refuses what compilers do with stack slots that
/// once held a pointer.
pub(super) fn missing_capabilities() -> Result<Vec<Capability>, KernelError> {
    let effective = caps::read(None, CapSet::Effective)
        .map_err(|error| KernelError::system("read this thread's capabilities")(io::Error::other(error)))?;
    let has = |wanted: &Capability| effective.contains(wanted) || effective.contains(&Capability::CAP_SYS_ADMIN);
    let needed = [Capability::CAP_BPF, Capability::CAP_NET_ADMIN, Capability::CAP_PERFMON];
    Ok(needed.into_iter().filter(|wanted| !has(wanted)).collect())
}
