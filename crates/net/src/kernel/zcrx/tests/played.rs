//! The kernel's side, played over real sockets: what a connection has is put into pages of the memory, and told of by completions of 32 bytes, as io_uring/zcrx.c does.

use super::super::Rx;
use onecopy_pool::DeviceMemory;
use onecopy_sync::Mutex;
use onecopy_sys::eventfd::EventFd;
use onecopy_uring::Key;
use onecopy_uring::zcrx::{Arrival, Refill, Requests};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

const PAGE: u64 = 4096;
/// IORING_CQE_F_MORE.
pub(super) const MORE: u32 = 1 << 1;

/// What a test has the kernel do, and what it sees.
#[derive(Default)]
pub(super) struct Script {
    /// Completions that cannot be, or errors, of the next receive: result, flags, and where it says that bytes lie.
    pub says: VecDeque<(i32, u32, u64)>,
    /// The errno of receives that find something, in place of putting it there.
    pub refuses: Option<Errno>,
    /// The ring itself fails.
    pub fails: bool,
    /// Entries of the refill ring that were taken.
    pub back: Vec<(u64, u64)>,
    /// Of these, such as were nobody's.
    pub strange: usize,
    /// Bytes that were put into the memory.
    pub placed: u64,
    /// Receives that were asked for, by how many bytes each.
    pub asked: Vec<u32>,
    /// Receives that are under way.
    pub active: usize,
}

/// A receive that is under way.
struct Active {
    key: u64,
    fd: Arc<OwnedFd>,
    left: Option<u32>,
}

pub(super) struct Played {
    pub script: Arc<Mutex<Script>>,
    pub requests: Requests,
    pub refill: Arc<Refill>,
    pub memory: DeviceMemory,
    pub wake: Arc<EventFd>,
    /// Pages that nobody has, and how often each is somebody's.
    free: Vec<u64>,
    users: Vec<u32>,
    active: Vec<Active>,
}

impl Played {
    pub fn new(memory: DeviceMemory, wake: Arc<EventFd>, script: Arc<Mutex<Script>>) -> Played {
        let pages = memory.len() / PAGE;
        Played {
            script,
            requests: Requests::new(memory.len(), 0),
            refill: Arc::new(Refill::pretended(64)),
            wake,
            free: (0..pages).rev().collect(),
            users: vec![0; pages as usize],
            active: Vec::new(),
            memory,
        }
    }

    /// io_zcrx_ring_refill().
    fn take_back(&mut self) {
        for [off, len] in self.refill.taken(usize::MAX) {
            let mut script = self.script.lock();
            script.back.push((off, len));
            let page = off / PAGE;
            match self.users.get_mut(page as usize) {
                Some(users) if *users > 0 => {
                    *users -= 1;
                    if *users == 0 {
                        self.free.push(page);
                    }
                }
                _ => script.strange += 1,
            }
        }
    }

    fn tell(&mut self, key: u64, result: i32, flags: u32, off: u64) {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&key.to_ne_bytes());
        bytes[8..12].copy_from_slice(&result.to_ne_bytes());
        bytes[12..16].copy_from_slice(&flags.to_ne_bytes());
        bytes[16..24].copy_from_slice(&off.to_ne_bytes());
        self.requests.complete_bytes(&bytes);
    }

    /// io_recvzc(): what the socket has now. Returns whether the receive is over.
    fn receive(&mut self, one: &mut Active) -> bool {
        loop {
            let said = self.script.lock().says.pop_front();
            if let Some((result, flags, off)) = said {
                self.tell(one.key, result, flags, off);
                if flags & MORE == 0 {
                    return true;
                }
                continue;
            }
            if one.left == Some(0) {
                self.tell(one.key, 0, 0, 0);
                return true;
            }
            let mut page = [0; PAGE as usize];
            let most = one.left.map_or(page.len(), |left| page.len().min(left as usize));
            let there = recv(&*one.fd, &mut page[..most], RecvFlags::DONTWAIT | RecvFlags::PEEK);
            let refuses = self.script.lock().refuses;
            let end = match there {
                Err(Errno::AGAIN) => return false,
                Err(errno) => -errno.raw_os_error(),
                Ok((0, _)) => 0,
                Ok(_) if refuses.is_some() => -refuses.unwrap().raw_os_error(),
                Ok(_) if self.free.is_empty() => -Errno::NOMEM.raw_os_error(),
                Ok((len, _)) => {
                    let at = self.free.pop().unwrap();
                    self.users[at as usize] = 1;
                    recv(&*one.fd, &mut page[..len], RecvFlags::DONTWAIT).unwrap();
                    self.memory.write_at(at * PAGE, &[IoSlice::new(&page[..len])]).unwrap();
                    self.script.lock().placed += len as u64;
                    one.left = one.left.map(|left| left - len as u32);
                    self.tell(one.key, len as i32, MORE, at * PAGE);
                    continue;
                }
            };
            self.tell(one.key, end, 0, 0);
            return true;
        }
    }
}

impl Rx for Played {
    fn receive(&mut self, fd: &Arc<OwnedFd>, token: u64, most: u32) -> Key {
        let key = self.requests.begin(fd, token, most);
        self.script.lock().asked.push(most);
        let left = (most > 0).then_some(most);
        self.active.push(Active { key: key.user_data(), fd: Arc::clone(fd), left });
        key
    }

    fn cancel(&mut self, key: Key) {
        if let Some(at) = self.active.iter().position(|one| one.key == key.user_data()) {
            self.active.remove(at);
            self.tell(key.user_data(), -Errno::CANCELED.raw_os_error(), 0, 0);
        }
    }

    fn wait(&mut self, limit: Option<Duration>) -> std::io::Result<bool> {
        let limit = limit.map(|limit| Timespec::try_from(limit).unwrap());
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        for limit in [Some(zero), limit] {
            let mut polled = vec![PollFd::new(&self.wake, PollFlags::IN)];
            polled.extend(
                self.active.iter().map(|one| PollFd::new(&*one.fd, PollFlags::IN | PollFlags::RDHUP)),
            );
            let _ = poll(&mut polled, limit.as_ref());
            if self.script.lock().fails {
                return Err(std::io::Error::from_raw_os_error(5));
            }
            let woken = polled[0].revents().contains(PollFlags::IN);
            self.take_back();
            for mut one in std::mem::take(&mut self.active) {
                if !self.receive(&mut one) {
                    self.active.push(one);
                }
            }
            // As `Zcrx::wait` does.
            while let Some(key) = self.requests.to_cancel() {
                Rx::cancel(self, key);
            }
            self.script.lock().active = self.active.len();
            if woken || !self.requests.is_quiet() {
                return Ok(woken);
            }
        }
        Ok(false)
    }

    fn event(&mut self) -> Option<Arrival> {
        self.requests.event()
    }
}
