//! Prints a resolved configuration in the form it was read from, every default spelled out.

use std::fmt::{Result, Write};
use std::net::SocketAddr;
use std::time::Duration;

use super::types::{Admin, Config, Control, Kernel, ProxyConfig, Store};
use crate::model::{Class, Cluster, Curve, Engine, Fleet, Profile, Tags};

pub(super) fn to_toml(config: &Config) -> String {
    let mut out = String::new();
    write_all(config, &mut out).expect("writing to a string cannot fail");
    out
}

fn write_all(config: &Config, out: &mut String) -> Result {
    let Config { fleet, proxy, admin, control, store, kernel } = config;
    fleet.clusters.iter().try_for_each(|cluster| write_cluster(cluster, fleet, out))?;
    fleet.engines.iter().try_for_each(|engine| write_engine(engine, fleet, out))?;
    fleet.classes.iter().try_for_each(|class| write_class(class, out))?;
    fleet.profiles.iter().try_for_each(|profile| write_profile(profile, out))?;
    write_distances(fleet, out)?;
    write_proxy(proxy, out)?;
    write_admin(admin, out)?;
    write_control(control, fleet, out)?;
    write_store(store, out)?;
    write_kernel(kernel, fleet, out)
}

fn write_cluster(cluster: &Cluster, fleet: &Fleet, out: &mut String) -> Result {
    writeln!(out, "[[cluster]]\nname = {}\nregion = {}", text(&cluster.name), text(&cluster.region))?;
    let demand = fleet.classes.iter().zip(&cluster.demand_rps).map(|(c, rps)| format!("{} = {rps}", text(&c.name)));
    writeln!(out, "demand_rps = {{ {} }}", demand.collect::<Vec<_>>().join(", "))?;
    optional(out, "detour_budget_ms", cluster.detour_budget_ms)?;
    writeln!(out)
}

fn write_engine(engine: &Engine, fleet: &Fleet, out: &mut String) -> Result {
    writeln!(out, "[[engine]]\nname = {}\nregion = {}", text(&engine.name), text(&engine.region))?;
    writeln!(out, "address = \"{}\"\nmodels = {}", engine.address, list(engine.models.iter().map(|m| text(m))))?;
    writeln!(out, "profile = {}\nreplicas = {}", text(&fleet.profiles[engine.profile].name), engine.replicas)?;
    writeln!(out, "tags = {}\n", inline(&engine.tags))
}

fn write_class(class: &Class, out: &mut String) -> Result {
    writeln!(out, "[[class]]\nname = {}\nmodel = {}", text(&class.name), text(&class.model))?;
    writeln!(out, "prompt_tokens = {}\noutput_tokens = {}", class.prompt_tokens, class.output_tokens)?;
    writeln!(out, "hit_share = {}\nwork = {}", class.prefix_hit_frac, class.work)?;
    writeln!(out, "ttft_weight = {}\ndecode_weight = {}", class.ttft_weight, class.decode_weight)?;
    optional(out, "rtt_cap_ms", class.rtt_cap_ms)?;
    writeln!(out, "priority = {}\nttft_budget_ms = {}", class.priority, class.ttft_budget_ms)?;
    writeln!(out, "require = {}", inline(&class.require))?;
    writeln!(out, "move_price_ms = {}\n", class.move_price_ms)
}

fn write_profile(profile: &Profile, out: &mut String) -> Result {
    writeln!(out, "[profile.{}]\ncapacity_rps = {}", text(&profile.name), profile.capacity_rps)?;
    writeln!(out, "ttft_ms = {}\ntbot_ms = {}", knots(&profile.ttft_ms), knots(&profile.tbot_ms))?;
    optional(out, "kv_tokens", profile.kv_tokens)?;
    if let Some(law) = profile.law {
        let iteration = format!("base_ms = {}, prompt_token_ms = {}", law.base_ms, law.prompt_token_ms);
        let batch = format!("sequence_ms = {}, max_batch = {}", law.sequence_ms, law.max_batch);
        let request = format!("prompt_tokens = {}, output_tokens = {}", law.prompt_tokens, law.output_tokens);
        writeln!(out, "work = {{ {iteration}, {batch}, {request} }}")?;
    }
    writeln!(out)
}

