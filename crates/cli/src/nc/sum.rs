//! The checksum: SHA-256, which everybody has a program for (sha256sum), by the library that the proxy's TLS has anyway.

use aws_lc_rs::digest::{Context, SHA256};

/// Bytes as they pass.
#[derive(Clone)]
pub struct Sum(Context);

impl Sum {
    /// Of no bytes yet.
    pub fn new() -> Sum {
        Sum(Context::new(&SHA256))
    }

    /// Adds some.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// As sha256sum writes it: of all so far.
    pub fn hex(&self) -> String {
        self.0.clone().finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_standard_says() {
        let mut sum = Sum::new();
        assert!(sum.hex().starts_with("e3b0c442") && sum.hex().ends_with("7852b855"));
        sum.add(b"a");
        sum.add(b"bc");
        // FIPS 180-2, appendix B.1.
        assert_eq!(sum.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
