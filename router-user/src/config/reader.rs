//! Walks a TOML document, keeps the place of every value and collects mistakes instead of stopping at the first.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Mistake;

/// A value with its place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) place: Place,
}

/// Where something stands in the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) path: String,
    pub(super) line: usize,
}

/// Owner of the document and of the mistakes found in it.
pub(super) struct Reader<'s> {
    source: &'s str,
    document: Spanned<DeTable<'s>>,
    mistakes: RefCell<Vec<Mistake>>,
}

/// One table of the document. Every key that is asked for is remembered, so that the rest can be refused.
pub(super) struct Section<'r> {
    reader: &'r Reader<'r>,
    table: &'r DeTable<'r>,
    pub(super) place: Place,
    asked: RefCell<Vec<&'static str>>,
}

impl<'s> Reader<'s> {
    /// Parses `source`; what is no TOML is already a mistake.
    pub(super) fn new(source: &'s str) -> Self {
        let (document, errors) = DeTable::parse_recoverable(source);
        let reader = Self { source, document, mistakes: RefCell::default() };
        for error in errors {
            let place = Place { path: String::new(), line: error.span().map_or(0, |span| reader.line(&span)) };
            reader.mistake(&place, format!("is not valid TOML: {}", error.message().trim()));
        }
        reader
    }

    /// True while no mistake has been found.
    pub(super) fn is_clean(&self) -> bool {
        self.mistakes.borrow().is_empty()
    }

    pub(super) fn mistake(&self, place: &Place, message: impl Into<String>) {
        self.mistakes.borrow_mut().push(Mistake { line: place.line, path: place.path.clone(), message: message.into() });
    }

    /// The whole document as a section.
    pub(super) fn root(&self) -> Section<'_> {
        let place = Place { path: String::new(), line: 0 };
        Section { reader: self, table: self.document.get_ref(), place, asked: RefCell::default() }
    }

    /// `value` if there was no mistake at all, else every mistake by place.
    pub(super) fn finish<T>(self, value: Option<T>) -> Result<T, Vec<Mistake>> {
        let mut mistakes = self.mistakes.into_inner();
        mistakes.sort();
        mistakes.dedup();
        match value {
            Some(value) if mistakes.is_empty() => Ok(value),
            _ => {
                assert!(!mistakes.is_empty(), "a configuration is only missing when a mistake says why");
                Err(mistakes)
            }
        }
    }

    fn line(&self, span: &Range<usize>) -> usize {
        1 + self.source.as_bytes()[..span.start.min(self.source.len())].iter().filter(|&&b| b == b'\n').count()
    }
}

