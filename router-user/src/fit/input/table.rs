//! CSV text to numbers, with the place of every mistake.
//!
//! The crate `csv` splits the text. A table has a header line; empty lines and lines that begin
//! with `#` are comments.

use std::fmt;

use csv::StringRecord;
use thiserror::Error;

use crate::config::suggest;

/// Mistakes reported at once. A file of the wrong kind has one in every cell, and a reader needs a
/// few to see it.
const MISTAKES_MAX: usize = 20;

/// Column with the name of the row's engine. It is for people, and may hold anything.
const ENGINE_COLUMN: &str = "engine";

/// Largest number of rows: two years of one-minute windows.
const ROWS_MAX: usize = 1_000_000;

/// A column, and the values that it may hold.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    /// Whether the header must name it and every row fill it.
    pub required: bool,
    /// Smallest and largest value.
    pub range: (f64, f64),
    /// A cell in words, with its unit.
    pub wanted: &'static str,
}

/// One mistake in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Counts from 1.
    pub line: usize,
    /// Name of the column, or its number where it has no name; empty for the line as a whole.
    pub column: String,
    pub message: String,
}

/// The mistakes of a file, in the order of their places.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct TableErrors {
    pub file: String,
    pub mistakes: Vec<Mistake>,
    /// Number of further mistakes.
    pub unlisted: usize,
}

impl fmt::Display for TableErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Mistake { line, column, message }) in self.mistakes.iter().enumerate() {
            let (end, comma) = (if index > 0 { "\n" } else { "" }, if column.is_empty() { "" } else { ": column " });
            write!(f, "{end}{}:{line}{comma}{column}: {message}", self.file)?;
        }
        if self.unlisted > 0 {
            write!(f, "\nand {} more", self.unlisted)?;
        }
        Ok(())
    }
}

/// Numbers by row and column.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// One entry per known column, in the order they were asked for.
    pub(crate) rows: Vec<Vec<Option<f64>>>,
    /// Line of each row in the file.
    pub(crate) lines: Vec<usize>,
}

/// Reads the text of `file`.
///
/// Errors: every mistake, up to a bound; never an empty list.
pub(crate) fn read(file: &str, text: &str, columns: &[Column]) -> Result<Table, TableErrors> {
    let mut mistakes = Mistakes { listed: Vec::new(), unlisted: 0 };
    let mut records = Records::new(text);
    let mut table = Table { rows: Vec::new(), lines: Vec::new() };
    if let Some((header, line)) = records.next() {
        let places = places(&header, line, columns, &mut mistakes);
        // Under a header that is not understood every cell would be a mistake.
        if mistakes.listed.is_empty() {
            for (record, line) in records {
                if table.rows.len() == ROWS_MAX {
                    mistakes.add(line, "", format!("is row {}; wanted {ROWS_MAX} at most", ROWS_MAX + 1));
                    break;
                }
                table.rows.push(row(&record, line, &places, columns, &mut mistakes));
                table.lines.push(line);
            }
            if table.rows.is_empty() {
                mistakes.add(line, "", "is the only line; wanted a row of numbers after the header".to_owned());
            }
        }
    } else {
        mistakes.add(1, "", format!("has no header; wanted {}", header_wanted(columns)));
    }
    if mistakes.listed.is_empty() {
        return Ok(table);
    }
    Err(TableErrors { file: file.to_owned(), mistakes: mistakes.listed, unlisted: mistakes.unlisted })
}

/// The records of a text, each with the line that it ends on.
struct Records<'t> {
    text: &'t str,
    reader: csv::Reader<&'t [u8]>,
    /// Where in the text the lines were counted to, and how many had ended by there.
    counted: (usize, usize),
}

impl<'t> Records<'t> {
    fn new(text: &'t str) -> Self {
        let text = text.trim_start_matches('\u{feff}');
        let mut reader = csv::ReaderBuilder::new();
        // Headers and lengths are judged here, where a mistake gets its place.
        reader.has_headers(false).flexible(true).trim(csv::Trim::All).comment(Some(b'#'));
        Self { text, reader: reader.from_reader(text.as_bytes()), counted: (0, 0) }
    }
}

