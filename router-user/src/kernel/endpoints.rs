//! Seats: the kernel's own numbers of engine addresses.
//!
//! Engine numbers are dense and may be dealt anew with every configuration; a seat stays with its address for as long as any table names it.
//! So a renumbering never shows one engine's listener under another's number, not even between two map writes.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use router_common::{
    engine::{Endpoint, Seats as SeatList},
    limits::MAX_SEATS,
};

use crate::kernel::KernelError;

/// Which address has which seat.
#[derive(Debug, Default)]
pub(crate) struct Seating {
    by_address: HashMap<SocketAddr, u16>,
    taken: Vec<bool>,
}

impl Seating {
    pub(crate) fn new(known: impl IntoIterator<Item = (SocketAddr, u16)>) -> Self {
        let mut seating = Self { by_address: HashMap::new(), taken: vec![false; MAX_SEATS] };
        for (address, seat) in known {
            if let Some(taken) = seating.taken.get_mut(usize::from(seat)) {
                *taken = true;
                seating.by_address.insert(address, seat);
            }
        }
        seating
    }

    /// The seat of an address, a free one if it has none yet.
    pub(crate) fn seat(&mut self, address: SocketAddr) -> Result<u16, KernelError> {
        if let Some(seat) = self.by_address.get(&address) {
            return Ok(*seat);
        }
        let free = self.taken.iter().position(|taken| !taken).ok_or(KernelError::TooManyEngines)?;
        self.taken[free] = true;
        self.by_address.insert(address, free as u16);
        Ok(free as u16)
    }

    /// Gives an address's seat up.
    pub(crate) fn release(&mut self, address: SocketAddr) {
        if let Some(seat) = self.by_address.remove(&address) {
            self.taken[usize::from(seat)] = false;
        }
    }

    /// All addresses with their seats.
    pub(crate) fn all(&self) -> impl Iterator<Item = (SocketAddr, u16)> {
        self.by_address.iter().map(|(address, seat)| (*address, *seat))
    }
}

/// What the kernel must find for a listener: each address's seat, and for each port the seats a wildcard listener stands for.
///
/// Where more engines of this host share a port than one entry can name, the further ones have to listen at their own address.
pub(crate) fn endpoints(
    seats: impl IntoIterator<Item = (SocketAddr, u16)>,
    is_local: impl Fn(IpAddr) -> bool,
) -> HashMap<Endpoint, SeatList> {
    let mut entries: HashMap<Endpoint, SeatList> = HashMap::new();
    for (address, seat) in seats {
        let wildcard = is_local(address.ip()).then(|| Endpoint::wildcard(address.port()));
        for endpoint in std::iter::once(endpoint(address)).chain(wildcard) {
            let _has_room = entries.entry(endpoint).or_insert(SeatList::NONE).add(seat);
        }
    }
    entries
}

/// An address in the kernel's form.
pub(crate) fn endpoint(address: SocketAddr) -> Endpoint {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => Endpoint::v4(u32::from_ne_bytes(ip.octets()), address.port()),
        IpAddr::V6(ip) => {
            let octets = ip.octets();
            let word = |at: usize| u32::from_ne_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]);
            Endpoint::v6([word(0), word(4), word(8), word(12)], address.port())
        }
    }
}

/// The kernel's form back to an address.
pub(crate) fn address(endpoint: Endpoint) -> SocketAddr {
    SocketAddr::new(IpAddr::from(endpoint.octets()).to_canonical(), endpoint.port as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("a valid address")
    }

    #[test]
    fn a_seat_stays_with_its_address() {
        let mut seating = Seating::new([(at("10.0.0.1:80"), 5)]);
        assert_eq!(seating.seat(at("10.0.0.1:80")).unwrap(), 5);
        assert_eq!(seating.seat(at("10.0.0.2:80")).unwrap(), 0);
        seating.release(at("10.0.0.1:80"));
        for port in 1..=5 {
            assert_eq!(seating.seat(at(&format!("10.0.0.3:{port}"))).unwrap(), port);
        }
    }

    #[test]
    fn seats_run_out_with_an_error() {
        let mut seating = Seating::new([]);
        for port in 0..MAX_SEATS as u16 {
            seating.seat(SocketAddr::new(IpAddr::from([10, 0, 0, 1]), port)).unwrap();
        }
        assert!(matches!(seating.seat(at("10.0.0.2:80")), Err(KernelError::TooManyEngines)));
    }

    #[test]
    fn endpoints_keep_addresses() {
        for text in ["127.0.0.1:8000", "0.0.0.0:1", "[::1]:65535", "[2001:db8::7]:443"] {
            assert_eq!(address(endpoint(at(text))), at(text));
        }
        assert_eq!(address(endpoint(at("[::ffff:10.0.0.1]:80"))), at("10.0.0.1:80"));
    }

    #[test]
    fn a_wildcard_entry_names_the_local_engines_of_its_port() {
        let seats = [(at("127.0.0.1:80"), 0), (at("127.0.0.2:80"), 1), (at("10.9.9.9:80"), 2), (at("127.0.0.1:81"), 3)];
        let entries = endpoints(seats, |ip| ip.is_loopback());
        assert_eq!(entries[&Endpoint::wildcard(80)].seats[..3], [0, 1, router_common::slot::NO_ENGINE]);
        assert_eq!(entries.len(), 6);
    }

    #[test]
    fn engines_beyond_a_wildcard_entry_keep_their_own() {
        let seats = (1..=20).map(|host| (SocketAddr::from(([127, 0, 0, host], 80)), u16::from(host)));
        let entries = endpoints(seats, |_| true);
        assert_eq!(entries[&Endpoint::wildcard(80)].seats, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(entries[&endpoint(at("127.0.0.20:80"))].seats[..2], [20, router_common::slot::NO_ENGINE]);
    }
}
