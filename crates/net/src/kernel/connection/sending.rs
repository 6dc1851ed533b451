//! What a connection sends: the ring does, or where the bytes lie in a device's memory, its thread writes them.

use super::Connection;
use super::state::{Inner, Phase, pages_of};
use crate::kernel::config::ZeroCopy;
use crate::kernel::source::{Source, one_write};
use onecopy_chain::Chain;
use onecopy_chain::notify::{Fate, Segment};
use onecopy_uring::{Ring, Send};
use rustix::io::Errno;
use std::sync::Arc;

/// Bytes of one send, in 64 pages of 4 KiB.
const BATCH: u64 = 256 << 10;

impl Connection {
    /// Has the ring send what is next, or returns what is to be written from a device's memory.
    pub fn turn_send(&self, state: &mut Inner, ring: &mut Ring) -> Option<(Arc<Source>, Segment<Chain>)> {
        if state.phase != Phase::Open || state.sending {
            return None;
        }
        if std::mem::take(&mut state.unmade) {
            state.sending = true;
            ring.writable(&self.fd, self.token);
            return None;
        }
        let first = state.send.first()?.payload().fragments().next()?.page().pool_id();
        if let Some(source) = state.sources.find(first).cloned() {
            let len = one_write(state.send.segments().map(Segment::payload)).min(BATCH);
            let data = state.send.range(0, len as usize).ok()?;
            state.sending = true;
            return Some((source, data));
        }
        let len = state.send.len().min(BATCH);
        let data = state.send.range(0, len as usize).ok()?;
        let zero_copy = match self.shared().config.zero_copy {
            ZeroCopy::Always => !state.copies,
            ZeroCopy::Auto => !state.copies && len >= state.least,
            ZeroCopy::Never => false,
        };
        let more = state.more || state.send.len() > len;
        // Whole: the kernel waits for room itself. Only then are bytes of two sends never mixed.
        let how = Send { zero_copy, more, whole: true, ..Send::default() };
        state.asked =
            if zero_copy { pages_of(data.payload(), self.submitter.pool.monitor().pool_id()) } else { 0 };
        match ring.send(&self.fd, self.token, data, how) {
            Ok(()) => state.sending = true,
            // (A device's memory that is not bound was refused before.)
            Err(errno) => state.fail(errno),
        }
        None
    }

    /// How many pages it may take for what its program sends.
    pub fn share(&self, state: &Inner) -> u32 {
        state.share(
            self.submitter.pool.monitor().pool_id(),
            self.submitter.spare(),
            self.shared().config.send_pages.max(1),
        )
    }

    /// It may take some again, if it had its share.
    pub(super) fn looks_at_share(&self, state: &mut Inner) {
        state.over_share = state.over_share && self.share(state) == 0;
    }

    /// What the kernel has taken from a device's memory.
    pub fn written(&self, state: &mut Inner, ring: &mut Ring, taken: Result<usize, Errno>) {
        state.sending = false;
        match taken {
            Ok(n) => {
                self.shared().devices.count_gathered(n);
                self.sent(state, Ok(n), false);
            }
            Err(_) if state.aborted => {}
            // Nor is there any before it is made, where the first send was to begin it (Fast Open).
            Err(Errno::AGAIN | Errno::INPROGRESS | Errno::ALREADY) => {
                state.sending = true;
                ring.writable(&self.fd, self.token);
                return;
            }
            // The kernel is short of memory: the thread tries again later.
            Err(Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => {}
            Err(errno) => state.fail(errno),
        }
        self.looks_at_share(state);
        self.show(state);
        self.waiters.tell();
    }

    /// The first step of a send.
    pub fn sent(&self, state: &mut Inner, result: Result<usize, Errno>, more: bool) {
        match result {
            Ok(n) => {
                if !more {
                    self.common.counters().kernel_copied.add(n);
                }
                // It was cleared if the connection has been given up.
                let n = (n as u64).min(state.send.len());
                // Where a notification follows, it says what became of them.
                let gone = state.send.advance(n, if more { Fate::Sent } else { Fate::Copied });
                debug_assert!(gone.is_ok());
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The first bytes, which did not go with the SYN after all (tcp_sendmsg_fastopen()).
            Err(Errno::INPROGRESS | Errno::ALREADY) => state.unmade = true,
            // Neither memory to pin the pages nor for a notification (net.core.optmem_max): the kernel copies.
            Err(Errno::NOBUFS | Errno::NOMEM) if !state.copies => {
                state.copies = true;
                self.common.counters().references_copied.add(1);
            }
            Err(_) if state.aborted => {}
            Err(errno) => state.fail(errno),
        }
    }
}
