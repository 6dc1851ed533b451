//! Figures and sizes in words.

/// A figure with three significant digits, without an exponent.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v == 0.0 || v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        v if v >= 0.1 => 3,
        _ => 4,
    };
    format!("{value:.digits$}")
}

/// A size as in the names of cases: `64`, `4K`, `1M`; whole units only.
pub fn size_name(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 && b % (1 << 30) == 0 => format!("{}G", b >> 30),
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{}M", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{}K", b >> 10),
        b => b.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_without_an_exponent() {
        let shown: Vec<String> = [0.0, 0.0123, 0.652, 3.456, 14.31, 1234.5].map(number).to_vec();
        assert_eq!(shown, ["0", "0.0123", "0.652", "3.46", "14.3", "1234"]);
    }

    #[test]
    fn sizes_are_named_as_in_the_records() {
        let names: Vec<String> = [64, 8000, 4096, 128 << 10, 256 << 20].map(size_name).to_vec();
        assert_eq!(names, ["64", "8000", "4K", "128K", "256M"]);
    }
}
