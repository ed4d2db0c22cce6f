//! The controller's HTTP endpoint, as both of its ends know it.

use std::time::Duration;

use crate::model::Generation;

/// `GET` with `?after=GENERATION` waits for a newer snapshot, up to [`LONG_POLL`].
pub(crate) const SNAPSHOT: &str = "/v1/snapshot";
/// `GET` lists the generations that are kept, lowest first; one of them lies below, by its number.
pub(crate) const SNAPSHOTS: &str = "/v1/snapshots";
/// `POST` takes a demand report.
pub(crate) const DEMAND: &str = "/v1/demand";

/// How long a store is waited for when it has nothing newer.
pub const LONG_POLL: Duration = Duration::from_secs(20);
/// Largest snapshot that is read, in bytes: 100 clusters x 5 classes x 2,000 engines fit many
/// times.
pub(crate) const SNAPSHOT_BYTES_MAX: usize = 256 << 20;

/// The entity tag of a snapshot: its generation and its digest.
pub(crate) fn etag(generation: Generation, digest: &str) -> String {
    format!("\"{}-{digest}\"", generation.0)
}

/// The generation and the digest in an entity tag; `None` for a tag of another form.
pub(crate) fn read_etag(etag: &str) -> Option<(Generation, String)> {
    let (generation, digest) = etag.strip_prefix('"')?.strip_suffix('"')?.split_once('-')?;
    Some((Generation(generation.parse().ok()?), digest.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entity_tag_reads_back_as_it_was_written_and_others_are_none_of_ours() {
        let generation: Generation = "3.17".parse().expect("legal");
        assert_eq!(read_etag(&etag(generation, "abc")), Some((generation, "abc".to_owned())));
        assert_eq!(read_etag(&etag(Generation(0), "")), Some((Generation(0), String::new())));
        for foreign in ["", "W/\"1-a\"", "\"1\"", "\"-a\"", "1-a", "\"x-a\""] {
            assert_eq!(read_etag(foreign), None, "{foreign}");
        }
    }
}
