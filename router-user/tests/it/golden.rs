//! Golden files: small outputs that are read in review. `ILB_UPDATE_GOLDEN=1 cargo test` rewrites
//! them.

use std::path::Path;

/// Compares `found` with `tests/golden/NAME`, or rewrites that file when asked to.
pub(crate) fn compare(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("ILB_UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, found).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    assert!(wanted == found, "{} differs; found:\n{found}\nwanted:\n{wanted}", path.display());
}
