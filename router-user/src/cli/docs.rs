//! `ilb docs`: the pages of docs/ that are made from the code.
//!
//! The test `docs` compares each page with its file, and rewrites the file when it is asked to.

use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};
use router_user::admin::{ANSWERS, ENDPOINTS, FAMILIES, Place};

use super::args::Cli;
use super::print::print;
use super::usage::UsageError;

/// The name of a page, which is docs/NAME.md, and the function that makes it.
type Page = (&'static str, fn() -> String);

/// Every page; a new one is one more entry.
const PAGES: &[Page] =
    &[("configuration", router_user::config::reference), ("cli", commands), ("metrics", metrics), ("admin", admin)];

/// The text before the commands.
const HEAD: &str = "\
# Commands

<!-- Generated from the arguments themselves; change router-user/src/cli/args.rs, then run
     ILB_UPDATE_DOCS=1 cargo test --release -p router-user --test it docs -->

Nouns show and never change anything (`status`, `engines`, `weights`, `snapshots`); verbs change.
Results go to stdout, logs and errors to stderr. `--json` prints the same facts for scripts.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | failure: the machine, a running ilb or the input data refused |
| 2 | wrong usage or configuration; nothing was started or changed |

| environment variable | meaning |
|---|---|
| `ILB_LOG` | level of the logs: `error`, `warn`, `info` (default), `debug`, or `MODULE=LEVEL`, separated by commas |
| `ILB_SOCKET` | default of `--socket` for the commands that ask a running ilb |
| `RUNTIME_DIRECTORY`, `STATE_DIRECTORY` | set by systemd: default folders of the socket and the snapshots |
| `XDG_RUNTIME_DIR`, `XDG_STATE_HOME`, `HOME` | the same for users other than root; [configuration.md](configuration.md) has the order |

SIGINT and SIGTERM stop `ilb run`, `ilb proxy` and `ilb control`: streams in flight get 30 s to
finish, and a second signal stops at once. SIGHUP, SIGUSR1 and SIGUSR2 are logged and ignored.
";

/// The text before the metrics.
const METRICS_HEAD: &str = "\
# Metrics

<!-- Generated from the families that /metrics shows; change router-user/src/admin/families.rs, then run
     ILB_UPDATE_DOCS=1 cargo test --release -p router-user --test it docs -->

`GET /metrics` on the admin port (`admin.listen`), in Prometheus' text format. A process shows the
metrics of the roles it runs: `ilb_control_*` are a controller's, `ilb_proxy_*` a data plane's.
[operations.md](operations.md) says what to alert on.

| metric | type | labels | meaning |
|---|---|---|---|
";

/// Prints one page, or the names of all.
///
/// Errors: there is no such page.
pub(crate) fn docs(page: Option<&str>) -> anyhow::Result<()> {
    let names: Vec<&str> = PAGES.iter().map(|(name, _)| *name).collect();
    let Some(page) = page else { return print(&format!("{}\n", names.join("\n"))) };
    match PAGES.iter().find(|(name, _)| *name == page) {
        Some((_, text)) => print(&text()),
        None => Err(UsageError::Arguments(format!("no page {page:?}; wanted one of {}", names.join(", "))).into()),
    }
}

/// The text before the endpoints.
const ADMIN_HEAD: &str = "\
# Endpoints

<!-- Generated from router-user/src/admin/{endpoints,fields}.rs; change those, then run
     ILB_UPDATE_DOCS=1 cargo test --release -p router-user --test it docs -->

Refusals are a sentence as plain text. On the admin port and socket each connection serves one
request; a request that does not come within 2 s loses its connection.
";

/// The text before the fields of answers.
const FIELDS_HEAD: &str = "
## Fields of the JSON answers

`[]` stands for the items of a list, `pairs` for a list of lists of two. A field without a value is
null. Requests of a load are those that the profile was measured with.
";

fn admin() -> String {
    let mut out = ADMIN_HEAD.to_owned();
    let places = [
        (Place::Port, "Admin port (`admin.listen`)"),
        (Place::Socket, "Admin socket (`admin.socket`)"),
        (Place::Controller, "Controller (`control.listen`)"),
    ];
    for (place, title) in places {
        out += &format!("\n## {title}\n\n| endpoint | request | answer | status |\n|---|---|---|---|\n");
        for of in ENDPOINTS.iter().filter(|of| of.place == place) {
            out += &format!("| `{} {}` | {} | {} | {} |\n", of.method, of.path, of.request, of.answer, of.statuses);
        }
    }
    out += FIELDS_HEAD;
    for answer in ANSWERS {
        out += &format!("\n### `GET {}`\n\n| field | type or unit | meaning |\n|---|---|---|\n", answer.path);
        for field in answer.fields {
            out += &format!("| `{}` | {} | {} |\n", field.path, field.unit, field.meaning);
        }
    }
    out
}

fn metrics() -> String {
    let mut out = METRICS_HEAD.to_owned();
    for family in FAMILIES {
        let labels = family.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        writeln!(out, "| `{}` | {} | {labels} | {} |", family.name, family.kind, family.help)
            .expect("writing to a string cannot fail");
    }
    out
}

fn commands() -> String {
    let mut cli = Cli::command();
    cli.build();
    let mut out = HEAD.to_owned();
    write_command(&cli, "ilb", &mut out).expect("writing to a string cannot fail");
    out
}

/// Writes a command, then each of its subcommands.
fn write_command(command: &Command, path: &str, out: &mut String) -> std::fmt::Result {
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    writeln!(out, "\n## `{path}`\n\n{}", paragraphs(&about))?;
    let arguments: Vec<&Arg> = command.get_arguments().filter(|a| !["help", "version"].contains(&a.get_id().as_str())).collect();
    if !arguments.is_empty() {
        writeln!(out, "\n| argument | default | meaning |\n|---|---|---|")?;
        for argument in arguments {
            writeln!(out, "| {} | {} | {} |", name(argument), default(argument), meaning(argument))?;
        }
    }
    for subcommand in command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        write_command(subcommand, &format!("{path} {}", subcommand.get_name()), out)?;
    }
    Ok(())
}

/// The argument as it is typed; a pipe would end the cell of the table even in code.
fn name(argument: &Arg) -> String {
    let values = argument.get_value_names().unwrap_or_default().iter().map(|value| value.to_string());
    let value = values.collect::<Vec<_>>().join(" ").replace('|', "\\|");
    let short = argument.get_short().map_or_else(String::new, |short| format!("-{short}, "));
    match argument.get_long() {
        None => format!("`{value}`"),
        Some(long) if argument.get_action().takes_values() => format!("`{short}--{long} {value}`"),
        Some(long) => format!("`{short}--{long}`"),
    }
}

fn default(argument: &Arg) -> String {
    let values: Vec<String> = argument.get_default_values().iter().map(|v| format!("`{}`", v.to_string_lossy())).collect();
    let hidden = || if argument.is_hide_default_value_set() { "that of admin.socket".to_owned() } else { values.join(" ") };
    let variable = argument.get_env().map(|name| format!("`${}`, else {}", name.to_string_lossy(), hidden()));
    match variable {
        Some(variable) => variable,
        None if argument.is_required_set() => "required".to_owned(),
        // clap gives flags the default \"false\".
        None if !argument.get_action().takes_values() => String::new(),
        None => values.join(" "),
    }
}

fn meaning(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    help.replace("\n\n", " ").replace('\n', " ").replace('|', "\\|")
}

/// Each paragraph as clap holds it, one line each.
fn paragraphs(text: &str) -> String {
    text.replace('<', "\\<")
}
