//! The folders for sockets and state where the file names none.
//!
//! The first that applies:
//!
//! | who runs `ilb` | sockets | snapshots |
//! |---|---|---|
//! | a systemd unit with folders of its own | `$RUNTIME_DIRECTORY` | `$STATE_DIRECTORY` |
//! | root | `/run/ilb` | `/var/lib/ilb` |
//! | anybody else | `$XDG_RUNTIME_DIR/ilb` | `$XDG_STATE_HOME/ilb`, or `~/.local/state/ilb` |
//! | anybody without those | the folder for snapshots | `run` in the working directory |

use std::path::PathBuf;

/// Folders for files that the configuration does not place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folders {
    runtime: PathBuf,
    state: PathBuf,
}

impl Folders {
    /// The folders of this process, by its user and environment.
    pub fn of_process() -> Self {
        // SAFETY: the call has no arguments, touches no memory and cannot fail.
        let is_root = unsafe { libc::geteuid() } == 0;
        Self::choose(is_root, |name| std::env::var(name).ok())
    }

    fn choose(is_root: bool, variable: impl Fn(&str) -> Option<String>) -> Self {
        let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        // systemd puts several folders into one variable, with colons between them.
        let first = |name: &str| variable(name)?.split(':').next().filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let state = first("STATE_DIRECTORY").or_else(|| is_root.then(|| "/var/lib/ilb".into())).or_else(|| {
            let home = || path("HOME").map(|home| home.join(".local/state"));
            path("XDG_STATE_HOME").or_else(home).map(|state| state.join("ilb"))
        });
        let state = state.unwrap_or_else(|| "run".into());
        let runtime = first("RUNTIME_DIRECTORY")
            .or_else(|| is_root.then(|| "/run/ilb".into()))
            .or_else(|| path("XDG_RUNTIME_DIR").map(|dir| dir.join("ilb")));
        Self { runtime: runtime.unwrap_or_else(|| state.clone()), state }
    }

    /// The admin socket.
    pub fn socket(&self) -> PathBuf {
        self.runtime.join("ilb.sock")
    }

    /// The folder of snapshots.
    pub fn snapshots(&self) -> PathBuf {
        self.state.join("snapshots")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(is_root: bool, variables: &[(&str, &str)], socket: &str, snapshots: &str) {
        let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let folders = Folders::choose(is_root, variable);
        assert_eq!((folders.socket(), folders.snapshots()), (socket.into(), snapshots.into()));
    }

    #[test]
    fn folders_follow_systemd_then_root_then_the_user_then_the_working_directory() {
        let user = [("HOME", "/home/u"), ("XDG_RUNTIME_DIR", "/run/user/7")];
        let unit = [("RUNTIME_DIRECTORY", "/run/ilb-a:/run/b"), ("STATE_DIRECTORY", "/var/lib/ilb-a"), ("HOME", "/home/u")];
        check(true, &unit, "/run/ilb-a/ilb.sock", "/var/lib/ilb-a/snapshots");
        check(false, &unit, "/run/ilb-a/ilb.sock", "/var/lib/ilb-a/snapshots");
        check(true, &user, "/run/ilb/ilb.sock", "/var/lib/ilb/snapshots");
        check(false, &user, "/run/user/7/ilb/ilb.sock", "/home/u/.local/state/ilb/snapshots");
        check(false, &[("HOME", "/h"), ("XDG_STATE_HOME", "/s")], "/s/ilb/ilb.sock", "/s/ilb/snapshots");
        check(false, &[("HOME", ""), ("STATE_DIRECTORY", "")], "run/ilb.sock", "run/snapshots");
    }
}