/// One row per region with a cluster, one column per region with an engine.
fn write_distances(fleet: &Fleet, out: &mut String) -> Result {
    let mut rows: Vec<&str> = Vec::new();
    for (cluster, row) in fleet.clusters.iter().zip(&fleet.rtt_ms) {
        if rows.contains(&cluster.region.as_str()) {
            continue;
        }
        rows.push(&cluster.region);
        writeln!(out, "[rtt_ms.{}]", text(&cluster.region))?;
        let mut columns: Vec<&str> = Vec::new();
        for (engine, rtt_ms) in fleet.engines.iter().zip(row) {
            if !columns.contains(&engine.region.as_str()) {
                columns.push(&engine.region);
                writeln!(out, "{} = {rtt_ms}", text(&engine.region))?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

fn write_proxy(proxy: &ProxyConfig, out: &mut String) -> Result {
    writeln!(out, "[proxy]\nlisten = {}\nworkers = {}", addresses(&proxy.listen), proxy.workers)?;
    for (key, size) in [
        ("max_connections", proxy.max_connections),
        ("max_head_bytes", proxy.max_head_bytes),
        ("max_head_fields", proxy.max_head_fields),
        ("max_body_bytes", proxy.max_body_bytes),
        ("max_bodies_bytes", proxy.max_bodies_bytes),
        ("max_in_flight_per_engine", proxy.max_in_flight_per_engine),
        ("max_waiting", proxy.max_waiting),
        ("max_idle_per_engine", proxy.max_idle_per_engine),
        ("max_attempts", proxy.max_attempts),
        ("max_stored_ids", proxy.max_stored_ids),
    ] {
        writeln!(out, "{key} = {size}")?;
    }
    for (key, time) in [
        ("connect_timeout", proxy.connect_timeout),
        ("ttft_timeout", proxy.ttft_timeout),
        ("gap_timeout", proxy.gap_timeout),
        ("client_idle_timeout", proxy.client_idle_timeout),
        ("head_timeout", proxy.head_timeout),
        ("body_gap_timeout", proxy.body_gap_timeout),
        ("client_stall_timeout", proxy.client_stall_timeout),
        ("engine_idle_timeout", proxy.engine_idle_timeout),
        ("stored_id_max_age", proxy.stored_id_max_age),
    ] {
        writeln!(out, "{key} = {}", duration(time))?;
    }
    writeln!(out, "load_factor = {}", proxy.load_factor)?;
    writeln!(out, "min_upload_bytes_per_s = {}", proxy.min_upload_bytes_per_s)?;
    writeln!(out, "min_download_bytes_per_s = {}\n", proxy.min_download_bytes_per_s)
}

fn write_admin(admin: &Admin, out: &mut String) -> Result {
    let listen = admin.listen.map_or("off".to_owned(), |a| a.to_string());
    writeln!(out, "[admin]\nsocket = {}\nlisten = \"{listen}\"\n", text(&admin.socket.to_string_lossy()))
}

fn write_control(control: &Control, fleet: &Fleet, out: &mut String) -> Result {
    writeln!(out, "[control]\nperiod = {}\nlisten = \"{}\"", duration(control.period), control.listen)?;
    writeln!(out, "headroom = {}\nmove_limit = {}", control.headroom_frac, control.move_limit_frac)?;
    writeln!(out, "measured_rtt = {}", control.measured_rtt)?;
    writeln!(out, "health_period = {}", duration(control.health_period))?;
    writeln!(out, "scrape_period = {}", duration(control.scrape_period.unwrap_or_default()))?;
    if let Some(canary) = control.canary {
        writeln!(out, "canary = {}", text(&fleet.clusters[canary.index()].name))?;
    }
    writeln!(out, "canary_periods = {}\n", control.canary_periods)
}

fn write_store(store: &Store, out: &mut String) -> Result {
    writeln!(out, "[store]\ndir = {}\nurl = {}", text(&store.dir.to_string_lossy()), text(&store.url))?;
    writeln!(out, "etcd = {}\nprefix = {}", addresses(&store.etcd), text(&store.prefix))?;
    writeln!(out, "lease = {}\nstale_after = {}\n", duration(store.lease), duration(store.stale_after))
}

fn write_kernel(kernel: &Kernel, fleet: &Fleet, out: &mut String) -> Result {
    writeln!(out, "[kernel]\nenabled = {}\nservice = \"{}\"", kernel.enabled, kernel.service)?;
    writeln!(out, "class = {}", text(&fleet.classes[kernel.class.index()].name))?;
    writeln!(out, "pin_dir = {}", text(&kernel.pin_dir.to_string_lossy()))?;
    if let Some(cgroup) = &kernel.cgroup {
        writeln!(out, "cgroup = {}", text(&cgroup.to_string_lossy()))?;
    }
    Ok(())
}

fn addresses(addresses: &[SocketAddr]) -> String {
    list(addresses.iter().map(|address| format!("\"{address}\"")))
}

fn optional(out: &mut String, key: &str, value: Option<f64>) -> Result {
    value.map_or(Ok(()), |value| writeln!(out, "{key} = {value}"))
}

/// A TOML string or quoted key.
fn text(value: &str) -> String {
    toml::Value::String(value.to_owned()).to_string()
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

fn inline(tags: &Tags) -> String {
    if tags.is_empty() {
        return "{}".to_owned();
    }
    format!("{{ {} }}", tags.iter().map(|(k, v)| format!("{} = {}", text(k), text(v))).collect::<Vec<_>>().join(", "))
}

fn knots(curve: &Curve) -> String {
    list(curve.knots().iter().map(|(load, value)| format!("[{load}, {value}]")))
}

fn duration(value: Duration) -> String {
    format!("\"{}\"", humantime::format_duration(value))
}
