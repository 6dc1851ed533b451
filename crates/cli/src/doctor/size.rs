//! Sizes for a person.

/// Bytes in the largest binary unit that leaves one digit or more before the point.
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB"] {
        if value < 1024.0 {
            return format!("{} {unit}", (value * 10.0).round() / 10.0);
        }
        value /= 1024.0;
    }
    format!("{} GiB", (value * 10.0).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1 << 20), "1 MiB");
        assert_eq!(size(212_992), "208 KiB");
        assert_eq!(size(25_201_487_872), "23.5 GiB");
    }
}
