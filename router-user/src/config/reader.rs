//! Walks a TOML document, keeps the place of every value and collects mistakes instead of stopping
//! at the first.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::errors::Mistake;
use super::key::{Form, Key, MAX_NAME, Preset, Table};
use super::keys;

/// A value with its place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) place: Place,
}

/// A place in the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) path: String,
    pub(super) line: usize,
}

/// A list of (load, value) pairs.
pub(super) type Pairs = Vec<(f64, f64)>;

/// Owner of the document and of the mistakes found in it.
pub(super) struct Reader<'s> {
    source: &'s str,
    document: Spanned<DeTable<'s>>,
    /// Stands for every table that the document does not have.
    empty: DeTable<'s>,
    mistakes: RefCell<Vec<Mistake>>,
}

/// One table of the document. It remembers every key it was asked for.
pub(super) struct Section<'r> {
    reader: &'r Reader<'r>,
    table: &'r DeTable<'r>,
    pub(super) place: Place,
    asked: RefCell<Vec<&'static str>>,
}

impl<'s> Reader<'s> {
    /// Parses `source`; text that is no TOML is already a mistake.
    pub(super) fn new(source: &'s str) -> Self {
        let (document, errors) = DeTable::parse_recoverable(source);
        let reader = Self { source, document, empty: DeTable::new(), mistakes: RefCell::default() };
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

    /// The whole document.
    pub(super) fn root(&self) -> Section<'_> {
        let place = Place { path: String::new(), line: 0 };
        Section { reader: self, table: self.document.get_ref(), place, asked: RefCell::default() }
    }

    /// `value` if there was no mistake at all, otherwise every mistake by place.
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

    /// Refuses every key that `table` does not have, with the closest known one as a suggestion.
    ///
    /// Panics: the reader has asked for other keys than `table` has, so that one of them is wrong.
    pub(super) fn refuse_unknown(&self, table: &Table) {
        let known: Vec<&str> = table.keys.iter().map(|key| key.name).collect();
        let mut asked = self.asked.borrow().clone();
        asked.sort_unstable();
        let mut described = known.clone();
        described.sort_unstable();
        assert_eq!(asked, described, "the reader asks for every key of {} and for no other", table.heading);
        self.refuse_others(&known);
    }

    /// Refuses every table of the document that is not among `known`.
    pub(super) fn refuse_others(&self, known: &[&str]) {
        for key in self.table.keys() {
            let name = key.get_ref().as_ref();
            if !known.contains(&name) {
                let place = Place { path: join(&self.place.path, name), line: self.reader.line(&key.span()) };
                self.reader.mistake(&place, format!("is an unknown key{}", suggest(name, known.iter().copied())));
            }
        }
    }

    fn get(&self, key: &str) -> Option<(&'r DeValue<'r>, Place)> {
        let (name, value) = self.table.iter().find(|(name, _)| name.get_ref() == key)?;
        // The key's own line: a value may span several.
        Some((value.get_ref(), Place { path: join(&self.place.path, key), line: self.reader.line(&name.span()) }))
    }

