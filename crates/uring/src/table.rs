//! Requests under way, and what they own.

use crate::message::Message;
use onecopy_chain::Chain;
use onecopy_chain::notify::Segment;
use rustix::net::SocketAddrAny;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Of completions that nobody waits for.
pub(crate) const NOBODY: u64 = u64::MAX;
/// Of the descriptor that wakes a ring.
pub(crate) const WAKE: u64 = u64::MAX - 1;

/// A request, as long as it is under way; none gets the key of one that is over until 2^31 others have had its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub(crate) u64);

impl Key {
    /// As its completions have it, for who plays the kernel.
    #[doc(hidden)]
    pub fn user_data(self) -> u64 {
        self.0
    }
}

/// A request, and what the kernel uses for it.
pub(crate) struct Request {
    /// The caller's name for it.
    pub token: u64,
    /// Its socket, which stays open as long as this.
    pub _fd: Arc<OwnedFd>,
    pub work: Work,
}

pub(crate) enum Work {
    Send(Box<Sending>),
    Receive,
    Readable,
    Writable,
    HungUp,
    Accept,
    /// The address is only held.
    Connect(#[expect(dead_code, reason = "the kernel reads it")] Box<SocketAddrAny>),
    /// To memory that a device receives into: how many bytes more, if there is a limit, and whether the kernel has said what cannot be.
    Place {
        left: Option<u32>,
        wrong: bool,
    },
}

/// A send.
pub(crate) struct Sending {
    /// What is sent, held until the kernel needs it no more.
    pub data: Segment<Chain>,
    /// Where it lies.
    pub message: Message,
    /// Without a copy.
    pub zero_copy: bool,
    /// In registered pages.
    pub fixed: bool,
    /// What the first step took.
    pub taken: usize,
    /// The first step was an error.
    pub failed: bool,
}

struct Place {
    generation: u32,
    request: Option<Request>,
}

/// Requests at places that do not move while they are under way: what the kernel has the address of lies in boxes.
#[derive(Default)]
pub(crate) struct Table {
    places: Vec<Place>,
    free: Vec<u32>,
}

impl Table {
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    pub fn insert(&mut self, request: Request) -> Key {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.places.push(Place { generation: 0, request: None });
                (self.places.len() - 1) as u32
            }
        };
        let place = &mut self.places[index as usize];
        place.request = Some(request);
        Key(u64::from(place.generation) << 32 | u64::from(index))
    }

    pub fn get(&mut self, key: Key) -> Option<&mut Request> {
        let place = self.places.get_mut(key.0 as u32 as usize)?;
        place.request.as_mut().filter(|_| u64::from(place.generation) == key.0 >> 32)
    }

    /// Takes a request out that is over.
    pub fn remove(&mut self, key: Key) -> Option<Request> {
        self.get(key)?;
        let index = key.0 as u32;
        let place = &mut self.places[index as usize];
        // The top bit stays clear: keys with it are nobody's ([`NOBODY`]).
        place.generation = (place.generation + 1) & (u32::MAX >> 1);
        self.free.push(index);
        place.request.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(token: u64) -> Request {
        let fd = std::fs::File::open("/dev/null").unwrap();
        Request { token, _fd: Arc::new(fd.into()), work: Work::Accept }
    }

    #[test]
    fn an_old_key_finds_nothing() {
        let mut table = Table::default();
        let one = table.insert(request(1));
        let two = table.insert(request(2));
        assert_eq!(table.get(one).unwrap().token, 1);
        assert_eq!(table.remove(one).unwrap().token, 1);
        assert!(table.remove(one).is_none());
        let three = table.insert(request(3));
        assert_ne!(one, three);
        assert!(table.get(one).is_none(), "its place is another's");
        assert_eq!((table.get(two).unwrap().token, table.get(three).unwrap().token), (2, 3));
        assert!(!table.is_empty());
        table.remove(two);
        table.remove(three);
        assert!(table.is_empty());
    }
}
