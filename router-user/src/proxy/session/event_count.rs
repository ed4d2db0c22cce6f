//! Counts the events of an event stream.

/// Counts the blank lines that end events, also when one is cut by two reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EventCount {
    ends_in_line_feed: bool,
}

impl EventCount {
    pub(super) fn count(&mut self, bytes: &[u8]) -> u64 {
        let mut events = 0;
        let mut previous = if self.ends_in_line_feed { Some(usize::MAX) } else { None };
        for at in memchr::memchr_iter(b'\n', bytes) {
            if previous == Some(at.wrapping_sub(1)) {
                events += 1;
                // The second line feed of one event is not the first of the next.
                previous = None;
            } else {
                previous = Some(at);
            }
        }
        if !bytes.is_empty() {
            self.ends_in_line_feed = previous == Some(bytes.len() - 1);
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_at_any_split() {
        let stream = b"data: a\n\ndata: b\ndata: c\n\n: comment\n\n\ndata: [DONE]\n\n";
        for split in 0..=stream.len() {
            let mut count = EventCount::default();
            assert_eq!(count.count(&stream[..split]) + count.count(&stream[split..]), 4, "split at {split}");
        }
    }
}
