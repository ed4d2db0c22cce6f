//! A walk over the entries of a JSON object or array that stops and goes on after any byte.

use thiserror::Error;

/// Levels of nesting that are followed. Anything deeper is an attack on some parser.
pub(super) const DEPTH_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the body is not a JSON object: {what} at byte {at}")]
pub struct PayloadError {
    pub what: &'static str,
    /// Distance from the body's start, in bytes.
    pub at: usize,
}

/// Walks the entries of one object or array; it stops and goes on after any byte.
#[derive(Debug)]
pub(super) struct Walker<'a> {
    input: &'a [u8],
    at: usize,
    /// The bracket that opens the container: `{` or `[`.
    open: u8,
    state: State,
    /// Where the key at hand starts and ends, its quotes included.
    key: (usize, usize),
    /// Where the value at hand starts.
    value: usize,
    kind: Kind,
    /// Inside a string.
    in_string: bool,
    /// Open brackets of the value at hand, and one bit for each: set for an object.
    depth: usize,
    brackets: u128,
}

/// The next part of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// A key, or the end of an empty container.
    First,
    /// A key, or the value of an array.
    Key,
    InKey,
    Colon,
    Value,
    InValue,
    /// A comma, or the end.
    Comma,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Nested,
    Number,
    Word(&'static [u8]),
}

impl Kind {
    /// Tells a value by its first byte; `None` for one that begins no value.
    fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            b'"' => Self::Text,
            b'{' | b'[' => Self::Nested,
            b'-' | b'0'..=b'9' => Self::Number,
            b't' => Self::Word(b"true"),
            b'f' => Self::Word(b"false"),
            b'n' => Self::Word(b"null"),
            _ => return None,
        })
    }
}

pub(super) enum Step<'a> {
    /// `key` has its quotes, and is empty in an array. `at` is the value's place.
    Entry {
        key: &'a [u8],
        value: &'a [u8],
        at: usize,
    },
    End,
    /// The budget is used up.
    Paused,
}

impl<'a> Walker<'a> {
    pub(super) fn new(input: &'a [u8], open: u8) -> Self {
        Self {
            input,
            at: 0,
            open,
            state: State::Open,
            key: (0, 0),
            value: 0,
            kind: Kind::Text,
            in_string: false,
            depth: 0,
            brackets: 0,
        }
    }

    pub(super) fn wrong(&self, what: &'static str) -> PayloadError {
        PayloadError { what, at: self.at }
    }

