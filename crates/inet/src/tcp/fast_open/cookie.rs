//! What a server makes cookies of.

use crate::key::{self, Key};
use crate::wire::tcp::Cookie;
use siphasher::sip::SipHasher24;
use std::fmt;
use std::net::IpAddr;

/// The keys of cookies (net.ipv4.tcp_fastopen_key, TCP_FASTOPEN_KEY): the first makes them, both are good for showing one, so that keys
/// can be changed while clients have cookies of the old one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    primary: [u8; 16],
    backup: Option<[u8; 16]>,
}

/// What was found out about a cookie that a client has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// It is the client's.
    Good,
    /// It was, by the backup key; the client is to have this one.
    Old(Cookie),
    /// It is none of the client's; this would be one.
    Wrong(Cookie),
}

impl Keys {
    /// These keys, as setsockopt(2) takes them.
    pub fn new(primary: [u8; 16], backup: Option<[u8; 16]>) -> Keys {
        Keys { primary, backup }
    }

    /// One or two keys of 16 bytes, one behind the other; nothing else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Keys> {
        let (primary, rest) = bytes.split_first_chunk::<16>()?;
        let backup = if rest.is_empty() { None } else { Some(<[u8; 16]>::try_from(rest).ok()?) };
        Some(Keys { primary: *primary, backup })
    }

    /// As the sysctl says them: four words of 32 bits in hexadecimal digits, `a1a1a1a1-b2b2b2b2-c3c3c3c3-d4d4d4d4`, and a second one behind a
    /// comma.
    pub fn parse(text: &str) -> Option<Keys> {
        let one = |text: &str| {
            let mut key = [0; 16];
            let mut words = text.trim().split('-');
            for place in key.chunks_exact_mut(4) {
                place.copy_from_slice(&u32::from_str_radix(words.next()?, 16).ok()?.to_le_bytes());
            }
            words.next().is_none().then_some(key)
        };
        match text.split_once(',') {
            Some((primary, backup)) => Some(Keys::new(one(primary)?, Some(one(backup)?))),
            None => Some(Keys::new(one(text)?, None)),
        }
    }

    /// Of a stack that nobody gave any.
    pub(crate) fn derive(key: &Key) -> Keys {
        let mut primary = [0; 16];
        let (first, second) = primary.split_at_mut(8);
        first.copy_from_slice(&key.secret(b"first").to_le_bytes());
        second.copy_from_slice(&key.secret(b"second").to_le_bytes());
        Keys::new(primary, None)
    }

    /// The bytes of them, as getsockopt(2) tells them.
    pub fn bytes(&self) -> Vec<u8> {
        [&self.primary[..], self.backup.as_ref().map_or(&[], |backup| &backup[..])].concat()
    }

    /// The cookie of `client` with `server` (__tcp_fastopen_cookie_gen_cipher()).
    pub fn cookie(&self, client: IpAddr, server: IpAddr) -> Cookie {
        make(&self.primary, client, server)
    }

    /// Looks at one that was shown (tcp_fastopen_cookie_gen_check()).
    pub fn check(&self, shown: &Cookie, client: IpAddr, server: IpAddr) -> Shown {
        let right = self.cookie(client, server);
        if same(&right, shown) {
            return Shown::Good;
        }
        match &self.backup {
            Some(backup) if same(&make(backup, client, server), shown) => Shown::Old(right),
            _ => Shown::Wrong(right),
        }
    }
}

fn make(secret: &[u8; 16], client: IpAddr, server: IpAddr) -> Cookie {
    let number = key::of_pair(client, server, [], |bytes| SipHasher24::new_with_key(secret).hash(bytes));
    Cookie::new(&number.to_le_bytes()).unwrap_or(Cookie::REQUEST)
}

/// Whether both have the same bytes. All are looked at, so that the time tells nothing.
fn same(a: &Cookie, b: &Cookie) -> bool {
    let differs = a.bytes().iter().zip(b.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
    a.bytes().len() == b.bytes().len() && differs == 0
}

impl fmt::Debug for Keys {
    /// Does not tell them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.backup.is_some() { "Keys(two)" } else { "Keys(one)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const KEY: &str = "a0bf63f7-ed803d81-cd641d30-cebc4a90";
    const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 0, 2));
    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 248, 0, 2));

    #[test]
    fn cookies_are_those_of_the_kernel() {
        // packetdrill's tcp/fastopen/server/simple1 and simple2.
        let keys = Keys::parse(KEY).unwrap();
        assert_eq!(keys.cookie(CLIENT, SERVER).bytes(), 0x00ab_aaab_e8e9_54c2_u64.to_be_bytes());
        let other = IpAddr::from([10, 248, 0, 3]);
        assert_eq!(keys.cookie(other, SERVER).bytes(), 0x1313_a2da_994a_0951_u64.to_be_bytes());
        // As bytes, it is the same key (sockopt-fastopen-key).
        let bytes = *b"\xf7\x63\xbf\xa0\x81\x3d\x80\xed\x30\x1d\x64\xcd\x90\x4a\xbc\xce";
        assert_eq!(Keys::from_bytes(&bytes), Some(keys));
        assert_eq!(keys.bytes(), bytes);
    }

    #[test]
    fn an_old_cookie_is_good_as_long_as_its_key_is_the_backup() {
        let old = Keys::parse(KEY).unwrap();
        let shown = old.cookie(CLIENT, SERVER);
        let both = Keys::parse(&format!("1-2-3-4,{KEY}")).unwrap();
        let fresh = both.cookie(CLIENT, SERVER);
        assert_eq!(both.check(&shown, CLIENT, SERVER), Shown::Old(fresh));
        assert_eq!(both.check(&fresh, CLIENT, SERVER), Shown::Good);
        let without = Keys::parse("1-2-3-4").unwrap();
        assert_eq!(without.check(&shown, CLIENT, SERVER), Shown::Wrong(fresh));
        // Nor is it good from elsewhere, or in part.
        assert!(matches!(both.check(&fresh, SERVER, CLIENT), Shown::Wrong(_)));
        let part = Cookie::new(&fresh.bytes()[..6]).unwrap();
        assert!(matches!(both.check(&part, CLIENT, SERVER), Shown::Wrong(_)));
    }

    #[test]
    fn what_is_no_key_is_none() {
        for text in ["", "1-2-3", "1-2-3-4-5", "1-2-3-x", "1-2-3-4,", "100000000-2-3-4"] {
            assert_eq!(Keys::parse(text), None, "{text}");
        }
        assert_eq!(Keys::from_bytes(&[0; 17]), None);
        assert_eq!(Keys::from_bytes(&[]), None);
        assert_eq!(format!("{:?}", Keys::parse(KEY).unwrap()), "Keys(one)");
    }
}
