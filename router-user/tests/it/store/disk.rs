//! A disk that is full, for real: a file system of a few pages.

use std::path::Path;
use std::process::Command;

use router_user::publish::Generation;
use router_user::publish::store::DirStore;

use super::snapshot;

/// A tmpfs of 64 KiB; it goes with this.
pub(crate) struct TinyDisk {
    folder: tempfile::TempDir,
}

impl TinyDisk {
    /// `None` where mounting is not allowed, which is said; as root it must work.
    pub(crate) fn mount() -> Option<Self> {
        // SAFETY: geteuid takes nothing and always succeeds.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("skipped: only root can mount a file system of a few pages");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k", "ilb-test"]).arg(folder.path());
        assert!(mount.status().expect("mount runs").success());
        Some(Self { folder })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.folder.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "a test left a mount behind");
    }
}

#[test]
fn a_full_disk_leaves_the_old_snapshot_and_no_rubbish() {
    let Some(disk) = TinyDisk::mount() else { return };
    let store = DirStore::open(disk.path()).expect("opened");
    let first = snapshot(Generation(1), 20_000);
    store.publish(&first).expect("it fits");
    let error = store.publish(&snapshot(Generation(2), 60_000)).expect_err("it does not fit").to_string();
    assert!(error.contains("No space left"), "{error}");
    assert_eq!(store.latest().expect("readable"), Some(first));
    assert_eq!(std::fs::read_dir(disk.path()).expect("listed").count(), 1, "what was begun is gone");
    // Room again, and it goes on.
    let third = snapshot(Generation(3), 20_000);
    store.publish(&third).expect("it fits");
    assert_eq!(store.latest().expect("readable"), Some(third));
}