    /// The next entry, within `budget` bytes, from which the bytes that were walked are taken.
    pub(super) fn next(&mut self, budget: &mut usize) -> Result<Step<'a>, PayloadError> {
        let begun = self.at;
        let step = self.step(self.input.len().min(begun.saturating_add(*budget)));
        *budget = budget.saturating_sub(self.at - begun);
        step
    }

    /// Skips blanks; false when the budget ends first.
    pub(super) fn skip_blanks(&mut self, budget: &mut usize) -> bool {
        let limit = self.input.len().min(self.at.saturating_add(*budget));
        *budget = budget.saturating_sub(self.blank(limit));
        self.at < limit || self.at == self.input.len()
    }

    /// Whether all of the input has been walked.
    pub(super) fn is_at_end(&self) -> bool {
        self.at == self.input.len()
    }

    fn blank(&mut self, limit: usize) -> usize {
        let begun = self.at;
        while self.at < limit && matches!(self.input[self.at], b' ' | b'\t' | b'\r' | b'\n') {
            self.at += 1;
        }
        self.at - begun
    }

    fn step(&mut self, limit: usize) -> Result<Step<'a>, PayloadError> {
        loop {
            let state = self.state;
            match state {
                State::InKey => {
                    if !self.string(limit)? {
                        return Ok(Step::Paused);
                    }
                    (self.key.1, self.state) = (self.at, State::Colon);
                }
                State::InValue => {
                    if !self.skip_value(limit)? {
                        return Ok(Step::Paused);
                    }
                    self.state = State::Comma;
                    let (key, value) = (&self.input[self.key.0..self.key.1], &self.input[self.value..self.at]);
                    return Ok(Step::Entry { key, value, at: self.value });
                }
                State::End => return Ok(Step::End),
                State::First | State::Key | State::Comma if self.front(limit) => {}
                _ => {
                    self.blank(limit);
                    let Some(&byte) = self.input[..limit].get(self.at) else {
                        return if limit < self.input.len() { Ok(Step::Paused) } else { Err(self.wrong(self.wanted(state))) };
                    };
                    self.token(state, byte)?;
                }
            }
        }
    }

    /// Takes the front of the next entry at once: comma, key, colon and the value's first byte.
    /// False, and nothing has changed, unless all of it is well formed and within the limit; then
    /// the states take it part by part, and find the mistake.
    fn front(&mut self, limit: usize) -> bool {
        let input = &self.input[..limit];
        let behind_blanks = |mut at: usize| {
            while let Some(b' ' | b'\t' | b'\r' | b'\n') = input.get(at) {
                at += 1;
            }
            at
        };
        let mut at = behind_blanks(self.at);
        if self.state == State::Comma {
            if input.get(at) != Some(&b',') {
                return false;
            }
            at = behind_blanks(at + 1);
        }
        let mut key = (0, 0);
        if self.open == b'{' {
            if input.get(at) != Some(&b'"') {
                return false;
            }
            let (end, is_whole) = skip_string(input, at + 1, limit);
            let colon = behind_blanks(end);
            if !is_whole || input.get(colon) != Some(&b':') {
                return false;
            }
            key = (at, end);
            at = behind_blanks(colon + 1);
        }
        let Some(kind) = input.get(at).and_then(|&byte| Kind::of(byte)) else { return false };
        (self.key, self.at) = (key, at);
        self.begin_value(kind);
        true
    }

    /// Takes the first byte of what comes next.
    fn token(&mut self, state: State, byte: u8) -> Result<(), PayloadError> {
        let is_object = self.open == b'{';
        self.state = match state {
            State::Open if byte == self.open => State::First,
            State::First | State::Comma if byte == self.close() => State::End,
            State::Comma if byte == b',' => State::Key,
            State::Colon if byte == b':' => State::Value,
            State::First | State::Key if is_object && byte == b'"' => {
                self.key.0 = self.at;
                State::InKey
            }
            State::First | State::Key | State::Value if state == State::Value || !is_object => {
                self.begin_value(Kind::of(byte).ok_or_else(|| self.wrong("wanted a value"))?);
                return Ok(());
            }
            _ => return Err(self.wrong(self.wanted(state))),
        };
        self.at += 1;
        Ok(())
    }

    fn close(&self) -> u8 {
        if self.open == b'{' { b'}' } else { b']' }
    }

    fn wanted(&self, state: State) -> &'static str {
        match state {
            State::Open if self.open == b'{' => "wanted {",
            State::Open => "wanted [",
            State::First | State::Key if self.open == b'{' => "wanted a string",
            State::Colon => "wanted :",
            State::Comma if self.open == b'{' => "wanted , or }",
            State::Comma => "wanted , or ]",
            _ => "wanted a value",
        }
    }

    /// Begins the value at hand.
    fn begin_value(&mut self, kind: Kind) {
        (self.kind, self.value, self.state) = (kind, self.at, State::InValue);
        // A string goes on behind its quote.
        self.at += usize::from(kind == Kind::Text);
    }

    /// Skips the rest of a value; false when the limit comes first.
    fn skip_value(&mut self, limit: usize) -> Result<bool, PayloadError> {
        match self.kind {
            Kind::Text => self.string(limit),
            Kind::Nested => self.nested(limit),
            Kind::Number => {
                let is_digit = |b: &u8| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                self.at += self.input[self.at..limit].iter().take_while(|b| is_digit(b)).count();
                Ok(self.at < limit || limit == self.input.len())
            }
            Kind::Word(word) if self.input[self.at..].starts_with(word) => {
                self.at += word.len();
                Ok(true)
            }
            Kind::Word(_) => Err(self.wrong("unknown word")),
        }
    }

    /// Skips to behind the quote that ends a string; false when the limit comes first.
    fn string(&mut self, limit: usize) -> Result<bool, PayloadError> {
        let (at, is_whole) = skip_string(self.input, self.at, limit);
        self.at = at.min(self.input.len());
        if is_whole || at < self.input.len() { Ok(is_whole) } else { Err(self.wrong("string does not end")) }
    }

    /// Skips an object or array by its brackets; false when the limit comes first.
    fn nested(&mut self, limit: usize) -> Result<bool, PayloadError> {
        // In locals, which the compiler keeps in registers.
        let (input, mut at, mut depth, mut brackets) = (self.input, self.at, self.depth, self.brackets);
        let outcome = loop {
            if at >= limit {
                break if at < input.len() { Ok(false) } else { Err("brackets do not close") };
            }
            if self.in_string {
                let (end, is_whole) = skip_string(input, at, limit);
                (at, self.in_string) = (end.min(input.len()), !is_whole);
                continue;
            }
            let byte = input[at];
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' if depth == DEPTH_MAX => break Err("nested too deep"),
                b'{' | b'[' => {
                    brackets = brackets << 1 | u128::from(byte == b'{');
                    depth += 1;
                }
                b'}' | b']' if (brackets & 1 == 1) != (byte == b'}') => break Err("brackets do not match"),
                b'}' | b']' => {
                    brackets >>= 1;
                    depth -= 1;
                }
                _ => {}
            }
            at += 1;
            if depth == 0 {
                break Ok(true);
            }
        };
        (self.at, self.depth, self.brackets) = (at, depth, brackets);
        outcome.map_err(|what| self.wrong(what))
    }
}

/// Skips the rest of a string from `at` on, its quote included: where to go on, which may be one
/// byte behind the limit, and whether the string has ended.
fn skip_string(input: &[u8], mut at: usize, limit: usize) -> (usize, bool) {
    while at < limit {
        let Some(ahead) = memchr::memchr2(b'"', b'\\', &input[at..limit]) else { return (limit, false) };
        at += ahead + 1;
        if input[at - 1] == b'"' {
            return (at, true);
        }
        // The byte behind a backslash cannot end the string.
        at += 1;
    }
    (at, false)
}