impl Iterator for Records<'_> {
    type Item = (StringRecord, usize);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut record = StringRecord::new();
            if !self.reader.read_record(&mut record).expect("text in memory is read without errors") {
                return None;
            }
            // A record's own position may be that of a comment before it.
            let end = self.text[..self.reader.position().byte() as usize].trim_end_matches(['\r', '\n']).len();
            let (from, lines) = self.counted;
            self.counted = (end, lines + self.text[from..end].matches('\n').count());
            let first = record.get(0).unwrap_or_default();
            let is_comment = first.starts_with('#') || (first.is_empty() && record.len() == 1);
            if !is_comment {
                return Some((record, self.counted.1 + 1));
            }
        }
    }
}

struct Mistakes {
    listed: Vec<Mistake>,
    unlisted: usize,
}

impl Mistakes {
    fn add(&mut self, line: usize, column: &str, message: String) {
        if self.listed.len() < MISTAKES_MAX {
            self.listed.push(Mistake { line, column: column.to_owned(), message });
        } else {
            self.unlisted += 1;
        }
    }
}

fn header_wanted(columns: &[Column]) -> String {
    let names = |required| columns.iter().filter(move |c| c.required == required).map(|c| c.name).collect::<Vec<_>>().join(",");
    match names(false) {
        optional if optional.is_empty() => format!("the header {}", names(true)),
        optional => format!("the header {}, in any order, and any of {optional}", names(true)),
    }
}

/// For each cell of a row, which known column it is; `None` for one that is not read.
fn places(header: &StringRecord, line: usize, columns: &[Column], mistakes: &mut Mistakes) -> Vec<Option<usize>> {
    let mut places: Vec<Option<usize>> = Vec::new();
    for name in header {
        match columns.iter().position(|c| c.name == name) {
            Some(place) if places.contains(&Some(place)) => {
                mistakes.add(line, &format!("{name:?}"), "comes twice; wanted it once".to_owned())
            }
            Some(place) => places.push(Some(place)),
            None if name == ENGINE_COLUMN => places.push(None),
            None => {
                let hint = suggest(name, columns.iter().map(|c| c.name));
                mistakes.add(line, &format!("{name:?}"), format!("is unknown{hint}; wanted {}", header_wanted(columns)));
            }
        }
    }
    for (place, column) in columns.iter().enumerate() {
        if column.required && !places.contains(&Some(place)) {
            mistakes.add(line, &format!("{:?}", column.name), format!("is missing; wanted {}", column.wanted));
        }
    }
    places
}

fn row(
    cells: &StringRecord,
    line: usize,
    places: &[Option<usize>],
    columns: &[Column],
    mistakes: &mut Mistakes,
) -> Vec<Option<f64>> {
    let mut row = vec![None; columns.len()];
    if cells.len() != places.len() {
        mistakes.add(line, "", format!("has {} cells; wanted {}, as many as the header", cells.len(), places.len()));
        return row;
    }
    for (cell, &place) in cells.iter().zip(places) {
        let Some(place) = place else { continue };
        let column = &columns[place];
        let name = format!("{:?}", column.name);
        let (least, most) = column.range;
        match cell.parse::<f64>() {
            Ok(value) if value.is_finite() && (least..=most).contains(&value) => row[place] = Some(value),
            Ok(value) => mistakes.add(line, &name, format!("is {value}; wanted {}, {}", column.wanted, interval(column.range))),
            Err(_) if cell.is_empty() && !column.required => {}
            Err(_) if cell.is_empty() => {
                let message = format!("is empty; wanted {}; leave out a row that measured nothing", column.wanted);
                mistakes.add(line, &name, message);
            }
            Err(_) => {
                // 40 letters are enough to find the cell by.
                let cell: String = cell.chars().take(40).collect();
                mistakes.add(line, &name, format!("is {cell:?}; wanted {}", column.wanted));
            }
        }
    }
    row
}

