//! Network distance without a network: a relay that delivers every byte, end and reset half a round
//! trip later.
//!
//! It keeps order, and it lets a connect cost the round trip it costs on a real path: a client's
//! first bytes leave one round trip after it connected, because the relay's own accept answers at
//! once. What it cannot do is refuse a connect late; a refused connect beyond the relay shows as a
//! reset one round trip after the connect.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use clap::Parser;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::clock;

/// Delay everything between two addresses by a fixed round trip
#[derive(Clone, Debug, Parser)]
pub struct Args {
    /// Address to listen on
    #[arg(long, value_name = "ADDR", requires_all = ["to", "delay_ms"])]
    pub listen: Option<SocketAddr>,
    /// Address to relay to
    #[arg(long, value_name = "ADDR", requires = "listen")]
    pub to: Option<SocketAddr>,
    /// Round-trip time to add, in ms; half of it each way
    #[arg(long, value_name = "MS", requires = "listen")]
    pub delay_ms: Option<f64>,
    /// One more relay in the same process; repeat for several
    #[arg(long = "link", value_name = "LISTEN=TO@MS")]
    pub links: Vec<Link>,
}

/// One relayed path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    pub listen: SocketAddr,
    pub to: SocketAddr,
    pub round_trip: Duration,
}

impl FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').and_then(|(listen, rest)| rest.split_once('@').map(|(to, ms)| (listen, to, ms)));
        let (listen, to, ms) = parts.ok_or("wanted LISTEN=TO@MS, such as 127.0.0.1:19001=127.0.0.1:18001@30")?;
        Ok(Self {
            listen: listen.parse().map_err(|_| format!("{listen:?} is no address; wanted IP:PORT"))?,
            to: to.parse().map_err(|_| format!("{to:?} is no address; wanted IP:PORT"))?,
            round_trip: round_trip(ms.parse().map_err(|_| format!("{ms:?} is no number of milliseconds"))?)?,
        })
    }
}

/// Longest round trip: half-way round the world and back by satellite is below a second.
const MAX_ROUND_TRIP_MS: f64 = 60_000.0;

fn round_trip(ms: f64) -> Result<Duration, String> {
    if !(0.0..=MAX_ROUND_TRIP_MS).contains(&ms) {
        return Err(format!("the delay is {ms} ms; wanted 0 to {MAX_ROUND_TRIP_MS}"));
    }
    Ok(Duration::from_secs_f64(ms / 1e3))
}

/// Relays until the process is told to stop.
pub async fn run(args: Args) -> Result<()> {
    let mut links = args.links;
    if let (Some(listen), Some(to), Some(ms)) = (args.listen, args.to, args.delay_ms) {
        links.push(Link { listen, to, round_trip: round_trip(ms).map_err(anyhow::Error::msg)? });
    }
    ensure!(!links.is_empty(), "nothing to relay; wanted --listen, --to and --delay-ms, or --link");
    for link in &links {
        let listener = crate::net::listen(link.listen)?;
        let address = listener.local_addr().context("failed to read the listening address")?;
        info!(%address, to = %link.to, round_trip = ?link.round_trip, "relaying");
        tokio::task::spawn_local(serve(listener, link.to, link.round_trip));
    }
    // Scripts wait for this line.
    println!("ready");
    crate::net::stop_signal().await
}

