//! A secret, and what is kept by it: tables whose places a stranger cannot choose, numbers that he cannot guess.
//!
//! Everything comes from one seed, so that a run with the same seed repeats. Each use derives a key of its own, and what one use shows
//! says nothing of another one.

use siphasher::sip::{SipHasher13, SipHasher24};
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;

/// What a stack's secrets come from: 16 bytes that nobody else knows.
pub type Seed = [u8; 16];

/// A secret of 128 bits.
#[derive(Clone, Copy)]
pub struct Key([u8; 16]);

impl Key {
    /// The key of one use, which `label` names.
    pub fn derive(seed: &Seed, label: &str) -> Key {
        let half = |number: u8| {
            let mut hasher = SipHasher24::new_with_key(seed);
            hasher.write(label.as_bytes());
            hasher.write_u8(number);
            hasher.finish().to_le_bytes()
        };
        let mut key = [0; 16];
        key[..8].copy_from_slice(&half(0));
        key[8..].copy_from_slice(&half(1));
        Key(key)
    }

    /// A seed, of keys that belong together.
    pub fn seed(&self) -> Seed {
        let half = |number: u8| self.secret(&[number]).to_le_bytes();
        let mut seed = [0; 16];
        seed[..8].copy_from_slice(&half(0));
        seed[8..].copy_from_slice(&half(1));
        seed
    }

    /// A number that nobody foretells who has not got the key: SipHash-2-4, for what strangers get to see.
    pub fn secret(&self, bytes: &[u8]) -> u64 {
        SipHasher24::new_with_key(&self.0).hash(bytes)
    }
}

impl std::fmt::Debug for Key {
    /// Does not tell it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// For tables, whose places nobody gets to see: SipHash-1-3, as std's and the kernel's.
impl BuildHasher for Key {
    type Hasher = SipHasher13;
    #[inline]
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

/// Hands the bytes of two addresses of one family, and at most eight more, one behind the other, to `with`.
#[inline]
pub(crate) fn of_pair<const N: usize, R>(
    first: IpAddr,
    second: IpAddr,
    more: [u8; N],
    with: impl FnOnce(&[u8]) -> R,
) -> R {
    const { assert!(N <= 8) };
    let mut bytes = [0; 40];
    let len = match (first, second) {
        (IpAddr::V4(first), IpAddr::V4(second)) => {
            bytes[..4].copy_from_slice(&first.octets());
            bytes[4..8].copy_from_slice(&second.octets());
            8
        }
        (first, second) => {
            bytes[..16].copy_from_slice(&octets(first));
            bytes[16..32].copy_from_slice(&octets(second));
            32
        }
    };
    bytes[len..len + N].copy_from_slice(&more);
    with(&bytes[..len + N])
}

/// Sixteen bytes, whatever it is.
fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// A table whose places are kept by a key.
pub(crate) type Table<K, V> = std::collections::HashMap<K, V, Key>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_use_and_each_seed_has_a_key_of_its_own() {
        let said = |seed: u8, label| Key::derive(&[seed; 16], label).secret(b"what");
        assert_eq!(said(1, "ports"), said(1, "ports"));
        assert_ne!(said(1, "ports"), said(2, "ports"));
        assert_ne!(said(1, "ports"), said(1, "numbers"));
        assert_eq!(format!("{:?}", Key::derive(&[7; 16], "ports")), "Key(..)");
    }
}
