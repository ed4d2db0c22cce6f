//! The `bpf(2)` calls on pinned links that aya does not offer for these programs: open, describe,
//! replace the program, detach.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

/// The place that a link is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A network namespace, by inode; 0 when the namespace is gone.
    NetNamespace(u64),
    /// A cgroup, by id; 0 when the cgroup is gone.
    Cgroup(u64),
    /// A type of link that ilb does not make.
    Other(u32),
}

impl Place {
    /// Whether the place no longer exists.
    pub(super) fn is_gone(self) -> bool {
        matches!(self, Self::NetNamespace(0) | Self::Cgroup(0))
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NetNamespace(inode) => write!(f, "network namespace {inode}"),
            Self::Cgroup(id) => write!(f, "cgroup {id}"),
            Self::Other(link_type) => write!(f, "a link of type {link_type}"),
        }
    }
}

/// A pinned link.
pub(super) struct PinnedLink(OwnedFd);

/// The beginning of the kernel's `struct bpf_link_info`.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    link_type: u32,
    id: u32,
    program_id: u32,
    align: u32,
    /// Id of the cgroup in both words, or inode of the network namespace in the first.
    place: [u32; 2],
    attach_type: u32,
    end: u32,
}

impl PinnedLink {
    /// Opens a pin; `None` if it does not exist.
    pub(super) fn open(path: &Path) -> io::Result<Option<Self>> {
        #[repr(C)]
        struct Open {
            path: u64,
            fd: u32,
            flags: u32,
        }
        const BPF_OBJ_GET: libc::c_long = 7;
        let path = CString::new(path.as_os_str().as_bytes())?;
        let mut request = Open { path: path.as_ptr() as u64, fd: 0, flags: 0 };
        // SAFETY: the request is laid out as the call wants it, and the path outlives the call.
        match unsafe { bpf(BPF_OBJ_GET, &mut request) } {
            // SAFETY: on success the call returns a new descriptor that nobody else owns.
            Ok(fd) => Ok(Some(Self(unsafe { OwnedFd::from_raw_fd(fd) }))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The place of the link, and the id of its program.
    pub(super) fn describe(&self) -> io::Result<(Place, u32)> {
        #[repr(C)]
        struct Describe {
            fd: u32,
            length: u32,
            info: u64,
        }
        const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
        const BPF_LINK_TYPE_CGROUP: u32 = 3;
        const BPF_LINK_TYPE_NETNS: u32 = 5;
        let mut info = LinkInfo::default();
        let mut request =
            Describe { fd: self.0.as_raw_fd() as u32, length: size_of::<LinkInfo>() as u32, info: &raw mut info as u64 };
        // SAFETY: the request is laid out as the call wants it, and `info` is valid for writes of
        // the length named.
        unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut request)? };
        let place = match info.link_type {
            BPF_LINK_TYPE_NETNS => Place::NetNamespace(info.place[0].into()),
            BPF_LINK_TYPE_CGROUP => Place::Cgroup(u64::from(info.place[1]) << 32 | u64::from(info.place[0])),
            other => Place::Other(other),
        };
        Ok((place, info.program_id))
    }

    /// Replaces the link's program. Every run is of the old program or of the new one, and no
    /// connection meets neither.
    pub(super) fn replace_program(&self, program: impl AsFd) -> io::Result<()> {
        #[repr(C)]
        struct Update {
            link_fd: u32,
            program_fd: u32,
            flags: u32,
            old_program_fd: u32,
        }
        const BPF_LINK_UPDATE: libc::c_long = 29;
        let program_fd = program.as_fd().as_raw_fd() as u32;
        let mut request = Update { link_fd: self.0.as_raw_fd() as u32, program_fd, flags: 0, old_program_fd: 0 };
        // SAFETY: the request is laid out as the call wants it, and both descriptors are open.
        unsafe { bpf(BPF_LINK_UPDATE, &mut request).map(drop) }
    }

    /// Detaches the link at once, even if others hold it.
    pub(super) fn detach(&self) -> io::Result<()> {
        const BPF_LINK_DETACH: libc::c_long = 34;
        let mut request = self.0.as_raw_fd() as u32;
        // SAFETY: the request is laid out as the call wants it, and the descriptor is open.
        unsafe { bpf(BPF_LINK_DETACH, &mut request).map(drop) }
    }
}

/// One `bpf(2)` call.
///
/// # Safety
///
/// `request` is the command's part of `union bpf_attr`, and the pointers in it are valid for the
/// call.
unsafe fn bpf<T>(command: libc::c_long, request: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: the caller's promise; the size tells the kernel how much of the union there is.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *request, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}
