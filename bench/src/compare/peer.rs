//! The proxies measured, and how each is started: one worker, kept-alive connections both ways, no retries, least connections.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::{Cores, subfolder};
use crate::process::{self, Child};
use crate::site::Site;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Peer {
    Haproxy,
    Nginx,
    IlbUring,
    IlbEpoll,
}

/// Where a proxy is started.
pub(super) struct Ground<'a> {
    pub(super) folder: &'a Path,
    pub(super) round: usize,
    pub(super) cores: &'a Cores,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::IlbUring => "ilb (io_uring)",
            Self::IlbEpoll => "ilb (epoll)",
        })
    }
}

impl Peer {
    pub(super) const ALL: [Self; 4] = [Self::Haproxy, Self::Nginx, Self::IlbUring, Self::IlbEpoll];

    /// The program.
    pub(super) fn find(self) -> Result<PathBuf> {
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

    /// Its version, as it tells it.
    pub(super) fn version(self) -> Result<String> {
        let flag = if self == Self::IlbUring || self == Self::IlbEpoll { "--version" } else { "-v" };
        let output = std::process::Command::new(self.find()?).arg(flag).output().context("failed to ask for a version")?;
        // nginx tells it on stderr.
        let text = [output.stdout, output.stderr].concat();
        let line = String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned();
        let number = line.split([' ', '/']).find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        Ok(number.unwrap_or("unknown").to_owned())
    }

    /// Starts the proxy in front of `engines`; returns when it answers.
    pub(super) async fn start(self, ground: &Ground<'_>, engines: &[SocketAddr]) -> Result<(Child, SocketAddr)> {
        let addresses = process::free_addresses(3)?;
        let (front, admin, control) = (addresses[0], addresses[1], addresses[2]);
        let kind = if engines.is_empty() { String::new() } else { engines[0].port().to_string() };
        let folder = subfolder(
            ground.folder,
            &format!(
                "{}-{}-{kind}",
                self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned()),
                ground.round
            ),
        )?;
        let config = folder.join("config");
        let text = match self {
            Self::Haproxy => haproxy(front, engines),
            Self::Nginx => nginx(front, engines),
            Self::IlbUring | Self::IlbEpoll => {
                let engines: Vec<_> = engines.iter().enumerate().map(|(n, engine)| (format!("e{n}"), *engine)).collect();
                Site { front, admin, control, folder: &folder, engines: &engines, model: "demo" }.config()
            }
        };
        std::fs::write(&config, text).with_context(|| format!("failed to write {}", config.display()))?;
        let mut command = process::logged(&self.find()?, &folder.join("log"))?;
        match self {
            Self::Haproxy => command.args(["-db", "-f"]).arg(&config),
            Self::Nginx => command.arg("-p").arg(&folder).args(["-e", "stderr", "-c"]).arg(&config),
            Self::IlbUring => command.args(["run", "--io", "uring", "-c"]).arg(&config),
            Self::IlbEpoll => command.args(["run", "--io", "epoll", "-c"]).arg(&config),
        };
        command.current_dir(&folder);
        let mut child = Child::spawn(&self.to_string(), ground.cores.proxy(&mut command))?;
        let started = child.answers(front, "/v1/models", 200).await;
        started.with_context(|| std::fs::read_to_string(folder.join("log")).unwrap_or_default())?;
        Ok((child, front))
    }
}

fn haproxy(front: SocketAddr, engines: &[SocketAddr]) -> String {
    let servers: String = engines.iter().enumerate().map(|(n, engine)| format!("    server e{n} {engine}\n")).collect();
    // http-no-delay sends each event at once; http-reuse shares upstream connections between clients.
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
    // proxy_buffering off sends each event at once; keepalive and an empty Connection header keep upstream connections.
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
