//! dma-bufs: memory that a driver shares with others by a descriptor (Documentation/driver-api/dma-buf.rst), as far as programs see it: made of a
//! memfd by /dev/udmabuf, or taken as some driver gave it.
//!
//! (include/uapi/linux/{udmabuf,dma-buf,magic}.h; drivers/dma-buf/{udmabuf,dma-buf}.c.)

use crate::map::{Mapping, Span};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{self, Errno};
use std::fmt;

/// Where memfds are made dma-bufs.
pub const UDMABUF: &str = "/dev/udmabuf";

/// The largest that it makes, in MiB: a parameter of its module.
const SIZE_LIMIT: &str = "/sys/module/udmabuf/parameters/size_limit_mb";

/// What fstatfs(2) says of a dma-buf (DMA_BUF_MAGIC).
const MAGIC: u64 = 0x444d_4142;

/// `_IOW('u', 0x42, struct udmabuf_create)`, and the flag for a descriptor that is closed on exec.
const UDMABUF_CREATE: libc::c_ulong = iow(b'u', 0x42, size_of::<Create>());
const UDMABUF_FLAGS_CLOEXEC: u32 = 1;

/// `_IOW('b', 0, struct dma_buf_sync)`, and its flags; to begin has none.
const DMA_BUF_IOCTL_SYNC: libc::c_ulong = iow(b'b', 0, size_of::<Sync>());
const DMA_BUF_SYNC_READ: u64 = 1;
const DMA_BUF_SYNC_WRITE: u64 = 2;
const DMA_BUF_SYNC_END: u64 = 4;

/// struct udmabuf_create.
#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// struct dma_buf_sync.
#[repr(C)]
struct Sync {
    flags: u64,
}

/// The number of a request that reads a struct of so many bytes (include/uapi/asm-generic/ioctl.h).
const fn iow(kind: u8, number: u8, size: usize) -> libc::c_ulong {
    (1 << 30) | ((size as libc::c_ulong) << 16) | ((kind as libc::c_ulong) << 8) | number as libc::c_ulong
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Why no dma-buf was made of a memfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotMade {
    /// There is no [`UDMABUF`].
    Absent(Errno),
    /// This user may not open it.
    Denied(Errno),
    /// It makes none that large.
    TooLarge {
        /// Bytes that were asked for.
        len: u64,
        /// Its limit, in MiB.
        limit: u64,
    },
    /// What else it says.
    Refused(Errno),
}

impl NotMade {
    fn of_open(errno: Errno) -> NotMade {
        match errno {
            // NODEV and NXIO: the file is there, and nothing behind it.
            Errno::NOENT | Errno::NODEV | Errno::NXIO => NotMade::Absent(errno),
            Errno::ACCESS | Errno::PERM => NotMade::Denied(errno),
            errno => NotMade::Refused(errno),
        }
    }

    /// It says EINVAL of whatever is wrong: `limit` is its largest in MiB, where that is known.
    fn of_create(errno: Errno, len: u64, limit: Option<u64>) -> NotMade {
        match limit {
            Some(limit) if errno == Errno::INVAL && len > limit << 20 => NotMade::TooLarge { len, limit },
            _ => NotMade::Refused(errno),
        }
    }

    /// The errno for it.
    pub fn errno(self) -> Errno {
        match self {
            NotMade::Absent(errno) | NotMade::Denied(errno) | NotMade::Refused(errno) => errno,
            NotMade::TooLarge { .. } => Errno::INVAL,
        }
    }
}

impl fmt::Display for NotMade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotMade::Absent(_) => write!(
                f,
                "there is no {UDMABUF}; load the module udmabuf, or use a kernel that is built with CONFIG_UDMABUF"
            ),
            NotMade::Denied(_) => {
                write!(
                    f,
                    "{UDMABUF} may not be opened; be root, or in the group that it belongs to (often kvm)"
                )
            }
            NotMade::TooLarge { len, limit } => write!(
                f,
                "{UDMABUF} makes none of {len} bytes, but of {limit} MiB at most; take less memory, or raise size_limit_mb in {SIZE_LIMIT}"
            ),
            NotMade::Refused(Errno::MFILE | Errno::NFILE) => {
                f.write_str("there are too many open files; close some, or raise the limit")
            }
            NotMade::Refused(Errno::NOMEM) => f.write_str("the kernel has no memory for it; take less"),
            NotMade::Refused(_) => write!(f, "{UDMABUF} refused the memory"),
        }
    }
}

impl std::error::Error for NotMade {}

