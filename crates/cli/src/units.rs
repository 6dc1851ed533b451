//! Sizes and durations as people write them on a command line.

use std::net::SocketAddr;
use std::time::Duration;

/// Bytes from `512`, `64K`, `1M`, `16MiB`, `2G`: powers of 1024, case ignored.
pub fn size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        unit => return Err(format!("unknown unit {unit:?}: write bytes, K, M or G, as in 64K")),
    };
    let number: usize = digits.parse().map_err(|_| format!("{text:?} is not a size: write 64K or 1M"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is more than this machine can address"))
}

/// The longest time span, a year: as good as for ever, and a moment that far away can still be told.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A time span from `250ms`, `10s`, `2m`; a bare number is seconds.
pub fn span(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 =
        digits.parse().map_err(|_| format!("{text:?} is not a time: write 250ms, 10s or 2m"))?;
    let span = match &text[digits.len()..] {
        "ms" => Duration::from_millis(number),
        "" | "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(number.saturating_mul(60)),
        unit => return Err(format!("unknown unit {unit:?}: write ms, s or m")),
    };
    match span <= LONGEST {
        true => Ok(span),
        false => Err(format!("{text} is longer than a year: write {}m or less", LONGEST.as_secs() / 60)),
    }
}

/// How long between two looks.
pub fn interval(text: &str) -> Result<Duration, String> {
    match span(text)? {
        span if span < Duration::from_millis(50) => {
            Err("looking costs time, too: write 50ms or more".to_owned())
        }
        span => Ok(span),
    }
}

/// How many of something, of which none would serve nobody.
pub fn some(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("none would serve nobody: write 1 or more".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("{text:?} is not a number")),
    }
}

/// Where to listen: an address and a port.
pub fn place(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{text:?}: write IP:PORT, as in 127.0.0.1:8080 or [::1]:8080"))
}

/// The same where it may say `tcp:`, as where unix sockets have a place, too (`serve --listen`).
pub fn tcp_place(text: &str) -> Result<SocketAddr, String> {
    place(text.strip_prefix("tcp:").unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("512"), Ok(512));
        assert_eq!(size("64K"), Ok(65536));
        assert_eq!(size("1mib"), Ok(1 << 20));
        assert!(size("1T").is_err() && size("K").is_err() && size("").is_err());
        assert!(size("99999999999G").is_err());
    }

    #[test]
    fn counts_and_places() {
        assert_eq!(some("3"), Ok(3));
        assert!(some("0").is_err() && some("-1").is_err() && some("").is_err());
        assert_eq!(place("[::1]:80").map(|place| place.port()), Ok(80));
        assert!(place("localhost:80").is_err_and(|why| why.contains("write IP:PORT")));
        assert!(place("tcp:[::1]:80").is_err(), "not where there is nothing else");
        for text in ["10.9.0.2:80", "tcp:10.9.0.2:80"] {
            assert_eq!(tcp_place(text), Ok(([10, 9, 0, 2], 80).into()));
        }
        for text in ["tcp:", "tcp:10.9.0.2", "tcp:tcp:10.9.0.2:80", "unix:@a"] {
            assert!(tcp_place(text).is_err_and(|why| why.contains("write IP:PORT")), "{text}");
        }
    }

    #[test]
    fn spans() {
        assert_eq!(span("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(span("7"), Ok(Duration::from_secs(7)));
        assert_eq!(span("2m"), Ok(Duration::from_secs(120)));
        assert!(span("1h").is_err() && span("").is_err());
        // A deadline is a moment from now: one that no clock can tell ended the program.
        assert_eq!(span("525600m"), Ok(LONGEST));
        for long in ["525601m", "31536001", "31536000001ms", "18446744073709551615m"] {
            assert!(span(long).is_err_and(|why| why.contains("write 525600m or less")), "{long}");
        }
        assert!(interval("49ms").is_err() && interval("0").is_err() && interval("50ms").is_ok());
    }
}
