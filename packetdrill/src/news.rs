//! The error queue: completions of sends with MSG_ZEROCOPY, and stamps of sends (SO_TIMESTAMPING).

use crate::errno::{Errno, Outcome};
use crate::memory::{User, msghdr};
use crate::socket::{AGAIN, News, Watched};
use crate::world::{File, World};
use onecopy_chain::notify::Zerocopy;

/// include/uapi/linux/errqueue.h.
const SO_EE_ORIGIN_TIMESTAMPING: u8 = 4;
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;
const SCM_TSTAMP_SND: u32 = 0;
const SCM_TSTAMP_SCHED: u32 = 1;
const SCM_TSTAMP_ACK: u32 = 2;

/// include/uapi/linux/net_tstamp.h.
pub(crate) const TX_SOFTWARE: u32 = 1 << 1;
const OPT_ID: u32 = 1 << 7;
pub(crate) const TX_SCHED: u32 = 1 << 8;
pub(crate) const TX_ACK: u32 = 1 << 9;
/// Any of the ways that a send is stamped.
pub(crate) const TX: u32 = TX_SOFTWARE | TX_SCHED | TX_ACK;

impl World {
    /// A packet has left: sends whose last byte was in it are stamped.
    pub(crate) fn stamp_sent(&mut self) {
        let World { files, tcp, now, .. } = self;
        for file in files.values_mut() {
            let File::Socket(socket) = file else { continue };
            if socket.watched.is_empty() {
                continue;
            }
            let (sent, _) = tcp.progress(socket.id);
            let (stamping, at) = (socket.stamping, *now);
            let news = &mut socket.news;
            for one in socket.watched.iter_mut().filter(|one| !one.sent && one.end <= sent) {
                one.sent = true;
                for (flag, kind) in [(TX_SCHED, SCM_TSTAMP_SCHED), (TX_SOFTWARE, SCM_TSTAMP_SND)] {
                    if stamping & flag != 0 {
                        news.push_back(News::Stamp { kind, key: one.key, at });
                    }
                }
            }
        }
    }

    /// Sends whose last byte was acknowledged are stamped; those with MSG_ZEROCOPY that are complete are told of.
    pub(crate) fn complete(&mut self) {
        let mut told = Vec::new();
        let World { files, tcp, now, account, .. } = self;
        account.collect();
        let news = account.news();
        for (fd, file) in files.iter_mut() {
            let File::Socket(socket) = file else { continue };
            let before = socket.news.len();
            let mut any = false;
            while let Some(range) =
                socket.sends.as_ref().filter(|sends| news.contains(&sends.index())).and_then(Zerocopy::notice)
            {
                socket.completed(range);
                any = true;
            }
            if !socket.watched.is_empty() {
                let (_, acknowledged) = tcp.progress(socket.id);
                while let Some(one) = socket.watched.front().filter(|one| one.end <= acknowledged) {
                    if socket.stamping & TX_ACK != 0 {
                        let news = News::Stamp { kind: SCM_TSTAMP_ACK, key: one.key, at: *now };
                        socket.news.push_back(news);
                    }
                    socket.watched.pop_front();
                }
            }
            if any || socket.news.len() > before {
                told.push(*fd);
            }
        }
        for fd in told {
            self.touch();
            self.notify(fd, libc::EPOLLERR as u32);
        }
    }

    /// `fd` has taken a send of `bytes` bytes: if it is to be stamped, its last byte is watched from now on.
    pub(crate) fn watch(&mut self, fd: i32, bytes: usize) {
        let Ok(socket) = self.socket(fd) else { return };
        socket.written += bytes as u64;
        if socket.stamping & TX != 0 && bytes > 0 {
            let end = socket.written;
            let key = if socket.stamping & OPT_ID != 0 { end - 1 - socket.key_base } else { 0 };
            socket.watched.push_back(Watched { end, key: key as u32, sent: false });
        }
    }

    /// recvmsg(2) with MSG_ERRQUEUE.
    pub(crate) fn receive_news(&mut self, fd: i32, message: User) -> Outcome<isize> {
        let socket = self.socket(fd)?;
        let news = socket.news.pop_front().ok_or(AGAIN)?;
        let mut control = Vec::new();
        let mut flags = libc::MSG_ERRQUEUE;
        let mut error = [0; 32];
        match news {
            News::Zerocopy(range) => {
                error[4] = SO_EE_ORIGIN_ZEROCOPY;
                error[6] = if range.copied { SO_EE_CODE_ZEROCOPY_COPIED } else { 0 };
                error[8..12].copy_from_slice(&range.lo.to_le_bytes());
                error[12..16].copy_from_slice(&range.hi.to_le_bytes());
            }
            News::Stamp { kind, key, at } => {
                let mut stamps = [0; 48];
                stamps[..8].copy_from_slice(&(at / 1_000_000_000).to_le_bytes());
                stamps[8..16].copy_from_slice(&(at % 1_000_000_000).to_le_bytes());
                control.extend(control_message(libc::SOL_SOCKET, libc::SCM_TIMESTAMPING, &stamps));
                error[..4].copy_from_slice(&libc::ENOMSG.to_le_bytes());
                error[4] = SO_EE_ORIGIN_TIMESTAMPING;
                error[8..12].copy_from_slice(&kind.to_le_bytes());
                error[12..16].copy_from_slice(&key.to_le_bytes());
                // The kernel gives the packet along with it; we have none to give.
                flags |= libc::MSG_TRUNC;
            }
        }
        control.extend(control_message(libc::SOL_IP, libc::IP_RECVERR, &error));
        put_control(message, &control, flags)?;
        Ok(0)
    }
}

/// A control message, padded (CMSG_SPACE).
pub(crate) fn control_message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + data.len() + 7);
    bytes.extend_from_slice(&(16 + data.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&level.to_le_bytes());
    bytes.extend_from_slice(&kind.to_le_bytes());
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// Gives control messages and flags to who received, as far as they fit.
pub(crate) fn put_control(message: User, control: &[u8], mut flags: i32) -> Outcome<()> {
    let room = message.at(msghdr::CONTROL_LEN).word()? as usize;
    let fits = control.len().min(room);
    if fits < control.len() {
        flags |= libc::MSG_CTRUNC;
    }
    let place = message.at(msghdr::CONTROL).pointer()?;
    if fits > 0 && place.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    place.write(&control[..fits])?;
    message.at(msghdr::CONTROL_LEN).write(&(fits as u64).to_le_bytes())?;
    message.at(msghdr::FLAGS).put_int(flags)
}