/// The largest dma-buf that [`UDMABUF`] makes, in MiB; None where nobody says so.
pub fn size_limit() -> Option<u64> {
    std::fs::read_to_string(SIZE_LIMIT).ok()?.trim().parse().ok()
}

/// A dma-buf of the first `len` bytes of `memfd`, a whole number of pages (UDMABUF_CREATE, Linux 4.20). Its pages are all there from then on, and
/// stay as long as it does; what is written to one is in the other. The memfd has to be sealed against shrinking, and not against writing
/// ([`crate::memfd::create`]).
///
/// # Errors
///
/// [`NotMade`].
pub fn of_memfd(memfd: impl AsFd, len: u64) -> Result<OwnedFd, NotMade> {
    let device =
        rustix::fs::open(UDMABUF, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(NotMade::of_open)?;
    let memfd = memfd.as_fd().as_raw_fd().cast_unsigned();
    let request = Create { memfd, flags: UDMABUF_FLAGS_CLOEXEC, offset: 0, size: len };
    // SAFETY: the request reads one `struct udmabuf_create`, which lives through the call.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE as _, &raw const request) };
    if made < 0 {
        return Err(NotMade::of_create(last_errno(), len, size_limit()));
    }
    // SAFETY: the request returned a fresh descriptor, which is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// Why a descriptor was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// It is no dma-buf.
    Other,
    /// The kernel does not say how long it is, or that it has no bytes.
    Length(Errno),
}

impl NotTaken {
    /// The errno for it: ENOTTY for what is no dma-buf, as the requests of one say.
    pub fn errno(self) -> Errno {
        match self {
            NotTaken::Other => Errno::NOTTY,
            NotTaken::Length(errno) => errno,
        }
    }
}

impl fmt::Display for NotTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotTaken::Other => "the descriptor is no dma-buf; take one that a driver gave",
            NotTaken::Length(_) => "the dma-buf does not say how long it is; it takes Linux 5.3 and a length",
        })
    }
}

impl std::error::Error for NotTaken {}

/// A dma-buf, and where it is mapped, if its driver lets it be.
///
/// Its length never changes. That its pages stay is its driver's to keep: of one whose device is unplugged a look may raise SIGBUS. So take
/// dma-bufs of drivers alone, and those that peers send only where the peer is trusted.
#[derive(Debug)]
pub struct DmaBuf {
    fd: OwnedFd,
    len: usize,
    mapped: Result<Mapping, Errno>,
}

