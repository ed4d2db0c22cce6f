//! Takes the admin socket, before anything else of the process starts.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};

/// Why the admin socket cannot be taken.
#[derive(Debug, Error)]
pub enum SocketError {
    #[error("another ilb answers at {} already", .0.display())]
    Taken(PathBuf),
    #[error("failed to {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

/// Listens on a Unix socket that only this user can reach.
///
/// A socket file that a dead process left behind is replaced.
///
/// Errors: another process answers there, or the socket cannot be made.
pub async fn bind_socket(path: &Path) -> Result<UnixListener, SocketError> {
    let failed = |action| move |source| SocketError::Io { action, path: path.to_owned(), source };
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        std::fs::create_dir_all(dir).map_err(failed("create the folder of"))?;
    }
    if UnixStream::connect(path).await.is_ok() {
        return Err(SocketError::Taken(path.to_owned()));
    }
    if path.exists() {
        std::fs::remove_file(path).map_err(failed("remove the stale socket"))?;
    }
    let listener = UnixListener::bind(path).map_err(failed("listen on"))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed("protect"))?;
    Ok(listener)
}