impl<'r> Section<'r> {
    /// The table's own keys, for tables whose keys are names.
    pub(super) fn names(&self) -> Vec<&'r str> {
        self.table.keys().map(|key| key.get_ref().as_ref()).collect()
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.keys().any(|k| k.get_ref() == key)
    }

    /// Refuses every key that was never asked for, with the closest known one as a suggestion.
    pub(super) fn refuse_unknown(&self) {
        let asked = self.asked.borrow();
        for key in self.table.keys() {
            let name = key.get_ref().as_ref();
            if !asked.contains(&name) {
                let place = Place { path: join(&self.place.path, name), line: self.reader.line(&key.span()) };
                self.reader.mistake(&place, format!("is an unknown key{}", suggest(name, asked.iter().copied())));
            }
        }
    }

    fn get(&self, key: &str) -> Option<(&'r DeValue<'r>, Place)> {
        let (name, value) = self.table.iter().find(|(name, _)| name.get_ref() == key)?;
        // The key's own line: a value may span several.
        Some((value.get_ref(), Place { path: join(&self.place.path, key), line: self.reader.line(&name.span()) }))
    }

    fn ask(&self, key: &'static str) -> Option<(&'r DeValue<'r>, Place)> {
        self.asked.borrow_mut().push(key);
        self.get(key)
    }

    fn typed<T>(
        &self,
        found: Option<(&'r DeValue<'r>, Place)>,
        wanted: &str,
        read: impl Fn(&DeValue<'r>) -> Option<T>,
    ) -> Option<At<T>> {
        let (value, place) = found?;
        match read(value) {
            Some(value) => Some(At { value, place }),
            None => {
                self.reader.mistake(&place, format!("is {}; wanted {wanted}", describe(value)));
                None
            }
        }
    }

    /// Notes that a key that must be there is not.
    pub(super) fn missing(&self, key: &str, wanted: &str) {
        let place = Place { path: join(&self.place.path, key), line: self.place.line };
        self.reader.mistake(&place, format!("is missing; wanted {wanted}"));
    }

    pub(super) fn required<T>(&self, key: &'static str, wanted: &str, value: Option<At<T>>) -> Option<At<T>> {
        if value.is_none() && !self.has(key) {
            self.missing(key, wanted);
        }
        value
    }

    pub(super) fn text(&self, key: &'static str) -> Option<At<String>> {
        self.typed(self.ask(key), "a string", |v| v.as_str().map(str::to_owned))
    }

    pub(super) fn flag(&self, key: &'static str) -> Option<At<bool>> {
        self.typed(self.ask(key), "true or false", DeValue::as_bool)
    }

    pub(super) fn number(&self, key: &'static str) -> Option<At<f64>> {
        self.typed(self.ask(key), "a number", number)
    }

    /// A whole number within `range`.
    pub(super) fn whole(&self, key: &'static str, range: Range<u64>) -> Option<At<u64>> {
        let wanted = format!("a whole number from {} to {}", range.start, range.end - 1);
        self.typed(self.ask(key), &wanted, |v| {
            let integer = v.as_integer()?;
            u64::from_str_radix(integer.as_str(), integer.radix()).ok().filter(|n| range.contains(n))
        })
    }

    /// A length of time such as "2s" or "250ms", within `range`.
    pub(super) fn duration(&self, key: &'static str, range: Range<Duration>) -> Option<At<Duration>> {
        let (from, to) = (humantime::format_duration(range.start), humantime::format_duration(range.end));
        let wanted = format!("a duration from \"{from}\" to \"{to}\", such as \"2s\" or \"250ms\"");
        self.typed(self.ask(key), &wanted, |v| {
            humantime::parse_duration(v.as_str()?).ok().filter(|d| range.contains(d) || *d == range.end)
        })
    }

    pub(super) fn address(&self, key: &'static str) -> Option<At<SocketAddr>> {
        self.typed(self.ask(key), ADDRESS, |v| v.as_str()?.parse().ok())
    }

    /// One address, or a list of them.
    pub(super) fn addresses(&self, key: &'static str) -> Option<At<Vec<SocketAddr>>> {
        self.typed(self.ask(key), "a list of \"IP:PORT\" addresses", |v| match v.as_array() {
            Some(array) => array.iter().map(|item| item.get_ref().as_str()?.parse().ok()).collect(),
            None => Some(vec![v.as_str()?.parse().ok()?]),
        })
    }

    pub(super) fn texts(&self, key: &'static str) -> Option<At<Vec<String>>> {
        self.typed(self.ask(key), "a list of strings", |v| {
            v.as_array()?.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect()
        })
    }

    /// A list of `[load, value]` pairs. What the numbers must be is for the curve to say.
    pub(super) fn knots(&self, key: &'static str) -> Option<At<Vec<(f64, f64)>>> {
        self.typed(self.ask(key), KNOTS, |v| {
            (v.as_array()?.iter())
                .map(|pair| match pair.get_ref().as_array()?.iter().map(|n| number(n.get_ref())).collect::<Option<Vec<_>>>()?[..]
                {
                    [load, value] => Some((load, value)),
                    _ => None,
                })
                .collect()
        })
    }

    pub(super) fn section(&self, key: &'static str) -> Option<Section<'r>> {
        self.as_section(self.ask(key))
    }

    /// A section under a key that is a name chosen by the user.
    pub(super) fn named(&self, name: &str) -> Option<Section<'r>> {
        self.as_section(self.get(name))
    }

    fn as_section(&self, found: Option<(&'r DeValue<'r>, Place)>) -> Option<Section<'r>> {
        let (value, place) = found?;
        match value.as_table() {
            Some(table) => Some(Section { reader: self.reader, table, place, asked: RefCell::default() }),
            None => {
                self.reader.mistake(&place, format!("is {}; wanted a table", describe(value)));
                None
            }
        }
    }

    /// The tables of an array of tables, `[[key]]`.
    pub(super) fn each(&self, key: &'static str) -> Vec<Section<'r>> {
        let Some((value, place)) = self.ask(key) else { return Vec::new() };
        let Some(array) = value.as_array() else {
            self.reader.mistake(&place, format!("is {}; wanted tables headed [[{key}]]", describe(value)));
            return Vec::new();
        };
        (array.iter().enumerate())
            .filter_map(|(index, item)| {
                let place = Place { path: format!("{}[{index}]", place.path), line: self.reader.line(&item.span()) };
                self.as_section(Some((item.get_ref(), place)))
            })
            .collect()
    }

    /// A table whose keys are names and whose values are strings.
    pub(super) fn text_map(&self, key: &'static str) -> Vec<(String, At<String>)> {
        self.map(key, "a string", |v| v.as_str().map(str::to_owned))
    }

    /// A table whose keys are names and whose values are numbers.
    pub(super) fn number_map(&self, key: &'static str) -> Vec<(String, At<f64>)> {
        self.map(key, "a number", number)
    }

    fn map<T>(&self, key: &'static str, wanted: &str, read: impl Fn(&DeValue<'r>) -> Option<T>) -> Vec<(String, At<T>)> {
        self.section(key).map_or_else(Vec::new, |section| section.entries(wanted, read))
    }

    /// Every entry of this table as a number.
    pub(super) fn numbers(&self) -> Vec<(String, At<f64>)> {
        self.entries("a number", number)
    }

    fn entries<T>(&self, wanted: &str, read: impl Fn(&DeValue<'r>) -> Option<T>) -> Vec<(String, At<T>)> {
        self.names().into_iter().filter_map(|name| Some((name.to_owned(), self.typed(self.get(name), wanted, &read)?))).collect()
    }
}