impl DmaBuf {
    /// Takes `fd`, which has to be a dma-buf, and maps all of it. Where the descriptor may only be read, so may the mapping. It is taken without a
    /// mapping, too.
    ///
    /// # Errors
    ///
    /// [`NotTaken`].
    pub fn take(fd: OwnedFd) -> Result<DmaBuf, NotTaken> {
        // Asked without a request: the number of one may mean something else to another driver.
        let magic = rustix::fs::fstatfs(&fd).map(|about| about.f_type as u64);
        if magic != Ok(MAGIC) {
            return Err(NotTaken::Other);
        }
        let len = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)).map_err(NotTaken::Length)?;
        let len = usize::try_from(len).map_err(|_| NotTaken::Length(Errno::OVERFLOW))?;
        if len == 0 {
            return Err(NotTaken::Length(Errno::INVAL));
        }
        let mapped = match Mapping::new(&fd, len) {
            Err(Errno::ACCESS) => Mapping::read_only(&fd, len),
            mapped => mapped,
        };
        Ok(DmaBuf { fd, len, mapped })
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Why the CPU has no way to it: EINVAL, mostly, of a driver that maps it for nobody (dma_buf_mmap_internal()).
    ///
    /// # Errors
    ///
    /// What mmap(2) said.
    pub fn is_mapped(&self) -> Result<(), Errno> {
        self.mapped.as_ref().map(drop).map_err(|errno| *errno)
    }

    /// Calls `act` with a view of `len` bytes from `at`, to be read, while devices leave them alone as far as the driver can have them do so
    /// (DMA_BUF_IOCTL_SYNC).
    ///
    /// # Errors
    ///
    /// EFAULT for bytes that are not inside; as [`DmaBuf::is_mapped`]; what the request says.
    pub fn read<R>(&self, at: usize, len: usize, act: impl FnOnce(Span<'_>) -> R) -> io::Result<R> {
        self.access(DMA_BUF_SYNC_READ, at, len, act)
    }

    /// As [`DmaBuf::read`], to be written. (All of them or not: what is not written is as it was.)
    ///
    /// # Errors
    ///
    /// As [`DmaBuf::read`]; EACCES where it may only be read.
    pub fn write<R>(&self, at: usize, len: usize, act: impl FnOnce(Span<'_>) -> R) -> io::Result<R> {
        // Both ways: a driver that brings the CPU's bytes to the device afterwards brings the others with them.
        self.access(DMA_BUF_SYNC_READ | DMA_BUF_SYNC_WRITE, at, len, act)
    }

    fn access<R>(&self, flags: u64, at: usize, len: usize, act: impl FnOnce(Span<'_>) -> R) -> io::Result<R> {
        let mapping = self.mapped.as_ref().map_err(|errno| *errno)?;
        if at > self.len || len > self.len - at {
            return Err(Errno::FAULT);
        }
        let span = mapping.span(at, len);
        if flags & DMA_BUF_SYNC_WRITE != 0 && !span.is_writable() {
            return Err(Errno::ACCESS);
        }
        self.sync(flags)?;
        let done = act(span);
        self.sync(flags | DMA_BUF_SYNC_END)?;
        Ok(done)
    }

    /// DMA_BUF_IOCTL_SYNC: "should restart the call in case of EAGAIN or EINTR" (uapi/linux/dma-buf.h).
    fn sync(&self, flags: u64) -> io::Result<()> {
        let request = Sync { flags };
        loop {
            // SAFETY: the request reads one `struct dma_buf_sync`, which lives through the call.
            let done =
                unsafe { libc::ioctl(self.fd.as_raw_fd(), DMA_BUF_IOCTL_SYNC as _, &raw const request) };
            match done {
                0.. => return Ok(()),
                _ => match last_errno() {
                    Errno::INTR | Errno::AGAIN => {}
                    errno => return Err(errno),
                },
            }
        }
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd;
    use std::mem::offset_of;

    /// What a C program prints of include/uapi/linux/{udmabuf,dma-buf}.h.
    #[test]
    fn requests_are_those_of_the_uapi() {
        assert_eq!((UDMABUF_CREATE, size_of::<Create>()), (0x4018_7542, 24));
        assert_eq!((offset_of!(Create, memfd), offset_of!(Create, flags)), (0, 4));
        assert_eq!((offset_of!(Create, offset), offset_of!(Create, size)), (8, 16));
        assert_eq!((DMA_BUF_IOCTL_SYNC, size_of::<Sync>()), (0x4008_6200, 8));
    }

    #[test]
    fn what_is_no_dma_buf_is_not_taken() {
        let (pipe, _writer) = rustix::pipe::pipe().unwrap();
        let memfd = memfd::create("onecopy-test", 4096).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        for other in [pipe, memfd, file.into()] {
            let refused = DmaBuf::take(other).unwrap_err();
            assert_eq!((refused, refused.errno()), (NotTaken::Other, Errno::NOTTY));
        }
    }

    #[test]
    fn refusals_say_what_to_do() {
        let said = |not: NotMade| (not.errno(), not.to_string());
        for errno in [Errno::NOENT, Errno::NODEV, Errno::NXIO] {
            let (told, words) = said(NotMade::of_open(errno));
            assert!(told == errno && words.contains("module udmabuf"), "{words}");
        }
        let (errno, words) = said(NotMade::of_open(Errno::ACCESS));
        assert!(errno == Errno::ACCESS && words.contains("be root"), "{words}");
        assert_eq!(NotMade::of_open(Errno::MFILE), NotMade::Refused(Errno::MFILE));
        let (large, limit) = ((64 << 20) + 4096, Some(64));
        let (errno, words) = said(NotMade::of_create(Errno::INVAL, large, limit));
        assert!(
            errno == Errno::INVAL && words.contains("of 64 MiB at most") && words.contains("size_limit_mb")
        );
        // What is as large as that may be, or whose limit is not known, was refused for another reason.
        for (len, limit) in [(64 << 20, limit), (large, None)] {
            assert_eq!(NotMade::of_create(Errno::INVAL, len, limit), NotMade::Refused(Errno::INVAL));
        }
        assert_eq!(NotMade::of_create(Errno::NOMEM, large, limit), NotMade::Refused(Errno::NOMEM));
    }

    #[test]
    fn a_memfd_and_its_dma_buf_are_the_same_bytes() {
        let fd = memfd::create("onecopy-test", 8192).unwrap();
        let made = match of_memfd(&fd, 8192) {
            Ok(made) => made,
            Err(NotMade::Refused(errno)) => panic!("{errno}"),
            Err(why) => return println!("lacking: a DMA buffer of its own ({why}, {})", why.errno()),
        };
        // Not whole pages, and more than there is.
        assert_eq!(of_memfd(&fd, 4095).unwrap_err(), NotMade::Refused(Errno::INVAL));
        assert!(of_memfd(&fd, 12288).is_err());
        let buffer = DmaBuf::take(made).unwrap();
        assert_eq!((buffer.len(), buffer.is_mapped()), (8192, Ok(())));
        rustix::io::pwrite(&fd, b"ELF", 4094).unwrap();
        let (file, mut seen) = (memfd::create("onecopy-test", 4096).unwrap(), [0; 3]);
        assert_eq!(buffer.read(4094, 3, |span| crate::spans::write(&file, &[span, Span::EMPTY])), Ok(Ok(3)));
        rustix::io::pread(&file, &mut seen, 0).unwrap();
        assert_eq!(&seen, b"ELF");
        rustix::io::pwrite(&file, b"fle", 0).unwrap();
        assert_eq!(buffer.write(1, 3, |span| crate::spans::pread(&file, &[span, Span::EMPTY], 0)), Ok(Ok(3)));
        rustix::io::pread(&fd, &mut seen, 1).unwrap();
        assert_eq!(&seen, b"fle");
        for (at, len) in [(8192, 1), (8000, 193), (usize::MAX, 2)] {
            assert_eq!(buffer.read(at, len, |_| ()), Err(Errno::FAULT));
        }
    }

    /// `_IOWR('H', 0, struct dma_heap_allocation_data)` (include/uapi/linux/dma-heap.h): a driver's dma-buf, opened for what `access` says. None, and what is lacking
    /// on stdout, where the machine has no heap.
    fn of_heap(len: u64, access: OFlags) -> Option<OwnedFd> {
        #[repr(C)]
        struct Allocation {
            len: u64,
            fd: u32,
            fd_flags: u32,
            heap_flags: u64,
        }
        let heap =
            match rustix::fs::open("/dev/dma_heap/system", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
                Ok(heap) => heap,
                Err(errno) => {
                    println!("lacking: /dev/dma_heap/system ({errno})");
                    return None;
                }
            };
        let fd_flags = (access | OFlags::CLOEXEC).bits();
        let mut request = Allocation { len, fd: 0, fd_flags, heap_flags: 0 };
        // SAFETY: the request reads and writes one `struct dma_heap_allocation_data`, which lives through the call.
        let done =
            unsafe { libc::ioctl(heap.as_raw_fd(), (iow(b'H', 0, 24) | 2 << 30) as _, &raw mut request) };
        assert_eq!(done, 0, "{}", last_errno());
        // SAFETY: the request has put a fresh descriptor there.
        Some(unsafe { OwnedFd::from_raw_fd(request.fd.cast_signed()) })
    }

    #[test]
    fn a_driver_s_dma_buf_is_looked_at_as_far_as_it_may_be() {
        let Some(both) = of_heap(8192, OFlags::RDWR) else { return };
        let both = DmaBuf::take(both).unwrap();
        assert_eq!((both.len(), both.is_mapped(), both.write(0, 8192, |_| ())), (8192, Ok(()), Ok(())));
        let only_read = DmaBuf::take(of_heap(4096, OFlags::RDONLY).unwrap()).unwrap();
        assert_eq!(only_read.read(0, 4096, |span| span.is_writable()), Ok(false));
        assert_eq!(only_read.write(0, 1, |_| ()), Err(Errno::ACCESS));
        // It is taken, and says why there is no way to its bytes.
        let only_written = DmaBuf::take(of_heap(4096, OFlags::WRONLY).unwrap()).unwrap();
        assert_eq!((only_written.len(), only_written.is_mapped()), (4096, Err(Errno::ACCESS)));
        assert_eq!(only_written.read(0, 1, |_| ()), Err(Errno::ACCESS));
        assert_eq!(only_written.write(0, 1, |_| ()), Err(Errno::ACCESS));
    }

    #[test]
    fn what_is_mapped_for_nobody_says_so() {
        let fd = memfd::create("onecopy-test", 4096).unwrap();
        let hidden = DmaBuf { fd, len: 4096, mapped: Err(Errno::INVAL) };
        assert_eq!(hidden.is_mapped(), Err(Errno::INVAL));
        assert_eq!(hidden.read(0, 1, |_| panic!("there is no view")), Err(Errno::INVAL));
        assert_eq!(hidden.write(0, 1, |_| panic!("there is no view")), Err(Errno::INVAL));
    }
}
