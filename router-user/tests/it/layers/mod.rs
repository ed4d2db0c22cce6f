//! The shape of the source: no circle between files, areas in layers, files and functions short
//! enough to read, comments narrow enough.
//!
//! ARCHITECTURE.md names the layers. `source` reads who names whose items, `rules` holds the rules,
//! and the tests below also show each rule a small tree that breaks it.

mod rules;
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use rules::{FILE_LINES_MAX, Violation};
use source::{Source, Tree};

/// Files that are flat tables or lists, one entry after the other: longer, and still read from top
/// to bottom.
const FLAT: &[(&str, &str)] = &[("router-user/src/config/keys.rs", "every key of the configuration, one entry after the other")];

/// What breaks a rule today, as (rule, beginning of the file's path). The list only ever gets
/// shorter.
const KNOWN: &[(&str, &str)] = &[];

/// The workspace's own crates.
const CRATES: [&str; 6] = ["router-common", "router-ebpf", "router-user", "bench", "fuzz", "xtask"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").to_owned()
}

/// Every Rust file below `folder`, by its path below `base`.
fn read(base: &Path, folder: &Path, tree: &mut Tree) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("listed").path();
        if path.is_dir() && !path.ends_with("target") {
            read(base, &path, tree);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(base).expect("below").to_str().expect("UTF-8").to_owned();
            tree.insert(name, fs::read_to_string(&path).expect("read"));
        }
    }
}

/// The files of the crates, by their path in the workspace.
fn workspace() -> Tree {
    let (root, mut tree) = (root(), Tree::new());
    CRATES.iter().for_each(|name| read(&root, &root.join(name), &mut tree));
    tree
}

/// The files of one crate's `src`, by their path in it.
fn sources(crate_name: &str) -> Tree {
    let (folder, mut tree) = (root().join(crate_name).join("src"), Tree::new());
    read(&folder, &folder, &mut tree);
    tree
}

/// Fails with every violation that is not known, and tells which known ones are gone.
fn check(violations: Vec<Violation>, rule: &str) {
    let known: Vec<&str> = KNOWN.iter().filter(|(known, _)| *known == rule).map(|(_, beginning)| *beginning).collect();
    for beginning in &known {
        if !violations.iter().any(|violation| violation.file.starts_with(beginning)) {
            println!("mended; take it from KNOWN: {rule} {beginning}");
        }
    }
    let is_new = |violation: &Violation| !known.iter().any(|beginning| violation.file.starts_with(beginning));
    let new: Vec<Violation> = violations.into_iter().filter(is_new).collect();
    let new: Vec<String> = new.iter().map(ToString::to_string).collect();
    assert!(new.is_empty(), "{} new violations:\n{}", new.len(), new.join("\n"));
}

#[test]
fn no_files_of_the_product_need_each_other_in_a_circle() {
    check(rules::circles(&Source::read(&sources("router-user")).edges()), "circle");
}

#[test]
fn areas_name_only_what_lies_in_lower_layers() {
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("read");
    let layers = rules::layers(&architecture);
    assert!(layers.len() > 5, "ARCHITECTURE.md has no block of layers under the heading Layers");
    check(rules::arrows(&Source::read(&sources("router-user")).edges(), &layers), "layer");
}

#[test]
fn files_are_short_enough_to_be_read_at_once() {
    let mut tree = workspace();
    tree.retain(|file, _| file.contains("/src/") && !FLAT.iter().any(|(flat, _)| flat == file));
    check(rules::long_files(&tree), "file");
    for (file, reason) in FLAT {
        let lines = fs::read_to_string(root().join(file)).expect("read").lines().count();
        assert!(lines > FILE_LINES_MAX && !reason.is_empty(), "{file} needs no exception");
    }
}

#[test]
fn functions_are_short_enough_to_be_read_at_once() {
    let mut violations = Vec::new();
    for name in CRATES {
        let mut found = rules::long_functions(&Source::read(&sources(name)));
        found.iter_mut().for_each(|violation| violation.file = format!("{name}/src/{}", violation.file));
        violations.extend(found);
    }
    check(violations, "function");
}

