//! The description of a key: the reader checks values by it, and docs/configuration.md is made of
//! it.

use std::time::Duration;

/// Longest name of a cluster, engine or class, in bytes: names travel in headers and metric labels.
pub(super) const MAX_NAME: usize = 64;

/// One key of a table.
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) form: Form,
    pub(super) preset: Preset,
    /// What the value means, as sentences.
    pub(super) meaning: &'static str,
    /// Why the default is what it is; empty where there is nothing to say.
    pub(super) reason: &'static str,
}

/// One table of the file.
pub(super) struct Table {
    /// Key of the table in its parent.
    pub(super) name: &'static str,
    /// The heading as a file has it.
    pub(super) heading: &'static str,
    pub(super) meaning: &'static str,
    pub(super) keys: &'static [&'static Key],
}

/// The form of a value.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// Any string that is not empty; the text names it, such as "a path".
    Text(&'static str),
    /// The name of a cluster, an engine or a class.
    Name,
    Flag,
    /// A number and its unit.
    Number(Range, &'static str),
    /// A whole number from the first to the second, and its unit.
    Whole(u64, u64, &'static str),
    /// A duration from the first to the second.
    Duration(Duration, Duration),
    /// As [`Form::Duration`], or 0, whose meaning the text says.
    DurationOrZero(Duration, Duration, &'static str),
    /// As [`Form::Duration`], in whole seconds.
    Seconds(Duration, Duration),
    Address,
    AddressOrOff,
    Addresses,
    Url,
    EtcdPrefix,
    /// An array of strings that are not empty.
    Texts,
    /// A latency curve.
    Knots,
    /// A table of strings.
    TextMap,
    /// A table of numbers and their unit.
    NumberMap(Range, &'static str),
    /// A table of its own, described apart.
    Table,
}

/// Where a number may lie; all are finite.
#[derive(Clone, Copy)]
pub(super) enum Range {
    FromZero,
    FromOne,
    AboveZero,
    /// From 0 to below 1.
    BelowOne,
    /// Above 0, at most 1.
    UpToOne,
}

/// The value of a key that is left out.
#[derive(Clone, Copy)]
pub(super) enum Preset {
    Required,
    /// No value; the text says what follows.
    Nothing(&'static str),
    /// Made from other keys or the environment; the text says how.
    Derived(&'static str),
    Text(&'static str),
    Number(f64),
    Whole(u64),
    Flag(bool),
    Duration(Duration),
}

impl Key {
    pub(super) const fn new(name: &'static str, form: Form, preset: Preset, meaning: &'static str) -> Self {
        Self { name, form, preset, meaning, reason: "" }
    }

    /// The default of a key that holds a number; as those below, for keys of that form alone.
    pub(super) fn preset_number(&self) -> f64 {
        let Preset::Number(number) = self.preset else { self.has_other_preset() };
        number
    }

    pub(super) fn preset_whole(&self) -> u64 {
        let Preset::Whole(number) = self.preset else { self.has_other_preset() };
        number
    }

    pub(super) fn preset_flag(&self) -> bool {
        let Preset::Flag(flag) = self.preset else { self.has_other_preset() };
        flag
    }

    pub(super) fn preset_duration(&self) -> Duration {
        let Preset::Duration(duration) = self.preset else { self.has_other_preset() };
        duration
    }

    pub(super) fn preset_text(&self) -> &'static str {
        let Preset::Text(text) = self.preset else { self.has_other_preset() };
        text
    }

    fn has_other_preset(&self) -> ! {
        panic!("the default of {} is of another kind than its form", self.name)
    }

    /// The reason for the default.
    pub(super) const fn because(self, reason: &'static str) -> Self {
        Self { reason, ..self }
    }
}

impl Range {
    pub(super) fn contains(self, number: f64) -> bool {
        match self {
            Self::FromZero => number.is_finite() && number >= 0.0,
            Self::FromOne => number.is_finite() && number >= 1.0,
            Self::AboveZero => number.is_finite() && number > 0.0,
            Self::BelowOne => (0.0..1.0).contains(&number),
            Self::UpToOne => number > 0.0 && number <= 1.0,
        }
    }

    pub(super) fn wanted(self, unit: &str) -> String {
        match self {
            Self::FromZero => format!("a finite number of {unit}, 0 or more"),
            Self::FromOne => format!("a finite number of {unit}, 1 or more"),
            Self::AboveZero => format!("a finite number of {unit} above 0"),
            Self::BelowOne => "a fraction from 0 to below 1".to_owned(),
            Self::UpToOne => "a fraction above 0, at most 1".to_owned(),
        }
    }
}

impl Form {
    /// The form in words: what a message says is wanted, and the reference after "Form:".
    pub(super) fn wanted(self) -> String {
        let show = humantime::format_duration;
        match self {
            Self::Text(what) => what.to_owned(),
            Self::Name => format!("a name of 1 to {MAX_NAME} letters, digits, '-', '_' or '.'"),
            Self::Flag => "true or false".to_owned(),
            Self::Number(range, unit) => range.wanted(unit),
            Self::Whole(from, to, unit) => format!("a whole number of {unit} from {from} to {to}"),
            Self::Duration(from, to) => {
                format!("a duration from \"{}\" to \"{}\", such as \"2s\" or \"250ms\"", show(from), show(to))
            }
            Self::DurationOrZero(from, to, zero) => {
                format!("a duration from \"{}\" to \"{}\", or \"0s\" to {zero}", show(from), show(to))
            }
            Self::Seconds(from, to) => format!("a duration from \"{}\" to \"{}\" in whole seconds", show(from), show(to)),
            Self::Address => "an address \"IP:PORT\", such as \"127.0.0.1:8080\"".to_owned(),
            Self::AddressOrOff => "an address \"IP:PORT\", such as \"127.0.0.1:8080\", or \"off\"".to_owned(),
            Self::Addresses => "an address \"IP:PORT\" or an array of them".to_owned(),
            Self::Url => "the controller's \"http://HOST:PORT\", or its directory as \"file:///PATH\"".to_owned(),
            Self::EtcdPrefix => "a path that begins with a slash and does not end in one, such as \"/ilb\"".to_owned(),
            Self::Texts => "an array of strings".to_owned(),
            Self::Knots => "knots [[load_rps, value_ms], ...], such as [[0, 120], [50, 150]]".to_owned(),
            Self::TextMap => "a table of strings, such as { residency = \"eu\" }".to_owned(),
            Self::NumberMap(range, unit) => format!("a table, each value {}", range.wanted(unit)),
            Self::Table => "a table".to_owned(),
        }
    }
}
