//! Where a send's bytes lie.

use onecopy_chain::Chain;
use onecopy_sys::datagram::Control;
use rustix::net::SocketAddrAny;

/// Parts that one send takes; of more, the first ones.
pub(crate) const MAX_PARTS: usize = 64;

const NO_BYTES: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// A msghdr, and what it points at. It is put into a box before the kernel is told where it is, and pointers into it are made only then.
pub(crate) struct Message {
    parts: [libc::iovec; MAX_PARTS],
    count: usize,
    to: Option<SocketAddrAny>,
    control: Option<Control>,
    header: Option<libc::msghdr>,
}

impl Message {
    /// Of the first parts of `chain`; none where the CPU cannot read one of them (a device's memory).
    pub fn new(chain: &Chain, to: Option<SocketAddrAny>, control: Option<Control>) -> Option<Message> {
        let mut parts = [NO_BYTES; MAX_PARTS];
        let mut count = 0;
        for (part, fragment) in parts.iter_mut().zip(chain.fragments()) {
            let span = fragment.page().span(fragment.offset(), fragment.len())?;
            *part = libc::iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() };
            count += 1;
        }
        Some(Message { parts, count, to, control, header: None })
    }

    /// Its msghdr, for as long as the message stays where it is.
    pub fn header(&mut self) -> *const libc::msghdr {
        // SAFETY: all zeroes is a valid msghdr: no name, no control data.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        if let Some(to) = &self.to {
            header.msg_name = to.as_ptr().cast_mut().cast();
            header.msg_namelen = to.addr_len();
        }
        if let Some(control) = self.control.as_ref().map(Control::bytes).filter(|bytes| !bytes.is_empty()) {
            header.msg_control = control.as_ptr().cast_mut().cast();
            header.msg_controllen = control.len() as _;
        }
        header.msg_iov = self.parts.as_mut_ptr();
        header.msg_iovlen = self.count;
        self.header.insert(header)
    }
}
