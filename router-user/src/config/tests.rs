use rstest::rstest;

use super::{Mistake, parse};

const EXAMPLE: &str = include_str!("../../../examples/three-regions.toml");

fn mistakes(source: &str) -> Vec<String> {
    let line = |m: Mistake| format!("{} {}: {}", m.line, m.path, m.message);
    parse(source).err().unwrap_or_default().into_iter().map(line).collect()
}

/// The example with `from` replaced by `to`, which must give exactly one mistake that contains
/// every wanted part.
#[track_caller]
fn check(from: &str, to: &str, wanted: &[&str]) {
    assert!(EXAMPLE.contains(from), "the example lacks {from:?}");
    let found = mistakes(&EXAMPLE.replacen(from, to, 1));
    assert_eq!(found.len(), 1, "{found:#?}");
    for part in wanted {
        assert!(found[0].contains(part), "{:?} lacks {part:?}", found[0]);
    }
}

#[test]
fn the_example_resolves_with_defaults_and_prints_back_to_itself() {
    let config = parse(EXAMPLE).expect("the example is legal");
    assert_eq!(config.fleet.rtt_ms, [[1.0, 30.0, 80.0], [30.0, 1.0, 60.0], [80.0, 60.0, 1.0]]);
    assert_eq!(config.fleet.clusters[1].demand_rps, [120.0]);
    assert_eq!(config.store.url, "http://127.0.0.1:9800");
    let printed = config.to_toml();
    assert_eq!(parse(&printed).unwrap_or_else(|m| panic!("{m:#?}\n{printed}")), config);
}

