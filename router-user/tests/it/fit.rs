//! Profiles from generated measurements against the truth they were generated from, and the command
//! as scripts see it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use router_user::fit::{Fit, FitError, Options, Samples, fit, profile_text};
use router_user::model::Curve;

use crate::fit_engine::{Dice, Measured, capacity_rps, measure};

const OPTIONS: Options = Options { capacity_rps: None, quantile: 0.9, prior: false };
const HEADER: &str = "time_s,load_rps,running,waiting,ttft_ms,tbot_ms,window_s,served_rps,e2e_ms\n";

fn row(index: usize, window_s: f64, m: &Measured) -> String {
    let Measured { load_rps, served_rps, running, waiting, ttft_ms, tbot_ms, e2e_ms } = m;
    // Windows of a pause apart: each was warmed up by itself.
    let time_s = index as f64 * 10.0 * window_s;
    format!("{time_s},{load_rps},{running},{waiting},{ttft_ms},{tbot_ms},{window_s},{served_rps},{e2e_ms}\n")
}

/// Relative errors of `curve` against `truth` at `loads`: their median and largest.
fn errors(curve: &Curve, truth: &[(f64, f64)]) -> (f64, f64) {
    let mut errors: Vec<f64> = truth.iter().map(|&(load, value)| (curve.value(load) / value - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    (errors[errors.len() / 2], errors[errors.len() - 1])
}

#[track_caller]
fn check_errors(name: &str, curve: &Curve, truth: &[(f64, f64)], bound: f64) {
    let (median, largest) = errors(curve, truth);
    println!("{name}: median {:.2} %, largest {:.2} %", 100.0 * median, 100.0 * largest);
    assert!(median <= 0.04 && largest <= bound, "{name}: {median}, {largest}: {curve:?}, wanted {truth:?}");
}

/// A curve of known form: `t = a / (1 - L q)`, of which all else follows.
struct Law;

impl Law {
    const CAPACITY: f64 = 6.0;

    fn tbot_ms(load: f64) -> f64 {
        30.0 / (1.0 - 0.8 * load / Self::CAPACITY)
    }

    fn ttft_ms(load: f64) -> f64 {
        90.0 + 1.5 * Self::tbot_ms(load) + 12.0 * load / (1.05 * Self::CAPACITY - load)
    }

    fn in_engine(load: f64) -> f64 {
        load * (Self::ttft_ms(load) + 200.0 * Self::tbot_ms(load)) / 1e3
    }

    /// `n` windows at loads spread over `from` to `to` of capacity, each value off by `noise`,
    /// relative.
    fn samples(seed: u64, n: usize, noise: f64, (from, to): (f64, f64)) -> String {
        let mut dice = Dice(seed);
        let mut text = HEADER.to_owned();
        for index in 0..n {
            let load_rps = Self::CAPACITY * (from + (to - from) * dice.share());
            let (running, ttft_ms, tbot_ms) = (Self::in_engine(load_rps), Self::ttft_ms(load_rps), Self::tbot_ms(load_rps));
            let e2e_ms = ttft_ms + 200.0 * tbot_ms;
            let mut off = |value: f64| value * (1.0 + noise * dice.normal()).max(0.1);
            let (running, ttft_ms, tbot_ms) = (off(running), off(ttft_ms), off(tbot_ms));
            text +=
                &row(index, 120.0, &Measured { load_rps, served_rps: load_rps, running, waiting: 0.0, ttft_ms, tbot_ms, e2e_ms });
        }
        text
    }
}

fn fitted(text: &str, options: Options) -> Fit {
    fit(&Samples::read("samples.csv", text).expect("samples"), &options).expect("a fit")
}

#[test]
fn noise_around_a_known_curve_is_seen_through() {
    let options = Options { capacity_rps: Some(Law::CAPACITY), ..OPTIONS };
    for seed in crate::plan::laws::seeds(20) {
        let fit = fitted(&Law::samples(seed, 120, 0.05, (0.02, 0.99)), options);
        assert_eq!(fit.report.refusals(), [], "seed {seed}");
        let truths: [fn(f64) -> f64; 3] = [Law::in_engine, Law::ttft_ms, Law::tbot_ms];
        for (curve, truth) in fit.curves.iter().zip(truths) {
            let truth: Vec<(f64, f64)> = (2..=38).map(|i| Law::CAPACITY * f64::from(i) / 40.0).map(|l| (l, truth(l))).collect();
            check_errors(&format!("seed {seed}, {}", curve.quantity), &curve.mean, &truth, 0.10);
        }
    }
}

/// Windows of the simulated engine at loads from 4 to 96 % of its capacity, and three beyond it.
fn simulated(seed: u64, windows: usize, window_s: f64) -> String {
    let mut dice = Dice(seed);
    let mut text = HEADER.to_owned();
    for index in 0..windows {
        let load = capacity_rps() * (0.04 + 0.92 * dice.share());
        text += &row(index, window_s, &measure(load, 200.0, window_s, &mut dice));
    }
    for index in windows..windows + 3 {
        text += &row(index, window_s, &measure(1.25 * capacity_rps(), 200.0, window_s, &mut dice));
    }
    text
}

#[test]
fn a_simulated_engine_is_profiled_as_long_runs_show_it() {
    let truth: Vec<(f64, Measured)> = (1..=11)
        .map(|i| capacity_rps() * (0.08 * f64::from(i) + 0.02))
        .map(|load| (load, measure(load, 500.0, 12_000.0, &mut Dice(99))))
        .collect();
    for seed in 0..3 {
        let fit = fitted(&simulated(seed, 80, 600.0), OPTIONS);
        println!("{}", fit.report);
        assert_eq!(fit.report.refusals(), [], "seed {seed}");
        let capacity = fit.capacity.rps;
        assert!((capacity / capacity_rps() - 1.0).abs() < 0.06, "{capacity} from saturation, {} by the law", capacity_rps());
        let truths: [fn(&Measured) -> f64; 3] = [|m| m.running + m.waiting, |m| m.ttft_ms, |m| m.tbot_ms];
        for (curve, of) in fit.curves.iter().zip(truths) {
            let truth: Vec<(f64, f64)> = truth.iter().map(|(load, m)| (*load, of(m))).collect();
            check_errors(&format!("seed {seed}, {}", curve.quantity), &curve.mean, &truth, 0.10);
        }
    }
}

#[test]
fn without_high_loads_a_fit_is_refused_or_continued_by_physics() {
    let samples = Law::samples(7, 60, 0.03, (0.05, 0.5));
    let options = Options { capacity_rps: Some(Law::CAPACITY), ..OPTIONS };
    let refused = fitted(&samples, options).report.refusals();
    assert!(refused.iter().any(|r| r.to_string().contains("wanted 70 % at least")), "{refused:?}");
    let fit = fitted(&samples, Options { prior: true, ..options });
    assert_eq!(fit.report.refusals(), []);
    assert!(fit.report.to_string().contains("PRIOR: above"), "{}", fit.report);
    for (curve, truth) in [(&fit.curves[2].mean, Law::tbot_ms(5.4)), (&fit.curves[0].mean, Law::in_engine(5.4))] {
        let value = curve.value(5.4);
        assert!((value / truth - 1.0).abs() < 0.3, "{value} at 90 % from loads below 50 %, wanted {truth}");
        assert!(curve.slope(5.9) > 0.0);
    }
}

/// Rows of a good file, each changed by `change`; what the fit is refused for.
fn refusal(change: impl Fn(usize, &mut Measured), capacity_rps: Option<f64>) -> String {
    let mut dice = Dice(5);
    let mut text = HEADER.to_owned();
    for index in 0..40 {
        let load_rps = 0.1 + 5.8 * index as f64 / 40.0;
        let (running, ttft_ms, tbot_ms) = (Law::in_engine(load_rps), Law::ttft_ms(load_rps), Law::tbot_ms(load_rps));
        let e2e_ms = ttft_ms + 200.0 * tbot_ms;
        let mut m = Measured { load_rps, served_rps: load_rps, running, waiting: 0.0, ttft_ms, tbot_ms, e2e_ms };
        m.running *= 1.0 + 0.01 * dice.normal();
        change(index, &mut m);
        text += &row(index, 120.0, &m);
    }
    match fit(&Samples::read("samples.csv", &text).expect("samples"), &Options { capacity_rps, ..OPTIONS }) {
        Err(FitError::Refused(refusal)) => refusal.to_string(),
        Err(error) => panic!("{error}"),
        Ok(fit) => fit.report.refusals().iter().map(|r| format!("{r}\n")).collect(),
    }
}

#[test]
fn each_kind_of_bad_samples_is_refused_for_its_reason() {
    #[track_caller]
    fn check(capacity_rps: Option<f64>, wanted: &str, change: impl Fn(usize, &mut Measured)) {
        let refusal = refusal(change, capacity_rps);
        assert!(if wanted.is_empty() { refusal.is_empty() } else { refusal.contains(wanted) }, "{refusal:?} lacks {wanted:?}");
    }
    check(None, "", |_, _| ());
    check(Some(12.0), "is 48 % of the capacity 12, wanted 70 % at least", |_, _| ());
    check(None, "5 steady windows are left of 40 (0 are idle, 0 changing, 35 saturated), wanted 12 at least", |i, m| {
        if i >= 5 {
            m.served_rps = 0.5 * m.load_rps;
            m.load_rps += 9.0;
        }
    });
    check(Some(6.0), "1 of 20 windows are below half of the capacity 6, wanted 3 at least", |i, m| {
        if i < 20 {
            m.load_rps = 0.0;
        }
    });
    check(None, "windows are below half of", |i, m| {
        m.load_rps = 5.0 + 0.001 * i as f64;
        m.served_rps = m.load_rps;
    });
    check(None, "running + waiting is 3 in all 40 windows", |_, m| m.running = 3.0);
    check(None, "ttft_ms is 80 in all 40 windows", |_, m| m.ttft_ms = 80.0);
    check(Some(6.0), "the TBOT curve is off by", |i, m| m.tbot_ms *= if i % 2 == 0 { 0.5 } else { 1.5 });
    check(None, "% of load_rps x the time in the engine (Little's law) over all windows, wanted 67 to 150 %", |_, m| {
        m.e2e_ms *= 0.5
    });
}

#[test]
fn gauges_that_were_read_at_few_moments_do_not_spoil_a_fit() {
    let mut dice = Dice(11);
    let mut off = |text: &str| {
        let samples = Samples::read("samples.csv", text).expect("samples");
        let windows = samples.windows.into_iter().map(|mut window| {
            window.gauges *= 0.5 + dice.share();
            window
        });
        Samples { source: samples.source, windows: windows.collect() }
    };
    let samples = off(&Law::samples(2, 120, 0.05, (0.02, 0.99)));
    let fit = fit(&samples, &Options { capacity_rps: Some(Law::CAPACITY), ..OPTIONS }).expect("a fit");
    assert_eq!(fit.report.refusals(), []);
    let truth: Vec<(f64, f64)> = (2..=38).map(|i| 0.025 * f64::from(i) * Law::CAPACITY).map(|l| (l, Law::in_engine(l))).collect();
    check_errors("in engine", &fit.curves[0].mean, &truth, 0.10);
}

#[test]
fn samples_below_half_of_the_load_give_no_profile_without_a_capacity() {
    let samples = Law::samples(7, 60, 0.03, (0.03, 0.48));
    let refused = fitted(&samples, OPTIONS).report.refusals();
    let text: String = refused.iter().map(ToString::to_string).collect();
    assert!(text.contains("less than half of the engine was in use, and the file does not show its capacity"), "{text:?}");
    // Up to the capacity itself the same engine passes, saturated or not.
    assert_eq!(fitted(&Law::samples(7, 60, 0.03, (0.03, 0.98)), OPTIONS).report.refusals(), []);
}

fn ilb(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ilb")).current_dir(folder).args(arguments).output().expect("ilb runs")
}

#[track_caller]
fn check_exit(folder: &Path, arguments: &[&str], code: i32, wanted: &[&str]) {
    let output = ilb(folder, arguments);
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{text}");
    for part in wanted {
        assert!(text.contains(part), "{text}\nlacks {part:?}");
    }
}

const FLEET: &str = "
[[cluster]]\nname = 'a'\nregion = 'r'\ndemand_rps = { chat = 1 }
[[engine]]\nname = 'e'\nregion = 'r'\naddress = '127.0.0.1:1'\nmodels = ['m']\nprofile = 'NAME'
[[class]]\nname = 'chat'\nmodel = 'm'\noutput_tokens = 9
[rtt_ms.r]\nr = 1\n";

#[test]
fn the_command_writes_a_profile_that_check_takes_and_a_picture() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).expect("written");
    write("good.csv", &Law::samples(1, 60, 0.05, (0.02, 0.99)));
    let fit = ["profile", "fit", "good.csv", "--capacity-rps", "6", "--name", "mine"];
    check_exit(folder, &[&fit[..], &["-o", "p.toml", "--plot", "p.svg"]].concat(), 0, &["windows: 60 read, 60 used", "held out"]);
    let profile = fs::read_to_string(folder.join("p.toml")).expect("a profile");
    let source = profile.lines().next().unwrap_or_default();
    assert!(source.starts_with("# Latency profile fitted to good.csv on 20"), "{source}");
    write("ilb.toml", &format!("{profile}{}", FLEET.replace("NAME", "mine")));
    check_exit(folder, &["check", "ilb.toml"], 0, &["[profile.\"mine\"]"]);
    let svg = fs::read_to_string(folder.join("p.svg")).expect("a picture");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.matches("<circle").count() > 180, "{svg}");

    // Without a file for it the profile goes to stdout, and is the same.
    let output = ilb(folder, &fit);
    assert_eq!(String::from_utf8_lossy(&output.stdout), profile);

    check_exit(folder, &["profile", "fit", "good.csv", "--capacity-rps", "20", "-o", "no.toml"], 1, &["wanted 70 % at least"]);
    assert!(!folder.join("no.toml").exists(), "a refused fit writes no profile");
    write("bad.csv", "time_s,load_rps,runing,waiting,ttft_ms,tbot_ms\n");
    check_exit(
        folder,
        &["profile", "fit", "bad.csv"],
        2,
        &["bad.csv:1: column \"runing\": is unknown; did you mean \"running\"?"],
    );
    write("bad.csv", "time_s,load_rps,running,waiting,ttft_ms,tbot_ms\n0,1,1,0,fast,9\n");
    check_exit(folder, &["profile", "fit", "bad.csv"], 2, &["bad.csv:2: column \"ttft_ms\": is \"fast\"; wanted the mean time"]);
    check_exit(folder, &["profile", "fit", "none.csv"], 2, &["none.csv: cannot be read"]);
    check_exit(folder, &["profile", "fit", "good.csv", "--quantile", "1"], 2, &["wanted a share from 0.5 to below 1"]);
}

