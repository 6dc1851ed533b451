//! The table of functions that packetdrill calls (gtests/net/packetdrill/packetdrill.h), in C's terms.

use crate::bytes::{self, Into, Message};
use crate::errno::Outcome;
use crate::memory::User;
use crate::{control, epoll, options, world};
use libc::{c_char, c_int, c_long, c_longlong, c_uint, c_ulong, c_void, size_t, ssize_t};
use std::ffi::CStr;

/// What is handed back with each call; there is one world.
type Data = *mut c_void;
/// A caller's pointer.
type At = *mut c_void;

/// `struct packetdrill_interface`. (fcntl and ioctl are variadic there. What is passed beyond the named arguments is in the next register
/// on the machines that this runs on, as if it were named.)
#[repr(C)]
pub struct Table {
    userdata: Data,
    free: extern "C" fn(Data),
    socket: extern "C" fn(Data, c_int, c_int, c_int) -> c_int,
    bind: unsafe extern "C" fn(Data, c_int, At, c_uint) -> c_int,
    listen: extern "C" fn(Data, c_int, c_int) -> c_int,
    accept: unsafe extern "C" fn(Data, c_int, At, At) -> c_int,
    connect: unsafe extern "C" fn(Data, c_int, At, c_uint) -> c_int,
    read: unsafe extern "C" fn(Data, c_int, At, size_t) -> ssize_t,
    readv: unsafe extern "C" fn(Data, c_int, At, c_int) -> ssize_t,
    recv: unsafe extern "C" fn(Data, c_int, At, size_t, c_int) -> ssize_t,
    recvfrom: unsafe extern "C" fn(Data, c_int, At, size_t, c_int, At, At) -> ssize_t,
    recvmsg: unsafe extern "C" fn(Data, c_int, At, c_int) -> ssize_t,
    write: unsafe extern "C" fn(Data, c_int, At, size_t) -> ssize_t,
    writev: unsafe extern "C" fn(Data, c_int, At, c_int) -> ssize_t,
    send: unsafe extern "C" fn(Data, c_int, At, size_t, c_int) -> ssize_t,
    sendto: unsafe extern "C" fn(Data, c_int, At, size_t, c_int, At, c_uint) -> ssize_t,
    sendmsg: unsafe extern "C" fn(Data, c_int, At, c_int) -> ssize_t,
    fcntl: extern "C" fn(Data, c_int, c_int, c_long) -> c_int,
    ioctl: unsafe extern "C" fn(Data, c_int, c_ulong, At) -> c_int,
    close: extern "C" fn(Data, c_int) -> c_int,
    shutdown: extern "C" fn(Data, c_int, c_int) -> c_int,
    getsockopt: unsafe extern "C" fn(Data, c_int, c_int, c_int, At, At) -> c_int,
    setsockopt: unsafe extern "C" fn(Data, c_int, c_int, c_int, At, c_uint) -> c_int,
    poll: unsafe extern "C" fn(Data, At, c_ulong, c_int) -> c_int,
    netdev_send: unsafe extern "C" fn(Data, At, size_t) -> c_int,
    netdev_receive: unsafe extern "C" fn(Data, At, *mut size_t, *mut c_longlong) -> c_int,
    usleep: extern "C" fn(Data, c_uint) -> c_int,
    gettimeofday: unsafe extern "C" fn(Data, *mut libc::timeval, At) -> c_int,
    epoll_create: extern "C" fn(Data, c_int) -> c_int,
    epoll_ctl: unsafe extern "C" fn(Data, c_int, c_int, c_int, At) -> c_int,
    epoll_wait: unsafe extern "C" fn(Data, c_int, At, c_int, c_int) -> c_int,
    pipe: unsafe extern "C" fn(Data, *mut c_int) -> c_int,
    splice: extern "C" fn(Data, c_int, At, c_int, At, size_t, c_uint) -> c_int,
}

/// Fills the table.
///
/// # Safety
///
/// `flags` is null or a C string, `table` may be written.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn packetdrill_interface_init(flags: *const c_char, table: *mut Table) {
    let flags = if flags.is_null() {
        String::new()
    } else {
        // SAFETY: the caller says that it is a C string.
        unsafe { CStr::from_ptr(flags) }.to_string_lossy().into_owned()
    };
    world::create(&flags);
    leave_children_alone();
    let filled = Table {
        userdata: std::ptr::null_mut(),
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read,
        readv,
        recv,
        recvfrom,
        recvmsg,
        write,
        writev,
        send,
        sendto,
        sendmsg,
        fcntl,
        ioctl,
        close,
        shutdown,
        getsockopt,
        setsockopt,
        poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create,
        epoll_ctl,
        epoll_wait,
        pipe,
        splice,
    };
    // SAFETY: the caller says that it may be written.
    unsafe { table.write(filled) };
}