/// Relays every connection of `listener`, for ever.
pub async fn serve(listener: TcpListener, to: SocketAddr, round_trip: Duration) {
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                let accepted = clock::now();
                tokio::task::spawn_local(async move {
                    if let Err(error) = relay(client, to, round_trip, accepted).await {
                        debug!(%error, "relayed connection ended");
                    }
                });
            }
            Err(error) => {
                warn!(%error, "failed to accept a connection");
                // Descriptors ran out; some will come back.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// A piece of a relayed stream.
enum Parcel {
    Data(Bytes),
    End,
    Reset,
}

/// Parcels under way in one direction; with reads of at most 16 KiB, 16 MiB: the bandwidth-delay
/// product of 2 Gbit/s over 60 ms.
const MAX_UNDER_WAY: usize = 1024;
const READ_BYTES: usize = 16 * 1024;

async fn relay(client: TcpStream, to: SocketAddr, round_trip: Duration, accepted: Instant) -> Result<()> {
    client.set_nodelay(true)?;
    let one_way = round_trip / 2;
    pause_until(accepted + one_way).await;
    let server = match TcpStream::connect(to).await {
        Ok(server) => server,
        Err(error) => {
            pause_until(accepted + round_trip).await;
            crate::net::reset_on_close(&client)?;
            return Err(error.into());
        }
    };
    server.set_nodelay(true)?;
    let (client_reader, client_writer) = client.into_split();
    let (server_reader, server_writer) = server.into_split();
    let up = direction(client_reader, server_writer, one_way, accepted + round_trip);
    let down = direction(server_reader, client_writer, one_way, accepted);
    // A direction that cannot deliver ends the connection both ways; dropping the halves closes
    // what is left.
    tokio::try_join!(up, down).map(|_| ())
}

/// Carries one direction; bytes cannot leave before `open`.
async fn direction(mut reader: OwnedReadHalf, mut writer: OwnedWriteHalf, one_way: Duration, open: Instant) -> Result<()> {
    let (sender, mut receiver) = mpsc::channel(MAX_UNDER_WAY);
    let read = async move {
        loop {
            let mut buffer = BytesMut::with_capacity(READ_BYTES);
            let parcel = match reader.read_buf(&mut buffer).await {
                Ok(0) => Parcel::End,
                Ok(_) => Parcel::Data(buffer.freeze()),
                Err(_) => Parcel::Reset,
            };
            let is_last = !matches!(parcel, Parcel::Data(_));
            let due = clock::now().max(open) + one_way;
            if sender.send((due, parcel)).await.is_err() || is_last {
                return Ok(());
            }
        }
    };
    let write = async move {
        while let Some((due, parcel)) = receiver.recv().await {
            pause_until(due).await;
            match parcel {
                Parcel::Data(data) => writer.write_all(&data).await?,
                Parcel::End => writer.shutdown().await?,
                Parcel::Reset => {
                    crate::net::reset_on_close(writer.as_ref())?;
                    // Dropped, this half would send an orderly end first.
                    writer.forget();
                    anyhow::bail!("reset");
                }
            }
        }
        Ok(())
    };
    tokio::try_join!(read, write).map(|_| ())
}

/// Half the timer's own granularity of 1 ms: timers fire up to that late, so aiming earlier by half
/// of it makes the mean right.
const TIMER_LAG: Duration = Duration::from_micros(500);

async fn pause_until(due: Instant) {
    let now = clock::now();
    if due > now + TIMER_LAG {
        tokio::time::sleep_until(due - TIMER_LAG).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tokio::task::LocalSet;

    const ROUND_TRIP: Duration = Duration::from_millis(40);

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = crate::net::listen((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        let address = listener.local_addr().expect("bound");
        (listener, address)
    }

    /// A relay in front of a new listener, and that listener.
    async fn relayed() -> (SocketAddr, TcpListener) {
        let ((far, to), (near, address)) = (listener().await, listener().await);
        tokio::task::spawn_local(serve(near, to, ROUND_TRIP));
        (address, far)
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        LocalSet::new().block_on(&runtime, test);
    }

    #[test]
    fn the_first_exchange_costs_two_round_trips_and_the_second_one() {
        run(async {
            let (address, far) = relayed().await;
            tokio::task::spawn_local(async move {
                let (mut server, _) = far.accept().await.expect("arrives");
                let mut buffer = [0; 4];
                while server.read_exact(&mut buffer).await.is_ok() {
                    server.write_all(&buffer).await.expect("writes");
                }
            });
            let mut start = clock::now();
            let mut client = TcpStream::connect(address).await.expect("connects");
            for wanted in [ROUND_TRIP * 2, ROUND_TRIP] {
                client.write_all(b"ping").await.expect("writes");
                client.read_exact(&mut [0; 4]).await.expect("reads");
                let took = clock::now() - start;
                // The timers may aim early by a millisecond in all; late is the machine's affair.
                assert!(took + Duration::from_millis(2) >= wanted, "{took:?}, wanted {wanted:?}");
                assert!(took < wanted + ROUND_TRIP, "{took:?}, wanted {wanted:?}");
                start = clock::now();
            }
        });
    }

    #[test]
    fn a_close_and_a_reset_arrive_as_what_they_are() {
        run(async {
            let (address, far) = relayed().await;
            for is_reset in [false, true] {
                let client = TcpStream::connect(address).await.expect("connects");
                let (mut server, _) = far.accept().await.expect("arrives");
                if is_reset {
                    crate::net::reset_on_close(&client).expect("linger");
                }
                drop(client);
                let read = server.read(&mut [0; 1]).await;
                assert_eq!(read.is_err(), is_reset, "{read:?}");
                assert!(is_reset || read.is_ok_and(|n| n == 0));
            }
        });
    }

    #[test]
    fn a_refused_connect_shows_as_a_reset() {
        run(async {
            let (address, far) = relayed().await;
            drop(far);
            let mut client = TcpStream::connect(address).await.expect("the relay accepts");
            assert!(client.read(&mut [0; 1]).await.is_err());
        });
    }

    #[test]
    fn links_are_parsed_and_mistakes_named() {
        let link: Link = "127.0.0.1:1=127.0.0.1:2@30".parse().expect("good");
        assert_eq!(link.round_trip, Duration::from_millis(30));
        for (text, wanted) in
            [("x", "LISTEN=TO@MS"), ("a=127.0.0.1:2@1", "IP:PORT"), ("127.0.0.1:1=127.0.0.1:2@-1", "wanted 0 to")]
        {
            let error = text.parse::<Link>().expect_err(text);
            assert!(error.contains(wanted), "{error:?} lacks {wanted:?}");
        }
    }
}
