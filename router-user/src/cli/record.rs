//! `ilb profile record`: windows of a running fleet into a file, until it is told to stop.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use router_user::admin::{AdminClient, EngineView};
use router_user::clock::{Clock, unix_ms};
use router_user::fit::{HEADER, Moment, Recording, Tokens};
use router_user::probe::Timings;
use tokio::signal::unix::{SignalKind, signal};

use super::print::print;
use super::profile_args::ProfileRecord;
use super::usage::UsageError;

/// Time between two polls of the running ilb, which reads engines no more often.
const POLL: Duration = Duration::from_millis(500);
/// Polls within which a control plane that has just started must know its engines.
const FIRST_POLLS: u32 = 20;
/// Failed polls in a row after which the running ilb counts as gone: a minute, longer than a
/// restart.
const FAILURES: u32 = 120;

pub(crate) async fn record(args: ProfileRecord) -> anyhow::Result<()> {
    let client = AdminClient::new(&args.socket.path);
    let wanted = wanted(&args, &known_engines(&client).await?)?;
    let mut file = open(&args.file)?;
    let (clock, mut rows) = (Clock::start(), 0_u64);
    let mut recordings: BTreeMap<String, Recording> = BTreeMap::new();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut ticks = tokio::time::interval(POLL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut failures = 0;
    eprintln!("recording {} in windows of {}", wanted.join(", "), humantime::format_duration(args.window));
    while args.duration.is_none_or(|duration| clock.now() < duration) {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
        }
        let engines = match client.engines().await {
            Ok(engines) => engines.0,
            Err(error) if failures >= FAILURES => return Err(error.into()),
            Err(_) => {
                failures += 1;
                continue;
            }
        };
        failures = 0;
        for engine in engines.iter().filter(|engine| wanted.contains(&engine.engine)) {
            let Some(moment) = moment(engine, clock.now()) else { continue };
            let recording = recordings.entry(engine.engine.clone()).or_insert_with(|| Recording::new(args.window.as_secs_f64()));
            if let Some(window) = recording.take(moment) {
                let line = window.line(unix_ms() as f64 / 1e3 - window.window_s, &engine.engine);
                // One write per line: whatever ends this process, the file has whole lines.
                file.write_all(line.as_bytes()).with_context(|| format!("write {}", args.file.display()))?;
                rows += 1;
            }
        }
    }
    print(&format!("{rows} windows added to {}\n", args.file.display()))
}

/// The engines, once the control plane has made its first plan; a data plane alone never knows
/// their profiles.
async fn known_engines(client: &AdminClient) -> anyhow::Result<Vec<EngineView>> {
    for _ in 0..FIRST_POLLS {
        let engines = client.engines().await?.0;
        if engines.iter().any(|engine| engine.profile.is_some()) {
            return Ok(engines);
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(client.engines().await?.0)
}

/// Names of the engines to record.
fn wanted(args: &ProfileRecord, engines: &[EngineView]) -> anyhow::Result<Vec<String>> {
    let refuse = |message: String| Err(UsageError::Arguments(message).into());
    if let Some(unknown) = args.engine.iter().find(|name| engines.iter().all(|e| e.engine != **name)) {
        let known: Vec<&str> = engines.iter().map(|e| e.engine.as_str()).collect();
        return refuse(format!("--engine names the unknown engine {unknown:?}; wanted one of {}", known.join(", ")));
    }
    let mut profiles: Vec<&str> = engines.iter().filter_map(|e| e.profile.as_deref()).collect();
    profiles.sort_unstable();
    profiles.dedup();
    let is_wanted = |engine: &EngineView| match &args.profile {
        Some(profile) => engine.profile.as_ref() == Some(profile),
        None => args.engine.is_empty() || args.engine.contains(&engine.engine),
    };
    let wanted: Vec<String> = engines.iter().filter(|e| is_wanted(e)).map(|e| e.engine.clone()).collect();
    match &args.profile {
        Some(unknown) if wanted.is_empty() => {
            refuse(format!("--profile names the unknown profile {unknown:?}; wanted one of {}", profiles.join(", ")))
        }
        None if args.engine.is_empty() && profiles.len() != 1 => {
            let choice = if profiles.is_empty() { "--engine".to_owned() } else { format!("--profile ({})", profiles.join(", ")) };
            refuse(format!("one file is for one kind of engine; say which with {choice}"))
        }
        _ => Ok(wanted),
    }
}

/// The state of an engine now, from its own metrics, or from the data plane where it has none.
fn moment(engine: &EngineView, now: Duration) -> Option<Moment> {
    let own = engine.signals.as_ref().zip(engine.signals_at_s).and_then(|(signals, at_s)| Moment::of(at_s, signals));
    own.or_else(|| {
        let live = engine.live.as_ref()?;
        let timings = |ms: f64, count: u64| Timings { sum_s: ms / 1e3, count: count as f64 };
        let e2e = timings(live.latency_ms_sum, live.latency_count);
        Some(Moment {
            at_s: now.as_secs_f64(),
            // All columns are of the same requests: those of this data plane, which cannot tell who
            // waits.
            running: live.in_flight as f64,
            waiting: 0.0,
            arrivals: live.picks as f64,
            ttft: timings(live.ttft_ms_sum, live.ttft_count),
            tokens: Tokens::Events { count: live.events as f64, e2e },
            e2e: Some(e2e),
            prefix: engine.signals.as_ref().and_then(|s| s.prefix),
        })
    })
}

/// Opens a file to add rows to. A torn last line, which a crash may leave, is cut off.
fn open(path: &Path) -> anyhow::Result<File> {
    let context = || format!("open {}", path.display());
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).with_context(context)?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).with_context(context)?;
    if text.is_empty() {
        file.write_all(format!("{HEADER}\n").as_bytes()).with_context(context)?;
        return Ok(file);
    }
    let header = text.split(|&byte| byte == b'\n').find(|line| !line.is_empty() && !line.starts_with(b"#"));
    if header != Some(HEADER.as_bytes()) {
        bail!("{} has other columns than are recorded; wanted a new file, or one that begins with\n{HEADER}", path.display());
    }
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    file.set_len(whole as u64).with_context(context)?;
    file.seek(SeekFrom::End(0)).with_context(context)?;
    if whole == 0 {
        file.write_all(format!("{HEADER}\n").as_bytes()).with_context(context)?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_added_and_a_torn_line_is_cut_off() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s.csv");
        std::fs::write(&path, HEADER).expect("a torn header");
        open(&path).expect("new").write_all(b"1,e1\n2,e").expect("written");
        open(&path).expect("again").write_all(b"3,e1\n").expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), format!("{HEADER}\n1,e1\n3,e1\n"));
        std::fs::write(&path, "load_rps,ttft_ms\n1,2\n").expect("written");
        let error = open(&path).expect_err("another file").to_string();
        assert!(error.contains("other columns"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "load_rps,ttft_ms\n1,2\n");
    }
}
