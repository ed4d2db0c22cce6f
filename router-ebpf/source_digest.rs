//! Digest of everything the eBPF object is built from. Included by the task that builds it and by
//! the build script that embeds it, so that both mean the same by "fresh"; file times would not
//! survive a clone.

use std::{fs, io, path::Path};

/// Files and folders, from the workspace root, that the object is built from. `mod.rs`-like order
/// does not matter: they are sorted.
pub(crate) const SOURCES: [&str; 5] =
    ["router-common/Cargo.toml", "router-common/src", "router-ebpf/Cargo.lock", "router-ebpf/Cargo.toml", "router-ebpf/src"];

/// The object, from the workspace root. Its digest is beside it, with the extension `sources`.
pub(crate) const OBJECT: &str = "router-ebpf/target/router-ebpf.o";

/// FNV-1a over names and contents, in hexadecimal. It tells changes apart; it is no defence against
/// an adversary.
pub(crate) fn source_digest(root: &Path) -> io::Result<String> {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for source in SOURCES {
        add(&root.join(source), source, &mut hash)?;
    }
    Ok(format!("{hash:016x}"))
}

fn add(path: &Path, name: &str, hash: &mut u64) -> io::Result<()> {
    if path.is_dir() {
        let mut names = Vec::new();
        for entry in fs::read_dir(path)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        return names.iter().try_for_each(|child| add(&path.join(child), &format!("{name}/{child}"), hash));
    }
    let contents = fs::read(path)?;
    for bytes in [name.as_bytes(), &contents.len().to_le_bytes(), &contents] {
        for byte in bytes {
            *hash = (*hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    Ok(())
}
