//! What lies on the way between two sockets, as the answers of their calls tell.

use std::collections::VecDeque;

/// What is sent: bytes, records, or bytes with marks between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// A stream
    Stream,
    /// Seqpacket sockets: a send is a record
    Records,
    /// Seqpacket sockets whose records are streams with marks
    Pieces,
    /// Two datagram sockets that are connected to each other
    Datagrams,
    /// Datagram sockets that are connected to one receiver
    Crowd,
}

impl Sort {
    pub fn has_records(self) -> bool {
        matches!(self, Sort::Records | Sort::Datagrams | Sort::Crowd)
    }

    pub fn has_datagrams(self) -> bool {
        matches!(self, Sort::Datagrams | Sort::Crowd)
    }
}

/// What one send put on the way.
#[derive(Clone, Copy, Debug)]
struct Message {
    left: usize,
    /// A record ends with it.
    end: bool,
    /// Bytes of a ring that it has at most.
    room: usize,
    /// That, if nothing else lies there; less what was received of it.
    frame: usize,
    /// Bytes that the kernel may charge for it, if it carries it.
    memory: usize,
}

/// A place in a direction, in bytes of a ring: as far as it may be, and as far as it is if nothing lies there but what programs sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    most: u64,
    bare: u64,
}

/// One direction.
#[derive(Clone, Debug, Default)]
pub struct Flow {
    queue: VecDeque<Message>,
    /// Of all that was ever sent, and of all that was ever received of it.
    sent: Place,
    received: Place,
    /// Where the borrows begin that were not given back, each with its number.
    borrows: Vec<(u64, Place)>,
    /// A send of so many bytes had no room, and its sender was not told of room since.
    pub refused: usize,
}

/// How a send goes.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub len: usize,
    pub end: bool,
    /// It has descriptors or a page with it.
    pub with: bool,
    /// The kernel carries it, as far as is known.
    pub kernel: bool,
}

impl Flow {
    /// Whether there is something to receive.
    pub fn is_readable(&self) -> bool {
        !self.queue.is_empty()
    }

    /// What is there to be received at once: bytes up to where a receive must end.
    pub fn next(&self, sort: Sort) -> usize {
        match sort {
            Sort::Stream => self.queue.iter().map(|message| message.left).sum(),
            Sort::Pieces => {
                let last = self.queue.iter().position(|message| message.end).unwrap_or(self.queue.len());
                self.queue.iter().take(last + 1).map(|message| message.left).sum()
            }
            _ => self.queue.front().map_or(0, |message| message.left),
        }
    }

    /// Whether borrows keep room from the sender.
    pub fn is_held(&self) -> bool {
        !self.borrows.is_empty()
    }

    /// Messages that were not received.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Bytes of a ring of that capacity that are not free, at most.
    pub fn occupied(&self) -> usize {
        (self.sent.most - self.free().most) as usize
    }

    /// The same, if there is nothing but bytes or records.
    pub fn filled(&self) -> usize {
        (self.sent.bare - self.free().bare) as usize
    }

    /// Up to where all was given back.
    fn free(&self) -> Place {
        self.borrows.iter().map(|(_, at)| *at).min().unwrap_or(self.received).min(self.received)
    }

    /// Bytes that the kernel may have charged to the sender, at most.
    pub fn memory(&self) -> usize {
        self.queue.iter().map(|message| message.memory).sum()
    }

    pub fn was_sent(&mut self, sort: Sort, sent: Sent, capacity: usize) {
        // Nothing lies there for no bytes, where bytes are all that lies there.
        if sent.len == 0 && (sort == Sort::Stream || sort == Sort::Pieces && !sent.end) {
            return;
        }
        let frame = if sort == Sort::Stream { sent.len } else { (sent.len + 8).next_multiple_of(8) };
        // A mark has a 64th of the ring, and the first of its kind brings another one.
        let room = frame + if sent.with { capacity / 32 } else { 0 };
        let memory = if sent.kernel { 2 * sent.len + 1024 + if sent.with { 4096 } else { 0 } } else { 0 };
        self.queue.push_back(Message { left: sent.len, end: sent.end, room, frame, memory });
        self.sent.most += room as u64;
        self.sent.bare += frame as u64;
    }

    fn pop(&mut self) {
        if let Some(message) = self.queue.pop_front() {
            self.received.most += message.room as u64;
            self.received.bare += message.frame as u64;
        }
    }

    /// All that was not received is gone.
    pub fn is_lost(&mut self) {
        while !self.queue.is_empty() {
            self.pop();
        }
    }

    /// What a receive with room for `max` bytes got; `end`: it said that a record ended.
    pub fn was_received(&mut self, sort: Sort, got: usize, max: usize, end: bool) -> Result<(), String> {
        let there = self.next(sort);
        if got > there || got == 0 && there > 0 && max > 0 {
            return Err(format!("{got} bytes received of {there}"));
        }
        if sort.has_records() {
            if got != there.min(max) {
                return Err(format!("{got} bytes of a record of {there} into {max}"));
            }
            self.pop();
            return Ok(());
        }
        let mut left = got;
        while let Some(first) = self.queue.front_mut() {
            let n = first.left.min(left);
            first.left -= n;
            left -= n;
            if sort == Sort::Stream {
                first.frame -= n;
                self.received.bare += n as u64;
            }
            let marked = first.end && sort == Sort::Pieces;
            // A mark is received with the last byte before it, or by itself.
            if first.left > 0 || marked && !end {
                break;
            }
            self.pop();
            if marked {
                return Ok(());
            }
        }
        if end { Err("a record ended that does not".into()) } else { Ok(()) }
    }

    pub fn borrowed(&mut self, number: u64, since: Place) {
        self.borrows.push((number, since));
    }

    /// Where what is received next begins.
    pub fn position(&self) -> Place {
        self.received
    }

    pub fn given_back(&mut self, number: u64) {
        self.borrows.retain(|(other, _)| *other != number);
    }
}
