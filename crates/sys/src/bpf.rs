//! The program that leads packets of an interface to an AF_XDP socket: bpf(2), as much of it as that takes.
//!
//! The program is five instructions, so nothing has to compile it. It is attached by a link (BPF_LINK_CREATE, Linux 5.9), which is gone with its last
//! descriptor: however the process ends, the interface is as it was before, once no child of a fork has a copy.

use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::io::{self, Errno};

/// include/uapi/linux/bpf.h: enum bpf_cmd.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
/// enum bpf_map_type, enum bpf_prog_type, enum bpf_attach_type.
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// BPF_F_XDP_HAS_FRAGS (Linux 5.18): the program takes packets of several buffers.
const XDP_HAS_FRAGS: u32 = 1 << 5;
/// include/uapi/linux/if_link.h: XDP_FLAGS_SKB_MODE, XDP_FLAGS_DRV_MODE.
const SKB_MODE: u32 = 1 << 1;
const DRV_MODE: u32 = 1 << 2;

/// Where in the kernel a program meets a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// In the driver, before the kernel makes anything of it (XDP_FLAGS_DRV_MODE).
    Driver,
    /// Behind the driver, which every interface has (XDP_FLAGS_SKB_MODE).
    Generic,
}

/// Of `union bpf_attr`, what MAP_CREATE reads.
#[repr(C)]
struct MapCreate {
    kind: u32,
    key_len: u32,
    value_len: u32,
    entries: u32,
}

/// What MAP_UPDATE_ELEM reads.
#[repr(C)]
struct MapUpdate {
    map: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// What PROG_LOAD reads, up to expected_attach_type.
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_len: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach: u32,
}

/// What LINK_CREATE reads.
#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach: u32,
    flags: u32,
}

/// One instruction (Documentation/bpf/standardization/instruction-set.rst): the registers are the two halves of a byte.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    number: i32,
}

const fn instruction(code: u8, to: u8, from: u8, offset: i16, number: i32) -> Instruction {
    // The first register is the low half where bytes are, and bits of a byte with them (`struct bpf_insn` has bit fields).
    let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
    Instruction { code, registers, offset, number }
}

/// `return bpf_redirect_map(map, ctx->rx_queue_index, XDP_PASS)`: to the socket of the packet's queue, and to the kernel where there is none.
fn program(map: i32) -> [Instruction; 6] {
    /// struct xdp_md's rx_queue_index, BPF_PSEUDO_MAP_FD, XDP_PASS and bpf_redirect_map.
    const QUEUE: i16 = 16;
    const OF_DESCRIPTOR: u8 = 1;
    const PASS: i32 = 2;
    const REDIRECT_MAP: i32 = 51;
    [
        // BPF_LDX | BPF_MEM | BPF_W: r2 = ctx->rx_queue_index
        instruction(0x61, 2, 1, QUEUE, 0),
        // BPF_LD | BPF_DW | BPF_IMM, two instructions long: r1 = map
        instruction(0x18, 1, OF_DESCRIPTOR, 0, map),
        instruction(0, 0, 0, 0, 0),
        // BPF_ALU64 | BPF_MOV | BPF_K: r3 = XDP_PASS
        instruction(0xb7, 3, 0, 0, PASS),
        // BPF_JMP | BPF_CALL, BPF_JMP | BPF_EXIT
        instruction(0x85, 0, 0, 0, REDIRECT_MAP),
        instruction(0x95, 0, 0, 0, 0),
    ]
}

/// A map from queues to sockets of AF_XDP (BPF_MAP_TYPE_XSKMAP), for queues 0 to `queues - 1`.
///
/// # Errors
///
/// EPERM without CAP_BPF, or CAP_SYS_ADMIN before Linux 5.8; ENOSYS and EINVAL where the kernel has no such maps.
pub fn socket_map(queues: u32) -> io::Result<OwnedFd> {
    let mut request = MapCreate { kind: MAP_TYPE_XSKMAP, key_len: 4, value_len: 4, entries: queues };
    // SAFETY: of the union, BPF_MAP_CREATE reads these plain numbers, which live through the call.
    unsafe { create(MAP_CREATE, &mut request) }
}

/// Has packets of `queue` go to `socket`, until either is gone.
///
/// # Errors
///
/// E2BIG for a queue that the map has no place for; EOPNOTSUPP for a socket without rings.
pub fn set_socket(map: impl AsFd, queue: u32, socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd().as_raw_fd();
    let mut request = MapUpdate {
        map: map.as_fd().as_raw_fd() as u32,
        _pad: 0,
        key: (&raw const queue).addr() as u64,
        value: (&raw const socket).addr() as u64,
        flags: 0,
    };
    // SAFETY: of the union, BPF_MAP_UPDATE_ELEM reads these plain numbers, and four bytes each where key and value lie, which such a map has. All of it
    // lives through the call: the addresses are used behind it once more.
    let done = unsafe { call(MAP_UPDATE_ELEM, &mut request) };
    std::hint::black_box((&raw const queue, &raw const socket));
    done.map(drop)
}

