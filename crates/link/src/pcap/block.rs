//! pcapng's blocks (draft-ietf-opsawg-pcapng, section 3.1), little-endian on every machine, so that a run gives the same file everywhere.

/// Kinds (sections 4.1, 4.2, 4.3).
pub(super) mod kind {
    pub const SECTION_HEADER: u32 = 0x0a0d_0d0a;
    pub const INTERFACE_DESCRIPTION: u32 = 1;
    pub const ENHANCED_PACKET: u32 = 6;
}

/// Options (sections 3.5.1, 4.1, 4.2, 4.3).
pub(super) mod option {
    pub const END: u16 = 0;
    pub const COMMENT: u16 = 1;
    pub const SHB_USERAPPL: u16 = 4;
    pub const IF_TSRESOL: u16 = 9;
    pub const EPB_FLAGS: u16 = 2;
    pub const EPB_DROPCOUNT: u16 = 4;
}

/// Bits of epb_flags (section 4.3.1).
pub(super) mod flag {
    pub const INBOUND: u32 = 1;
    pub const OUTBOUND: u32 = 2;
    pub const CHECKSUM_NOT_READY: u32 = 1 << 9;
    pub const CHECKSUM_VALID: u32 = 1 << 10;
    pub const TCP_SEGMENTATION: u32 = 1 << 11;
}

/// A block that is being written at the end of some bytes.
pub(super) struct Block<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    options: bool,
}

impl<'a> Block<'a> {
    pub fn begin(out: &'a mut Vec<u8>, kind: u32) -> Block<'a> {
        let start = out.len();
        let mut block = Block { out, start, options: false };
        block.word(kind);
        // The length, once it is known.
        block.word(0);
        block
    }

    pub fn half(&mut self, value: u16) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    pub fn word(&mut self, value: u32) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Where the next byte is put.
    pub fn at(&self) -> usize {
        self.out.len()
    }

    /// Writes a word that stands at `at` already.
    pub fn patch(&mut self, at: usize, value: u32) {
        if let Some(place) = self.out.get_mut(at..at + 4) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Fills up to words.
    pub fn pad(&mut self) {
        let len = (self.out.len() - self.start).next_multiple_of(4);
        self.out.resize(self.start + len, 0);
    }

    /// Section 3.5. What is longer than its length can say is cut.
    pub fn option(&mut self, code: u16, value: &[u8]) {
        let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
        self.options = true;
        self.half(code);
        self.half(value.len() as u16);
        self.bytes(value);
        self.pad();
    }

    pub fn end(mut self) {
        if self.options {
            self.half(option::END);
            self.half(0);
        }
        let len = (self.out.len() - self.start + 4) as u32;
        self.patch(self.start + 4, len);
        self.word(len);
    }
}
