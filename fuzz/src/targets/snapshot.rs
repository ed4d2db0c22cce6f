//! Snapshots: the reader takes exactly what is legal, gives back what was written, and what it
//! takes can be put in force.

use std::sync::Arc;

use router_user::model::ClusterId;
use router_user::publish::routes::Routes;
use router_user::publish::snapshot::Snapshot;

/// Slot tables take milliseconds each: only small snapshots are put in force.
const TABLES_MAX: usize = 2;

pub(crate) fn run(input: &[u8]) {
    if let Ok(snapshot) = Snapshot::from_json(input) {
        assert_eq!(snapshot.validate(), Ok(()));
    }
    // No search finds the digest of a changed content, so a snapshot that reads at all gets the
    // right one here.
    let Ok(snapshot) = serde_json::from_slice::<Snapshot>(input) else { return };
    let sealed = snapshot.sealed();
    let json = sealed.to_json();
    match (Snapshot::from_json(&json), sealed.validate()) {
        (Ok(read), Ok(())) => assert_eq!(read, sealed),
        (Err(read), Err(legal)) => assert_eq!(read, legal),
        (read, legal) => panic!("read as {read:?}, where the check says {legal:?}"),
    }
    if sealed.validate().is_err() || sealed.clusters.is_empty() || sealed.classes.len() > TABLES_MAX || sealed.engines.len() > 8 {
        return;
    }
    let routes = Routes::build(Arc::new(sealed.clone()), ClusterId::of(0), None);
    assert_eq!(routes.classes.len(), sealed.classes.len());
}
