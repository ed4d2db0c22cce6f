//! `ilb profile`: files in, a profile and a picture out.

use std::path::Path;

use anyhow::{Context, bail};
use jiff::Timestamp;
use router_user::clock::unix_ms;
use router_user::fit::{self, Iterations, Options, Plot, Samples, Workload, profile_text};
use router_user::model::Profile;

use super::print::print;
use super::profile_args::{ProfileDerive, ProfileFit, ProfileOutput};
use super::usage::UsageError;

/// Earliest Unix time, in seconds, that a recording can have: 2001-09-09. Smaller numbers count
/// from something else.
const FIRST_UNIX_S: f64 = 1e9;

pub(crate) fn fit(args: &ProfileFit) -> anyhow::Result<()> {
    let source = source(&args.file);
    let samples = Samples::read(&args.file.to_string_lossy(), &read(&args.file)?).map_err(arguments)?;
    let name = name(&args.output, &args.file);
    let options = Options { capacity_rps: args.capacity_rps, quantile: args.quantile, prior: args.prior };
    let fit = fit::fit(&samples, &options).with_context(|| format!("{source} gives no profile"))?;
    plot(&args.output, || Plot::of_fit(&fit, &name, &source))?;
    let report = format!("{}\n{}", fit.report, age(fit.report.newest_s));
    let refusals = fit.report.refusals();
    if !refusals.is_empty() {
        let reasons: Vec<String> = refusals.iter().map(|reason| format!("\n  {reason}")).collect();
        eprintln!("{report}");
        bail!("{source} gives no profile:{}", reasons.concat());
    }
    let mut origin = format!("Latency profile fitted to {source} on {} by ilb profile fit.\n{report}\n", today());
    origin += &format!("requests in the engine: {}\n", fit.in_engine_text());
    write(&args.output, &report, &fit.profile(&name), &origin)
}

pub(crate) fn derive(args: &ProfileDerive) -> anyhow::Result<()> {
    let source = source(&args.file);
    let iterations = Iterations::read(&args.file.to_string_lossy(), &read(&args.file)?).map_err(arguments)?;
    if args.output_tokens < 1.0 {
        return Err(arguments(format!("--output-tokens is {}; wanted 1 or more", args.output_tokens)).into());
    }
    let workload =
        Workload { prompt_tokens: args.prompt_tokens, output_tokens: args.output_tokens, prefix_hit_frac: args.hit_frac };
    let derived = fit::derive(&iterations, workload).with_context(|| format!("{source} gives no profile"))?;
    let name = name(&args.output, &args.file);
    plot(&args.output, || Plot::of_derived(&derived, &name, &source))?;
    let report = derived.to_string();
    let origin = format!("Latency profile made from {source} on {} by ilb profile derive.\n{report}\n", today());
    write(&args.output, &report, &derived.profile(&name), &origin)
}

fn arguments(error: impl ToString) -> UsageError {
    UsageError::Arguments(error.to_string())
}

fn read(file: &Path) -> Result<String, UsageError> {
    std::fs::read_to_string(file).map_err(|error| arguments(format!("{}: cannot be read: {error}", file.display())))
}

/// The name of a file without its folder.
fn source(file: &Path) -> String {
    file.file_name().map_or_else(|| file.to_string_lossy(), |name| name.to_string_lossy()).into_owned()
}

fn name(output: &ProfileOutput, file: &Path) -> String {
    let stem = || file.file_stem().map_or_else(|| "profile".to_owned(), |stem| stem.to_string_lossy().into_owned());
    output.name.clone().unwrap_or_else(stem)
}

fn plot(output: &ProfileOutput, plot: impl FnOnce() -> Plot) -> anyhow::Result<()> {
    let Some(file) = &output.plot else { return Ok(()) };
    std::fs::write(file, plot().svg()).with_context(|| format!("write the plot {}", file.display()))
}

/// Writes the profile to its file and the report to stdout; without a file, the profile, which
/// contains the report, to stdout.
fn write(output: &ProfileOutput, report: &str, profile: &Profile, origin: &str) -> anyhow::Result<()> {
    let text = profile_text(profile, origin);
    match &output.output {
        Some(file) => {
            std::fs::write(file, text).with_context(|| format!("write the profile {}", file.display()))?;
            print(&format!("{report}\n"))
        }
        None => print(&text),
    }
}

fn today() -> String {
    date(unix_ms() as f64 / 1e3)
}

/// A day as 2026-12-02, in UTC.
fn date(unix_s: f64) -> String {
    // The conversion saturates, so a time that no calendar has becomes the first or the last that
    // one has.
    let time = Timestamp::from_second(unix_s as i64);
    time.unwrap_or(if unix_s < 0.0 { Timestamp::MIN } else { Timestamp::MAX }).strftime("%F").to_string()
}

fn age(newest_s: f64) -> String {
    let days = (unix_ms() as f64 / 1e3 - newest_s) / 86_400.0;
    match newest_s {
        newest if newest < FIRST_UNIX_S => "age: unknown, because time_s is not a Unix time".to_owned(),
        newest if days < 0.0 => format!("age: the newest window is from {}, later than now", date(newest)),
        newest => format!("age: the newest window is from {}, {days:.0} d ago", date(newest)),
    }
}
