//! Prometheus' text form, version 0.0.4.

use std::fmt::{Display, Write};

/// Metrics as text: a family is announced once, then come its samples.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// Content type of the text.
    pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

    /// Announces a counter; its name ends in `_total`.
    pub fn counter(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family(name, help, "counter")
    }

    pub fn gauge(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family(name, help, "gauge")
    }

    fn family(&mut self, name: &str, help: &str, kind: &str) -> Family<'_> {
        writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}").expect("writing to a string cannot fail");
        Family { name: name.to_owned(), text: &mut self.text }
    }

    pub fn into_text(self) -> String {
        self.text
    }
}

/// One metric name, to which samples are added.
#[derive(Debug)]
pub struct Family<'e> {
    name: String,
    text: &'e mut String,
}

impl Family<'_> {
    /// Adds a sample with labels in the given order.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.text.push_str(&self.name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let open = if index == 0 { '{' } else { ',' };
            write!(self.text, "{open}{label}=\"{escaped}\"").expect("writing to a string cannot fail");
        }
        let close = if labels.is_empty() { "" } else { "}" };
        writeln!(self.text, "{close} {value}").expect("writing to a string cannot fail");
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_carry_escaped_labels_and_families_are_announced_once() {
        let mut metrics = Exposition::default();
        metrics.gauge("ilb_age_seconds", "Age.").sample(&[], 1.5);
        metrics
            .counter("ilb_x_total", "Xs.")
            .sample(&[("engine", "a\"b\\c\nd"), ("code", "2xx")], 3)
            .sample(&[("engine", "z")], 4);
        let wanted = "# HELP ilb_age_seconds Age.\n# TYPE ilb_age_seconds gauge\nilb_age_seconds 1.5\n\
            # HELP ilb_x_total Xs.\n# TYPE ilb_x_total counter\n\
            ilb_x_total{engine=\"a\\\"b\\\\c\\nd\",code=\"2xx\"} 3\nilb_x_total{engine=\"z\"} 4\n";
        assert_eq!(metrics.into_text(), wanted);
    }
}