/// Programs that packetdrill starts need nothing of what is preloaded.
fn leave_children_alone() {
    // SAFETY: packetdrill has no thread yet that looks at its environment.
    unsafe { libc::unsetenv(c"LD_PRELOAD".as_ptr()) };
}

/// Tells an outcome as C does.
pub(crate) fn answer(outcome: Outcome<isize>) -> isize {
    match outcome {
        Ok(value) => value,
        Err(errno) => {
            // SAFETY: it is this thread's own.
            unsafe { *libc::__errno_location() = errno.0 };
            -1
        }
    }
}

/// A caller's pointer, as what it is.
///
/// # Safety
///
/// As [`User::new`].
unsafe fn user(at: At) -> User {
    // SAFETY: the caller says so.
    unsafe { User::new(at as usize) }
}

extern "C" fn free(_: Data) {}

extern "C" fn socket(_: Data, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    answer(control::socket(domain, kind, protocol)) as c_int
}

unsafe extern "C" fn bind(_: Data, fd: c_int, at: At, len: c_uint) -> c_int {
    // SAFETY: bind(2) reads an address there.
    answer(control::bind(fd, unsafe { user(at) }, len)) as c_int
}

extern "C" fn listen(_: Data, fd: c_int, backlog: c_int) -> c_int {
    answer(control::listen(fd, backlog)) as c_int
}

unsafe extern "C" fn accept(_: Data, fd: c_int, at: At, len: At) -> c_int {
    // SAFETY: accept(2) writes an address and its length there.
    answer(control::accept(fd, unsafe { user(at) }, unsafe { user(len) })) as c_int
}

unsafe extern "C" fn connect(_: Data, fd: c_int, at: At, len: c_uint) -> c_int {
    // SAFETY: connect(2) reads an address there.
    answer(control::connect(fd, unsafe { user(at) }, len)) as c_int
}

unsafe extern "C" fn read(data: Data, fd: c_int, at: At, len: size_t) -> ssize_t {
    // SAFETY: as for this function.
    unsafe { recv(data, fd, at, len, 0) }
}

unsafe extern "C" fn readv(_: Data, fd: c_int, at: At, count: c_int) -> ssize_t {
    // SAFETY: readv(2) reads iovecs there, and writes where these point to.
    let buffers = unsafe { user(at) }.buffers(count as usize);
    answer(
        buffers.and_then(|buffers| bytes::receive(fd, Into { buffers: &buffers, flags: 0, message: None })),
    )
}

unsafe extern "C" fn recv(_: Data, fd: c_int, at: At, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: recv(2) writes there.
    let buffers = [(unsafe { user(at) }, len)];
    answer(bytes::receive(fd, Into { buffers: &buffers, flags, message: None }))
}

/// (Of a stream, recvfrom tells no address.)
unsafe extern "C" fn recvfrom(
    data: Data,
    fd: c_int,
    at: At,
    len: size_t,
    flags: c_int,
    _: At,
    _: At,
) -> ssize_t {
    // SAFETY: as for this function.
    unsafe { recv(data, fd, at, len, flags) }
}

unsafe extern "C" fn recvmsg(_: Data, fd: c_int, at: At, flags: c_int) -> ssize_t {
    // SAFETY: recvmsg(2) reads a message's header there, and writes where it points to.
    let message = unsafe { user(at) };
    let into =
        |buffers: Vec<_>| bytes::receive(fd, Into { buffers: &buffers, flags, message: Some(message) });
    answer(bytes::buffers_of(message).and_then(into))
}

unsafe extern "C" fn write(data: Data, fd: c_int, at: At, len: size_t) -> ssize_t {
    // SAFETY: as for this function.
    unsafe { send(data, fd, at, len, 0) }
}

unsafe extern "C" fn writev(_: Data, fd: c_int, at: At, count: c_int) -> ssize_t {
    // SAFETY: writev(2) reads iovecs there, and what these point to.
    let buffers = unsafe { user(at) }.buffers(count as usize);
    answer(buffers.and_then(|buffers| {
        bytes::send(fd, Message { buffers: &buffers, flags: 0, to: None, nowhere: false })
    }))
}

unsafe extern "C" fn send(_: Data, fd: c_int, at: At, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: send(2) reads there.
    let buffers = [(unsafe { user(at) }, len)];
    answer(bytes::send(fd, Message { buffers: &buffers, flags, to: None, nowhere: false }))
}

unsafe extern "C" fn sendto(
    _: Data,
    fd: c_int,
    at: At,
    len: size_t,
    flags: c_int,
    to: At,
    to_len: c_uint,
) -> ssize_t {
    // SAFETY: sendto(2) reads bytes and an address there.
    let (buffers, to) = ([(unsafe { user(at) }, len)], unsafe { user(to) });
    let address = if to.is_null() || to_len == 0 {
        Ok((None, false))
    } else {
        control::address(to, to_len).map(|address| (address, address.is_none()))
    };
    answer(
        address.and_then(|(to, nowhere)| bytes::send(fd, Message { buffers: &buffers, flags, to, nowhere })),
    )
}

