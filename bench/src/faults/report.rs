//! Rows as JSON lines, or as tables of medians.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::{Context, Result};
use serde::Serialize;

use super::figures::{Figure, Figures, Limit};
use crate::origin::Origin;

/// All runs of one case with one proxy.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) scenario: String,
    pub(super) case: String,
    pub(super) front: String,
    pub(super) runs: Vec<Figures>,
    /// Runs that came to no figures.
    pub(super) errors: Vec<String>,
}

/// A row in the JSON report.
#[derive(Serialize)]
struct Line<'r> {
    #[serde(flatten)]
    row: &'r Row,
    /// An infinite value, which JSON has no number for, is null here and named in `missed`.
    medians: &'r Figures,
    missed: Vec<&'static str>,
}

pub(super) struct Report {
    origin: Origin,
    is_json: bool,
    rows: Vec<(Row, Figures)>,
}

impl Row {
    /// Limits that the medians miss.
    fn missed(medians: &Figures) -> Vec<&'static str> {
        medians.iter().filter(|figure| !figure.is_kept()).map(|figure| figure.name).collect()
    }
}

impl Report {
    /// Errors: standard output is gone.
    pub(super) fn new(origin: Origin, is_json: bool) -> Result<Self> {
        if is_json {
            say(&serde_json::to_string(&origin)?)?;
        }
        Ok(Self { origin, is_json, rows: Vec::new() })
    }

    pub(super) fn add(&mut self, row: Row) -> Result<()> {
        let medians = Figures::medians(&row.runs);
        if self.is_json {
            let line = Line { row: &row, medians: &medians, missed: Row::missed(&medians) };
            say(&serde_json::to_string(&line)?)?;
        }
        self.rows.push((row, medians));
        Ok(())
    }

    /// Rows that miss a limit, or have runs that failed.
    pub(super) fn missed(&self) -> usize {
        self.rows.iter().filter(|(row, medians)| !row.errors.is_empty() || !Row::missed(medians).is_empty()).count()
    }

    /// Prints the tables.
    pub(super) fn finish(&self) -> Result<()> {
        if self.is_json {
            return Ok(());
        }
        let mut text = String::new();
        let mut scenarios: Vec<&str> = self.rows.iter().map(|(row, _)| row.scenario.as_str()).collect();
        scenarios.dedup();
        for scenario in scenarios {
            let rows: Vec<_> = self.rows.iter().filter(|(row, _)| row.scenario == scenario).collect();
            let _ = writeln!(text, "{}", table(scenario, &rows));
        }
        let _ = write!(text, "{}", self.origin);
        say(&text)
    }
}

fn say(line: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{line}").context("failed to write the report")
}

/// The medians of one scenario as Markdown; a value beyond its limit has a `!`.
fn table(scenario: &str, rows: &[&(Row, Figures)]) -> String {
    let names: Vec<String> =
        rows.iter().map(|(_, medians)| medians.iter().map(head).collect()).max_by_key(Vec::len).unwrap_or_default();
    let mut lines = vec![[vec![scenario.to_owned(), "proxy".to_owned()], names, vec!["verdict".to_owned()]].concat()];
    for (row, medians) in rows {
        let mut line = vec![row.case.clone(), row.front.clone()];
        line.extend(medians.iter().map(cell));
        line.resize(lines[0].len() - 1, String::new());
        line.push(verdict(row, medians));
        lines.push(line);
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let cells: Vec<String> = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
        if number == 0 {
            let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
            let _ = writeln!(text, "| {} |", rules.join(" | "));
        }
    }
    text
}

/// The head of a figure's column.
fn head(figure: &Figure) -> String {
    figure.name.to_owned()
}

fn cell(figure: &Figure) -> String {
    let Some(value) = figure.value else { return "-".to_owned() };
    let text = match value {
        value if value.is_infinite() => "never".to_owned(),
        value if value.abs() >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        value if value.abs() >= 1.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    };
    match figure.limit {
        Some(_) if figure.is_kept() => text,
        Some(Limit::AtMost(limit)) => format!("{text}! > {}", trimmed(limit)),
        Some(Limit::AtLeast(limit)) => format!("{text}! < {}", trimmed(limit)),
        None => text,
    }
}

/// At most two digits after the point.
fn trimmed(value: f64) -> String {
    format!("{}", (value * 100.0).round() / 100.0)
}

fn verdict(row: &Row, medians: &Figures) -> String {
    match (row.errors.first(), Row::missed(medians).len()) {
        // A log before the reason would break the table.
        (Some(error), _) => format!("{} failed: {}", row.errors.len(), error.lines().last().unwrap_or_default()),
        (None, 0) => "kept".to_owned(),
        (None, missed) => format!("{missed} missed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(share: f64, back_s: f64) -> Figures {
        let mut found = Figures::default();
        found.note("requests", 40.0);
        found.judge("share %", share, Limit::AtMost(5.0));
        found.judge("back s", back_s, Limit::AtMost(60.0));
        found
    }

    fn row(case: &str, runs: Vec<Figures>, errors: &[&str]) -> (Row, Figures) {
        let medians = Figures::medians(&runs);
        let errors = errors.iter().map(|error| (*error).to_owned()).collect();
        (Row { scenario: "engines".into(), case: case.into(), front: "ilb".into(), runs, errors }, medians)
    }

    #[test]
    fn the_table_marks_what_is_beyond_its_limit() {
        let rows = [
            row("good", vec![figures(0.25, 12.34)], &[]),
            row("bad", vec![figures(50.0, f64::INFINITY)], &[]),
            row("broken", Vec::new(), &["no answer"]),
        ];
        let text = table("engines", &rows.iter().collect::<Vec<_>>());
        let wanted = "\
| engines | proxy | requests | share % | back s      | verdict             |
| ------- | ----- | -------- | ------- | ----------- | ------------------- |
| good    | ilb   | 40       | 0.25    | 12.3        | kept                |
| bad     | ilb   | 40       | 50! > 5 | never! > 60 | 2 missed            |
| broken  | ilb   |          |         |             | 1 failed: no answer |
";
        assert_eq!(text, wanted);
    }

    #[test]
    fn a_json_line_names_what_is_missed_and_has_no_number_for_never() {
        let (row, medians) = row("bad", vec![figures(50.0, f64::INFINITY)], &[]);
        let line = Line { row: &row, medians: &medians, missed: Row::missed(&medians) };
        let json: serde_json::Value = serde_json::to_value(&line).expect("JSON");
        assert_eq!(json["missed"], serde_json::json!(["share %", "back s"]));
        assert_eq!((&json["medians"][1]["value"], &json["medians"][2]["value"]), (&50.0.into(), &serde_json::Value::Null));
        assert_eq!(json["medians"][1]["limit"], serde_json::json!({ "at_most": 5.0 }));
    }
}