#[test]
fn a_file_in_other_units_is_refused_and_the_units_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let header = HEADER.replace("e2e_ms", "e2e_ms,output_tokens");
    let check = |factors: [f64; 4], wanted: &str| {
        let mut text = header.clone();
        for line in Law::samples(4, 60, 0.02, (0.02, 0.99)).lines().skip(1) {
            let mut cells: Vec<f64> = line.split(',').map(|cell| cell.parse().expect("a number")).collect();
            for (place, factor) in [(4, factors[0]), (5, factors[1]), (8, factors[2]), (1, factors[3]), (7, factors[3])] {
                cells[place] *= factor;
            }
            cells.push(201.0);
            text += &format!("{}\n", cells.iter().map(f64::to_string).collect::<Vec<_>>().join(","));
        }
        fs::write(folder.path().join("s.csv"), text).expect("written");
        let code = if wanted.is_empty() { 0 } else { 1 };
        check_exit(folder.path(), &["profile", "fit", "s.csv", "-o", "p.toml"], code, &[wanted]);
    };
    check([1.0; 4], "");
    check([1e-3, 1e-3, 1.0, 1.0], "they agree if the file has ttft_ms in seconds, tbot_ms in seconds: convert it");
    check([1e-3, 1e-3, 1e-3, 1.0], "they agree if the file has ttft_ms in seconds, tbot_ms in seconds, e2e_ms in seconds");
    check([1e3, 1e3, 1e3, 1.0], "e2e_ms in microseconds");
    check([1.0, 1.0, 1.0, 60.0], "load_rps in requests per minute, served_rps in requests per minute");
}

