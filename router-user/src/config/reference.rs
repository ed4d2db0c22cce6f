//! docs/configuration.md, made from the keys.

use std::fmt::Write;

use super::key::{Key, Preset, Table};
use super::keys;

/// The text before the tables.
const HEAD: &str = "\
# Configuration

<!-- Generated from the reader's own keys; change router-user/src/config/keys.rs, then run
     ILB_UPDATE_DOCS=1 cargo test --release -p router-user --test it docs -->

One TOML file describes a fleet; every process of the fleet reads the same file. `ilb check FILE`
reads it and prints it with every default, or prints every mistake with its line, its path and the
wanted form. A process reads its file once, when it starts.

[three-regions.toml](../examples/three-regions.toml) is a whole configuration: only clusters,
engines, classes, profiles and distances have no defaults.

Durations are strings such as `\"250ms\"`, `\"2s\"` or `\"1h\"`. Addresses are `\"IP:PORT\"`; names are not
resolved. Paths are relative to the working directory. An unknown key is a mistake.

## Folders

Sockets and snapshots that the file does not place go to the first folder that applies:

| who runs `ilb` | sockets | snapshots |
|---|---|---|
| a systemd unit with `RuntimeDirectory=` and `StateDirectory=` | `$RUNTIME_DIRECTORY` | `$STATE_DIRECTORY/snapshots` |
| root | `/run/ilb` | `/var/lib/ilb/snapshots` |
| anybody else | `$XDG_RUNTIME_DIR/ilb` | `$XDG_STATE_HOME/ilb/snapshots`, or `~/.local/state/ilb/snapshots` |
| anybody without those variables | the folder above `snapshots` | `run/snapshots` in the working directory |
";

/// The reference of every key, as Markdown.
pub fn reference() -> String {
    let mut out = HEAD.to_owned();
    for table in keys::TABLES {
        write_table(table, &mut out).expect("writing to a string cannot fail");
    }
    out
}

fn write_table(table: &Table, out: &mut String) -> std::fmt::Result {
    writeln!(out, "\n## `{}`\n\n{}\n", table.heading, table.meaning)?;
    writeln!(out, "| key | default | form | meaning |\n|---|---|---|---|")?;
    for key in table.keys {
        let meaning = match key.reason {
            "" => key.meaning.to_owned(),
            reason => format!("{} *Default:* {reason}", key.meaning),
        };
        writeln!(out, "| `{}` | {} | {} | {meaning} |", key.name, preset(key), key.form.wanted())?;
    }
    Ok(())
}

fn preset(key: &Key) -> String {
    match key.preset {
        Preset::Required => "required".to_owned(),
        Preset::Nothing(text) | Preset::Derived(text) => text.to_owned(),
        Preset::Text(text) => format!("`\"{text}\"`"),
        Preset::Number(number) => format!("`{number}`"),
        Preset::Whole(number) => format!("`{number}`"),
        Preset::Flag(flag) => format!("`{flag}`"),
        Preset::Duration(duration) => format!("`\"{}\"`", humantime::format_duration(duration)),
    }
}
