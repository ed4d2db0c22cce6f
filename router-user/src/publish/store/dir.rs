//! Snapshots in a directory: one file per generation, each put in place by an atomic rename.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{Held, Store, StoreError};
use crate::protocol::LONG_POLL;
use crate::publish::Generation;
use crate::publish::snapshot::Snapshot;

/// Generations kept: enough to look back over minutes of changes, bounded so that the disk never
/// fills.
const KEPT: usize = 64;
/// File with the heartbeat of the controller.
const LIFE: &str = "alive";
/// Interval at which a directory is read. Another machine may write to it over a network, which
/// sends no notice of a change.
const LOOK: Duration = Duration::from_millis(250);
const PREFIX: &str = "snapshot-";
const SUFFIX: &str = ".json";

/// A directory of snapshots. Several processes may read it; generations of one writer only grow.
#[derive(Clone, Debug)]
pub struct DirStore {
    dir: PathBuf,
}

impl DirStore {
    /// Opens the directory and creates it if need be.
    ///
    /// Errors: it cannot be created.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        fs::create_dir_all(dir).map_err(StoreError::io("create", dir))?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// Writes a sealed snapshot; afterwards it is on disk as a whole, or (on error) every file is
    /// as it was.
    ///
    /// Errors: the file cannot be written, synced or renamed.
    pub fn publish(&self, snapshot: &Snapshot) -> Result<(), StoreError> {
        write_whole(&self.file(Generation(snapshot.generation)), &snapshot.to_json())?;
        self.forget_old();
        Ok(())
    }

    /// Writes the heartbeat of the controller, for readers of the directory.
    ///
    /// Errors: the file cannot be written.
    pub fn show_life(&self) -> Result<(), StoreError> {
        let path = self.dir.join(LIFE);
        fs::write(&path, crate::clock::unix_ms().to_string()).map_err(StoreError::io("write", &path))
    }

    /// The last heartbeat of the controller; each one differs. `None` if there was none.
    pub fn life(&self) -> Option<Vec<u8>> {
        fs::read(self.dir.join(LIFE)).ok()
    }

    /// The newest legal snapshot, if there is one; torn and illegal files are skipped with a
    /// warning.
    ///
    /// Errors: the directory cannot be read.
    pub fn latest(&self) -> Result<Option<Snapshot>, StoreError> {
        self.latest_that(|_| true)
    }

    /// The newest legal snapshot that a cluster is to apply; a controller in the same process may
    /// keep others here.
    ///
    /// Errors: the directory cannot be read.
    pub fn latest_for(&self, cluster: &str) -> Result<Option<Snapshot>, StoreError> {
        self.latest_that(|snapshot| snapshot.is_for(cluster))
    }

    fn latest_that(&self, wanted: impl Fn(&Snapshot) -> bool) -> Result<Option<Snapshot>, StoreError> {
        for generation in self.list()?.into_iter().rev() {
            match self.load(generation) {
                Ok(snapshot) if wanted(&snapshot) => return Ok(Some(snapshot)),
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "passing over a stored snapshot"),
            }
        }
        Ok(None)
    }

    /// Reads one generation.
    ///
    /// Errors: no such file, or what it holds is not a legal snapshot.
    pub fn load(&self, generation: Generation) -> Result<Snapshot, StoreError> {
        let path = self.file(generation);
        let json = match fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(StoreError::Unknown(generation)),
            json => json.map_err(StoreError::io("read", &path))?,
        };
        Snapshot::from_json(&json).map_err(|source| StoreError::illegal(path.display().to_string(), source))
    }

    /// Stored generations, lowest first; those whose files are damaged are among them.
    ///
    /// Errors: the directory cannot be read.
    pub fn list(&self) -> Result<Vec<Generation>, StoreError> {
        let mut generations = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(StoreError::io("list", &self.dir))? {
            let name = entry.map_err(StoreError::io("list", &self.dir))?.file_name();
            let number: Option<u64> = name.to_str().and_then(|n| n.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok());
            generations.extend(number.map(Generation));
        }
        generations.sort_unstable();
        Ok(generations)
    }

    fn file(&self, generation: Generation) -> PathBuf {
        self.dir.join(format!("{PREFIX}{:020}{SUFFIX}", generation.0))
    }

    fn forget_old(&self) {
        let Ok(generations) = self.list() else { return };
        for &generation in &generations[..generations.len().saturating_sub(KEPT)] {
            // A file that stays does no harm; the next publication tries again.
            if let Err(error) = fs::remove_file(self.file(generation)) {
                tracing::debug!(%error, %generation, "cannot forget an old snapshot");
            }
        }
    }
}

impl Store for DirStore {
    async fn newer_than(&self, held: Held) -> Result<Option<Arc<Snapshot>>, StoreError> {
        let give_up = tokio::time::Instant::now() + LONG_POLL;
        loop {
            let store = self.clone();
            let latest = blocking(move || match store.list()?.last() {
                Some(&newest) if newest > held.generation => store.latest(),
                _ => Ok(None),
            });
            match latest.await? {
                Some(snapshot) if Generation(snapshot.generation) > held.generation => return Ok(Some(Arc::new(snapshot))),
                _ if tokio::time::Instant::now() >= give_up => return Ok(None),
                _ => tokio::time::sleep(LOOK).await,
            }
        }
    }

    async fn read(&self, generation: Generation) -> Result<Snapshot, StoreError> {
        let store = self.clone();
        blocking(move || store.load(generation)).await
    }

    async fn generations(&self) -> Result<Vec<Generation>, StoreError> {
        let store = self.clone();
        blocking(move || store.list()).await
    }
}

/// Disk calls block, so they run outside the runtime's own threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, StoreError> + Send + 'static) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.expect("reading a directory does not panic, and nobody cancels it")
}

/// Puts `bytes` at `path` whole or not at all: temporary file, sync, rename, sync of the directory.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let dir = path.parent().expect("stored files have a folder");
    let temporary = path.with_extension(format!("tmp{}", std::process::id()));
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    if let Err(error) = written {
        // The disk may be full, so the unfinished file is removed.
        let _ = fs::remove_file(&temporary);
        return Err(StoreError::io("write", &temporary)(error));
    }
    fs::rename(&temporary, path).map_err(StoreError::io("rename into", path))?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(StoreError::io("sync", dir))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::snapshot::{FORMAT, Status};

    fn snapshot(generation: u64) -> Snapshot {
        let snapshot = Snapshot {
            format: FORMAT,
            digest: String::new(),
            generation,
            published_unix_ms: 7,
            reason: String::new(),
            status: Status::Optimal,
            objective_ms: 1.0,
            clusters: vec![],
            engines: vec![],
            classes: vec![],
            routes: vec![],
            failovers: vec![],
            target_clusters: vec![],
        };
        snapshot.sealed()
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
        let kept = store.list().expect("listed");
        assert_eq!((kept.len(), kept[0]), (KEPT, Generation(6)));
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
