//! Bodies that are lent: instead of its bytes, the proxy gets a descriptor of what they lie in, and has the kernel send the
//! bytes from there. Nobody copies the body in user space, and the kernel only on its way into the client's socket.
//!
//! The proxy says with `Onecopy-Takes: lent` that it can; the daemon answers with `Onecopy-Lent: OFFSET` in a head that has
//! one descriptor beside it (SCM_RIGHTS) and no body behind it. `Onecopy-Fresh: MILLISECONDS` says for how long the proxy may give
//! the same answer to others without asking: what is left of --revalidate. `Onecopy-Changed: SECONDS.NANOSECONDS` beside it
//! says of which version of a file that answer is (st_ctime). These fields are between these two alone, and both are of one user: who
//! has a descriptor keeps its file's memory, or its room on the disk, even where the cache has let it go.
//!
//! Memory is sealed ([`Frozen`](onecopy_sys::frozen::Frozen)): the proxy need not trust that it stays. A file is lent only
//! where all of the part lies in the page cache, since the proxy serves many with one thread, which must not wait for a disk.
//! One that is cut short on its way ends the client's connection, as always; and since its pages go by reference, what is
//! written to it meanwhile may be seen by the client, as with any sendfile(2).

use super::answer::{Answer, Piece};
use super::wire::{Wire, send_all};
use crate::counters::Counters;
use crate::http::request::Request;
use onecopy_sys::page_cache;
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;

/// Bytes from which on a loan costs less than copies: passing a descriptor takes each side a few microseconds.
const LEAST: u64 = 16 << 10;

/// Errors of who may pass on or open no more descriptors now.
const SCARCE: [i32; 5] = [
    Errno::TOOMANYREFS.raw_os_error(),
    Errno::MFILE.raw_os_error(),
    Errno::NFILE.raw_os_error(),
    Errno::NOBUFS.raw_os_error(),
    Errno::NOMEM.raw_os_error(),
];

/// What may be lent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Lend {
    /// What is kept in memory (--cache), and files that lie in the kernel's page cache.
    #[default]
    Auto,
    /// What is kept in memory.
    Memory,
    /// Nothing: each body is copied, with the stores of --policy.
    Never,
}

impl Lend {
    /// Sends an answer whose body is lent. None: it is not one that can be, and nothing was sent.
    pub fn offer(
        self,
        wire: &Wire,
        request: &Request<'_>,
        answer: &Answer,
        counters: &mut Counters,
    ) -> Option<io::Result<()>> {
        if self == Lend::Never || request.text("onecopy-takes") != Some("lent") {
            return None;
        }
        let object = answer.object.as_ref()?;
        let (Wire::Onecopy(stream), [Piece::Text(head), Piece::Object(part)]) = (wire, &answer.pieces[..])
        else {
            return None;
        };
        let fd = match &object.memory {
            _ if part.len() < LEAST => return None,
            Some(memory) => memory.as_fd(),
            None if self == Lend::Memory => return None,
            // A kernel that cannot say is not relied on.
            None => match page_cache::holds(&object.file, part.start, part.len()) {
                Ok(true) => object.file.as_fd(),
                _ => return None,
            },
        };
        let fields = head.strip_suffix("\r\n")?;
        // What a whole file's answer depends on, is its path alone.
        let fresh = match (answer.fresh.as_millis(), &object.memory) {
            (0, _) => String::new(),
            (ms, Some(_)) => {
                object.stays_for(answer.fresh);
                format!("Onecopy-Fresh: {ms}\r\n")
            }
            // The proxy sees what the file is when it gets it: by then it may be another than this head is of.
            (ms, None) => {
                let (seconds, nanos) = object.changed();
                format!("Onecopy-Fresh: {ms}\r\nOnecopy-Changed: {seconds}.{nanos}\r\n")
            }
        };
        let head = format!("{fields}Onecopy-Lent: {}\r\n{fresh}\r\n", part.start);
        // The descriptor goes with the first byte; the rest of the head, should there be no room, without it.
        let sent = loop {
            match stream.send_fds(head.as_bytes(), &[fd]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nothing was sent: too many descriptors are on their way or open, and a copy needs none.
                Err(error) if SCARCE.contains(&error.raw_os_error()) => return None,
                other => break other,
            }
        };
        let result = match sent {
            Ok(sent) => send_all(stream, &mut [IoSlice::new(&head.as_bytes()[sent..])]),
            Err(error) => Err(error.into()),
        };
        if result.is_ok() {
            // Sent by the proxy, or not: it counts what it sends.
            counters.lent += 1;
            counters.lent_bytes += part.len();
        }
        Some(result)
    }
}