    /// The value of a key in its form; a mistake where it has another, or is missing and required.
    fn value<T>(&self, key: &Key, read: impl Fn(&DeValue<'r>) -> Option<T>) -> Option<At<T>> {
        self.asked.borrow_mut().push(key.name);
        let found = self.get(key.name);
        if found.is_none() && matches!(key.preset, Preset::Required) {
            let place = Place { path: join(&self.place.path, key.name), line: self.place.line };
            self.reader.mistake(&place, format!("is missing; wanted {}", key.form.wanted()));
        }
        self.typed(found, &key.form.wanted(), read)
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

    /// A string in the form of its key.
    pub(super) fn text(&self, key: &Key) -> Option<At<String>> {
        let is_legal = |text: &str| match key.form {
            Form::Name => is_name(text),
            Form::Url => text.starts_with("http://") || text.starts_with("file:///"),
            Form::EtcdPrefix => text.starts_with('/') && text.len() > 1 && !text.ends_with('/'),
            _ => !text.is_empty(),
        };
        self.value(key, |v| v.as_str().filter(|text| is_legal(text)).map(str::to_owned))
    }

    pub(super) fn flag(&self, key: &Key) -> Option<At<bool>> {
        self.value(key, DeValue::as_bool)
    }

    pub(super) fn number(&self, key: &Key) -> Option<At<f64>> {
        let Form::Number(range, _) = key.form else { panic!("{} is described as another form than a number", key.name) };
        self.value(key, |v| number(v).filter(|&n| range.contains(n)))
    }

    pub(super) fn whole(&self, key: &Key) -> Option<At<u64>> {
        let Form::Whole(from, to, _) = key.form else { panic!("{} is described as another form than a whole number", key.name) };
        self.value(key, |v| {
            let integer = v.as_integer()?;
            u64::from_str_radix(integer.as_str(), integer.radix()).ok().filter(|n| (from..=to).contains(n))
        })
    }

    pub(super) fn duration(&self, key: &Key) -> Option<At<Duration>> {
        let is_legal = |duration: &Duration| match key.form {
            Form::Duration(from, to) => (from..=to).contains(duration),
            Form::DurationOrZero(from, to, _) => duration.is_zero() || (from..=to).contains(duration),
            Form::Seconds(from, to) => (from..=to).contains(duration) && duration.subsec_nanos() == 0,
            _ => panic!("{} is described as another form than a duration", key.name),
        };
        self.value(key, |v| humantime::parse_duration(v.as_str()?).ok().filter(is_legal))
    }

    pub(super) fn address(&self, key: &Key) -> Option<At<SocketAddr>> {
        self.value(key, |v| v.as_str()?.parse().ok())
    }

    /// An address, or `None` for "off".
    pub(super) fn address_or_off(&self, key: &Key) -> Option<At<Option<SocketAddr>>> {
        self.value(key, |v| match v.as_str()? {
            "off" => Some(None),
            text => text.parse().ok().map(Some),
        })
    }

    /// One address, or an array of them; each wrong one is a mistake of its own.
    pub(super) fn addresses(&self, key: &Key) -> Option<At<Vec<SocketAddr>>> {
        let single = |v: &DeValue<'_>| v.as_str()?.parse().ok();
        if self.get(key.name).is_some_and(|(value, _)| value.as_array().is_some()) {
            return self.items(key, &Form::Address.wanted(), single);
        }
        self.value(key, |v| Some(vec![single(v)?]))
    }

    pub(super) fn texts(&self, key: &Key) -> Option<At<Vec<String>>> {
        self.items(key, "a string that is not empty", |v| v.as_str().filter(|text| !text.is_empty()).map(str::to_owned))
    }

    /// The items of an array, each read by `read`.
    fn items<T>(&self, key: &Key, wanted: &str, read: impl Fn(&DeValue<'r>) -> Option<T>) -> Option<At<Vec<T>>> {
        let At { value, place } = self.value(key, |v| v.as_array().map(|_| ()))?;
        let () = value;
        let array = self.get(key.name)?.0.as_array()?;
        let item = |(index, item): (usize, &'r Spanned<DeValue<'r>>)| {
            let place = Place { path: format!("{}[{index}]", place.path), line: self.reader.line(&item.span()) };
            self.typed(Some((item.get_ref(), place)), wanted, &read).map(|at| at.value)
        };
        // Every item is read before the first that is wrong ends it.
        let items: Vec<Option<T>> = array.iter().enumerate().map(item).collect();
        Some(At { value: items.into_iter().collect::<Option<_>>()?, place })
    }

    /// An array of `[load, value]` pairs. Whether they make a curve is for the curve to say.
    pub(super) fn knots(&self, key: &Key) -> Option<At<Pairs>> {
        let pair = |pair: &Spanned<DeValue<'_>>| {
            let numbers: Option<Vec<f64>> = pair.get_ref().as_array()?.iter().map(|n| number(n.get_ref())).collect();
            match numbers?[..] {
                [load, value] => Some((load, value)),
                _ => None,
            }
        };
        self.value(key, |v| v.as_array()?.iter().map(pair).collect())
    }

    /// The table under a key, if there is one.
    pub(super) fn section(&self, key: &Key) -> Option<Section<'r>> {
        self.asked.borrow_mut().push(key.name);
        self.as_section(self.get(key.name))
    }

    /// The table under a key, or an empty one.
    pub(super) fn table(&self, table: &Table) -> Section<'r> {
        let place = Place { path: table.name.to_owned(), line: 0 };
        let empty = Section { reader: self.reader, table: &self.reader.empty, place, asked: RefCell::default() };
        self.as_section(self.get(table.name)).unwrap_or(empty)
    }

