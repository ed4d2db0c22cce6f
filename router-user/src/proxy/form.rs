//! The field `model` of a multipart form, wherever in the form it stands. A scan stops and goes on
//! after any byte, as that of [`super::payload`] does.
//!
//! Source: RFC 7578, RFC 2046 section 5.1.

use memchr::memmem;

use super::payload::MODEL_BYTES_MAX;

/// Bytes of a part's own head. Real ones have a name, a file name and a type.
const PART_HEAD_MAX: usize = 8 << 10;
/// Bytes of a boundary (RFC 2046 5.1.1).
const BOUNDARY_MAX: usize = 70;

/// The boundary of a multipart form, told by the value of its Content-Type.
pub(super) fn boundary(content_type: &[u8]) -> Option<&[u8]> {
    let end = memchr::memchr(b';', content_type).unwrap_or(content_type.len());
    if !content_type[..end].trim_ascii().eq_ignore_ascii_case(b"multipart/form-data") {
        return None;
    }
    parameter(content_type, "boundary").filter(|text| (1..=BOUNDARY_MAX).contains(&text.len()))
}

/// A parameter of a value such as `form-data; name="model"`, without its quotes. Escapes within
/// quotes stay: browsers write `%22` for a quote, and no name that is looked for has one.
fn parameter<'v>(value: &'v [u8], wanted: &str) -> Option<&'v [u8]> {
    let mut rest = value;
    loop {
        rest = &rest[memchr::memchr(b';', rest)? + 1..];
        let equals = memchr::memchr2(b'=', b';', rest)?;
        if rest[equals] == b';' {
            continue;
        }
        let (name, text) = (rest[..equals].trim_ascii(), rest[equals + 1..].trim_ascii_start());
        let (text, after) = match text.strip_prefix(b"\"") {
            Some(quoted) => quoted.split_at(end_of_quotes(quoted)?),
            None => text.split_at(memchr::memchr(b';', text).unwrap_or(text.len())),
        };
        if name.eq_ignore_ascii_case(wanted.as_bytes()) {
            return Some(text.trim_ascii_end());
        }
        rest = after;
    }
}

fn end_of_quotes(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

/// The model that a form names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FormModel<'a> {
    /// No field `model`, or the body is not a form with this boundary.
    None,
    One(&'a str),
    /// The field is longer than a name, not text, or there are two with different values.
    Unclear,
}

/// A scan in slices.
pub(super) struct FormScan<'a> {
    body: &'a [u8],
    /// CR LF, two hyphens and the boundary.
    delimiter: memmem::Finder<'static>,
    at: usize,
    /// Where the value of a field `model` starts, within its part.
    value: Option<usize>,
    model: FormModel<'a>,
}

impl<'a> FormScan<'a> {
    pub(super) fn new(body: &'a [u8], boundary: &[u8]) -> Self {
        let delimiter = memmem::Finder::new(&[b"\r\n--", boundary].concat()).into_owned();
        let mut scan = Self { body, delimiter, at: 0, value: None, model: FormModel::None };
        // The first delimiter has no line end before it where nothing stands before it.
        if body.starts_with(&scan.delimiter.needle()[2..]) {
            scan.begin_part(scan.delimiter.needle().len() - 2);
        }
        scan
    }

