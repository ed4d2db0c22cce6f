//! Child processes that end with this one.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::clock;
use crate::http::parse_response;
use crate::net::Reserved;

/// How long a child may take to end after SIGTERM before it is killed.
const GRACE: Duration = Duration::from_secs(3);

/// How long a child may take until it answers.
const START: Duration = Duration::from_secs(20);

/// A child and what it started: one process group, ended as a whole when this is dropped.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: std::process::Child,
    /// Reserved for as long as the child may listen on them.
    ports: Option<Reserved>,
}

impl Child {
    /// Starts `command` in a process group of its own. It gets SIGTERM when this process dies,
    /// however it dies.
    pub fn spawn(name: &str, command: &mut Command) -> Result<Self> {
        let parent = std::process::id();
        // SAFETY: the closure runs between fork and exec and calls only prctl, getppid and _exit,
        // which are safe to call there; it touches no memory but its captured integer.
        unsafe {
            command.pre_exec(move || {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                // The parent may have died before the request above.
                if u32::try_from(libc::getppid()) != Ok(parent) {
                    libc::_exit(1);
                }
                Ok(())
            });
        }
        command.process_group(0);
        let process = command.spawn().with_context(|| format!("failed to start {name}: {}", display(command)))?;
        Ok(Self { name: name.to_owned(), process, ports: None })
    }

    /// Keeps the ports reserved until the child has ended.
    pub fn keep_ports(&mut self, ports: Reserved) {
        self.ports = Some(ports);
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process group, which is the child's process id.
    pub fn group(&self) -> u32 {
        self.process.id()
    }

    /// The child's standard output, if it was asked for as a pipe; once.
    pub fn take_output(&mut self) -> Option<std::os::fd::OwnedFd> {
        self.process.stdout.take().map(Into::into)
    }

    /// True until the child has ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Waits until `address` answers a GET of `path` with `status`.
    pub async fn answers(&mut self, address: SocketAddr, path: &str, status: u16) -> Result<()> {
        let give_up = clock::now() + START;
        let mut last = "nothing yet".to_owned();
        while clock::now() < give_up {
            if let Ok(Some(exit)) = self.process.try_wait() {
                bail!("{} ended with {exit} before it answered", self.name);
            }
            match tokio::time::timeout(Duration::from_secs(1), get(address, path)).await {
                Ok(Ok((found, _))) if found == status => return Ok(()),
                Ok(Ok((found, _))) => last = format!("status {found}"),
                Ok(Err(error)) => last = format!("{error:#}"),
                Err(_) => last = "no answer within a second".to_owned(),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("{} did not answer http://{address}{path} with {status} within {START:?}; last: {last}", self.name)
    }

    /// Sends a signal to the child and what it started.
    pub fn signal(&self, signal: i32) {
        if let Ok(group) = i32::try_from(self.group()) {
            // SAFETY: kill takes no pointers; the group was made by `spawn` for this child, and its
            // leader has not been reaped yet when this is called, so the number cannot belong to
            // anything else.
            unsafe { libc::kill(-group, signal) };
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(libc::SIGTERM);
        let give_up = clock::now() + GRACE;
        while clock::now() < give_up {
            if !self.is_running() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.signal(libc::SIGKILL);
        let _ = self.process.wait();
    }
}

/// One GET on a connection of its own: status and body.
pub async fn get(address: SocketAddr, path: &str) -> Result<(u16, Vec<u8>)> {
    request(address, "GET", path, "").await
}

/// One request on a connection of its own, with a body of JSON or none: status and body.
pub async fn request(address: SocketAddr, method: &str, path: &str, body: &str) -> Result<(u16, Vec<u8>)> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let fields = if body.is_empty() {
        String::new()
    } else {
        format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len())
    };
    let request = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{fields}\r\n{body}");
    stream.write_all(request.as_bytes()).await?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).await?;
    let (head, length) = parse_response(&reply, |_, _| ())?.context("the reply has no head")?;
    let mut input = bytes::BytesMut::from(&reply[length..]);
    let mut body = bytes::BytesMut::new();
    crate::http::BodyDecoder::new(head.framing).decode(&mut input, &mut body)?;
    Ok((head.status, body.to_vec()))
}

/// A program of this workspace: it lies beside the running one.
pub fn sibling(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("failed to find the running program")?;
    let mut folder = own.parent().context("the running program has no folder")?;
    // Tests run one folder further down.
    if folder.file_name() == Some(OsStr::new("deps")) {
        folder = folder.parent().unwrap_or(folder);
    }
    let path = folder.join(name);
    ensure!(path.is_file(), "{} is missing; build it with `cargo build --release --workspace`", path.display());
    Ok(path)
}

/// A command whose output goes to a file, so that it does not run into tables.
pub fn logged(program: &Path, log: &Path) -> Result<Command> {
    let file = std::fs::File::create(log).with_context(|| format!("failed to write {}", log.display()))?;
    let copy = file.try_clone().context("failed to share the log file")?;
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(file).stderr(copy);
    Ok(command)
}

fn display(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