#[rstest]
#[case::unknown_key("address = \"127.0.0.1:18001\"", "address = \"127.0.0.1:18001\"\nreplica = 2", &["engine[0].replica", "unknown key", "\"replicas\""])]
#[case::unknown_section("[[class]]", "[proxi]\nworkers = 1\n[[class]]", &["proxi", "did you mean \"proxy\"?"])]
#[case::unknown_profile("profile = \"demo-80\"", "profile = \"demo-08\"", &["engine[2].profile", "unknown profile \"demo-08\"", "\"demo-80\""])]
#[case::unknown_class("{ chat = 120 }", "{ chta = 120 }", &["cluster[1].demand_rps.chta", "unknown class", "\"chat\""])]
#[case::negative_demand("{ chat = 120 }", "{ chat = -1 }", &["cluster[1].demand_rps.chat", "-1", "0 or more"])]
#[case::nan_demand("{ chat = 120 }", "{ chat = nan }", &["cluster[1].demand_rps.chat", "is nan", "finite"])]
#[case::text_for_number("{ chat = 120 }", "{ chat = \"120\" }", &["cluster[1].demand_rps.chat", "\"120\"", "a finite number"])]
#[case::capacity_zero("capacity_rps = 100", "capacity_rps = 0", &["profile.demo-100.capacity_rps", "above 0"])]
#[case::capacity_missing("capacity_rps = 100", "", &["profile.demo-100.capacity_rps", "is missing"])]
#[case::not_convex("[50, 150], [90, 400]", "[50, 399], [90, 400]", &["profile.demo-100.ttft_ms", "not convex", "knot 1"])]
#[case::falling("[[0, 8], [100, 20]]", "[[0, 8], [100, 2]]", &["profile.demo-100.tbot_ms", "falls at knot 1"])]
#[case::three_numbers("[[0, 8], [100, 20]]", "[[0, 8, 1], [100, 20]]", &["profile.demo-100.tbot_ms", "[[load_rps, value_ms], ...]"])]
#[case::rtt_missing("r2 = 1\nr3 = 60", "r2 = 1", &["rtt_ms.r2.r3", "from region r2 to region r3"])]
#[case::rtt_negative("r2 = 1\nr3 = 60", "r2 = 1\nr3 = -60", &["rtt_ms.r2.r3", "-60"])]
#[case::rtt_unknown_region("[rtt_ms.r1]", "[rtt_ms.r9]\nr1 = 1\n[rtt_ms.r1]", &["rtt_ms.r9", "no cluster or engine"])]
#[case::unservable("output_tokens = 50", "output_tokens = 50\nrequire = { residency = \"eu\" }", &["class[0]", "no engine can serve", "residency=eu"])]
#[case::wrong_model("model = \"demo\"\n", "model = \"dmeo\"\n", &["class[0]", "no engine can serve", "\"dmeo\""])]
#[case::twice("name = \"e2\"", "name = \"e1\"", &["engine[1].name", "already the name of the engine on line"])]
#[case::same_address("127.0.0.1:18002", "127.0.0.1:18001", &["engine[1].address", "already the address"])]
#[case::bad_address("127.0.0.1:18002", "localhost:18002", &["engine[1].address", "IP:PORT"])]
#[case::bad_name("name = \"e2\"", "name = \"e 2\"", &["engine[1].name", "letters"])]
#[case::bad_period("[[class]]", "[control]\nperiod = \"fast\"\n[[class]]", &["control.period", "\"fast\"", "\"250ms\""])]
#[case::scrape_period_short("[[class]]", "[control]\nscrape_period = \"50ms\"\n[[class]]", &["control.scrape_period", "\"50ms\"", "\"500ms\"", "\"0s\""])]
#[case::bad_headroom("[[class]]", "[control]\nheadroom = 1\n[[class]]", &["control.headroom", "fraction"])]
#[case::move_limit_zero("[[class]]", "[control]\nmove_limit = 0\n[[class]]", &["control.move_limit", "above 0"])]
#[case::move_limit_above_one("[[class]]", "[control]\nmove_limit = 1.1\n[[class]]", &["control.move_limit", "at most 1"])]
#[case::move_price("output_tokens = 50", "output_tokens = 50\nmove_price_ms = -1", &["class[0].move_price_ms", "-1", "0 or more"])]
#[case::hit_share("output_tokens = 50", "output_tokens = 50\nhit_share = 1", &["class[0].hit_share", "fraction"])]
#[case::work_zero("output_tokens = 50", "output_tokens = 50\nwork = 0", &["class[0].work", "above 0"])]
#[case::weight("output_tokens = 50", "output_tokens = 50\nttft_weight = -1", &["class[0].ttft_weight", "-1", "0 or more"])]
#[case::cap_zero("output_tokens = 50", "output_tokens = 50\nrtt_cap_ms = 0", &["class[0].rtt_cap_ms", "above 0"])]
#[case::cap_too_low("output_tokens = 50", "output_tokens = 50\nrtt_cap_ms = 0.5", &["class[0].rtt_cap_ms", "0.5", "cluster \"a\"", "1 ms"])]
#[case::budget("{ chat = 120 }", "{ chat = 120 }\ndetour_budget_ms = 0", &["cluster[1].detour_budget_ms", "above 0"])]
#[case::kv_tokens("capacity_rps = 100", "capacity_rps = 100\nkv_tokens = -5", &["profile.demo-100.kv_tokens", "-5", "above 0"])]
#[case::law_part("capacity_rps = 100", "capacity_rps = 100\nwork = { base_ms = 29.5, prompt_token_ms = 0.065, sequence_ms = 0.3, max_batch = 256, prompt_tokens = 100 }", &["profile.demo-100.work.output_tokens", "is missing"])]
#[case::canary("[[class]]", "[control]\ncanary = \"bb\"\n[[class]]", &["control.canary", "unknown cluster \"bb\"", "\"b\""])]
#[case::canary_periods("[[class]]", "[control]\ncanary_periods = 0\n[[class]]", &["control.canary_periods", "1"])]
#[case::store_url("[[class]]", "[store]\nurl = \"file://snapshots\"\n[[class]]", &["store.url", "file:///PATH"])]
#[case::kernel_class("[[class]]", "[kernel]\nclass = \"cht\"\n[[class]]", &["kernel.class", "\"chat\""])]
#[case::etcd_name("[[class]]", "[store]\netcd = [\"etcd1:2379\"]\n[[class]]", &["store.etcd", "IP:PORT"])]
#[case::etcd_prefix("[[class]]", "[store]\nprefix = \"ilb/\"\n[[class]]", &["store.prefix", "\"ilb/\"", "\"/ilb\""])]
#[case::lease_short("[[class]]", "[store]\nlease = \"1s\"\n[[class]]", &["store.lease", "\"1s\"", "\"2s\""])]
#[case::lease_fraction("[[class]]", "[store]\nlease = \"2500ms\"\n[[class]]", &["store.lease", "whole seconds"])]
#[case::stale_short("[[class]]", "[store]\nstale_after = \"1s\"\n[[class]]", &["store.stale_after", "\"10s\""])]
#[case::listen_item("[[class]]", "[proxy]\nlisten = [\"127.0.0.1:1\", 7]\n[[class]]", &["proxy.listen[1]: is 7; wanted an address"])]
#[case::listen_empty("[[class]]", "[proxy]\nlisten = []\n[[class]]", &["proxy.listen: is an empty array", "at least one"])]
#[case::listen_table("[[class]]", "[proxy]\nlisten = { a = 1 }\n[[class]]", &["proxy.listen: is a table; wanted an address \"IP:PORT\" or an array of them"])]
#[case::array_for_text("model = \"demo\"\n", "model = [\"demo\"]\n", &["class[0].model: is an array; wanted the name of a model"])]
#[case::empty_text("[[class]]", "[admin]\nsocket = \"\"\n[[class]]", &["admin.socket: is \"\"; wanted a path"])]
#[case::models_item("models = [\"demo\"]", "models = [3]", &["engine[0].models[0]: is 3; wanted a string"])]
#[case::models_empty("models = [\"demo\"]", "models = []", &["engine[0].models: is an empty array; wanted at least one model"])]
#[case::sections_as_array("[rtt_ms.r1]", "[[control]]\n[rtt_ms.r1]", &["control: is an array; wanted a table"])]
#[case::attempts("[[class]]", "[proxy]\nmax_attempts = 0\n[[class]]", &["proxy.max_attempts: is 0; wanted a whole number of engines from 1 to 64"])]
#[case::idle("[[class]]", "[proxy]\nengine_idle_timeout = \"2h\"\n[[class]]", &["proxy.engine_idle_timeout", "\"2h\"", "\"1h\""])]
#[case::section_as_value("[[class]]", "[proxy]\nlisten = 3\n[[class]]", &["proxy.listen", "IP:PORT"])]
fn names_the_mistake(#[case] from: &str, #[case] to: &str, #[case] wanted: &[&str]) {
    check(from, to, wanted);
}

