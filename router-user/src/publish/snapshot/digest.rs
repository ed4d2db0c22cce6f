//! The JSON form of a snapshot, and the digest that is in it.

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::types::{FORMAT, FORMAT_OLDEST, Snapshot};
use super::validate::SnapshotError;

/// Length of a digest: SHA-256 in hexadecimal digits.
const DIGEST_LEN: usize = 64;

impl Snapshot {
    /// The snapshot with its digest; nothing may be changed afterwards.
    pub fn sealed(mut self) -> Self {
        self.digest = "0".repeat(DIGEST_LEN);
        self.digest = hex(&Sha256::digest(self.to_json()));
        self
    }

    /// The JSON form: what stores keep and data planes receive.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a snapshot has only string keys and finite numbers")
    }

    /// Reads the JSON form: what is torn, altered, of another format or illegal is refused.
    ///
    /// Errors: the first thing that is wrong.
    pub fn from_json(json: &[u8]) -> Result<Self, SnapshotError> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let not_json = |error: serde_json::Error| SnapshotError::Json { message: error.to_string() };
        let Head { format } = serde_json::from_slice(json).map_err(not_json)?;
        if !(FORMAT_OLDEST..=FORMAT).contains(&format) {
            return Err(SnapshotError::Format { found: format });
        }
        let snapshot: Self = serde_json::from_slice(json).map_err(not_json)?;
        // The digest covers these very bytes, also those that a reader might repair or drop.
        let start = format!("{{\"format\":{format},\"digest\":\"").len();
        let found = match json.get(start..start + DIGEST_LEN) {
            Some(digits) if digits == snapshot.digest.as_bytes() => {
                let (before, after) = (&json[..start], &json[start + DIGEST_LEN..]);
                let hash = Sha256::new().chain_update(before).chain_update([b'0'; DIGEST_LEN]).chain_update(after);
                hex(&hash.finalize())
            }
            _ => "none in its place".to_owned(),
        };
        if found != snapshot.digest {
            return Err(SnapshotError::Digest { found, wanted: snapshot.digest });
        }
        snapshot.validate()?;
        Ok(snapshot)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with_objective(objective_ms: f64, reason: &str) -> Snapshot {
        let config = crate::config::parse(include_str!("../../../../examples/three-regions.toml")).expect("legal");
        let plan = Snapshot { objective_ms, reason: reason.to_owned(), ..Snapshot::describe(&config.fleet) };
        plan.sealed()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn what_is_written_reads_back_and_prints_the_same(bits in any::<u64>(), reason in ".{0,40}") {
            let value = f64::from_bits(bits);
            prop_assume!(value.is_finite());
            let snapshot = with_objective(value, &reason);
            let read = Snapshot::from_json(&snapshot.to_json()).expect("as written");
            prop_assert_eq!(read.to_json(), snapshot.to_json());
            prop_assert_eq!(read, snapshot);
        }

        #[test]
        fn no_cut_and_no_flipped_bit_is_read(at in any::<prop::sample::Index>(), bit in 0_u8..8, cut in any::<bool>()) {
            let mut json = with_objective(118.9, "better").to_json();
            let at = at.index(json.len());
            if cut { json.truncate(at) } else { json[at] ^= 1 << bit };
            prop_assert!(Snapshot::from_json(&json).is_err());
        }
    }

    #[test]
    fn the_format_before_is_read_and_prints_the_same() {
        let old = Snapshot { format: FORMAT_OLDEST, ..with_objective(118.9, "as it was written then") }.sealed();
        let json = old.to_json();
        assert!(json.starts_with(b"{\"format\":2,"));
        assert_eq!(Snapshot::from_json(&json).expect("read"), old);
    }

    #[test]
    fn another_format_is_told_apart_from_damage() {
        let error = Snapshot::from_json(br#"{"format":1,"generation":9}"#).expect_err("an older one");
        assert_eq!(error, SnapshotError::Format { found: 1 });
    }
}
