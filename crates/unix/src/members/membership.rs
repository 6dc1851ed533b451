//! One process's part in an end that several processes hold: the page, its own number there, and a way to
//! tell which other members live.
//!
//! There are two kinds of pages:
//!
//! | the end is shared with | page | file in which members lock their bytes |
//! |---|---|---|
//! | children only | memory that they inherit | the family's, one for all ends |
//! | any process ([`crate::Config::passable`]) | a memfd | that memfd |
//!
//! In the second case a process that is given the page can be a member (`multiprocess/share.rs`).

use crate::control;
use crate::members::fork::{self, Joined};
use crate::members::patience::{BRIEFLY, PATIENCE};
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

/// One process's part in an end that several processes hold.
#[derive(Debug)]
pub struct Sharing {
    page: EndPage,
    life: Life,
    /// This process's number.
    me: AtomicU32,
    /// 1 if the sending side is shared too, so that whoever unlocks it rings the doorbell.
    sends: AtomicU32,
    /// Views that were given back while another process kept the receiving side: their ids, and how many
    /// bytes each.
    late: Mutex<Vec<(BorrowId, usize)>>,
    /// The places that are reserved for processes that were given this end and have not taken it up, as far
    /// as is known.
    given: Mutex<Vec<Given>>,
}

/// The file in which the members of an end lock their bytes.
#[derive(Debug)]
enum Life {
    /// The family's file: parents and children have one for all of their ends.
    Family(Arc<Lifeline>),
    /// The page's own file.
    Page(PageFile),
}

/// A page's file. This process has one descriptor of it, since closing a second one would drop its locks.
#[derive(Debug)]
pub struct PageFile {
    /// `None` while the file is on its way, or closed.
    life: Option<Lifeline>,
    inode: u64,
}

impl PageFile {
    /// Announces a file that is to come. Returns `None` if this process has it already.
    pub fn expect(inode: u64) -> Option<PageFile> {
        fork::pages(|pages| {
            let new = !pages.contains(&inode);
            new.then(|| {
                pages.push(inode);
                PageFile { life: None, inode }
            })
        })
    }

    /// Keeps the file, which has come.
    pub fn keep(&mut self, file: OwnedFd) -> &Lifeline {
        self.life.insert(Lifeline::on(file))
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        // The order matters: a thread that finds that this process does not have the file may open it.
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
    /// Makes a page. The caller holds no lock of an end.
    ///
    /// # Errors
    ///
    /// The errors of memfd_create(2) and mmap(2).
    pub fn new() -> rustix::io::Result<Fresh> {
        fork::pages(Fresh::create)
    }

    /// Makes a page, as [`Fresh::new`] does. The caller has locked the list of [`fork::pages`].
    ///
    /// # Errors
    ///
    /// Those of [`Fresh::new`].
    pub fn create(pages: &mut Vec<u64>) -> rustix::io::Result<Fresh> {
        let file = memfd::create("onecopy-end", PAGE_LEN)?;
        let page = EndPage::over(Mapping::new(&file, PAGE_LEN)?);
        let inode = rustix::fs::fstat(&file)?.st_ino;
        let life = Lifeline::on(file);
        let me = life.join()?;
        pages.push(inode);
        Ok(Fresh { page, file: PageFile { life: Some(life), inode }, me })
    }

    /// Turns the page into this process's part in the end.
    pub fn over(self) -> Arc<Sharing> {
        Arc::new(Sharing::new(self.page, Life::Page(self.file), self.me, false))
    }
}

/// A place that is reserved for a process that was given what it takes to hold this end.
#[derive(Debug)]
pub struct Given {
    place: usize,
    /// The guest's number. The same place may be reserved again later, but never with the same number.
    guest: u32,
    /// Hangs up once nobody can take the place any more, since the token was used or closed.
    news: OwnedFd,
}

/// The reason why no token was given.
pub enum NotGiven {
    /// All places are taken.
    Full,
    /// This process was forked while another thread of its parent was using the list.
    Busy,
    /// Making the token failed.
    Failed(Errno),
}

/// Returns a random number. The chance that another guest has the same is one in a thousand million.
fn number() -> rustix::io::Result<u32> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok((u32::from_ne_bytes(bytes) & onecopy_sys::life::MAX).max(1))
}

impl Sharing {
    /// Makes a page that only children can share.
    ///
    /// # Errors
    ///
    /// The errors of mmap(2).
    pub fn with_family(life: &Arc<Lifeline>, me: u32) -> rustix::io::Result<Sharing> {
        let page = EndPage::over(Mapping::inherited(PAGE_LEN)?);
        Ok(Sharing::new(page, Life::Family(life.clone()), me, false))
    }

