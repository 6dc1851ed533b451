//! Receives into memory of ours, by the device itself (io_uring zero copy Rx, Documentation/networking/iou-zcrx.rst; Linux 6.15).
//!
//! It takes a driver whose queues receive into memory of others, and whose device splits headers from payload. None of the machines that this
//! was written on has one: [`Zcrx::register`] is what there is, so that its refusals are the kernel's own.

use crate::refused::errno;
use io_uring::types::{IORING_MEM_REGION_TYPE_USER, io_uring_zcrx_rqe};
use io_uring::types::{io_uring_region_desc, io_uring_zcrx_area_reg, io_uring_zcrx_ifq_reg};
use io_uring::{IoUring, cqueue, squeue};
use onecopy_sys::map::Mapping;
use rustix::io::Errno;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Bytes of a page of the kernel's, at most: regions and areas are whole ones.
const PAGE: usize = 64 << 10;

/// IORING_ZCRX_AREA_DMABUF of include/uapi/linux/io_uring.h.
const AREA_DMABUF: u32 = 1;

/// A queue that receives into memory of ours.
pub struct Zcrx {
    // Dropped first: it takes the memory back from the device.
    ring: ManuallyDrop<IoUring<squeue::Entry, cqueue::Entry32>>,
    area: ManuallyDrop<Option<Mapping>>,
    region: ManuallyDrop<Mapping>,
    id: u32,
}

