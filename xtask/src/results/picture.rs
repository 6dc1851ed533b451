//! The picture in README.md: a line for each row, a dot for each case, how many times better it is than the rival.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::element::{Circle, PathElement, Rectangle, Text};
use plotters::prelude::{Color, DrawingArea, IntoDrawingArea, IntoFont, RGBColor, SVGBackend};
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::record::Machine;
use super::short;
use super::summary::letter;

const INK: RGBColor = RGBColor(31, 35, 40);
const SOFT: RGBColor = RGBColor(101, 109, 118);
const GRID: RGBColor = RGBColor(228, 231, 235);
const WORSE: RGBColor = RGBColor(255, 243, 240);
/// A colour for each machine; those of the eleventh and later are the first ones again.
const MACHINES: [RGBColor; 10] = [
    RGBColor(0, 138, 94),
    RGBColor(9, 105, 218),
    RGBColor(219, 134, 0),
    RGBColor(130, 80, 223),
    RGBColor(207, 34, 46),
    RGBColor(191, 57, 137),
    RGBColor(52, 170, 190),
    RGBColor(132, 82, 36),
    RGBColor(112, 178, 12),
    RGBColor(72, 80, 90),
];
const WIDTH: i32 = 1040;
/// Where the scale begins and ends.
const LEFT: i32 = 268;
const RIGHT: i32 = WIDTH - 24;
const TOP: i32 = 62;
/// The height of a row.
const ROW: i32 = 24;

/// What stands on one line of the picture.
struct Band {
    name: String,
    /// Of which machine, by its place among them, and how many times better.
    dots: Vec<(usize, f64)>,
}

/// The picture of all rows that have a rival: each case's first figure.
pub fn svg(machines: &BTreeMap<String, Machine>, rows: &[String]) -> Result<String> {
    let bands = bands(machines, rows);
    let all = || bands.iter().flat_map(|band| band.dots.iter().map(|(_, ratio)| *ratio));
    let low = all().fold(0.5, f64::min).log10() - 0.05;
    let high = all().fold(2.0, f64::max).log10() + 0.05;
    let bottom = TOP + ROW * bands.len() as i32;
    let x =
        |ratio: f64| LEFT + (f64::from(RIGHT - LEFT) * (ratio.log10() - low) / (high - low)).round() as i32;
    let mut svg = String::new();
    {
        let canvas = Canvas(
            SVGBackend::with_string(&mut svg, (WIDTH as u32, (bottom + 34) as u32)).into_drawing_area(),
        );
        canvas.0.fill(&RGBColor(255, 255, 255)).map_err(drawn)?;
        canvas.put(&Rectangle::new([(LEFT, TOP), (x(1.0), bottom)], WORSE.filled()))?;
        canvas.text(
            "how many times better than the rival, a dot a case; left of the line: worse",
            (LEFT, 14),
            HPos::Left,
            INK,
        )?;
        let mut from = LEFT;
        for (at, name) in machines.keys().enumerate() {
            canvas.dot((from + 5, 38), at)?;
            let name = format!("{}: {name}", letter(at));
            canvas.text(&name, (from + 14, 38), HPos::Left, SOFT)?;
            from += 40 + name.len() as i32 * 7;
        }
        let powers = low.floor() as i32..=high.ceil() as i32;
        for tick in powers.flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(power))) {
            if (low..=high).contains(&tick.log10()) {
                let ink = if tick == 1.0 { INK } else { GRID };
                canvas.put(&PathElement::new([(x(tick), TOP), (x(tick), bottom)], ink))?;
                let label = if tick >= 1.0 {
                    format!("{tick:.0}")
                } else {
                    short(tick).trim_end_matches('0').to_owned()
                };
                canvas.text(&label, (x(tick), bottom + 14), HPos::Center, SOFT)?;
            }
        }
        for (at, band) in bands.iter().enumerate() {
            let y = TOP + ROW * at as i32 + ROW / 2;
            canvas.text(&band.name, (LEFT - 10, y), HPos::Right, INK)?;
            canvas.put(&PathElement::new([(LEFT, y + ROW / 2), (RIGHT, y + ROW / 2)], GRID))?;
            for &(machine, ratio) in &band.dots {
                // The machines a little apart, so that one does not hide another.
                let down = 6 * machine as i32 - 3 * (machines.len() as i32 - 1);
                canvas.dot((x(ratio), y + down), machine)?;
            }
        }
        canvas.0.present().map_err(drawn)?;
    }
    Ok(svg)
}

/// All that has a rival, in the rows' order; no CPU time, which the table has.
fn bands(machines: &BTreeMap<String, Machine>, rows: &[String]) -> Vec<Band> {
    let mut bands: Vec<Band> = Vec::new();
    for row in rows {
        for (at, machine) in machines.values().enumerate() {
            for series in machine.rows.get(row).map(|taken| taken.main()).unwrap_or_default() {
                let name = format!("{row}: {}, {}", series.engine, series.baseline);
                let dots: Vec<(usize, f64)> =
                    series.ratios().filter(|(_, ratio)| *ratio > 0.0).map(|(_, ratio)| (at, ratio)).collect();
                if series.metric == "cpu" || dots.is_empty() {
                    continue;
                }
                match bands.iter_mut().find(|band| band.name == name) {
                    Some(band) => band.dots.extend(dots),
                    None => bands.push(Band { name, dots }),
                }
            }
        }
    }
    bands
}

struct Canvas<'s>(DrawingArea<SVGBackend<'s>, Shift>);

impl Canvas<'_> {
    fn put<E>(&self, element: &E) -> Result<()>
    where
        for<'e> &'e E: plotters::element::PointCollection<'e, (i32, i32)>,
        E: for<'b> plotters::element::Drawable<SVGBackend<'b>>,
    {
        self.0.draw(element).map_err(drawn)
    }

    fn dot(&self, at: (i32, i32), machine: usize) -> Result<()> {
        let colour = MACHINES[machine % MACHINES.len()];
        self.put(&Circle::new(at, 4, colour.mix(0.75).filled()))
    }

    fn text(&self, text: &str, at: (i32, i32), side: HPos, ink: RGBColor) -> Result<()> {
        let style = ("sans-serif", 13).into_font().color(&ink).pos(Pos::new(side, VPos::Center));
        self.put(&Text::new(text.to_owned(), at, style))
    }
}

fn drawn(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("the picture of the results: {error}")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{machines, named};
    use super::*;

    #[test]
    fn each_case_is_a_dot_and_rows_without_a_rival_are_left_out() {
        let picture = svg(&machines(), &named(&["a", "b"])).unwrap();
        // One for the machine in the legend.
        assert_eq!(picture.matches("<circle").count(), 1 + 2, "{picture}");
        assert!(picture.contains("a: auto, libc"), "{picture}");
        assert!(!picture.contains("b: auto"), "{picture}");
    }
}
