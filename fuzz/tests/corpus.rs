//! Every kept input goes through its target: what libFuzzer once found stays found, without
//! libFuzzer.

use std::fs;
use std::path::Path;

use fuzz::TARGETS;

/// The corpus stays small enough to be read in a review: files, and bytes in all.
const FILES_MAX: usize = 200;
const BYTES_MAX: u64 = 1 << 20;

#[test]
fn every_kept_input_passes_its_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, run) in TARGETS {
        let mut count = 0;
        for entry in fs::read_dir(corpus.join(name)).unwrap_or_else(|error| panic!("no corpus of {name}: {error}")) {
            let path = entry.expect("listed").path();
            println!("{}", path.display());
            run(&fs::read(&path).expect("read"));
            count += 1;
        }
        assert!(count > 0, "{name} has no inputs");
    }
}

#[test]
fn the_corpus_is_small_and_every_folder_belongs_to_a_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let (mut files, mut bytes) = (0, 0);
    for folder in fs::read_dir(corpus).expect("listed") {
        let folder = folder.expect("listed").path();
        let name = folder.file_name().and_then(|name| name.to_str()).expect("UTF-8");
        assert!(TARGETS.iter().any(|(target, _)| *target == name), "{name} is no target");
        for entry in fs::read_dir(&folder).expect("listed") {
            files += 1;
            bytes += entry.expect("listed").metadata().expect("read").len();
        }
    }
    assert!(files <= FILES_MAX && bytes <= BYTES_MAX, "{files} files of {bytes} bytes; wanted {FILES_MAX} and {BYTES_MAX}");
}