#[test]
fn of_several_days_the_last_is_held_out() {
    // The last of three days is a third slower: what is held out shows it, while every fifth window
    // in turn would not.
    let options = Options { capacity_rps: Some(Law::CAPACITY), ..OPTIONS };
    let text = |spacing: f64| {
        let samples = Law::samples(3, 90, 0.02, (0.02, 0.99));
        let mut lines = samples.lines();
        let mut text = format!("{}\n", lines.next().unwrap_or_default());
        for (index, line) in lines.enumerate() {
            let mut cells: Vec<String> = line.split(',').map(str::to_owned).collect();
            cells[0] = (index as f64 * spacing).to_string();
            if index >= 60 {
                cells[5] = (cells[5].parse::<f64>().expect("a number") * 1.33).to_string();
            }
            text += &format!("{}\n", cells.join(","));
        }
        text
    };
    let held_out = |spacing: f64| fitted(&text(spacing), options).report.curves[2].held_out_frac;
    let (days, hours) = (held_out(86_400.0 / 30.0), held_out(600.0));
    assert!(days > 0.2 && hours < 0.2, "{days} by day, {hours} by fifths");
}

/// `ilb profile derive` on each shipped table gives the shipped profile, but for the date.
#[test]
fn the_shipped_profiles_follow_from_their_tables() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/profiles"));
    let mut seen = 0;
    for entry in fs::read_dir(&folder).expect("shipped profiles").filter_map(Result::ok) {
        let path = entry.path();
        let Some(name) =
            path.file_stem().and_then(|stem| stem.to_str()).filter(|_| path.extension().is_some_and(|e| e == "toml"))
        else {
            continue;
        };
        let table = format!("data/{name}.csv");
        let output =
            ilb(&folder, &["profile", "derive", &table, "--prompt-tokens", "1024", "--output-tokens", "200", "--name", name]);
        let without_date = |text: &str| {
            text.lines().skip(1).fold(String::new(), |mut all, line| {
                _ = writeln!(all, "{line}");
                all
            })
        };
        let shipped = fs::read_to_string(&path).expect("a profile");
        assert_eq!(without_date(&String::from_utf8_lossy(&output.stdout)), without_date(&shipped), "{name}");
        let config = router_user::config::parse(&format!("{shipped}{}", FLEET.replace("NAME", name))).expect("legal");
        let section = profile_text(&config.fleet.profiles[0], "");
        assert!(shipped.ends_with(&section), "{shipped} does not end with {section}");
        seen += 1;
    }
    assert!(seen >= 4, "{seen} profiles are shipped");
}