    /// Goes on for about `bytes` of the body; `None` while there is more to scan.
    pub(super) fn advance(&mut self, bytes: usize) -> Option<FormModel<'a>> {
        let limit = self.at.saturating_add(bytes).min(self.body.len());
        let overlap = self.delimiter.needle().len() - 1;
        while self.at < limit {
            // A delimiter that begins before the limit may end behind it.
            let window = &self.body[self.at..limit.saturating_add(overlap).min(self.body.len())];
            let Some(ahead) = self.delimiter.find(window) else {
                self.at = limit;
                break;
            };
            let delimiter = self.at + ahead;
            if let Some(start) = self.value.take() {
                self.note(&self.body[start..delimiter.max(start)]);
            }
            self.begin_part(delimiter + self.delimiter.needle().len());
        }
        (self.at >= self.body.len()).then_some(self.model)
    }

    /// Reads the head of the part behind a delimiter that ends at `at`.
    fn begin_part(&mut self, at: usize) {
        let rest = &self.body[at..];
        if rest.starts_with(b"--") {
            // The last delimiter; whatever follows is no part.
            self.at = self.body.len();
            return;
        }
        self.at = at;
        let head = &rest[..rest.len().min(PART_HEAD_MAX)];
        let Some(end) = memmem::find(head, b"\r\n\r\n") else { return };
        // The empty line may begin the delimiter of an empty part.
        self.at = at + end + 2;
        let is_model = head[..end].split(|&b| b == b'\n').any(|line| {
            let Some(colon) = memchr::memchr(b':', line) else { return false };
            let (name, value) = (line[..colon].trim_ascii(), &line[colon + 1..]);
            name.eq_ignore_ascii_case(b"content-disposition")
                && parameter(value, "name") == Some(b"model")
                && parameter(value, "filename").is_none()
        });
        self.value = is_model.then_some(at + end + 4);
    }

    fn note(&mut self, value: &'a [u8]) {
        let name = if value.len() <= MODEL_BYTES_MAX { std::str::from_utf8(value).ok() } else { None };
        self.model = match (self.model, name) {
            (FormModel::None, Some(name)) => FormModel::One(name),
            (FormModel::One(known), Some(name)) if known == name => FormModel::One(name),
            _ => FormModel::Unclear,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: &str = "----WebKitFormBoundary7MA4YWxkTrZu0gW";

    fn part(head: &str, value: &str) -> String {
        format!("--{B}\r\n{head}\r\n\r\n{value}\r\n")
    }

    fn field(name: &str, value: &str) -> String {
        part(&format!("Content-Disposition: form-data; name=\"{name}\""), value)
    }

    /// The model of a form, which is the same in slices of every size.
    #[track_caller]
    fn check(parts: &[String], expected: FormModel<'_>) {
        let body = format!("{}--{B}--\r\n", parts.concat());
        for bytes in (1..200).chain([usize::MAX]) {
            let mut scan = FormScan::new(body.as_bytes(), B.as_bytes());
            let model = std::iter::repeat_with(|| scan.advance(bytes)).take(body.len() + 2).flatten().next();
            assert_eq!(model, Some(expected), "in slices of {bytes}: {body:?}");
        }
    }

    #[test]
    fn boundaries() {
        for (value, expected) in [
            ("multipart/form-data; boundary=abc", Some("abc")),
            ("Multipart/Form-Data;charset=utf-8 ; Boundary=\"a;b c\" ; x=y", Some("a;b c")),
            ("multipart/form-data; flag; boundary=abc", Some("abc")),
            ("multipart/form-data; boundary=", None),
            ("multipart/form-data; boundary=\"abc", None),
            ("multipart/form-data; x=\"; boundary=no\"; boundary=yes", Some("yes")),
            ("multipart/form-data", None),
            ("multipart/mixed; boundary=abc", None),
            ("application/json; boundary=abc", None),
            ("", None),
        ] {
            assert_eq!(boundary(value.as_bytes()), expected.map(str::as_bytes), "{value}");
        }
        let long = |n: usize| format!("multipart/form-data; boundary={}", "b".repeat(n));
        assert!(boundary(long(BOUNDARY_MAX).as_bytes()).is_some() && boundary(long(BOUNDARY_MAX + 1).as_bytes()).is_none());
    }

    #[test]
    fn a_model_is_found_before_and_after_the_file_at_any_split() {
        use FormModel::{None, One, Unclear};
        let file = part(
            "Content-Disposition: form-data; name=\"file\"; filename=\"model\"\r\nContent-Type: audio/wav",
            "RIFF\r\n--\r\n----WebKitFormBoundary\r\nname=\"model\"",
        );
        let model = field("model", "openai/whisper");
        check(&[file.clone(), model.clone()], One("openai/whisper"));
        check(&[model.clone(), file.clone()], One("openai/whisper"));
        check(&[part("content-disposition:form-data;name=model", "a b")], One("a b"));
        check(&[part("Content-Type: text/plain\r\nContent-Disposition: form-data; name=\"model\"", "m")], One("m"));
        check(&[model.clone(), field("language", "en"), model.clone()], One("openai/whisper"));
        check(&[model.clone(), field("model", "other")], Unclear);
        check(&[field("model", &"m".repeat(MODEL_BYTES_MAX + 1))], Unclear);
        check(&[field("model", "")], One(""));
        check(&[file, field("mode", "model"), field("models", "x")], None);
        check(&[part("Content-Disposition: form-data; name=\"model\"; filename=\"m\"", "x")], None);
        check(&[part(&format!("x: {}\r\nContent-Disposition: form-data; name=\"model\"", "x".repeat(PART_HEAD_MAX)), "m")], None);
        check(&[], None);
    }

    #[test]
    fn a_form_that_is_cut_names_no_model_and_a_preamble_is_no_part() {
        let whole = format!("preamble\r\n{}--{B}--", field("model", "m"));
        fn scan(body: &str) -> Option<FormModel<'_>> {
            FormScan::new(body.as_bytes(), B.as_bytes()).advance(usize::MAX)
        }
        assert_eq!(scan(&whole), Some(FormModel::One("m")));
        for cut in 0..whole.len() - 2 {
            assert_eq!(scan(&whole[..cut]), Some(FormModel::None), "cut at {cut}");
        }
        assert_eq!(scan(""), Some(FormModel::None));
        assert_eq!(scan("{\"model\":\"m\"}"), Some(FormModel::None));
    }
}
