//! Checks of form: formatting, lints, licences.

use std::path::Path;

use crate::{
    build_ebpf,
    command::{command, output, run},
    setup,
};

/// Runs rustfmt, clippy and, where it is installed, cargo-deny. Fails on the first that finds
/// something.
pub(crate) fn tidy(root: &Path) -> anyhow::Result<()> {
    run(command("cargo", ["fmt", "--all", "--check"]).current_dir(root))?;
    let ebpf = root.join("router-ebpf");
    run(command("cargo", ["fmt", "--check"]).current_dir(&ebpf))?;
    // The user program embeds the eBPF object, so that it must be there before anything is checked.
    setup::ensure()?;
    build_ebpf::build_ebpf(root)?;
    run(command("cargo", ["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"]).current_dir(root))?;
    if output(&mut command("cargo", ["deny", "--version"])).is_some() {
        run(command("cargo", ["deny", "check"]).current_dir(root))?;
    } else {
        eprintln!("cargo-deny is not installed: licences and advisories were not checked (`cargo install cargo-deny`)");
    }
    Ok(())
}
