//! Debug mode: what happened to each page, and whether it was left alone while it was free.

use crate::error::Damage;
use onecopy_sync::Mutex;
use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::panic::Location;
use std::time::Instant;

/// What free pages are filled with, and their last byte: linux/poison.h.
const FREE: u8 = 0x6b;
const END: u8 = 0xa5;

/// Uses that a page remembers.
const KEPT: usize = 16;

/// What happens to pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    FromProvider,
    Allocated,
    Cloned,
    Held,
    GivenOut,
    TakenBack,
    Dropped,
    CameHome,
    ToProvider,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            What::FromProvider => "given by the provider",
            What::Allocated => "allocated",
            What::Cloned => "another reference taken",
            What::Held => "held",
            What::GivenOut => "a reference given out as a plain word",
            What::TakenBack => "a plain word taken back",
            What::Dropped => "a reference dropped",
            What::CameHome => "the last reference dropped",
            What::ToProvider => "released to the provider",
        })
    }
}

struct Event {
    what: What,
    when: Instant,
    thread: String,
    place: Option<&'static Location<'static>>,
}

#[derive(Default)]
struct Life {
    /// Whether somebody has a reference.
    out: bool,
    events: VecDeque<Event>,
}

/// The histories of all pages of a pool.
pub(crate) struct Histories {
    begin: Instant,
    pages: Box<[Mutex<Life>]>,
}

impl Histories {
    pub fn of(pages: u32) -> Histories {
        Histories { begin: Instant::now(), pages: (0..pages).map(|_| Mutex::default()).collect() }
    }

    /// Notes what happens to a page, and where, if the call chain knows.
    #[track_caller]
    pub fn note(&self, index: u32, what: What) {
        // Drops have no caller: theirs is a line of this room.
        let has_caller =
            !matches!(what, What::Dropped | What::CameHome | What::FromProvider | What::ToProvider);
        // Not `then(Location::caller)`: that would be called by the standard library.
        let place = if has_caller { Some(Location::caller()) } else { None };
        let thread = std::thread::current();
        let thread = thread.name().map_or_else(|| format!("{:?}", thread.id()), str::to_owned);
        let mut life = self.pages[index as usize].lock();
        match what {
            What::Allocated => life.out = true,
            What::CameHome | What::ToProvider => life.out = false,
            _ => {}
        }
        if life.events.len() == KEPT {
            life.events.pop_front();
        }
        life.events.push_back(Event { what, when: Instant::now(), thread, place });
    }

    /// Whether somebody has a reference to the page.
    pub fn is_out(&self, index: u32) -> bool {
        self.pages[index as usize].lock().out
    }

    /// A line for each use, the oldest first.
    pub fn of_page(&self, index: u32) -> String {
        let mut text = String::new();
        for event in &self.pages[index as usize].lock().events {
            let after = event.when.duration_since(self.begin);
            let _ =
                write!(text, "  {:>12.6} s  {} by thread {}", after.as_secs_f64(), event.what, event.thread);
            let _ = match event.place {
                Some(place) => writeln!(text, " at {place}"),
                None => writeln!(text),
            };
        }
        text
    }

    /// The pages that somebody has a reference to.
    pub fn out(&self) -> Vec<u32> {
        (0..self.pages.len() as u32).filter(|&index| self.is_out(index)).collect()
    }
}

/// Fills a page that came home.
pub(crate) fn poison(bytes: &mut [u8]) {
    bytes.fill(FREE);
    if let Some(last) = bytes.last_mut() {
        *last = END;
    }
}

/// Where a free page is not as it was left: the first byte, and what is there.
pub(crate) fn damage(bytes: &[u8]) -> Option<(usize, u8)> {
    let (last, rest) = bytes.split_last()?;
    let at = rest.iter().position(|&byte| byte != FREE).or((*last != END).then_some(rest.len()))?;
    Some((at, bytes[at]))
}

impl Histories {
    pub fn damaged(&self, index: u32, (offset, found): (usize, u8)) -> Damage {
        Damage { index, offset, found, history: self.of_page(index) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_free_page_is_watched() {
        let mut page = [0; 64];
        poison(&mut page);
        assert_eq!(damage(&page), None);
        for at in 0..64 {
            page[at] ^= 1;
            assert_eq!(damage(&page), Some((at, page[at])));
            page[at] ^= 1;
        }
        assert_eq!(damage(&[]), None);
    }
}
