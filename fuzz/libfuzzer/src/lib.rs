//! Nothing: the dependency's build script makes the archive that `cargo xtask fuzz` links.
