//! A strict reader of Prometheus' text format 0.0.4, which also holds names to Prometheus'
//! conventions.

use std::collections::{BTreeMap, BTreeSet};

/// One metric family as it was read.
#[derive(Debug, Default)]
pub(super) struct Family {
    pub(super) help: String,
    pub(super) kind: String,
    /// Samples by name and labels, as they are written.
    pub(super) samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

/// Reads all of `text`; panics with the line that breaks a rule.
pub(super) fn read(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'), "the last line has no end");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or_else(|| panic!("help is missing: {line}"));
            let family = Family { help: help.to_owned(), ..Family::default() };
            assert!(families.insert(name.to_owned(), family).is_none(), "announced twice: {line}");
            name.clone_into(&mut current);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or_else(|| panic!("the type is missing: {line}"));
            assert_eq!(name, current, "a type without its help: {line}");
            families.get_mut(name).expect("announced").kind = kind.to_owned();
        } else {
            let family = families.get_mut(&current).unwrap_or_else(|| panic!("a sample without a family: {line}"));
            let (name, labels, value) = sample(line);
            let suffixes: &[&str] = if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.iter().any(|suffix| name == format!("{current}{suffix}")), "not of {current}: {line}");
            family.samples.push((name, labels, value));
        }
    }
    families.iter().for_each(|(name, family)| check(name, family));
    families
}

fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("no value: {line}"));
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, text) = rest.split_once("=\"").unwrap_or_else(|| panic!("a label without a value: {line}"));
            let (value, after) = unescape(text, line);
            assert!(is_name(label) && !label.starts_with("__"), "not a label: {line}");
            assert!(labels.insert(label.to_owned(), value).is_none(), "a label twice: {line}");
            match after.chars().next() {
                Some(',') => rest = &after[1..],
                Some('}') => break rest = &after[1..],
                _ => panic!("labels do not end: {line}"),
            }
        }
    }
    let value = rest.strip_prefix(' ').and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("not a value: {line}"));
    assert!(is_name(name), "not a name: {line}");
    (name.to_owned(), labels, value)
}

/// The text up to its closing quote, and what comes after that.
fn unescape<'t>(text: &'t str, line: &str) -> (String, &'t str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &text[at + 1..]),
            '\\' => match chars.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, escaped @ ('\\' | '"'))) => value.push(escaped),
                _ => panic!("not an escape: {line}"),
            },
            other => value.push(other),
        }
    }
    panic!("a value does not end: {line}")
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_'))
}

fn check(name: &str, family: &Family) {
    assert!(!family.samples.is_empty(), "{name} has no samples");
    assert!(family.help.ends_with('.'), "help of {name} is no sentence: {}", family.help);
    let is_counter = match family.kind.as_str() {
        "counter" => true,
        "gauge" | "histogram" => false,
        other => panic!("{name} is a {other}"),
    };
    assert_eq!(name.ends_with("_total"), is_counter, "{name} is a {}", family.kind);
    let parts: Vec<&str> = name.split('_').collect();
    for reserved in ["bucket", "sum", "count", "info", "created"] {
        assert!(reserved == "info" && name.ends_with("_info") || !parts.contains(&reserved), "{name} contains {reserved}");
    }
    for unit in ["ms", "us", "milliseconds", "minutes", "hours", "rps", "kb", "mb", "percent", "kilobytes"] {
        assert!(!parts.contains(&unit), "{name} is not in a base unit");
    }
    let mut seen = BTreeSet::new();
    let mut names = BTreeSet::new();
    for (name, labels, value) in &family.samples {
        assert!(seen.insert((name, labels)), "{name} {labels:?} comes twice");
        names.insert(labels.keys().filter(|label| *label != "le").collect::<Vec<_>>());
        assert!(!is_counter || *value >= 0.0, "{name} is {value}");
    }
    assert_eq!(names.len(), 1, "samples of {name} have different labels: {names:?}");
    if family.kind == "histogram" {
        check_histograms(name, family);
    }
}

fn check_histograms(name: &str, family: &Family) {
    let mut by_labels: BTreeMap<BTreeMap<String, String>, Vec<(f64, f64)>> = BTreeMap::new();
    for (_, labels, value) in family.samples.iter().filter(|(sample, ..)| sample.ends_with("_bucket")) {
        let mut labels = labels.clone();
        let bound = labels.remove("le").unwrap_or_else(|| panic!("a bucket of {name} without le"));
        let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().expect("a bound") };
        by_labels.entry(labels).or_default().push((bound, *value));
    }
    for (labels, buckets) in by_labels {
        assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name} {labels:?} is not cumulated: {buckets:?}");
        let count = family.samples.iter().find(|(sample, of, _)| sample.ends_with("_count") && *of == labels);
        let (bound, last) = buckets[buckets.len() - 1];
        assert!(bound.is_infinite() && count.is_some_and(|(.., count)| *count == last), "{name} {labels:?}: {buckets:?}");
        assert!(family.samples.iter().any(|(sample, of, _)| sample.ends_with("_sum") && *of == labels), "no sum of {name}");
    }
}

#[test]
#[should_panic(expected = "is not cumulated")]
fn a_histogram_that_is_not_cumulated_is_refused() {
    let text = "# HELP h_seconds H.\n# TYPE h_seconds histogram\nh_seconds_bucket{le=\"1\"} 2\nh_seconds_bucket{le=\"+Inf\"} 1\n\
        h_seconds_sum 1\nh_seconds_count 1\n";
    read(text);
}

#[test]
#[should_panic(expected = "ilb_x_seconds_sum_total contains sum")]
fn a_reserved_suffix_in_the_middle_of_a_name_is_refused() {
    read("# HELP ilb_x_seconds_sum_total X.\n# TYPE ilb_x_seconds_sum_total counter\nilb_x_seconds_sum_total 1\n");
}