/// The example with 1,000-token prompts, half of them cached, on engines whose iterations are
/// known.
fn with_law(class: &str) -> crate::model::Class {
    let law = "work = { base_ms = 30, prompt_token_ms = 0.05, sequence_ms = 0.2, max_batch = 100, prompt_tokens = 500, output_tokens = 50 }";
    let source = EXAMPLE.replace("[profile.demo-100]", &format!("[profile.demo-100]\n{law}"));
    let source = source.replace("[profile.demo-80]", &format!("[profile.demo-80]\n{law}"));
    let config = parse(&source.replacen("output_tokens = 50", &format!("output_tokens = 50\n{class}"), 1)).expect("legal");
    assert_eq!(parse(&config.to_toml()).expect("as printed"), config);
    config.fleet.classes[0].clone()
}

#[test]
fn work_and_the_price_of_moving_follow_from_prompts_and_hit_share() {
    // The reference: 500 x 0.05 + 50 x (30 / 100 + 0.2) = 50 ms of engine time.
    let found = |class| (with_law(class).work, with_law(class).move_price_ms);
    assert_eq!(found(""), (1.0, 5.0), "nothing is known of its prompts");
    assert_eq!(found("prompt_tokens = 500"), (1.0, 5.0));
    assert_eq!(found("prompt_tokens = 1000"), (1.5, 5.0));
    assert_eq!(found("prompt_tokens = 1000\nhit_share = 0.5"), (1.0, 25.0), "25 ms of prefill are not paid, unless it moves");
    assert_eq!(found("prompt_tokens = 1000\nhit_share = 0.5\nwork = 3\nmove_price_ms = 7"), (3.0, 7.0));
}

