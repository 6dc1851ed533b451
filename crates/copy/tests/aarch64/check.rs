//! Runs the AArch64 kernels against an oracle. `run.sh` builds this with a cross compiler that may be some years old,
//! outside of cargo, and runs it under an emulator: hence no crates, and nothing newer than Rust 1.63.
//!
//! The emulator shows that the right bytes are copied. That the stores are non-temporal and fenced is for `run.sh`,
//! which looks at the disassembly.

#![allow(dead_code)] // The engine that uses all of `arch` is not here.
#![allow(unused_unsafe)] // Old compilers take a whole unsafe fn for an unsafe block.

#[path = "../../src/arch/mod.rs"]
mod arch;

use arch::Kernel;

const GUARD: u8 = 0xa5;

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
}

struct Oracle {
    source: Vec<u8>,
    buffer: Vec<u8>,
    checks: u32,
}

impl Oracle {
    /// Copies and fills `len` bytes to `to` bytes past a line, and compares the whole buffer.
    fn check(&mut self, kernel: &Kernel, streaming: bool, to: usize, from: usize, len: usize) {
        let start = self.buffer.as_ptr().align_offset(64) + 64 + to;
        let copy = if streaming { kernel.copy_stream.unwrap() } else { kernel.copy_cached };
        let fill = if streaming { kernel.fill_stream.unwrap() } else { kernel.fill_cached };
        let end = start + len;
        let room = (end + 256).min(self.buffer.len());
        for filling in [false, true] {
            self.buffer[..room].fill(GUARD);
            // SAFETY: both ranges lie inside their vectors, which the slicing below would notice too.
            unsafe {
                let dst = self.buffer.as_mut_ptr().add(start);
                if filling {
                    fill(dst, 0x5a, len);
                } else {
                    copy(dst, self.source[from..from + len].as_ptr(), len);
                }
            }
            let right = if filling {
                self.buffer[start..end].iter().all(|&byte| byte == 0x5a)
            } else {
                self.buffer[start..end] == self.source[from..from + len]
            };
            let outside = self.buffer[..start].iter().chain(&self.buffer[end..room]).all(|&byte| byte == GUARD);
            assert!(
                right && outside,
                "{} streaming {} filling {}: {} bytes from {} to {}",
                kernel.name, streaming, filling, len, from, to
            );
            self.checks += 1;
        }
    }
}

fn main() {
    let mut oracle = Oracle { source: pattern(300_000), buffer: vec![0; 301_000], checks: 0 };
    for kernel in arch::aarch64::ALL {
        assert!((kernel.available)());
        for streaming in [false, true] {
            for len in 0..=512 {
                for align in 0..16 {
                    oracle.check(kernel, streaming, align * 4 + len % 4, (align * 7 + len) % 64, len);
                }
            }
            for len in [1023, 4095, 4096, 4097, 65_535, 65_600, 262_207] {
                for align in [0, 1, 63] {
                    oracle.check(kernel, streaming, align, 63 - align, len);
                }
            }
        }
    }
    println!("aarch64: {} copies and fills agree with the oracle", oracle.checks);
    check_looks(&oracle.source);
}

/// Loads of bytes to look at, from each alignment and of each length, and where in them a byte is.
fn check_looks(source: &[u8]) {
    for from in 0..64 {
        let bytes = &source[from..from + 64];
        // SAFETY: the 64 bytes are inside of the source.
        let block = unsafe { arch::look::block(bytes.as_ptr()) };
        assert!(block == *bytes, "a block from {from}");
        for at in 0..64 {
            let byte = block[at];
            let places = (0..64).fold(0, |places, i| places | u64::from(block[i] == byte) << i);
            assert_eq!(arch::look::matches(block, byte), places, "from {from}");
            assert!(arch::look::any(block, byte));
        }
        for byte in (0..=255).filter(|byte| !block.contains(byte)) {
            assert!(arch::look::matches(block, byte) == 0 && !arch::look::any(block, byte));
        }
        for len in 0..=64 {
            // SAFETY: fewer of the same bytes.
            let short = unsafe { arch::look::short(bytes.as_ptr(), len) };
            assert!(short[..len] == bytes[..len] && short[len..].iter().all(|&byte| byte == 0), "{len} bytes");
        }
    }
    println!("aarch64: looks at bytes are right");
}
