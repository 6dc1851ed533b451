//! The ways to the device, and which is the fastest for what.

use std::fmt;

/// How pieces get from the host's memory to the device's. See [the crate](crate).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// A copy for each.
    Copies,
    /// A kernel that reads them where they lie.
    Gather,
    /// One copy of all that lies between the first and the last, and a kernel that puts them in place.
    Span,
    /// A copy for each, all asked for by one call (cuMemcpyBatchAsync). Drivers for CUDA 12.8 and newer have it; with others it is [`Way::Copies`].
    Batch,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 4] = [Way::Copies, Way::Gather, Way::Span, Way::Batch];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Copies => "copies",
            Way::Gather => "gather",
            Way::Span => "span",
            Way::Batch => "batch",
        })
    }
}

/// So many pieces of one size, and what each way took for them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Pieces.
    pub pieces: u32,
    /// Bytes of each.
    pub len: u32,
    /// Nanoseconds on the device, in the order of [`Way::ALL`]; infinite for a way that there is not.
    pub ns: [f64; 4],
}

/// What was measured on a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    /// Its shapes.
    pub shapes: Vec<Shape>,
}

impl Costs {
    /// The fastest way for so many pieces of so many bytes in all, which lie within `span` bytes of one pinned region (None where they
    /// do not lie in one): what was the fastest of the shape that is nearest. Copies, where nothing was measured.
    pub fn choose(&self, pieces: usize, bytes: usize, span: Option<usize>) -> Way {
        let len = (bytes / pieces.max(1)).max(1);
        let away = |shape: &Shape| {
            let log = |a: usize, b: u32| ((a.max(1) as f64).log2() - f64::from(b.max(1)).log2()).abs();
            log(pieces, shape.pieces) + log(len, shape.len)
        };
        let nearest = self.shapes.iter().min_by(|a, b| away(a).total_cmp(&away(b)));
        let Some(shape) = nearest else { return Way::Copies };
        // It pays for what lies between, too.
        let wasted = span.map_or(f64::INFINITY, |span| span as f64 / bytes.max(1) as f64);
        let cost = |index: usize| {
            if Way::ALL[index] == Way::Span { shape.ns[index] * wasted } else { shape.ns[index] }
        };
        let best = (0..Way::ALL.len()).min_by(|a, b| cost(*a).total_cmp(&cost(*b)));
        best.map_or(Way::Copies, |index| Way::ALL[index])
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Shape { pieces, len, ns } in &self.shapes {
            let best = self.choose(*pieces as usize, *pieces as usize * *len as usize, Some(0));
            write!(f, "{pieces} x {len} bytes:")?;
            for (way, ns) in Way::ALL.iter().zip(ns) {
                write!(f, " {way} {:.1} us{}", ns / 1e3, if *way == best { "*" } else { "" })?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_shape_decides_and_a_span_pays_for_its_gaps() {
        let shape = |pieces, len, ns| Shape { pieces, len, ns };
        let costs = Costs {
            shapes: vec![
                shape(1, 4096, [2.0, 6.0, 7.0, 3.0]),
                shape(16, 1024, [20.0, 16.0, 15.0, 8.0]),
                shape(64, 4096, [100.0, 20.0, 15.0, 40.0]),
                shape(64, 65536, [100.0, 200.0, f64::INFINITY, f64::INFINITY]),
            ],
        };
        assert_eq!(costs.choose(1, 4096, Some(4096)), Way::Copies);
        assert_eq!(costs.choose(2, 3000, Some(4096)), Way::Copies);
        assert_eq!(costs.choose(50, 50 * 4096, Some(50 * 4096)), Way::Span);
        assert_eq!(costs.choose(50, 50 * 4096, Some(75 * 4096)), Way::Gather);
        assert_eq!(costs.choose(50, 50 * 4096, None), Way::Gather);
        assert_eq!(costs.choose(64, 64 * 60000, None), Way::Copies);
        assert_eq!(costs.choose(16, 16 * 1000, None), Way::Batch);
        assert_eq!(costs.choose(0, 0, None), Way::Copies);
        assert_eq!(Costs::default().choose(64, 1 << 20, Some(1 << 20)), Way::Copies);
    }
}