    /// The tables `[NAME.name]` under a key, with their names.
    pub(super) fn named(&self, table: &Table) -> Vec<(String, Section<'r>)> {
        let section = self.table(table);
        let named = |name: &'r str| Some((name.to_owned(), section.as_section(section.get(name))?));
        section.names().into_iter().filter_map(named).collect()
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
    pub(super) fn each(&self, table: &Table) -> Vec<Section<'r>> {
        let Some((value, place)) = self.get(table.name) else { return Vec::new() };
        let Some(array) = value.as_array() else {
            self.reader.mistake(&place, format!("is {}; wanted tables headed {}", describe(value), table.heading));
            return Vec::new();
        };
        let item = |(index, item): (usize, &'r Spanned<DeValue<'r>>)| {
            let place = Place { path: format!("{}[{index}]", place.path), line: self.reader.line(&item.span()) };
            self.as_section(Some((item.get_ref(), place)))
        };
        array.iter().enumerate().filter_map(item).collect()
    }

    /// A table whose keys are names and whose values are strings.
    pub(super) fn text_map(&self, key: &Key) -> Vec<(String, At<String>)> {
        let section = self.section(key);
        section.map_or_else(Vec::new, |s| s.entries("a string", |v| v.as_str().map(str::to_owned)))
    }

    /// A table whose keys are names and whose values are numbers.
    pub(super) fn number_map(&self, key: &Key) -> Vec<(String, At<f64>)> {
        let Form::NumberMap(range, unit) = key.form else { panic!("{} is described as another form than numbers", key.name) };
        let section = self.section(key);
        let read = |v: &DeValue<'r>| number(v).filter(|&n| range.contains(n));
        section.map_or_else(Vec::new, |s| s.entries(&range.wanted(unit), read))
    }

    /// Every entry of this table as a distance. A wrong one is a mistake and counts as 0, so that
    /// it does not seem to be missing as well.
    pub(super) fn distances(&self) -> Vec<(String, At<f64>)> {
        let Form::Number(range, unit) = keys::rtt::REGION.form else { panic!("a distance is described as another form") };
        let distance = |name: &'r str| {
            let (value, place) = self.get(name)?;
            let found =
                self.typed(Some((value, place.clone())), &range.wanted(unit), |v| number(v).filter(|&n| range.contains(n)));
            Some((name.to_owned(), At { value: found.map_or(0.0, |at| at.value), place }))
        };
        self.names().into_iter().filter_map(distance).collect()
    }

    fn entries<T>(&self, wanted: &str, read: impl Fn(&DeValue<'r>) -> Option<T>) -> Vec<(String, At<T>)> {
        self.names().into_iter().filter_map(|name| Some((name.to_owned(), self.typed(self.get(name), wanted, &read)?))).collect()
    }
}

/// ", did you mean X?" for the closest of `known`, or nothing when none is close.
pub(crate) fn suggest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let close = known.map(|k| (strsim::jaro_winkler(name, k), k)).max_by(|a, b| a.0.total_cmp(&b.0));
    // Jaro-Winkler above 0.8 catches a slip of one or two letters and a swapped pair, not another
    // word.
    close.filter(|(score, _)| *score > 0.8).map_or_else(String::new, |(_, k)| format!("; did you mean {k:?}?"))
}

fn is_name(text: &str) -> bool {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=MAX_NAME).contains(&text.len()) && text.chars().all(is_legal)
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

/// The value as a mistake quotes it: shortened, and in the words of the wanted forms.
fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{:?}", text.chars().take(60).collect::<String>()),
        DeValue::Integer(integer) => integer.as_str().to_owned(),
        DeValue::Float(float) => float.as_str().to_owned(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(date) => date.to_string(),
        DeValue::Array(items) if items.is_empty() => "an empty array".to_owned(),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}
