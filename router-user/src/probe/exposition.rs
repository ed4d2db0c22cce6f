//! Reads Prometheus' text format line by line, and skips lines that it does not understand.

/// One line: a name, the text of its labels between the braces, and a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample<'t> {
    pub(super) name: &'t str,
    labels: &'t str,
    pub(super) value: f64,
}

/// The samples of a page. Comments, lines that are no sample, and lines that are no UTF-8 are
/// skipped.
pub(super) fn samples(page: &[u8]) -> impl Iterator<Item = Sample<'_>> {
    page.split(|&byte| byte == b'\n').filter_map(|line| sample(std::str::from_utf8(line).ok()?.trim()))
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(|c: char| c == '{' || c.is_ascii_whitespace())?;
    let (name, rest) = line.split_at(end);
    if name.is_empty() || name.starts_with('#') {
        return None;
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inner) => inner.split_at_checked(closing_brace(inner)?)?,
        None => ("", rest),
    };
    // A timestamp or an exemplar may follow the value.
    let value = rest.trim_start_matches('}').split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample { name, labels, value })
}

/// The end of the labels: the first closing brace outside quotes.
fn closing_brace(labels: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    labels.bytes().position(|byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return true,
            _ => {}
        }
        false
    })
}

impl<'t> Sample<'t> {
    /// Names and values of the labels. Values keep their escapes.
    pub(super) fn labels(&self) -> impl Iterator<Item = (&'t str, &'t str)> {
        let mut rest = self.labels;
        std::iter::from_fn(move || {
            let (name, after) = rest.trim_start_matches([',', ' ', '\t']).split_once('=')?;
            let quoted = after.trim_start().strip_prefix('"')?;
            let end = closing_quote(quoted)?;
            let value = &quoted[..end];
            rest = &quoted[end + 1..];
            Some((name.trim(), value))
        })
    }

    pub(super) fn label(&self, wanted: &str) -> Option<&'t str> {
        self.labels().find(|(name, _)| *name == wanted).map(|(_, value)| value)
    }
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_labels_values_timestamps_and_exemplars() {
        let page = concat!(
            "# HELP a b\n# TYPE a gauge\n\n",
            "plain 3\n",
            "  stamped{x=\"1\"} 2.5e1 1700000000000\r\n",
            "quoted{model=\"a\\\"b}\",le=\"+Inf\",} +Inf # {trace=\"1\"} 0.5\n",
            "empty{} NaN\n",
            "no_value{a=\"b\"}\nopen{a=\"b 4\nword x\n{a=\"b\"} 1\n",
        );
        let found: Vec<Sample<'_>> = samples(page.as_bytes()).collect();
        let names: Vec<&str> = found.iter().map(|s| s.name).collect();
        assert_eq!(names, ["plain", "stamped", "quoted", "empty"]);
        assert_eq!((found[0].value, found[1].value, found[2].value), (3.0, 25.0, f64::INFINITY));
        assert!(found[3].value.is_nan());
        assert_eq!(found[2].labels().collect::<Vec<_>>(), [("model", "a\\\"b}"), ("le", "+Inf")]);
        assert_eq!((found[1].label("x"), found[1].label("y"), found[0].label("x")), (Some("1"), None, None));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(page in proptest::collection::vec(proptest::num::u8::ANY, 0..512)) {
            for sample in samples(&page) {
                sample.labels().count();
            }
        }

        #[test]
        fn what_looks_like_a_page_is_read_without_harm(page in "([a-z:_]{0,3}(\\{[a-z=\\\\\",}{]{0,12}\\}?)? [0-9einfNaN+.-]{0,5}\n){0,8}") {
            for sample in samples(page.as_bytes()) {
                assert!(sample.labels().count() <= page.len());
            }
        }
    }
}
