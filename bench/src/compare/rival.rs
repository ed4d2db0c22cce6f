//! The compared proxies and how each is started: one worker, kept-alive connections both ways, no
//! retries, least connections.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::{Cores, subfolder};
use crate::net::Reserved;
use crate::process::{self, Child};
use crate::site::Site;

/// A kind of proxy; `ilb` counts once per IO driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    Haproxy,
    Nginx,
    IlbUring,
    IlbEpoll,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Haproxy, Self::Nginx, Self::IlbUring, Self::IlbEpoll];

    pub(super) fn is_ilb(self) -> bool {
        matches!(self, Self::IlbUring | Self::IlbEpoll)
    }

    fn find(self) -> Result<PathBuf> {
        let name = match self {
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::IlbUring | Self::IlbEpoll => return process::sibling("ilb"),
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        // Debian keeps daemons in sbin, which is not on everybody's path.
        std::env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
            .map(|folder| folder.join(name))
            .find(|program| program.is_file())
            .with_context(|| format!("{name} is not installed; on Debian: apt-get install {name}"))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::IlbUring => "ilb (io_uring)",
            Self::IlbEpoll => "ilb (epoll)",
        })
    }
}

/// One row of the comparison: a kind of proxy and the program that runs.
#[derive(Clone, Debug)]
pub(super) struct Rival {
    pub(super) kind: Kind,
    program: PathBuf,
    /// Another build of `ilb`, to compare this build with.
    pub(super) is_baseline: bool,
}

/// The folder, round and cores that a proxy runs with.
pub(super) struct TestBed<'a> {
    pub(super) folder: &'a Path,
    pub(super) round: usize,
    pub(super) cores: &'a Cores,
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind, if self.is_baseline { ", baseline" } else { "" })
    }
}

impl Rival {
    /// The installed program of its kind; for `ilb` the one built beside this program.
    ///
    /// Errors: it is not installed.
    pub(super) fn installed(kind: Kind) -> Result<Self> {
        Ok(Self { kind, program: kind.find()?, is_baseline: false })
    }

    /// Another build of `ilb`.
    ///
    /// Errors: there is no such file.
    pub(super) fn baseline(kind: Kind, program: &Path) -> Result<Self> {
        let program = program.canonicalize().with_context(|| format!("no program at {} (--baseline)", program.display()))?;
        Ok(Self { kind, program, is_baseline: true })
    }

    /// The version that the program states.
    pub(super) fn version(&self) -> Result<String> {
        let flag = if self.kind.is_ilb() { "--version" } else { "-v" };
        let output = std::process::Command::new(&self.program).arg(flag).output().context("failed to ask for a version")?;
        // nginx writes it to stderr.
        let text = [output.stdout, output.stderr].concat();
        let line = String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned();
        let number = line.split([' ', '/']).find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        Ok(number.unwrap_or("unknown").to_owned())
    }

    /// Starts the proxy in front of `engines`; returns when it answers.
    pub(super) async fn start(&self, bed: &TestBed<'_>, engines: &[SocketAddr]) -> Result<(Child, SocketAddr)> {
        let addresses = Reserved::new(3)?;
        let (front, admin, control) = (addresses[0], addresses[1], addresses[2]);
        let kind = if engines.is_empty() { String::new() } else { engines[0].port().to_string() };
        let folder =
            subfolder(bed.folder, &format!("{}-{}-{kind}", self.to_string().replace([' ', ',', '(', ')'], ""), bed.round))?;
        let config = folder.join("config");
        let text = match self.kind {
            Kind::Haproxy => haproxy(front, engines),
            Kind::Nginx => nginx(front, engines),
            Kind::IlbUring | Kind::IlbEpoll => {
                let engines: Vec<_> = engines.iter().enumerate().map(|(n, engine)| (format!("e{n}"), *engine)).collect();
                Site { front, admin, control, folder: &folder, engines: &engines, model: "demo" }.config()
            }
        };
        std::fs::write(&config, text).with_context(|| format!("failed to write {}", config.display()))?;
        let mut command = process::logged(&self.program, &folder.join("log"))?;
        match self.kind {
            Kind::Haproxy => command.args(["-db", "-f"]).arg(&config),
            Kind::Nginx => command.arg("-p").arg(&folder).args(["-e", "stderr", "-c"]).arg(&config),
            Kind::IlbUring => command.args(["run", "--io", "uring", "-c"]).arg(&config),
            Kind::IlbEpoll => command.args(["run", "--io", "epoll", "-c"]).arg(&config),
        };
        command.current_dir(&folder);
        let mut child = Child::spawn(&self.to_string(), bed.cores.proxy(&mut command))?;
        child.keep_ports(addresses);
        let started = child.answers(front, "/v1/models", 200).await;
        started.with_context(|| std::fs::read_to_string(folder.join("log")).unwrap_or_default())?;
        Ok((child, front))
    }
}

fn haproxy(front: SocketAddr, engines: &[SocketAddr]) -> String {
    let servers: String = engines.iter().enumerate().map(|(n, engine)| format!("    server e{n} {engine}\n")).collect();
    // http-no-delay sends each event at once; http-reuse shares upstream connections between
    // clients.
    format!(
        "global
    nbthread 1
    maxconn 4000
defaults
    mode http
    timeout connect 2s
    timeout http-request 10s
    timeout client 600s
    timeout server 600s
    retries 0
    http-reuse always
    option http-no-delay
frontend front
    bind {front}
    default_backend engines
backend engines
    balance leastconn
{servers}"
    )
}

fn nginx(front: SocketAddr, engines: &[SocketAddr]) -> String {
    let servers: String = engines.iter().map(|engine| format!("        server {engine} max_fails=0;\n")).collect();
    // proxy_buffering off sends each event at once; keepalive and an empty Connection header keep
    // upstream connections.
    format!(
        "daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr warn;
events {{ worker_connections 8000; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    keepalive_requests 1000000000;
    upstream engines {{
        least_conn;
{servers}        keepalive 1024;
        keepalive_requests 1000000000;
    }}
    server {{
        listen {front} backlog=4096;
        location / {{
            proxy_pass http://engines;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_buffering off;
            proxy_next_upstream off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"
    )
}