/// What is received into.
enum Area<'a> {
    /// Memory of this process.
    Mapped(&'a Mapping),
    /// A dma-buf's, from its beginning (Linux 6.16).
    DmaBuf(BorrowedFd<'a>, u64),
}

/// What the kernel is told of it.
fn area_reg(area: &Area<'_>) -> io_uring_zcrx_area_reg {
    match area {
        Area::Mapped(mapping) => io_uring_zcrx_area_reg {
            addr: address(mapping),
            len: mapping.len() as u64,
            ..io_uring_zcrx_area_reg::default()
        },
        Area::DmaBuf(fd, len) => io_uring_zcrx_area_reg {
            len: *len,
            flags: AREA_DMABUF,
            dmabuf_fd: fd.as_raw_fd() as u32,
            ..io_uring_zcrx_area_reg::default()
        },
    }
}

/// The same of the ring by which pages come back.
fn region_desc(region: &Mapping) -> io_uring_region_desc {
    io_uring_region_desc {
        user_addr: address(region),
        size: region.len() as u64,
        flags: IORING_MEM_REGION_TYPE_USER as _,
        ..io_uring_region_desc::default()
    }
}

fn address(mapping: &Mapping) -> u64 {
    mapping.base().as_ptr().expose_provenance() as u64
}

impl Zcrx {
    /// Has queue `queue` of the device with index `index` receive into memory of its own, of `pages` pages of 4 KiB (IORING_REGISTER_ZCRX_IFQ).
    /// It takes CAP_NET_ADMIN. The device's queue starts anew for it: what others receive there stops for a moment.
    ///
    /// # Errors
    ///
    /// What the kernel says: ENODEV for no device, EOPNOTSUPP where its driver cannot, ERANGE for a queue that there is not, EEXIST for
    /// one that is taken, EPERM; EINVAL before Linux 6.15.
    pub fn register(index: u32, queue: u32, pages: u32) -> Result<Zcrx, Errno> {
        let area = Mapping::inherited((pages as usize * 4096).next_multiple_of(PAGE))?;
        let about = area_reg(&Area::Mapped(&area));
        Zcrx::ask(index, queue, pages, about, Some(area))
    }

    /// The same, into the first `pages` pages of 4 KiB of a dma-buf (IORING_ZCRX_AREA_DMABUF, Linux 6.16), which the kernel keeps as long as this is there.
    ///
    /// # Errors
    ///
    /// As [`Zcrx::register`]; EINVAL where it is none, or is shorter.
    pub fn register_dma_buf(index: u32, queue: u32, dma_buf: impl AsFd, pages: u32) -> Result<Zcrx, Errno> {
        let about = area_reg(&Area::DmaBuf(dma_buf.as_fd(), u64::from(pages) * 4096));
        Zcrx::ask(index, queue, pages, about, None)
    }

    fn ask(
        index: u32,
        queue: u32,
        pages: u32,
        mut about_area: io_uring_zcrx_area_reg,
        area: Option<Mapping>,
    ) -> Result<Zcrx, Errno> {
        let mut builder = IoUring::<squeue::Entry, cqueue::Entry32>::builder();
        builder.dontfork().setup_single_issuer().setup_defer_taskrun();
        let ring = builder.build(8).map_err(|error| errno(&error))?;
        // A page for the head and the tail, and entries behind it.
        let entries = pages.max(1).next_power_of_two();
        let refill = PAGE + (entries as usize * size_of::<io_uring_zcrx_rqe>()).next_multiple_of(PAGE);
        let region = Mapping::inherited(refill)?;
        let mut about_region = region_desc(&region);
        let request = io_uring_zcrx_ifq_reg {
            if_idx: index,
            if_rxq: queue,
            rq_entries: entries,
            area_ptr: (&raw mut about_area).expose_provenance() as u64,
            region_ptr: (&raw mut about_region).expose_provenance() as u64,
            ..io_uring_zcrx_ifq_reg::default()
        };
        let done = ring.submitter().register_ifq(&request);
        // The kernel has written into all three.
        let id = std::hint::black_box(&request).zcrx_id;
        std::hint::black_box((&about_area, &about_region));
        let (ring, area, region) =
            (ManuallyDrop::new(ring), ManuallyDrop::new(area), ManuallyDrop::new(region));
        let zcrx = Zcrx { ring, area, region, id };
        done.map(|()| zcrx).map_err(|error| errno(&error))
    }

    /// By which receives of this ring name it.
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for Zcrx {
    fn drop(&mut self) {
        // SAFETY: each is dropped once, here, and used no more. The ring goes first: closing it takes the memory back from the device.
        unsafe {
            ManuallyDrop::drop(&mut self.ring);
            ManuallyDrop::drop(&mut self.area);
            ManuallyDrop::drop(&mut self.region);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::types::io_uring_zcrx_cqe;
    use std::mem::offset_of;

    /// include/uapi/linux/io_uring.h, field by field.
    #[test]
    fn what_the_kernel_is_told_lies_where_the_uapi_has_it() {
        type Ifq = io_uring_zcrx_ifq_reg;
        type Area = io_uring_zcrx_area_reg;
        type Region = io_uring_region_desc;
        assert_eq!((size_of::<Ifq>(), size_of::<Area>(), size_of::<Region>()), (96, 48, 64));
        assert_eq!(
            (offset_of!(Ifq, if_idx), offset_of!(Ifq, if_rxq), offset_of!(Ifq, rq_entries)),
            (0, 4, 8)
        );
        assert_eq!((offset_of!(Ifq, area_ptr), offset_of!(Ifq, region_ptr)), (16, 24));
        assert_eq!((offset_of!(Ifq, offsets), offset_of!(Ifq, zcrx_id)), (32, 64));
        assert_eq!((offset_of!(Area, addr), offset_of!(Area, len)), (0, 8));
        assert_eq!((offset_of!(Area, rq_area_token), offset_of!(Area, dmabuf_fd)), (16, 28));
        assert_eq!((offset_of!(Region, user_addr), offset_of!(Region, size)), (0, 8));
        assert_eq!((offset_of!(Region, flags), offset_of!(Region, mmap_offset)), (16, 24));
        type Rqe = io_uring_zcrx_rqe;
        assert_eq!((size_of::<Rqe>(), offset_of!(Rqe, off), offset_of!(Rqe, len)), (16, 0, 8));
        assert_eq!((size_of::<io_uring_zcrx_cqe>(), offset_of!(io_uring_zcrx_cqe, off)), (16, 0));
        assert_eq!(IORING_MEM_REGION_TYPE_USER, 1);
    }

    /// The bytes of what the kernel is given.
    fn bytes<T>(about: &T) -> &[u8] {
        // SAFETY: these structs are the kernel's, without padding, and live as long as the slice.
        unsafe { std::slice::from_raw_parts((&raw const *about).cast(), size_of::<T>()) }
    }

    #[test]
    fn what_the_kernel_is_told_is_the_uapis_bytes() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let fd = null.as_raw_fd() as u32;
        // addr, len, rq_area_token, flags (IORING_ZCRX_AREA_DMABUF), dmabuf_fd, __resv2.
        let mut golden = [0; 48];
        golden[8..16].copy_from_slice(&0x3000_u64.to_ne_bytes());
        golden[24..28].copy_from_slice(&1_u32.to_ne_bytes());
        golden[28..32].copy_from_slice(&fd.to_ne_bytes());
        assert_eq!(bytes(&area_reg(&Area::DmaBuf(null.as_fd(), 0x3000))), golden);

        let memory = Mapping::inherited(PAGE).unwrap();
        let begin = (memory.base().as_ptr().addr() as u64).to_ne_bytes();
        let mut golden = [0; 48];
        golden[..8].copy_from_slice(&begin);
        golden[8..16].copy_from_slice(&0x1_0000_u64.to_ne_bytes());
        assert_eq!(bytes(&area_reg(&Area::Mapped(&memory))), golden);

        // user_addr, size, flags (IORING_MEM_REGION_TYPE_USER), id, mmap_offset, __resv.
        let mut golden = [0; 64];
        golden[..8].copy_from_slice(&begin);
        golden[8..16].copy_from_slice(&0x1_0000_u64.to_ne_bytes());
        golden[16..20].copy_from_slice(&1_u32.to_ne_bytes());
        assert_eq!(bytes(&region_desc(&memory)), golden);
    }
}
