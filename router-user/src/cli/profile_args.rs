//! Arguments of `ilb profile`.

use std::path::PathBuf;
use std::time::Duration;

use super::socket::Socket;
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum ProfileCommand {
    /// Fit the curves of one engine kind to windows measured at known loads, and judge the fit.
    ///
    /// SAMPLES.csv has a header and one row per window of one engine, all replicas ready. Columns:
    /// time_s (start), load_rps (arrivals), running, waiting (mean requests), ttft_ms, tbot_ms
    /// (means); and any of window_s, served_rps, e2e_ms, prompt_tokens, output_tokens, hit_frac,
    /// load_change_frac. A column named engine is ignored, and lines that begin with # are
    /// comments. The fit leaves out windows that are idle or saturated, or whose load changes.
    ///
    /// Writes a [profile.NAME] table for a configuration. A fit that must not be used is refused,
    /// with the reason and exit code 1: fewer than 12 steady windows, loads below 70 % or above 50
    /// % of capacity only, an error above 15 % in the top band of load, columns that contradict
    /// each other (seconds for milliseconds: the message names the unit), a counter that stands
    /// still, or, without --capacity-rps, loads that never made requests twice as slow. The plot is
    /// still written if there are curves to draw.
    Fit(ProfileFit),
    /// Record windows of a running fleet, for `ilb profile fit`.
    ///
    /// Load, requests in the engine, TTFT and time between tokens come from each engine's own
    /// metrics, which the running ilb reads every control.scrape_period. For an engine without such
    /// metrics they come from this ilb's own data plane: they then include the network, and other
    /// clusters' requests are missing. Vary the load meanwhile, and keep each load for three
    /// windows or more; the fit leaves out windows in which the load changed (load_change_frac).
    ///
    /// Each window adds one whole line to SAMPLES.csv; ctrl-c ends the recording and leaves a legal
    /// file.
    Record(ProfileRecord),
    /// Derive curves from timings of single iterations, for an engine that was not measured under
    /// load.
    ///
    /// TABLE.csv has the columns batch, prompt_tokens, prefill_ms (all prompts of the batch) and
    /// iteration_ms (one decode iteration).
    Derive(ProfileDerive),
}

#[derive(Debug, Args)]
pub(crate) struct ProfileFit {
    /// Windows, one per row.
    #[arg(value_name = "SAMPLES.csv")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) output: ProfileOutput,
    /// Load at which the engine is full, in requests/s; by default the rate served in saturated
    /// windows, or the largest steady load.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) capacity_rps: Option<f64>,
    /// Share of windows below the upper curve of the band, from 0.5 to below 1; the lower one
    /// mirrors it.
    #[arg(long, value_name = "Q", default_value = "0.9", value_parser = quantile)]
    pub(crate) quantile: f64,
    /// Without data above 70 % of capacity, let the physics of continuous batching fill the gap.
    #[arg(long)]
    pub(crate) prior: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ProfileRecord {
    /// File to add windows to.
    #[arg(value_name = "SAMPLES.csv")]
    pub(crate) file: PathBuf,
    /// Record only engines of this profile; needed where the fleet has several, unless --engine is
    /// given.
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// Record only this engine; may be repeated.
    #[arg(long, value_name = "NAME", conflicts_with = "profile")]
    pub(crate) engine: Vec<String>,
    /// Length of the recording; without it, until ctrl-c.
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// Length of a window, 2s to 1h.
    #[arg(long, default_value = "60s", value_parser = window)]
    pub(crate) window: Duration,
    #[command(flatten)]
    pub(crate) socket: Socket,
}

#[derive(Debug, Args)]
pub(crate) struct ProfileDerive {
    /// Timings, one per row.
    #[arg(value_name = "TABLE.csv")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) output: ProfileOutput,
    /// Mean length of a prompt.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) prompt_tokens: f64,
    /// Mean length of an output.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) output_tokens: f64,
    /// Share of prompt tokens found in the prefix cache.
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = below_one)]
    pub(crate) hit_frac: f64,
}

/// Output of `ilb profile fit` and `ilb profile derive`.
#[derive(Debug, Args)]
pub(crate) struct ProfileOutput {
    /// File for the profile; without it, stdout.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// File for a chart of points, curves, bands and capacity.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Name of the profile; by default the name of the input file without its ending.
    #[arg(long)]
    pub(crate) name: Option<String>,
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (1e-6..=1e9).contains(number));
    number.ok_or_else(|| "wanted a number above 0, from 0.000001 to 1000000000".to_owned())
}

fn window(text: &str) -> Result<Duration, String> {
    let window = humantime::parse_duration(text).ok().filter(|window| (2..=3_600).contains(&window.as_secs()));
    window.ok_or_else(|| "wanted a duration from 2s to 1h, such as 60s".to_owned())
}

fn quantile(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.5..1.0).contains(share));
    share.ok_or_else(|| "wanted a share from 0.5 to below 1, such as 0.9".to_owned())
}

fn below_one(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|share| (0.0..1.0).contains(share)).ok_or_else(|| "wanted a share from 0 to below 1".to_owned())
}
