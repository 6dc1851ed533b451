//! What a process has of an end that several hold: the page, its own number there, and who else lives.
//!
//! The page of an end that only children can share is memory that they inherit, and the file on which members lock their bytes
//! is the family's. One that may be passed on ([`crate::Config::passable`]) has its page in a memfd, and that is the file, so
//! that whoever is given it can be a member ([`crate::joining`]).

use crate::doorbell::control;
use crate::multiprocess::fork;
use crate::multiprocess::patience::{BRIEFLY, PATIENCE};
use onecopy_ring::consumer::BorrowId;
use onecopy_ring::page::{EndPage, MemberPage, PAGE_LEN, Words};
use onecopy_sync::atomic::AtomicU32;
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sync::{Mutex, OwnedGuard};
use onecopy_sys::life::Lifeline;
use onecopy_sys::map::Mapping;
use onecopy_sys::memfd;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;

/// What one process has of an end that several hold.
#[derive(Debug)]
pub struct Sharing {
    page: EndPage,
    life: Life,
    /// This process's number.
    me: AtomicU32,
    /// 1: the sending side is shared, too, so that who unlocks it rings.
    sends: AtomicU32,
    /// Views that were given back while another process kept the receiving side: their names, and how many bytes.
    pub late: Mutex<Vec<(BorrowId, usize)>>,
    /// Who was given this end, and has not taken it up yet as far as is known.
    given: Mutex<Vec<Given>>,
}

/// The file on which those lock their bytes that hold an end.
#[derive(Debug)]
enum Life {
    /// Of parents and children: one for all of their ends.
    Family(Arc<Lifeline>),
    /// The page's.
    Page(PageFile),
}

/// The page's file, of which this process has one descriptor: closing another one would drop its locks.
#[derive(Debug)]
pub struct PageFile {
    /// None while it is on its way, or closed.
    life: Option<Lifeline>,
    inode: u64,
}

impl PageFile {
    /// One that is to come. None where this process has it.
    pub fn expect(inode: u64) -> Option<PageFile> {
        fork::pages(|pages| {
            let new = !pages.contains(&inode);
            new.then(|| {
                pages.push(inode);
                PageFile { life: None, inode }
            })
        })
    }

    /// It is here.
    pub fn keep(&mut self, file: OwnedFd) -> &Lifeline {
        self.life.insert(Lifeline::on(file))
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        // In this order: who finds that this process does not have it may open it.
        self.life = None;
        fork::pages(|pages| pages.retain(|page| *page != self.inode));
    }
}

/// A page in a file of its own, for an end that is not shared yet.
#[derive(Debug)]
pub struct Fresh {
    page: EndPage,
    file: PageFile,
    me: u32,
}

impl Fresh {
    /// For who holds no lock of an end.
    ///
    /// # Errors
    ///
    /// What memfd_create(2) and mmap(2) say.
    pub fn new() -> rustix::io::Result<Fresh> {
        fork::pages(Fresh::create)
    }

    /// As [`Fresh::new`], for who holds the list of [`fork::pages`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn create(pages: &mut Vec<u64>) -> rustix::io::Result<Fresh> {
        let file = memfd::create("onecopy-end", PAGE_LEN)?;
        let page = EndPage::over(Mapping::new(&file, PAGE_LEN)?);
        let inode = rustix::fs::fstat(&file)?.st_ino;
        let life = Lifeline::on(file);
        let me = life.join()?;
        pages.push(inode);
        Ok(Fresh { page, file: PageFile { life: Some(life), inode }, me })
    }

    /// For that end.
    pub fn over(self) -> Arc<Sharing> {
        Arc::new(Sharing::new(self.page, Life::Page(self.file), self.me, false))
    }
}

/// A place that is kept for somebody who was given what it takes to hold this end.
#[derive(Debug)]
pub struct Given {
    place: usize,
    /// Whose it is: a number that no other place is ever kept with, as the same place may be, for the next one.
    guest: u32,
    /// It hangs up once all is gone that the place could be taken with, by being used or by being closed.
    news: OwnedFd,
}

/// Why nothing was given away.
pub enum NotGiven {
    /// All places are taken.
    Full,
    /// A thread that this process does not have was at the list when it was forked.
    Busy,
    /// What making it said.
    Failed(Errno),
}

/// One that nobody else has, but for once in a thousand million times.
fn number() -> rustix::io::Result<u32> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok((u32::from_ne_bytes(bytes) & onecopy_sys::life::MAX).max(1))
}

impl Sharing {
    /// With children only.
    ///
    /// # Errors
    ///
    /// What mmap(2) says.
    pub fn with_family(life: &Arc<Lifeline>, me: u32) -> rustix::io::Result<Sharing> {
        let page = EndPage::over(Mapping::inherited(PAGE_LEN)?);
        Ok(Sharing::new(page, Life::Family(life.clone()), me, false))
    }

