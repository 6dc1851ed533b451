//! What the kernel is told of memory to receive into (include/uapi/linux/io_uring.h).

use io_uring::types::{IORING_MEM_REGION_TYPE_USER, io_uring_region_desc, io_uring_zcrx_area_reg};
use onecopy_sys::map::Mapping;
use std::os::fd::{AsRawFd, BorrowedFd};

/// IORING_ZCRX_AREA_DMABUF.
const AREA_DMABUF: u32 = 1;

/// What is received into, as it is registered.
pub(super) enum Area<'a> {
    Mapped(&'a Mapping),
    DmaBuf(BorrowedFd<'a>),
}

/// Of the first `len` bytes of it.
pub(super) fn area_reg(area: &Area<'_>, len: u64) -> io_uring_zcrx_area_reg {
    let about = io_uring_zcrx_area_reg { len, ..io_uring_zcrx_area_reg::default() };
    match area {
        Area::Mapped(mapping) => io_uring_zcrx_area_reg { addr: address(mapping), ..about },
        Area::DmaBuf(fd) => {
            io_uring_zcrx_area_reg { flags: AREA_DMABUF, dmabuf_fd: fd.as_raw_fd() as u32, ..about }
        }
    }
}

/// The same of the ring by which pages come back.
pub(super) fn region_desc(region: &Mapping) -> io_uring_region_desc {
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

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::types::{Fd, io_uring_zcrx_cqe, io_uring_zcrx_ifq_reg, io_uring_zcrx_rqe};
    use std::mem::offset_of;
    use std::os::fd::AsFd;

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
        assert_eq!(bytes(&area_reg(&Area::DmaBuf(null.as_fd()), 0x3000)), golden);

        let memory = Mapping::private(0x1_0000).unwrap();
        let begin = (memory.base().as_ptr().addr() as u64).to_ne_bytes();
        let mut golden = [0; 48];
        golden[..8].copy_from_slice(&begin);
        golden[8..16].copy_from_slice(&0x1_0000_u64.to_ne_bytes());
        assert_eq!(bytes(&area_reg(&Area::Mapped(&memory), 0x1_0000)), golden);

        // user_addr, size, flags (IORING_MEM_REGION_TYPE_USER), id, mmap_offset, __resv.
        let mut golden = [0; 64];
        golden[..8].copy_from_slice(&begin);
        golden[8..16].copy_from_slice(&0x1_0000_u64.to_ne_bytes());
        golden[16..20].copy_from_slice(&1_u32.to_ne_bytes());
        assert_eq!(bytes(&region_desc(&memory)), golden);
    }

    /// struct io_uring_sqe of a receive of 1 MiB at most.
    #[test]
    fn a_receive_has_the_bytes_of_the_uapi() {
        let mut golden = [0; 64];
        golden[0] = 58; // opcode: IORING_OP_RECV_ZC
        golden[2..4].copy_from_slice(&2_u16.to_ne_bytes()); // ioprio: IORING_RECV_MULTISHOT
        golden[4..8].copy_from_slice(&9_u32.to_ne_bytes()); // fd
        golden[24..28].copy_from_slice(&0x10_0000_u32.to_ne_bytes()); // len
        golden[32..40].copy_from_slice(&0x8877_6655_4433_2211_u64.to_ne_bytes()); // user_data
        golden[44..48].copy_from_slice(&5_u32.to_ne_bytes()); // zcrx_ifq_idx
        let entry = super::super::recv_zc(Fd(9), 0x10_0000, 5).user_data(0x8877_6655_4433_2211);
        assert_eq!(bytes(&entry), golden);
    }
}
