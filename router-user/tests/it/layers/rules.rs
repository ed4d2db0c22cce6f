//! The rules of the house, as functions from source text to what breaks them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use super::source::{Edge, Source, Tree};

/// Longest file, in lines.
pub(super) const FILE_LINES_MAX: usize = 400;
/// Longest function, in lines from `fn` to the last brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Widest line that is a comment, in characters with its indentation.
const COMMENT_COLUMNS_MAX: usize = 100;

/// What breaks a rule, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Violation {
    pub(super) rule: &'static str,
    pub(super) file: String,
    line: usize,
    message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.file, self.line, self.rule, self.message)
    }
}

/// No file reaches itself over what it and others name: a circle has no beginning to read from.
pub(super) fn circles(edges: &BTreeSet<Edge>) -> Vec<Violation> {
    let mut next: BTreeMap<&str, BTreeMap<&str, &Edge>> = BTreeMap::new();
    for edge in edges {
        next.entry(&edge.from).or_default().entry(&edge.to).or_insert(edge);
    }
    let mut told: BTreeSet<&str> = BTreeSet::new();
    let mut violations = Vec::new();
    for &file in next.keys() {
        if told.contains(file) {
            continue;
        }
        let Some(way) = way_back(&next, file) else { continue };
        told.extend(way.iter().map(|edge| edge.from.as_str()));
        let steps: Vec<String> = way.iter().map(|e| format!("{}:{} names {} of {}", e.from, e.line, e.path, e.to)).collect();
        violations.push(Violation {
            rule: "circle",
            file: file.to_owned(),
            line: way[0].line,
            message: format!("files must not need each other in a circle: {}", steps.join(", ")),
        });
    }
    violations
}

/// The shortest way from a file to itself.
fn way_back<'e>(next: &BTreeMap<&'e str, BTreeMap<&'e str, &'e Edge>>, file: &'e str) -> Option<Vec<&'e Edge>> {
    let mut reached: BTreeMap<&str, &Edge> = BTreeMap::new();
    let mut queue = VecDeque::from([file]);
    while let Some(at) = queue.pop_front() {
        for (&to, &edge) in next.get(at).into_iter().flatten() {
            if reached.contains_key(to) {
                continue;
            }
            reached.insert(to, edge);
            if to != file {
                queue.push_back(to);
                continue;
            }
            let mut way = vec![edge];
            while way[0].from != file {
                way.insert(0, reached[way[0].from.as_str()]);
            }
            return Some(way);
        }
    }
    None
}

/// The layers of areas, low to high: the first block of code below the heading "Layers" has a line
/// for each.
pub(super) fn layers(architecture: &str) -> Vec<Vec<String>> {
    let lines = architecture.lines().skip_while(|line| line.trim() != "## Layers");
    let block = lines.skip_while(|line| !line.starts_with("```")).skip(1).take_while(|line| !line.starts_with("```"));
    block.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

/// An area names what lies in lower layers and in itself, and nothing else.
pub(super) fn arrows(edges: &BTreeSet<Edge>, layers: &[Vec<String>]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for edge in edges {
        let (from, to) = (area(&edge.from, layers), area(&edge.to, layers));
        let mut violate = |message: String| {
            violations.push(Violation { rule: "layer", file: edge.from.clone(), line: edge.line, message });
        };
        match (&from, &to) {
            (Some((_, from)), Some((_, to))) if from == to => {}
            (Some((high, _)), Some((low, _))) if high > low => {}
            (Some((_, from)), Some((_, to))) => violate(format!(
                "{from} does not lie above {to} (ARCHITECTURE.md, Layers), and names {} of {}",
                edge.path, edge.to
            )),
            (None, _) => violate(format!("{} is in no layer of ARCHITECTURE.md", edge.from)),
            (_, None) => violate(format!("names {} of {}, which is in no layer of ARCHITECTURE.md", edge.path, edge.to)),
        }
    }
    violations
}

/// The layer of a file and its area, which is the longest one whose folder or file it lies in.
fn area<'l>(file: &str, layers: &'l [Vec<String>]) -> Option<(usize, &'l str)> {
    let module = file.strip_suffix(".rs").unwrap_or(file);
    let holds = |area: &str| module.strip_prefix(area).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let all = layers.iter().enumerate().flat_map(|(layer, areas)| areas.iter().map(move |area| (layer, area.as_str())));
    all.filter(|(_, area)| holds(area)).max_by_key(|(_, area)| area.len())
}

pub(super) fn long_files(tree: &Tree) -> Vec<Violation> {
    let counted = tree.iter().map(|(file, text)| (file, text.lines().count()));
    let long = counted.filter(|&(_, lines)| lines > FILE_LINES_MAX);
    long.map(|(file, lines)| Violation {
        rule: "file",
        file: file.clone(),
        line: lines,
        message: format!("{lines} lines; wanted at most {FILE_LINES_MAX}"),
    })
    .collect()
}

pub(super) fn long_functions(source: &Source) -> Vec<Violation> {
    let counted = source.functions.iter().map(|function| (function, 1 + function.last_line - function.first_line));
    let long = counted.filter(|&(_, lines)| lines > FUNCTION_LINES_MAX);
    long.map(|(function, lines)| Violation {
        rule: "function",
        file: function.file.clone(),
        line: function.first_line,
        message: format!("{} has {lines} lines; wanted at most {FUNCTION_LINES_MAX}", function.name),
    })
    .collect()
}

pub(super) fn wide_comments(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (file, text) in tree {
        for (index, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            if line.trim_start().starts_with("//") && columns > COMMENT_COLUMNS_MAX {
                let message = format!("a comment of {columns} columns; wanted at most {COMMENT_COLUMNS_MAX}");
                violations.push(Violation { rule: "comment", file: file.clone(), line: index + 1, message });
            }
        }
    }
    violations
}
