//! Snapshots in a directory: one file per generation, each put in place by an atomic rename.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::publish::snapshot::{Snapshot, SnapshotError};

/// Generations kept: enough to look back over minutes of changes, bounded so that the disk never fills.
const KEPT: usize = 64;
const PREFIX: &str = "snapshot-";
const SUFFIX: &str = ".json";

/// A directory of snapshots. Several processes may read it; generations of one writer only grow.
#[derive(Clone, Debug)]
pub struct DirStore {
    dir: PathBuf,
}

/// Why a snapshot could not be written or read.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error("{doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{}: is not a snapshot: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{}: {source}", path.display())]
    Illegal { path: PathBuf, source: Box<SnapshotError> },
}

impl DirStore {
    /// Opens the directory and creates it if need be.
    ///
    /// Errors: it cannot be created.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        fs::create_dir_all(dir).map_err(|source| StoreError::Io { doing: "create", path: dir.to_owned(), source })?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// Writes a snapshot; afterwards it is on disk as a whole, or (on error) every file is as it was.
    ///
    /// Errors: the file cannot be written, synced or renamed.
    pub fn publish(&self, snapshot: &Snapshot) -> Result<(), StoreError> {
        let json = serde_json::to_vec(snapshot).expect("a snapshot has only string keys and finite numbers");
        write_whole(&self.file(snapshot.generation), &json)?;
        self.forget_old();
        Ok(())
    }

    /// The newest legal snapshot, if there is one; files that are torn or illegal are passed over with a warning.
    ///
    /// Errors: the directory cannot be read.
    pub fn latest(&self) -> Result<Option<Snapshot>, StoreError> {
        for generation in self.generations()?.into_iter().rev() {
            match self.read(generation) {
                Ok(snapshot) => return Ok(Some(snapshot)),
                Err(error) => tracing::warn!(%error, "passing over a stored snapshot"),
            }
        }
        Ok(None)
    }

    /// Reads one generation.
    ///
    /// Errors: no such file, or what it holds is not a legal snapshot.
    pub fn read(&self, generation: u64) -> Result<Snapshot, StoreError> {
        let path = self.file(generation);
        let json = fs::read(&path).map_err(|source| StoreError::Io { doing: "read", path: path.clone(), source })?;
        let snapshot: Snapshot =
            serde_json::from_slice(&json).map_err(|source| StoreError::Json { path: path.clone(), source })?;
        snapshot.validate().map_err(|source| StoreError::Illegal { path, source: source.into() })?;
        Ok(snapshot)
    }

    /// Stored generations, lowest first.
    ///
    /// Errors: the directory cannot be read.
    pub fn generations(&self) -> Result<Vec<u64>, StoreError> {
        let failed = |source| StoreError::Io { doing: "list", path: self.dir.clone(), source };
        let mut generations = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let number: Option<u64> = name.to_str().and_then(|n| n.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok());
            generations.extend(number);
        }
        generations.sort_unstable();
        Ok(generations)
    }

    fn file(&self, generation: u64) -> PathBuf {
        self.dir.join(format!("{PREFIX}{generation:020}{SUFFIX}"))
    }

    fn forget_old(&self) {
        let Ok(generations) = self.generations() else { return };
        for &generation in &generations[..generations.len().saturating_sub(KEPT)] {
            // A file that stays is only a file too many; the next publish tries again.
            if let Err(error) = fs::remove_file(self.file(generation)) {
                tracing::debug!(%error, generation, "cannot forget an old snapshot");
            }
        }
    }
}

/// Puts `bytes` at `path` whole or not at all: temporary file, sync, rename, sync of the directory.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let failed = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| StoreError::Io { doing, path, source }
    };
    let dir = path.parent().expect("stored files have a folder");
    let temporary = path.with_extension(format!("tmp{}", std::process::id()));
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    if let Err(error) = written {
        // The disk may be full: what was begun is worth nothing and must not stay.
        let _ = fs::remove_file(&temporary);
        return Err(failed("write", &temporary)(error));
    }
    fs::rename(&temporary, path).map_err(failed("rename into", path))?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed("sync", dir))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::snapshot::{FORMAT, Status};

    fn snapshot(generation: u64) -> Snapshot {
        Snapshot {
            format: FORMAT,
            generation,
            published_unix_ms: 7,
            status: Status::Optimal,
            objective_ms: 1.0,
            clusters: vec![],
            engines: vec![],
            classes: vec![],
            routes: vec![],
        }
    }

    #[test]
    fn the_latest_legal_snapshot_wins_over_torn_and_foreign_files() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let store = DirStore::open(&dir.path().join("deep/er")).expect("created");
        assert_eq!(store.latest().expect("readable"), None);
        for generation in [9, 10, 100] {
            store.publish(&snapshot(generation)).expect("published");
        }
        let folder = dir.path().join("deep/er");
        fs::write(folder.join("snapshot-00000000000000000101.json"), b"{\"format\":1,\"gener").expect("torn");
        fs::write(folder.join("snapshot-00000000000000000102.json"), b"").expect("empty");
        fs::write(folder.join("notes.txt"), b"mine").expect("foreign");
        assert_eq!(store.latest().expect("readable").map(|s| s.generation), Some(100));
    }

    #[test]
    fn old_generations_are_forgotten_beyond_the_bound() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let store = DirStore::open(dir.path()).expect("opened");
        for generation in 1..=(KEPT as u64 + 5) {
            store.publish(&snapshot(generation)).expect("published");
        }
        let kept = store.generations().expect("listed");
        assert_eq!((kept.len(), kept[0]), (KEPT, 6));
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_temporary_one() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("file");
        write_whole(&path, b"old").expect("written");
        // A directory in the way of the temporary file stands for any failure to write it.
        let temporary = path.with_extension(format!("tmp{}", std::process::id()));
        fs::create_dir(&temporary).expect("in the way");
        write_whole(&path, b"new").expect_err("cannot create the temporary file");
        assert_eq!(fs::read(&path).expect("still there"), b"old");
    }
}
