//! Engines as the kernel knows them: an address, and the endpoint id its listener is kept under.

use crate::{Shared, limits::ENGINES_PER_ENDPOINT, slot::NO_ENGINE};

/// Where a socket listens, or where a connection goes to: a TCP address in the form both address
/// families share.
///
/// IPv4 addresses are written as IPv4-mapped IPv6 ones (RFC 4291, 2.5.5.2), so that one map serves
/// both families.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The address's 16 bytes as on the wire, in four words as the kernel's contexts give them.
    pub addr_be: [u32; 4],
    /// The port, in host byte order; a whole word, so that there is no padding.
    pub port: u32,
}

/// The third word of an IPv4-mapped address.
const MAPPED_BE: u32 = 0xffff_u32.to_be();

impl Endpoint {
    /// An IPv4 address (network byte order) and a port.
    #[inline(always)]
    pub const fn v4(addr_be: u32, port: u16) -> Self {
        Self { addr_be: [0, 0, MAPPED_BE, addr_be], port: port as u32 }
    }

    /// An IPv6 address (network byte order) and a port. An IPv4-mapped one is equal to its IPv4
    /// form.
    #[inline(always)]
    pub const fn v6(addr_be: [u32; 4], port: u16) -> Self {
        Self { addr_be, port: port as u32 }
    }

    /// The same port on the IPv4 wildcard address: the one form in which wildcard listeners of
    /// either family are looked up.
    #[inline(always)]
    pub const fn wildcard(port: u16) -> Self {
        Self::v4(0, port)
    }

    /// The address's 16 bytes, IPv4-mapped for IPv4.
    pub const fn octets(&self) -> [u8; 16] {
        let mut octets = [0; 16];
        let mut word = 0;
        while word < 4 {
            let bytes = self.addr_be[word].to_ne_bytes();
            let mut byte = 0;
            while byte < 4 {
                octets[word * 4 + byte] = bytes[byte];
                byte += 1;
            }
            word += 1;
        }
        octets
    }
}

// SAFETY: five u32 in a repr(C) struct: no padding, every bit pattern valid.
unsafe impl Shared for Endpoint {}

const _: () = assert!(size_of::<Endpoint>() == 20);

/// The engines that a listener at one endpoint stands for, by endpoint id, padded with
/// [`NO_ENGINE`].
///
/// An endpoint id is the kernel's own number of an engine address. It stays with the address for as
/// long as the address is known. The engine numbers of user space may change with every
/// configuration, and a renumbering must never hand one engine's connections to another. A listener
/// at a plain address is one engine; a wildcard listener is every engine of this host at that port.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointIds {
    pub ids: [u16; ENGINES_PER_ENDPOINT],
}

impl EndpointIds {
    pub const NONE: Self = Self { ids: [NO_ENGINE; ENGINES_PER_ENDPOINT] };

    /// Adds an endpoint id; false if there is no room for another.
    pub const fn add(&mut self, id: u16) -> bool {
        let mut at = 0;
        while at < ENGINES_PER_ENDPOINT {
            if self.ids[at] == id {
                return true;
            }
            if self.ids[at] == NO_ENGINE {
                self.ids[at] = id;
                return true;
            }
            at += 1;
        }
        false
    }
}

// SAFETY: an array of u16 in a repr(C) struct: no padding, every bit pattern valid.
unsafe impl Shared for EndpointIds {}

const _: () = assert!(size_of::<EndpointIds>() == 2 * ENGINES_PER_ENDPOINT);
