//! Server-sent events.

use bytes::{Bytes, BytesMut};

/// Cuts a body into the `data` of its events, wherever the reads were cut.
///
/// Reads the form that engines send: data on one line, lines that end with `\n` or `\r\n`, `event:`
/// fields kept apart, comments dropped.
#[derive(Debug, Default)]
pub struct SseReader {
    line: BytesMut,
    is_error: bool,
}

/// One `data:` line.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    pub data: Bytes,
    /// The event was announced with `event: error`.
    pub is_error: bool,
}

impl SseReader {
    /// Takes the whole lines out of `body`; keeps an unfinished last one for the next call.
    pub fn read(&mut self, body: &mut BytesMut, mut each: impl FnMut(Event)) {
        while let Some(end) = memchr::memchr(b'\n', body) {
            let rest = body.split_to(end + 1).freeze();
            let line = if self.line.is_empty() {
                rest
            } else {
                self.line.extend_from_slice(&rest);
                self.line.split().freeze()
            };
            let text = line.trim_ascii_end();
            if let Some(data) = text.strip_prefix(b"data:") {
                each(Event { data: line.slice_ref(data.trim_ascii_start()), is_error: self.is_error });
            } else if let Some(name) = text.strip_prefix(b"event:") {
                self.is_error = name.trim_ascii() == b"error";
            } else if text.is_empty() {
                self.is_error = false;
            }
        }
        self.line.extend_from_slice(body);
        body.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_read_alike_however_they_are_cut() {
        let wire = b": ping\n\ndata: {\"a\":1}\n\ndata: two\r\n\r\nevent: error\ndata: bad\n\ndata: [DONE]\n\n";
        let wanted = [("{\"a\":1}", false), ("two", false), ("bad", true), ("[DONE]", false)];
        for cut in 0..wire.len() {
            let (mut reader, mut found) = (SseReader::default(), Vec::new());
            for part in [&wire[..cut], &wire[cut..]] {
                reader.read(&mut BytesMut::from(part), |event| found.push(event));
            }
            let found: Vec<_> = found.iter().map(|e| (std::str::from_utf8(&e.data).expect("ascii"), e.is_error)).collect();
            assert_eq!(found, wanted, "cut at {cut}");
        }
    }
}
