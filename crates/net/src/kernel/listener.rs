//! Listeners, as programs hold them.

use super::address::addresses;
use super::connection::Phase;
use super::engine::Kernel;
use super::listening::{Listening, split};
use super::options;
use super::socket::{Stream, common, open};
use super::submitter::For;
use super::wait::{Patience, explained, here};
use crate::bell::Bell;
use crate::carrier::tcp::{self, Endpoint};
use crate::carrier::{Common, Way};
use onecopy_inet::stack::Bound;
use onecopy_inet::tcp::Settings;
use onecopy_socket::registry::Protocol;
use onecopy_socket::{Carrier, Error, Op, Result};
use onecopy_sync::Mutex;
use onecopy_sys::sockopt::peer_name;
use rustix::io::Errno;
use rustix::net::sockopt;
use std::fmt;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};

/// A listener at `address`.
pub(crate) fn listen(kernel: &Kernel, address: SocketAddr, backlog: u32) -> Result<Arc<dyn tcp::Listening>> {
    let fd = open(address)?;
    let settings = options::begin(&fd, kernel.shared().config.congestion)?;
    let (ahead, kernels) = split(backlog);
    let bound = sockopt::set_socket_reuseaddr(&fd, true)
        .and_then(|()| rustix::net::bind(&fd, &address))
        .and_then(|()| rustix::net::listen(&fd, i32::try_from(kernels).unwrap_or(i32::MAX)));
    bound.map_err(|errno| explained(Op::Bind, errno).about("address"))?;
    let listening = Listening::new(kernel.submitters(), fd, common(kernel.shared(), true), ahead);
    let socket =
        Listener { ipv6: address.is_ipv6(), listening, options: Mutex::new(settings), bell: OnceLock::new() };
    let local = socket.addresses().local;
    socket.listening.row.names(Protocol::Tcp, local, None);
    socket.listening.show(&socket.listening.lock());
    socket.listening.poke();
    Ok(Arc::new(socket))
}

/// A listener.
pub(super) struct Listener {
    listening: Arc<Listening>,
    ipv6: bool,
    /// What accepted connections begin with: the kernel hands most of it on.
    options: Mutex<Settings>,
    bell: OnceLock<Arc<Bell>>,
}

impl Endpoint for Listener {
    fn common(&self) -> &Common {
        &self.listening.common
    }

    fn carrier(&self) -> Carrier {
        Carrier::Kernel
    }

    fn shutdown(&self, _: Shutdown) -> Result<()> {
        self.listening.end(false);
        Ok(())
    }

    fn addresses(&self) -> Bound {
        addresses(&*self.listening.fd)
    }

    fn take_error(&self, _: Op) -> Option<Error> {
        None
    }

    fn fd(&self) -> Result<BorrowedFd<'_>> {
        if let Some(bell) = self.bell.get() {
            return Ok(bell.as_fd());
        }
        let bell = self.listening.bell().map_err(|errno| Error::new(Op::Socket, errno))?;
        Ok(self.bell.get_or_init(|| bell).as_fd())
    }

    fn change(&self, change: &mut dyn FnMut(&mut Settings)) -> Result<()> {
        options::changed(&self.options, self.listening.fd.as_fd(), self.ipv6, change)
    }

    fn look(&self, look: &mut dyn FnMut(&Settings)) {
        look(&options::seen(&self.options, self.listening.fd.as_fd()));
    }
}

impl tcp::Listening for Listener {
    fn accept(&self) -> Result<(Arc<dyn tcp::Connection>, SocketAddr)> {
        let listening = &*self.listening;
        let patience = Patience::of(&listening.common, Way::Read, false);
        loop {
            let mut state = listening.lock();
            let Some(next) = state.next() else {
                here(listening.shared(), Op::Accept)?;
                let waited = patience.wait(state, listening.waiters(), None);
                waited.map_err(|errno| Error::new(Op::Accept, errno))?;
                continue;
            };
            let wants = state.wants_more();
            listening.show(&state);
            drop(state);
            if wants {
                listening.poke();
            }
            let fd = next.map_err(|errno| Error::new(Op::Accept, errno))?;
            // (It may have been reset meanwhile: who receives hears so.)
            let from = peer_name(fd.as_fd())
                .map_err(|error| Error::new(Op::Accept, Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
            let options = self.options.lock().clone();
            let stream =
                Stream::new(listening.submitters.next(For::Accepted), fd, Phase::Open, self.ipv6, options);
            stream.begin();
            return Ok((Arc::new(stream), from));
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.listening.shared().is_here() {
            self.listening.end(true);
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("local", &self.addresses().local).finish_non_exhaustive()
    }
}
