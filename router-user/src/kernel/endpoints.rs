//! Endpoint ids: the kernel's own numbers of engine addresses, and the entries by which it finds
//! them.
//!
//! Engine numbers are dense and may change with every configuration. An endpoint id stays with its
//! address for as long as any slot table names the address. So a renumbering never shows one
//! engine's listener under another's number, not even between two map writes.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use router_common::{
    engine::{Endpoint, EndpointIds},
    limits::MAX_ENDPOINT_IDS,
};

use crate::kernel::KernelError;

/// Which address has which endpoint id.
#[derive(Debug, Default)]
pub(crate) struct EndpointTable {
    by_address: HashMap<SocketAddr, u16>,
    taken: Vec<bool>,
}

impl EndpointTable {
    pub(crate) fn new(known: impl IntoIterator<Item = (SocketAddr, u16)>) -> Self {
        let mut table = Self { by_address: HashMap::new(), taken: vec![false; MAX_ENDPOINT_IDS] };
        for (address, id) in known {
            if let Some(taken) = table.taken.get_mut(usize::from(id)) {
                *taken = true;
                table.by_address.insert(address, id);
            }
        }
        table
    }

    /// The endpoint id of an address, a free one if it has none yet.
    pub(crate) fn id(&mut self, address: SocketAddr) -> Result<u16, KernelError> {
        if let Some(id) = self.by_address.get(&address) {
            return Ok(*id);
        }
        let free = self.taken.iter().position(|taken| !taken).ok_or(KernelError::TooManyEngines)?;
        self.taken[free] = true;
        self.by_address.insert(address, free as u16);
        Ok(free as u16)
    }

    /// Frees the endpoint id of an address.
    pub(crate) fn release(&mut self, address: SocketAddr) {
        if let Some(id) = self.by_address.remove(&address) {
            self.taken[usize::from(id)] = false;
        }
    }

    /// All addresses with their endpoint ids.
    pub(crate) fn all(&self) -> impl Iterator<Item = (SocketAddr, u16)> {
        self.by_address.iter().map(|(address, id)| (*address, *id))
    }
}

/// The entries of the map of engines: each address with its endpoint id, and each port's wildcard
/// address with the endpoint ids of all engines of this host at that port.
///
/// One entry names [`router_common::limits::ENGINES_PER_ENDPOINT`] engines at most. Further engines
/// at a port have to listen at their own address.
pub(crate) fn endpoints(
    ids: impl IntoIterator<Item = (SocketAddr, u16)>,
    is_local: impl Fn(IpAddr) -> bool,
) -> HashMap<Endpoint, EndpointIds> {
    let mut entries: HashMap<Endpoint, EndpointIds> = HashMap::new();
    for (address, id) in ids {
        let wildcard = is_local(address.ip()).then(|| Endpoint::wildcard(address.port()));
        for endpoint in std::iter::once(endpoint(address)).chain(wildcard) {
            let _has_room = entries.entry(endpoint).or_insert(EndpointIds::NONE).add(id);
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
    fn an_endpoint_id_stays_with_its_address() {
        let mut endpoint_table = EndpointTable::new([(at("10.0.0.1:80"), 5)]);
        assert_eq!(endpoint_table.id(at("10.0.0.1:80")).unwrap(), 5);
        assert_eq!(endpoint_table.id(at("10.0.0.2:80")).unwrap(), 0);
        endpoint_table.release(at("10.0.0.1:80"));
        for port in 1..=5 {
            assert_eq!(endpoint_table.id(at(&format!("10.0.0.3:{port}"))).unwrap(), port);
        }
    }

    #[test]
    fn endpoint_ids_run_out_with_an_error() {
        let mut endpoint_table = EndpointTable::new([]);
        for port in 0..MAX_ENDPOINT_IDS as u16 {
            endpoint_table.id(SocketAddr::new(IpAddr::from([10, 0, 0, 1]), port)).unwrap();
        }
        assert!(matches!(endpoint_table.id(at("10.0.0.2:80")), Err(KernelError::TooManyEngines)));
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
        let ids = [(at("127.0.0.1:80"), 0), (at("127.0.0.2:80"), 1), (at("10.9.9.9:80"), 2), (at("127.0.0.1:81"), 3)];
        let entries = endpoints(ids, |ip| ip.is_loopback());
        assert_eq!(entries[&Endpoint::wildcard(80)].ids[..3], [0, 1, router_common::slot::NO_ENGINE]);
        assert_eq!(entries.len(), 6);
    }

    #[test]
    fn engines_beyond_a_wildcard_entry_keep_their_own() {
        let ids = (1..=20).map(|host| (SocketAddr::from(([127, 0, 0, host], 80)), u16::from(host)));
        let entries = endpoints(ids, |_| true);
        assert_eq!(entries[&Endpoint::wildcard(80)].ids, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(entries[&endpoint(at("127.0.0.20:80"))].ids[..2], [20, router_common::slot::NO_ENGINE]);
    }
}
