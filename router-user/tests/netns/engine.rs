//! Engines for tests: processes of their own that accept, say who they are and wait until the
//! client has gone.

use std::{
    env, fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
};

use socket2::{Domain, Socket, Type};

use crate::world::{World, enter_network_namespace};

const LISTEN: &str = "ILB_TEST_ENGINE_LISTEN";
const NAME: &str = "ILB_TEST_ENGINE_NAME";
const CGROUP: &str = "ILB_TEST_ENGINE_CGROUP";
/// How it differs from a plain engine, if it does.
const MANNER: &str = "ILB_TEST_ENGINE_MANNER";
const ELSEWHERE: &str = "in another network namespace";
const SHARING: &str = "with SO_REUSEPORT";
const READY: &str = "engine listens";

/// A process that listens; killed when dropped.
pub(crate) struct Engine {
    process: Child,
    /// Where clients would reach it.
    pub(crate) address: SocketAddr,
}

impl Engine {
    /// Starts an engine in the world's cgroup, named by one letter.
    pub(crate) fn start(world: &World, name: char, address: &str) -> Self {
        Self::start_with(world, name, address, "")
    }

    /// Starts an engine in the world's cgroup but in a network namespace of its own.
    pub(crate) fn start_elsewhere(world: &World, name: char, address: &str) -> Self {
        Self::start_with(world, name, address, ELSEWHERE)
    }

    /// Starts an engine that shares its address with others.
    pub(crate) fn start_sharing(world: &World, name: char, address: &str) -> Self {
        Self::start_with(world, name, address, SHARING)
    }

    fn start_with(world: &World, name: char, address: &str, manner: &str) -> Self {
        let mut command = this_test("engine::engine_process");
        command.env(LISTEN, address).env(NAME, name.to_string()).env(CGROUP, &world.cgroup).env(MANNER, manner);
        let process = start_and_wait(&mut command, READY);
        Self { process, address: address.parse().expect("a valid address") }
    }

    /// Kills the process, as a crash would.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // It may have ended by itself; either way there is a status to collect.
        let _gone = self.process.kill();
        self.process.wait().expect("a child can be waited for");
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.end();
    }
}

/// This test program, to run one of its ignored tests as a process.
pub(crate) fn this_test(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("a process knows its program"));
    command.args([name, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

/// Starts a process and waits for a line that says it is ready.
pub(crate) fn start_and_wait(command: &mut Command, ready: &str) -> Child {
    let mut process = command.spawn().expect("the test program starts");
    let output = BufReader::new(process.stdout.take().expect("its output is piped"));
    let found = output.lines().map_while(Result::ok).any(|line| line.contains(ready));
    assert!(found, "the process ended before it was ready");
    process
}

/// Answers a connection the way the engine processes do.
pub(crate) fn answer(mut client: TcpStream, name: &str) {
    // A client that has gone already is no concern of an engine.
    if client.write_all(name.as_bytes()).is_ok() {
        let _end = client.read(&mut [0]);
    }
}

/// Not a test of its own: the body of an engine process.
#[test]
#[ignore = "the body of the engine processes that other tests start"]
fn engine_process() {
    let setting = |name| env::var(name).expect("started by a test that sets the variables");
    fs::write(Path::new(&setting(CGROUP)).join("cgroup.procs"), "0").expect("a process can move itself");
    let manner = setting(MANNER);
    if manner == ELSEWHERE {
        enter_network_namespace();
    }
    let listener = listen(setting(LISTEN).parse().expect("a valid address"), manner == SHARING).expect("the address is free");
    println!("{READY}");
    let name = setting(NAME);
    for client in listener.incoming() {
        answer(client.expect("a listener accepts"), &name);
    }
}

fn listen(address: SocketAddr, is_sharing: bool) -> io::Result<TcpListener> {
    const BACKLOG: i32 = 128;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // As std does: an address whose last connections are still in TIME_WAIT can be listened at.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(is_sharing)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