    /// This process's number, in a forked child, which has that one in the family's file.
    pub fn join_as_child(&self, family: Option<&(Arc<Lifeline>, u32)>) -> Option<u32> {
        let me = match (family, &self.life) {
            (Some((life, me)), Life::Family(of)) if Arc::ptr_eq(life, of) => *me,
            _ => self.life()?.join().ok()?,
        };
        self.me.store(me, Relaxed);
        Some(me)
    }

    /// What was given away, for who holds it over a fork: the child has to look after it as well.
    pub fn hold_given(self: Arc<Self>) -> Option<OwnedGuard<Sharing, Vec<Given>>> {
        OwnedGuard::lock_for(self, |sharing| &sharing.given, BRIEFLY)
    }

    fn new(page: EndPage, life: Life, me: u32, sends: bool) -> Sharing {
        Sharing {
            page,
            life,
            me: AtomicU32::new(me),
            sends: AtomicU32::new(sends.into()),
            late: Mutex::default(),
            given: Mutex::default(),
        }
    }

    /// Of an end that somebody else has shared with this process, number `me`.
    pub fn joined(page: EndPage, file: PageFile, me: u32) -> Arc<Sharing> {
        Arc::new(Sharing::new(page, Life::Page(file), me, true))
    }

    fn life(&self) -> Option<&Lifeline> {
        match &self.life {
            Life::Family(life) => Some(life),
            Life::Page(file) => file.life.as_ref(),
        }
    }

    /// The page's file, where it has one. (Nobody makes another descriptor of it but in a queue.)
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.life {
            Life::Page(PageFile { life: Some(life), inode }) => Some((life.as_fd(), *inode)),
            _ => None,
        }
    }

    /// Keeps a place for a child that is about to be forked. None where there is none.
    pub fn expect_child(&self) -> Option<usize> {
        self.enter().expect(self.me(), |member| self.lives(member))
    }

    /// Gives away what it takes to hold this end too, as it is made for a place and a guest's number. What it gives, and what hangs
    /// up once all of that is gone, taken up or not: then the place is free again.
    ///
    /// # Errors
    ///
    /// Why nothing was given.
    pub fn give(
        &self,
        make: impl FnOnce(usize, u32) -> rustix::io::Result<(OwnedFd, OwnedFd)>,
    ) -> Result<OwnedFd, NotGiven> {
        let mut given = self.given.lock_for(PATIENCE).ok_or(NotGiven::Busy)?;
        // (Also so that no more is open here than is under way.)
        self.look_after(&mut given);
        let guest = number().map_err(NotGiven::Failed)?;
        let place = self
            .enter()
            .reserve(guest, |member| member == self.me() || self.lives(member))
            .ok_or(NotGiven::Full)?;
        match make(place, guest) {
            Ok((gift, news)) => {
                given.push(Given { place, guest, news });
                Ok(gift)
            }
            Err(errno) => {
                self.words().members.0.give_up(place, guest);
                Err(NotGiven::Failed(errno))
            }
        }
    }

    fn enter(&self) -> &MemberPage {
        let members = &self.words().members.0;
        members.enter(self.me(), |member| self.lives(member));
        members
    }

    /// Places that nobody will come to any more are free.
    fn look_after_given(&self) {
        // (Who holds it does the same.)
        if let Some(mut given) = self.given.try_lock() {
            self.look_after(&mut given);
        }
    }

    fn look_after(&self, given: &mut Vec<Given>) {
        given.retain(|Given { place, guest, news }| {
            let gone = control::gone(news.as_fd());
            if gone {
                // (If it was taken there is another number now. A child of the giver has this as well, and one of them is first.)
                self.words().members.0.give_up(*place, *guest);
            }
            !gone
        });
    }

    /// Whether the sending side is shared, too. At a fork a thread may have held it: then it stays this process's.
    pub fn sends(&self) -> bool {
        // Relaxed: set under the lock of the sending side, with a look at the doorbell behind it (`hold`).
        self.sends.load(Relaxed) != 0
    }

    pub fn words(&self) -> &Words {
        self.page.words()
    }

    pub fn me(&self) -> u32 {
        self.me.load(Relaxed)
    }

    /// Whether that member lives. This process never asks about itself but when somebody else has written its number.
    pub fn lives(&self, member: u32) -> bool {
        member != self.me() && self.life().is_none_or(|life| life.is_held_by_another(member))
    }

    /// Whether another process holds the end, or one will: a child that is being forked, or who was given it.
    pub fn has_others(&self) -> bool {
        self.look_after_given();
        self.words().members.0.has_others(self.me(), |member| self.lives(member))
    }

    /// The sending side is shared from here on, which its member says.
    pub fn sends_too(&self) {
        // Relaxed: as in `sends`.
        self.sends.store(1, Relaxed);
    }

    /// The sending side is this process's alone.
    pub fn sends_alone(&self) {
        // Relaxed: as in `sends`.
        self.sends.store(0, Relaxed);
    }
}
