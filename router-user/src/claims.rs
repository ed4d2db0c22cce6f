//! What a process must have for itself, taken before anything of it starts: sockets, ports, and the
//! controller's folder.
//!
//! A second `ilb` with the same configuration thus ends with the name of the setting it has to
//! change, and has touched nothing.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, bail};
use router_user::admin;
use router_user::config::Config;
use tokio::net::{TcpListener, UnixListener};

/// The file in `store.dir` that a controller keeps locked; it holds the number of its process.
const LOCK: &str = "control.lock";

/// Everything but `proxy.listen`, which the workers take themselves.
pub(crate) struct Claims {
    pub(crate) socket: UnixListener,
    pub(crate) admin: Option<TcpListener>,
    /// `control.listen`; `None` in a process without a controller.
    pub(crate) control: Option<TcpListener>,
    /// Locked for as long as it is open; `None` in a process without a controller.
    _folder: Option<File>,
}

impl Claims {
    /// Takes what a process needs, with a controller in it or without.
    ///
    /// Errors: the first setting whose place is taken or cannot be used.
    pub(crate) async fn take(config: &Config, has_controller: bool) -> anyhow::Result<Self> {
        let folder = match has_controller {
            true => Some(lock(&config.store.dir).context("store.dir")?),
            false => None,
        };
        let socket = admin::bind_socket(&config.admin.socket).await;
        let socket = socket.context("admin.socket, which --socket overrides")?;
        let control = match has_controller {
            true => Some(listen(config.control.listen, "control.listen").await?),
            false => None,
        };
        let admin = match config.admin.listen {
            Some(address) => Some(listen(address, "admin.listen, which --admin-listen overrides").await?),
            None => None,
        };
        Ok(Self { socket, admin, control, _folder: folder })
    }
}

async fn listen(address: SocketAddr, setting: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("{setting}: failed to listen on {address}"))
}

/// Locks a folder of snapshots for the one controller that writes to it, for as long as the file is
/// open.
///
/// Errors: another process has it locked, or the file cannot be opened.
fn lock(dir: &Path) -> anyhow::Result<File> {
    std::fs::create_dir_all(dir).with_context(|| format!("failed to create {}", dir.display()))?;
    let path = dir.join(LOCK);
    let mut file: File = (OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path))
        .with_context(|| format!("failed to open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut owner = String::new();
            let _unreadable = file.read_to_string(&mut owner);
            let owner = owner.trim();
            bail!(
                "the controller with process number {owner} keeps its snapshots in {}; wanted a folder of its own",
                dir.display()
            );
        }
        // Some network file systems have no locks; a folder there is used as before.
        Err(TryLockError::Error(error)) => tracing::warn!(file = %path.display(), %error, "failed to lock; going on without"),
    }
    // The number only helps people; a full disk must not keep a controller from starting.
    let _unwritten = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}