pub(super) const ADDRESS: &str = "an \"IP:PORT\" address, such as \"127.0.0.1:8080\"";
pub(super) const KNOTS: &str = "knots [[load_rps, value_ms], ...], such as [[0, 120], [50, 150]]";

/// ", did you mean X?" for the closest of `known`, or nothing when none is close.
pub(crate) fn suggest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let close = known.map(|k| (strsim::jaro_winkler(name, k), k)).max_by(|a, b| a.0.total_cmp(&b.0));
    // Jaro-Winkler above 0.8 catches a slip of one or two letters and a swapped pair, not another word.
    close.filter(|(score, _)| *score > 0.8).map_or_else(String::new, |(_, k)| format!("; did you mean {k:?}?"))
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Float(float) => float.as_str().replace('_', "").parse().ok(),
        DeValue::Integer(integer) => i64::from_str_radix(integer.as_str(), integer.radix()).ok().map(|n| n as f64),
        _ => None,
    }
}

/// The value as the mistake quotes it, shortened.
fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{:?}", text.chars().take(60).collect::<String>()),
        DeValue::Integer(integer) => integer.as_str().to_owned(),
        DeValue::Float(float) => float.as_str().to_owned(),
        DeValue::Boolean(flag) => flag.to_string(),
        other => format!("of type {}", other.type_str()),
    }
}
