//! A profile as a section of a configuration, with its origin as a comment.

use std::fmt::Write;

use crate::model::{Curve, Profile};

/// The section `[profile.NAME]`, under the lines of `origin` as comments. The configuration reader
/// gives back an equal profile.
pub fn profile_text(profile: &Profile, origin: &str) -> String {
    let mut text = String::new();
    for line in origin.lines() {
        // A control character would end the comment, or be refused in it.
        let line: String = line.chars().filter(|c| !c.is_control()).collect();
        _ = writeln!(text, "{}", format!("# {line}").trim_end());
    }
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let name = if !profile.name.is_empty() && profile.name.chars().all(is_bare) {
        profile.name.clone()
    } else {
        toml::Value::String(profile.name.clone()).to_string()
    };
    _ = writeln!(text, "[profile.{name}]\ncapacity_rps = {}", profile.capacity_rps);
    _ = writeln!(text, "ttft_ms = {}\ntbot_ms = {}", knots(&profile.ttft_ms), knots(&profile.tbot_ms));
    text
}

/// A curve in the form that a configuration has it.
pub(super) fn knots(curve: &Curve) -> String {
    let knots: Vec<String> = curve.knots().iter().map(|(load, value)| format!("[{load}, {value}]")).collect();
    format!("[{}]", knots.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: &str = "
        [[cluster]]\nname = 'a'\nregion = 'r'\ndemand_rps = { chat = 1 }
        [[engine]]\nname = 'e'\nregion = 'r'\naddress = '127.0.0.1:1'\nmodels = ['m']\nprofile = NAME
        [[class]]\nname = 'chat'\nmodel = 'm'\noutput_tokens = 9
        [rtt_ms.r]\nr = 1\n";

    #[test]
    fn the_configuration_reads_back_the_same_profile() {
        for name in ["h100-70b", "70b on \"h100\" \\ x", "ü"] {
            let curve = |knots: &[(f64, f64)]| Curve::new(knots.to_vec()).expect("a curve");
            let profile = Profile {
                name: name.to_owned(),
                capacity_rps: 6.173,
                ttft_ms: curve(&[(0.0, 110.3), (4.0, 150.0), (6.173, 700.125)]),
                tbot_ms: curve(&[(0.0, 30.0), (6.173, 41.5)]),
                law: None,
                kv_tokens: None,
            };
            let text = profile_text(&profile, "first\n\nfrom a\u{7}.csv");
            assert!(text.starts_with("# first\n#\n# from a.csv\n["), "{text}");
            let quoted = toml::Value::String(name.to_owned()).to_string();
            let config = crate::config::parse(&format!("{text}{}", REST.replace("NAME", &quoted))).expect("legal");
            assert_eq!(config.fleet.profiles, [profile]);
        }
    }
}