#[test]
fn comments_are_narrow_enough_to_be_read_beside_code() {
    check(rules::wide_comments(&workspace()), "comment");
}

/// The checks themselves, on small trees: each must be able to fail.
mod checks {
    use super::rules::{Violation, arrows, circles, layers, long_files, long_functions, wide_comments};
    use super::source::{Source, Tree};

    fn tree(files: &[(&str, &str)]) -> Tree {
        files.iter().map(|&(file, text)| (file.to_owned(), text.to_owned())).collect()
    }

    /// "from -> to", in order, once each.
    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        let edges = Source::read(&tree(files)).edges();
        let mut pairs: Vec<String> = edges.iter().map(|edge| format!("{} -> {}", edge.from, edge.to)).collect();
        pairs.dedup();
        pairs
    }

    fn found(violations: &[Violation]) -> Vec<String> {
        violations.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn re_exports_lead_to_the_file_that_defines_the_item() {
        let found = edges(&[
            ("lib.rs", "pub mod a; mod b;"),
            ("a/mod.rs", "mod deep; pub use deep::Thing; pub mod other;"),
            ("a/deep.rs", "pub struct Thing;"),
            ("a/other.rs", "pub use super::Thing as Again;"),
            ("b.rs", "use crate::a::{other::Again, Thing}; fn f(_: Thing, _: Again) {}"),
        ]);
        assert_eq!(found, ["a/mod.rs -> a/deep.rs", "a/other.rs -> a/deep.rs", "b.rs -> a/deep.rs"]);
    }

    #[test]
    fn paths_count_wherever_they_are_written() {
        let bodies = [
            "fn f() { crate::a::g(); }",
            "use super::a; fn f() { a::g(); }",
            "use crate::a::g as h;",
            "use super::a::*; ",
            "fn f() { println!(\"{}\", 1 + crate::a::g()); }",
            "struct S(crate::a::T);",
            "impl crate::a::Tr for u8 {}",
            "mod inner { use super::super::a::g; }",
            "use super::a; fn f() { assert!(a::g() == 1); }",
        ];
        for body in bodies {
            let found =
                edges(&[("lib.rs", "mod a; mod b;"), ("a.rs", "pub fn g() {} pub struct T; pub trait Tr {}"), ("b.rs", body)]);
            assert_eq!(found, ["b.rs -> a.rs"], "{body}");
        }
    }

    #[test]
    fn tests_declarations_and_other_crates_do_not_count() {
        let bodies = [
            "#[cfg(test)] mod tests { use crate::a::g; }",
            "#[cfg(test)] use crate::a::g;",
            "#[cfg(test)] fn f() { crate::a::g(); }",
            "#[test] fn f() { crate::a::g(); }",
            "use std::a::g;",
            "use ::a::g;",
            "pub(in crate::a) fn f() {}",
            "fn f() { let a = 1; a.g(); }",
        ];
        for body in bodies {
            let found = edges(&[("lib.rs", "mod a; mod b;"), ("a.rs", "pub fn g() {}"), ("b.rs", body)]);
            assert!(found.is_empty(), "{body}: {found:?}");
        }
    }

    #[test]
    fn the_program_names_the_library_by_its_name() {
        let found = edges(&[
            ("lib.rs", "pub mod a;"),
            ("a.rs", "pub fn g() {}"),
            ("main.rs", "mod b; fn main() { b::h(); }"),
            ("b.rs", "pub fn h() { router_user::a::g(); }"),
        ]);
        assert_eq!(found, ["b.rs -> a.rs", "main.rs -> b.rs"]);
    }

    #[test]
    fn circles_are_found_once_with_their_lines() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B;\npub struct A;"),
            ("b.rs", "use crate::c::C; pub struct B;"),
            ("c.rs", "\nuse crate::a::A; pub struct C;"),
        ];
        let found = found(&circles(&Source::read(&tree(&files)).edges()));
        let wanted = "a.rs:1: circle: files must not need each other in a circle: a.rs:1 names crate::b::B of b.rs, \
                      b.rs:1 names crate::c::C of c.rs, c.rs:2 names crate::a::A of a.rs";
        assert_eq!(found, [wanted]);
        let open = [files[0], files[1], files[2], ("c.rs", "pub struct C;")];
        assert!(circles(&Source::read(&tree(&open)).edges()).is_empty());
    }

    #[test]
    fn an_item_of_a_parents_mod_rs_makes_a_circle_with_its_re_export() {
        let files = [
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod child; pub use child::Child; pub struct Own;"),
            ("a/child.rs", "use super::Own; pub struct Child(Own);"),
        ];
        assert_eq!(circles(&Source::read(&tree(&files)).edges()).len(), 1);
        // Beside a sibling's item, which only passes through the mod.rs, there is none.
        let files = [
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod child; mod own; pub use child::Child; pub use own::Own;"),
            ("a/child.rs", "use super::Own; pub struct Child(Own);"),
            ("a/own.rs", "pub struct Own;"),
        ];
        assert!(circles(&Source::read(&tree(&files)).edges()).is_empty());
    }

    #[test]
    fn arrows_go_down_and_areas_are_the_longest_that_fit() {
        let layers = layers("# A\n## Layers\n\nLow to high:\n\n```text\nclock\nfit/input\nfit plan\napp\n```\n```text\nx\n```\n");
        assert_eq!(layers, [vec!["clock"], vec!["fit/input"], vec!["fit", "plan"], vec!["app"]]);
        let files = [
            ("lib.rs", "mod clock; mod fit; mod plan; mod app; mod stray;"),
            ("clock.rs", "pub struct C;"),
            ("fit/mod.rs", "mod input; pub mod law;"),
            ("fit/input.rs", "use crate::clock::C; pub struct I;"),
            ("fit/law.rs", "use super::input::I; pub struct L;"),
            ("plan.rs", "use crate::fit::law::L; pub struct P;"),
            ("app.rs", "use crate::{plan::P, clock::C}; pub struct A;"),
            ("stray.rs", "use crate::clock::C; pub struct S;"),
        ];
        let found = found(&arrows(&Source::read(&tree(&files)).edges(), &layers));
        assert_eq!(
            found,
            [
                "plan.rs:1: layer: plan does not lie above fit (ARCHITECTURE.md, Layers), and names crate::fit::law::L of fit/law.rs",
                "stray.rs:1: layer: stray.rs is in no layer of ARCHITECTURE.md",
            ]
        );
    }

    #[test]
    fn lengths_and_widths_are_counted() {
        let long = "fn f() {\n".to_owned() + &"    g();\n".repeat(69) + "}\n";
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", long.as_str()),
            ("b.rs", &long.replacen("    g();\n", "", 1)),
            ("c.rs", &format!("#[cfg(test)]\nmod tests {{\n#[test]\n{long}}}\n")),
        ];
        let long = long_functions(&Source::read(&tree(&files)));
        assert_eq!(found(&long), ["a.rs:1: function: f has 71 lines; wanted at most 70"]);
        let files = [("a.rs", "\n".repeat(401)), ("b.rs", "\n".repeat(400))];
        let long: Tree = files.into_iter().map(|(file, text)| (file.to_owned(), text)).collect();
        assert_eq!(found(&long_files(&long)), ["a.rs:401: file: 401 lines; wanted at most 400"]);
        let wide = format!("    // {}\nlet x = \"{}\";\n/// {}\n", "x".repeat(94), "y".repeat(200), "\u{e9}".repeat(96));
        let found = found(&wide_comments(&tree(&[("a.rs", &wide)])));
        assert_eq!(found, ["a.rs:1: comment: a comment of 101 columns; wanted at most 100"]);
    }
}