#[test]
fn a_distance_within_a_region_need_not_be_written() {
    let bare = EXAMPLE.replace("\nr2 = 1\n", "\n").replace("[rtt_ms.r1]\nr1 = 1\n", "[rtt_ms.r1]\n");
    let fleet = parse(&bare).expect("legal").fleet;
    assert_eq!((fleet.rtt_ms[0][0], fleet.rtt_ms[1][1]), (1.0, 1.0));
    let local = "[[cluster]]\nname = \"a\"\nregion = \"local\"\n[[engine]]\nname = \"e\"\nregion = \"local\"\n\
                 address = \"127.0.0.1:1\"\nmodels = [\"m\"]\nprofile = \"p\"\n[[class]]\nname = \"c\"\nmodel = \"m\"\n\
                 output_tokens = 9\n[profile.p]\ncapacity_rps = 9\nttft_ms = [[0, 1]]\ntbot_ms = [[0, 1]]\n";
    assert_eq!(parse(local).expect("one region needs no table of distances").fleet.rtt_ms, [[1.0]]);
}

#[test]
fn every_key_of_a_printed_configuration_is_in_the_reference() {
    let printed: toml::Table = parse(EXAMPLE).expect("legal").to_toml().parse().expect("TOML");
    let reference = super::reference();
    for section in ["proxy", "admin", "control", "store", "kernel"] {
        assert!(reference.contains(&format!("## `[{section}]`")), "{section}");
        for key in printed[section].as_table().expect("a table").keys() {
            assert!(reference.contains(&format!("\n| `{key}` |")), "{section}.{key}");
        }
    }
}

#[test]
fn reports_all_mistakes_in_one_run_in_the_order_of_lines() {
    let source = EXAMPLE.replacen("demand_rps = { chat = 90 }", "demand_rps = { chat = -90 }\ncolour = 1", 1).replacen(
        "capacity_rps = 80",
        "capacity_rps = nan",
        1,
    );
    let found = mistakes(&source);
    assert_eq!(found.len(), 3, "{found:#?}");
    let lines: Vec<usize> = found.iter().map(|m| m.split(' ').next().unwrap_or_default().parse().expect("a line")).collect();
    assert!(lines.is_sorted(), "{found:#?}");
}

#[test]
fn broken_toml_and_an_empty_file_are_mistakes_with_a_place() {
    assert!(mistakes("[[cluster]\nname = \"a\"\n")[0].starts_with("1 "), "{:#?}", mistakes("[[cluster]\n"));
    let empty = mistakes("");
    for kind in ["cluster", "engine", "class"] {
        assert!(empty.iter().any(|m| m.contains(&format!("[[{kind}]]"))), "{empty:#?}");
    }
}

#[rstest]
#[case::left_out("", Some(5_000))]
#[case::off("scrape_period = \"0s\"", None)]
#[case::shortest("scrape_period = \"500ms\"", Some(500))]
#[case::longest("scrape_period = \"1h\"", Some(3_600_000))]
fn engines_are_asked_for_metrics_as_often_as_the_file_says(#[case] line: &str, #[case] wanted_ms: Option<u64>) {
    let config = parse(&format!("{EXAMPLE}\n[control]\n{line}\n")).expect("legal");
    assert_eq!(config.control.scrape_period, wanted_ms.map(std::time::Duration::from_millis));
    assert_eq!(parse(&config.to_toml()).expect("legal"), config);
}
