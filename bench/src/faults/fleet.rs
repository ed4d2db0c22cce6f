//! The fleet of a run: equal engines, the classes that they serve, and what ilb is told of them.

/// Knots of the time to first token, as (part of the capacity, ms): gentle until the engine is
/// nearly full, as measured curves are.
const TTFT: [(f64, f64); 4] = [(0.0, 60.0), (0.6, 80.0), (0.9, 150.0), (1.0, 400.0)];

/// Knots of the time between two tokens, in the same form.
const TBOT: [(f64, f64); 2] = [(0.0, 10.0), (1.0, 20.0)];

/// Requests of one class, as the configuration has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    pub(super) name: &'static str,
    pub(super) model: &'static str,
    pub(super) priority: u8,
    pub(super) demand_rps: f64,
    pub(super) output_tokens: u32,
}

impl Class {
    /// The one class of a fleet that serves one model.
    pub(super) fn chat(demand_rps: f64) -> Self {
        Self { name: "chat", model: "demo", priority: 0, demand_rps, output_tokens: 16 }
    }
}

/// Equal engines.
#[derive(Clone, Debug)]
pub(super) struct Fleet {
    pub(super) engines: usize,
    /// Of one engine.
    pub(super) capacity_rps: f64,
    /// Of one engine, as ilb is told.
    pub(super) believed_rps: f64,
    pub(super) classes: Vec<Class>,
    /// Time that a prompt token adds to the first output token's.
    pub(super) prompt_token_ms: f64,
}

impl Fleet {
    /// ilb is told the truth.
    pub(super) fn new(engines: usize, capacity_rps: f64, classes: Vec<Class>) -> Self {
        Self { engines, capacity_rps, believed_rps: capacity_rps, classes, prompt_token_ms: 0.0 }
    }

    /// Names of the models, once each.
    pub(super) fn models(&self) -> Vec<&'static str> {
        let mut models: Vec<_> = self.classes.iter().map(|class| class.model).collect();
        models.sort_unstable();
        models.dedup();
        models
    }

    /// What the engines' command line says of their speed.
    pub(super) fn engine_flags(&self) -> Vec<String> {
        let knots = |curve: &[(f64, f64)]| {
            let knots: Vec<String> = scaled(curve, self.capacity_rps).map(|(load, ms)| format!("{load}:{ms}")).collect();
            knots.join(",")
        };
        let mut flags = vec!["--capacity-rps".to_owned(), self.capacity_rps.to_string()];
        flags.extend(["--ttft".to_owned(), knots(&TTFT), "--tbot".to_owned(), knots(&TBOT)]);
        flags.extend(["--prompt-token-ms".to_owned(), self.prompt_token_ms.to_string()]);
        flags.extend(self.models().iter().flat_map(|model| ["--model".to_owned(), (*model).to_owned()]));
        flags
    }

    /// The table of the engines' profile in `ilb.toml`.
    pub(super) fn profile(&self) -> String {
        let knots = |curve: &[(f64, f64)]| {
            let knots: Vec<String> = scaled(curve, self.believed_rps).map(|(load, ms)| format!("[{load}, {ms}]")).collect();
            format!("[{}]", knots.join(", "))
        };
        format!(
            "[profile.equal]\ncapacity_rps = {}\nttft_ms = {}\ntbot_ms = {}\n\n",
            self.believed_rps,
            knots(&TTFT),
            knots(&TBOT)
        )
    }
}

fn scaled(curve: &[(f64, f64)], capacity_rps: f64) -> impl Iterator<Item = (f64, f64)> {
    curve.iter().map(move |(part, ms)| (part * capacity_rps, *ms))
}