unsafe extern "C" fn sendmsg(_: Data, fd: c_int, at: At, flags: c_int) -> ssize_t {
    // SAFETY: sendmsg(2) reads a message's header there, and what it points to.
    let message = unsafe { user(at) };
    answer(bytes::buffers_of(message).and_then(|buffers| {
        let (to, nowhere) = bytes::address_of(message)?;
        bytes::send(fd, Message { buffers: &buffers, flags, to, nowhere })
    }))
}

extern "C" fn fcntl(_: Data, fd: c_int, command: c_int, value: c_long) -> c_int {
    answer(control::fcntl(fd, command, value)) as c_int
}

unsafe extern "C" fn ioctl(_: Data, fd: c_int, request: c_ulong, at: At) -> c_int {
    // SAFETY: ioctl(2) writes a number there, or reads one.
    answer(control::ioctl(fd, request & 0xffff_ffff, unsafe { user(at) })) as c_int
}

extern "C" fn close(_: Data, fd: c_int) -> c_int {
    answer(control::close(fd)) as c_int
}

extern "C" fn shutdown(_: Data, fd: c_int, how: c_int) -> c_int {
    answer(control::shutdown(fd, how)) as c_int
}

unsafe extern "C" fn getsockopt(_: Data, fd: c_int, level: c_int, name: c_int, at: At, len: At) -> c_int {
    // SAFETY: getsockopt(2) writes a value and its length there.
    answer(options::get(fd, level, name, unsafe { user(at) }, unsafe { user(len) })) as c_int
}

unsafe extern "C" fn setsockopt(_: Data, fd: c_int, level: c_int, name: c_int, at: At, len: c_uint) -> c_int {
    // SAFETY: setsockopt(2) reads a value there.
    answer(options::set(fd, level, name, unsafe { user(at) }, len)) as c_int
}

unsafe extern "C" fn poll(_: Data, at: At, count: c_ulong, timeout: c_int) -> c_int {
    // SAFETY: poll(2) reads and writes pollfds there.
    answer(epoll::poll(unsafe { user(at) }, count as usize, timeout)) as c_int
}

unsafe extern "C" fn netdev_send(_: Data, at: At, len: size_t) -> c_int {
    // SAFETY: a packet lies there.
    match unsafe { user(at) }.read(len) {
        Ok(packet) => world::deliver(&packet),
        Err(errno) => return answer(Err(errno)) as c_int,
    }
    0
}

unsafe extern "C" fn netdev_receive(_: Data, at: At, len: *mut size_t, time: *mut c_longlong) -> c_int {
    let (when, packet) = world::collect().unwrap_or_default();
    // SAFETY: packetdrill says how much room there is, and takes its use and the time from there.
    unsafe {
        let fits = packet.len().min(*len);
        if user(at).write(&packet[..fits]).is_err() {
            return -1;
        }
        *len = fits;
        *time = (when / 1_000) as c_longlong;
    }
    0
}

extern "C" fn usleep(_: Data, us: c_uint) -> c_int {
    world::sleep(u64::from(us) * 1_000);
    0
}

unsafe extern "C" fn gettimeofday(_: Data, at: *mut libc::timeval, _: At) -> c_int {
    let us = world::look_at_the_clock() / 1_000;
    let time = libc::timeval {
        tv_sec: (us / 1_000_000) as libc::time_t,
        tv_usec: (us % 1_000_000) as libc::suseconds_t,
    };
    // SAFETY: gettimeofday(2) writes the time there.
    unsafe { at.write(time) };
    0
}

extern "C" fn epoll_create(_: Data, size: c_int) -> c_int {
    answer(control::epoll_create(size)) as c_int
}

unsafe extern "C" fn epoll_ctl(_: Data, fd: c_int, op: c_int, target: c_int, at: At) -> c_int {
    // SAFETY: epoll_ctl(2) reads an event there.
    answer(epoll::control(fd, op, target, unsafe { user(at) })) as c_int
}

unsafe extern "C" fn epoll_wait(_: Data, fd: c_int, at: At, most: c_int, timeout: c_int) -> c_int {
    // SAFETY: epoll_wait(2) writes events there.
    answer(epoll::wait(fd, unsafe { user(at) }, most, timeout)) as c_int
}

unsafe extern "C" fn pipe(_: Data, at: *mut c_int) -> c_int {
    // SAFETY: pipe(2) writes two descriptors there.
    unsafe { libc::pipe(at) }
}

extern "C" fn splice(_: Data, from: c_int, _: At, to: c_int, _: At, len: size_t, _: c_uint) -> c_int {
    answer(bytes::splice(from, to, len)) as c_int
}
