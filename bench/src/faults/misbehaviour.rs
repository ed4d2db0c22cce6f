//! The ways in which one engine misbehaves while its health endpoint stays as it was.

use std::time::Duration;

use clap::ValueEnum;

/// One way to misbehave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Misbehaviour {
    /// Every request is answered 404 at once
    #[value(name = "404")]
    NotFound,
    /// Every request is answered 500 at once
    #[value(name = "500")]
    Error,
    /// Every request is answered 503 at once
    #[value(name = "503")]
    Unavailable,
    /// 503, with a Retry-After of 5 s
    #[value(name = "503-retry-after")]
    UnavailableFor,
    /// Every request is answered 429 at once
    #[value(name = "429")]
    TooMany,
    /// 429, with a Retry-After of 5 s
    #[value(name = "429-retry-after")]
    TooManyFor,
    /// The answer is no HTTP
    Garbage,
    /// The connection is closed before the answer
    Close,
    /// Streams end after three tokens, whole answers do not come
    Broken,
    /// The process is stopped (SIGSTOP): the kernel accepts, nobody answers, health does not either
    Stop,
    /// Requests are accepted and never answered; health is
    Mute,
    /// All work takes twice as long
    Half,
    /// All work takes three times as long
    Slow,
    /// 500 at once for 5 s, well for 5 s, and so on
    Flap,
    /// Another model is loaded: 404 with model_not_found
    Model,
}

/// Half of the period of [`Misbehaviour::Flap`].
pub(super) const FLAP: Duration = Duration::from_secs(5);

/// What makes an engine misbehave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// The body of its `POST /fault`.
    Command(&'static str),
    /// A stopped process.
    Stop,
}

impl Misbehaviour {
    pub(super) fn means(self) -> Means {
        Means::Command(match self {
            Self::NotFound => r#"{"kind":"status","status":404}"#,
            Self::Error | Self::Flap => r#"{"kind":"status","status":500}"#,
            Self::Unavailable => r#"{"kind":"status","status":503}"#,
            Self::UnavailableFor => r#"{"kind":"status","status":503,"retry_after_s":5}"#,
            Self::TooMany => r#"{"kind":"status","status":429}"#,
            Self::TooManyFor => r#"{"kind":"status","status":429,"retry_after_s":5}"#,
            Self::Garbage => r#"{"kind":"garbage"}"#,
            Self::Close => r#"{"kind":"close","after_tokens":0}"#,
            Self::Broken => r#"{"kind":"close","after_tokens":3}"#,
            Self::Mute => r#"{"kind":"stall","after_tokens":0}"#,
            Self::Half => r#"{"kind":"slow","factor":2}"#,
            Self::Slow => r#"{"kind":"slow","factor":3}"#,
            Self::Model => r#"{"kind":"model","name":"other"}"#,
            Self::Stop => return Means::Stop,
        })
    }

    /// Part of its capacity that the engine still has.
    pub(super) fn living_frac(self) -> f64 {
        match self {
            Self::Half => 1.0 / 2.0,
            Self::Slow => 1.0 / 3.0,
            _ => 0.0,
        }
    }

    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}
