//! The argument that names a running `ilb`.

use std::path::PathBuf;

use clap::Args;
use router_user::config::Folders;

/// The running ilb to ask.
#[derive(Debug, Args)]
pub(crate) struct Socket {
    /// Unix socket of the running ilb; its default is that of admin.socket.
    ///
    /// That is ilb.sock in /run/ilb for root, in $XDG_RUNTIME_DIR/ilb for others;
    /// docs/configuration.md has the rest.
    #[arg(
        id = "socket",
        long = "socket",
        value_name = "PATH",
        env = "ILB_SOCKET",
        hide_env_values = true,
        default_value_os_t = Folders::of_process().socket(),
        hide_default_value = true
    )]
    pub(crate) path: PathBuf,
}