/// The program that leads packets to the sockets of `map`; with `frags`, packets of several buffers, too.
///
/// # Errors
///
/// EPERM without CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN before Linux 5.8; EINVAL where the kernel does not know `frags` (before 5.18).
pub fn redirect_program(map: impl AsFd, frags: bool) -> io::Result<OwnedFd> {
    let instructions = program(map.as_fd().as_raw_fd());
    let license = c"Dual MIT/GPL";
    let mut name = [0; 16];
    name[..7].copy_from_slice(b"onecopy");
    let mut request = Load {
        kind: PROG_TYPE_XDP,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr().expose_provenance() as u64,
        license: license.as_ptr().expose_provenance() as u64,
        log_level: 0,
        log_len: 0,
        log: 0,
        kernel_version: 0,
        flags: if frags { XDP_HAS_FRAGS } else { 0 },
        name,
        interface: 0,
        attach: ATTACH_XDP,
    };
    // SAFETY: of the union, BPF_PROG_LOAD reads these plain numbers, as many instructions as are said, and a text that ends with a NUL. All of it lives
    // through the call.
    let program = unsafe { create(PROG_LOAD, &mut request) };
    std::hint::black_box(&instructions);
    program
}

/// Attaches `program` to the interface with that index, as long as what is returned, or a copy of it, is open.
///
/// # Errors
///
/// EBUSY where it has a program; EOPNOTSUPP where its driver has no such hook; ERANGE and ENOSPC where the driver's own conditions are not met: an MTU too
/// long for one buffer, too few queues; EINVAL for no such interface in the network namespace of this thread; EPERM without CAP_NET_ADMIN.
pub fn attach(program: impl AsFd, interface: u32, hook: Hook) -> io::Result<OwnedFd> {
    let flags = match hook {
        Hook::Driver => DRV_MODE,
        Hook::Generic => SKB_MODE,
    };
    let program = program.as_fd().as_raw_fd() as u32;
    let mut request = LinkCreate { program, interface, attach: ATTACH_XDP, flags };
    // SAFETY: of the union, BPF_LINK_CREATE reads these plain numbers, which live through the call.
    unsafe { create(LINK_CREATE, &mut request) }
}

/// bpf(2) that returns a new descriptor. The kernel closes it on exec.
///
/// # Safety
///
/// As for [`call`]; the command is one that returns a descriptor.
unsafe fn create<T>(command: libc::c_int, request: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: as the caller says. What is returned is nobody else's.
    unsafe { call(command, request).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// bpf(2).
///
/// # Safety
///
/// `request` is what the command reads of `union bpf_attr`, from its beginning on, and all that it points to lives through the call. (What the union has behind
/// it, the kernel takes for zeroes.)
unsafe fn call<T>(command: libc::c_int, request: &mut T) -> io::Result<i32> {
    // SAFETY: as the caller says; so many bytes are the request's own.
    let returned =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(request), size_of::<T>()) };
    match i32::try_from(returned) {
        Ok(value @ 0..) => Ok(value),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layouts_are_the_kernel_s() {
        assert_eq!(size_of::<Instruction>(), 8);
        assert_eq!((size_of::<MapCreate>(), size_of::<LinkCreate>()), (16, 16));
        assert_eq!((offset_of!(MapUpdate, key), offset_of!(MapUpdate, flags)), (8, 24));
        // bpf_attr: prog_flags, prog_name, prog_ifindex and expected_attach_type.
        assert_eq!((offset_of!(Load, flags), offset_of!(Load, name)), (44, 48));
        assert_eq!((offset_of!(Load, interface), offset_of!(Load, attach)), (64, 68));
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn the_program_s_bytes() {
        let golden: [[u8; 8]; 6] = [
            [0x61, 0x12, 16, 0, 0, 0, 0, 0],
            [0x18, 0x11, 0, 0, 7, 0, 0, 0],
            [0; 8],
            [0xb7, 0x03, 0, 0, 2, 0, 0, 0],
            [0x85, 0, 0, 0, 51, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        for (at, (made, golden)) in program(7).into_iter().zip(golden).enumerate() {
            let [low, high] = made.offset.to_le_bytes();
            let [a, b, c, d] = made.number.to_le_bytes();
            assert_eq!([made.code, made.registers, low, high, a, b, c, d], golden, "instruction {at}");
        }
    }

    #[test]
    fn the_verifier_takes_the_program() {
        let map = match socket_map(4) {
            Err(Errno::PERM) => return println!("lacking: bpf(2) (root, CAP_BPF)"),
            map => map.unwrap(),
        };
        redirect_program(&map, false).unwrap();
        let program = redirect_program(&map, true).unwrap();
        // No interface has this number, and what is no socket is none of AF_XDP's.
        for hook in [Hook::Driver, Hook::Generic] {
            assert_eq!(attach(&program, u32::MAX >> 1, hook).unwrap_err(), Errno::INVAL, "{hook:?}");
        }
        assert_eq!(attach(&map, 1, Hook::Generic).unwrap_err(), Errno::INVAL);
        assert_eq!(set_socket(&map, 4, &program), Err(Errno::TOOBIG));
        assert!(set_socket(&map, 3, &program).is_err());
        assert_eq!(redirect_program(&program, false).unwrap_err(), Errno::INVAL);
    }
}