    /// Joins the members in a forked child, which already has its number in the family's file. Returns this
    /// process's number.
    pub fn join_as_child<'a>(&self, family: impl FnOnce() -> Option<&'a Joined>) -> Option<u32> {
        let family = if let Life::Family(of) = &self.life {
            family().filter(|(life, _)| Arc::ptr_eq(life, of))
        } else {
            None
        };
        let me = match family {
            Some((_, me)) => *me,
            None => self.life()?.join().ok()?,
        };
        self.me.store(me, Relaxed);
        Some(me)
    }

    /// Locks the list of tokens that were given away during a fork: the child has to look after them as well.
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

    /// Joins, as number `me`, an end that another process has shared with this one.
    pub fn joined(page: EndPage, file: PageFile, me: u32) -> Arc<Sharing> {
        Arc::new(Sharing::new(page, Life::Page(file), me, true))
    }

    fn life(&self) -> Option<&Lifeline> {
        match &self.life {
            Life::Family(life) => Some(life),
            Life::Page(file) => file.life.as_ref(),
        }
    }

    /// Returns the page's file and its inode, if the page has a file. A second descriptor of it may exist
    /// only in a queue.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.life {
            Life::Page(PageFile { life: Some(life), inode }) => Some((life.as_fd(), *inode)),
            _ => None,
        }
    }

    /// Reserves a place for a child that is about to be forked. Returns `None` if all are taken.
    pub fn expect_child(&self) -> Option<usize> {
        self.enter().expect(self.me(), |member| self.lives(member))
    }

    /// Gives away what it takes to hold this end too. `make` makes that for a place and a guest's number, and
    /// returns the gift and a socket. The socket hangs up once all of the gift is gone, taken up or not; then
    /// the place is free again.
    ///
    /// # Errors
    ///
    /// The reason why nothing was given.
    pub fn give(
        &self,
        make: impl FnOnce(usize, u32) -> rustix::io::Result<(OwnedFd, OwnedFd)>,
    ) -> Result<OwnedFd, NotGiven> {
        let mut given = self.given.lock_for(PATIENCE).ok_or(NotGiven::Busy)?;
        // This also keeps the number of open sockets to that of the tokens that are under way.
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

    /// Frees the places that nobody will come to any more.
    fn look_after_given(&self) {
        // If another thread has the lock, it does the same.
        if let Some(mut given) = self.given.try_lock() {
            self.look_after(&mut given);
        }
    }

    fn look_after(&self, given: &mut Vec<Given>) {
        given.retain(|Given { place, guest, news }| {
            let gone = control::gone(news.as_fd());
            if gone {
                // If the place was taken, another number is there now and this does nothing. The giver's
                // children have this list too, and one of them gives the place up first.
                self.words().members.0.give_up(*place, *guest);
            }
            !gone
        });
    }

    /// Returns whether the sending side is shared too. If a thread held it at a fork, it stays with this
    /// process alone.
    pub fn sends(&self) -> bool {
        // Relaxed: set under the lock of the sending side, with a look at the doorbell behind it
        // (`share_tx`).
        self.sends.load(Relaxed) != 0
    }

    /// Notes a view that was given back while another process kept the receiving side.
    pub fn note_late(&self, id: BorrowId, len: usize) {
        self.late.lock().push((id, len));
    }

    /// Gives `release` each view that was given back late, once.
    pub fn each_late(&self, mut release: impl FnMut(BorrowId, usize)) {
        for (id, len) in self.late.lock().drain(..) {
            release(id, len);
        }
    }

    pub fn words(&self) -> &Words {
        self.page.words()
    }

    pub fn me(&self) -> u32 {
        self.me.load(Relaxed)
    }

    /// Returns whether that member lives. A process asks about its own number only if another one has written
    /// it.
    pub fn lives(&self, member: u32) -> bool {
        member != self.me() && self.life().is_none_or(|life| life.is_held_by_another(member))
    }

    /// Returns whether another process holds the end, or will: a child that is being forked, or a process
    /// that was given a token.
    pub fn has_others(&self) -> bool {
        self.look_after_given();
        self.words().members.0.has_others(self.me(), |member| self.lives(member))
    }

    /// Notes that the sending side is shared from here on. The member that shares it calls this.
    pub fn sends_too(&self) {
        // Relaxed: as in `sends`.
        self.sends.store(1, Relaxed);
    }

    /// Notes that the sending side belongs to this process alone.
    pub fn sends_alone(&self) {
        // Relaxed: as in `sends`.
        self.sends.store(0, Relaxed);
    }
}
