//! Who has an address in IPv6: what is behind the header of a neighbour's question or answer (RFC 4861, sections 4.3 and 4.4).

use super::ethernet::Mac;
use super::malformed::Malformed;
use onecopy_link::{Head, HeadTooLong};
use std::net::Ipv6Addr;

/// The option of a sender's hardware address, and of the target's (section 4.6.1).
const SOURCE: u8 = 1;
const TARGET: u8 = 2;
/// The options' lengths count in these.
const UNIT: usize = 8;

/// A question's or an answer's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ndp {
    /// Whose hardware address is asked for, or said.
    pub target: Ipv6Addr,
    /// Who asks.
    pub source_mac: Option<Mac>,
    /// Who has it.
    pub target_mac: Option<Mac>,
}

impl Ndp {
    /// Bytes with one hardware address.
    pub const LEN: usize = 16 + UNIT;

    /// Reads what is behind ICMP's header. What is not known is passed over, and an option that does not end where `bytes` do.
    ///
    /// # Errors
    ///
    /// [`Malformed::Short`]; [`Malformed::Length`] for an option of no length, which has the whole be dropped (section 4.6).
    pub fn parse(bytes: &[u8]) -> Result<Ndp, Malformed> {
        let (target, mut options) = bytes.split_first_chunk::<16>().ok_or(Malformed::Short)?;
        let mut ndp = Ndp { target: (*target).into(), source_mac: None, target_mac: None };
        while let [kind, units, ..] = *options {
            let len = usize::from(units) * UNIT;
            if len == 0 {
                return Err(Malformed::Length);
            }
            // Where it is longer, some of it may not be at hand.
            let Some(option) = options.get(..len) else { break };
            let mac = option[2..].first_chunk().filter(|_| len == UNIT).map(|mac| Mac(*mac));
            match kind {
                SOURCE => ndp.source_mac = mac,
                TARGET => ndp.target_mac = mac,
                _ => {}
            }
            options = &options[len..];
        }
        Ok(ndp)
    }

    /// Puts it in front.
    ///
    /// # Errors
    ///
    /// [`HeadTooLong`].
    pub fn write(&self, head: &mut Head) -> Result<(), HeadTooLong> {
        for (kind, mac) in [(TARGET, self.target_mac), (SOURCE, self.source_mac)] {
            if let Some(mac) = mac {
                let option = head.push(UNIT)?;
                (option[0], option[1]) = (kind, 1);
                option[2..].copy_from_slice(&mac.0);
            }
        }
        head.push(16)?.copy_from_slice(&self.target.octets());
        Ok(())
    }
}

/// The group that those are in who have `address`, or one that ends as it does: whom one asks who has it (RFC 4291, section 2.7.1).
pub fn solicited(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// The hardware address of a group (RFC 2464, section 7).
pub fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

/// The address on one link alone that a station has (RFC 4291, section 2.5.6 and appendix A).
pub fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