fn interval((least, most): (f64, f64)) -> String {
    if most == f64::MAX { format!("{least} or more") } else { format!("from {least} to {most}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [
        Column { name: "load_rps", required: true, range: (0.0, f64::MAX), wanted: "requests/s" },
        Column { name: "ttft_ms", required: true, range: (0.0, f64::MAX), wanted: "ms" },
        Column { name: "hit_frac", required: false, range: (0.0, 1.0), wanted: "a share" },
    ];

    #[test]
    fn reads_columns_in_any_order_with_comments_and_gaps() {
        let table =
            read("s.csv", "\u{feff}ttft_ms, hit_frac,load_rps\n# a remark\n\n120,,3\r\n130,0.5,4\n", &COLUMNS).expect("a table");
        assert_eq!(table.rows, [vec![Some(3.0), Some(120.0), None], vec![Some(4.0), Some(130.0), Some(0.5)]]);
        assert_eq!(table.lines, [4, 5]);
        let table = read("s.csv", "engine,load_rps,ttft_ms\ne 1,3,120\n", &COLUMNS).expect("a table");
        assert_eq!(table.rows, [vec![Some(3.0), Some(120.0), None]]);
    }

    #[test]
    fn quotes_comments_and_line_ends_of_every_kind_keep_their_places() {
        let text = "# a\r\n\"load_rps\",\"ttft_ms\"\r\n \r\n  # b, c\n3,\"120\"\n\n# d\n4,130";
        let table = read("s.csv", text, &COLUMNS).expect("a table");
        assert_eq!(table.rows, [vec![Some(3.0), Some(120.0), None], vec![Some(4.0), Some(130.0), None]]);
        assert_eq!(table.lines, [5, 8]);
        let error = read("s.csv", "load_rps,ttft_ms\r\n1,2\r\n\r\n1,x\r\n", &COLUMNS).expect_err("x is no number");
        assert!(error.to_string().starts_with("s.csv:4: column \"ttft_ms\""), "{error}");
    }

    #[test]
    fn each_mistake_has_its_place_and_the_wanted_form() {
        let check = |text: &str, wanted: &str| {
            let error = read("s.csv", text, &COLUMNS).expect_err(wanted).to_string();
            assert!(error.contains(wanted), "{error:?} lacks {wanted:?}");
        };
        check("", "s.csv:1: has no header; wanted the header load_rps,ttft_ms, in any order, and any of hit_frac");
        check("load_rps,ttft_ms\n", "s.csv:1: is the only line");
        check("load_rps\n1\n", "s.csv:1: column \"ttft_ms\": is missing; wanted ms");
        check("load_rps,ttft_ms,hit_fraq\n", "s.csv:1: column \"hit_fraq\": is unknown; did you mean \"hit_frac\"?; wanted");
        check("load_rps,ttft_ms,load_rps\n", "column \"load_rps\": comes twice");
        check("load_rps,ttft_ms\n1,2\n1\n", "s.csv:3: has 1 cells; wanted 2");
        check("load_rps,ttft_ms\n1,x\n", "s.csv:2: column \"ttft_ms\": is \"x\"; wanted ms");
        check("load_rps,ttft_ms\n1,\n", "s.csv:2: column \"ttft_ms\": is empty");
        check("load_rps,ttft_ms\n1,NaN\n", "is NaN; wanted ms, 0 or more");
        check("load_rps,ttft_ms\n1,inf\n", "is inf; wanted ms, 0 or more");
        check("load_rps,ttft_ms\n-1,2\n", "is -1; wanted requests/s, 0 or more");
        check("load_rps,ttft_ms,hit_frac\n1,2,1.5\n", "is 1.5; wanted a share, from 0 to 1");
        check(&format!("load_rps,ttft_ms\n{}", "x,y\n".repeat(30)), "\nand 40 more");
    }
}
