//! Plots of ratios: bars for each case, or lines over the cases, with the line that must be reached drawn in.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::element::{Circle, PathElement, Rectangle, Text};
use plotters::prelude::{
    Color, DrawingArea, HSLColor, IntoDrawingArea, IntoFont, RGBColor, SVGBackend, ShapeStyle,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::result::{CaseResult, EngineResult, RowResult, figure};
use crate::words::number;

const INK: RGBColor = RGBColor(31, 35, 40);
const SOFT: RGBColor = RGBColor(101, 109, 118);
const GRID: RGBColor = RGBColor(228, 231, 235);
const REACH: RGBColor = RGBColor(207, 34, 46);
const WIDTH: i32 = 1040;
const LEFT: i32 = 56;
/// The height between the lowest ratio and the highest.
const TALL: i32 = 300;
/// The height of a line of text.
const LINE: i32 = 20;
/// What stands above the legend: the title of the axis.
const TITLE: &str = "ratio against the baseline, larger is better; whiskers: lowest and highest round";
/// From this ratio on the axis is logarithmic.
const LOGARITHMIC_FROM: f64 = 8.0;

/// The colours of the engines that are known; those of one family (the kernel's, ours) are told apart, too.
const COLOURS: &[(&str, RGBColor)] = &[
    ("auto", RGBColor(0, 138, 94)),
    ("nt", RGBColor(9, 105, 218)),
    ("cached", RGBColor(219, 134, 0)),
    ("direct", RGBColor(130, 80, 223)),
    ("lend-sendfile", RGBColor(112, 178, 12)),
    ("lend-splice", RGBColor(52, 170, 190)),
    ("lend-map", RGBColor(224, 116, 224)),
    ("lend-never", RGBColor(80, 44, 116)),
    ("lend", RGBColor(104, 20, 224)),
    ("auto-spin", RGBColor(130, 80, 223)),
    ("auto-block", RGBColor(52, 170, 190)),
    ("auto-64", RGBColor(130, 80, 223)),
    ("nginx", RGBColor(191, 57, 137)),
    ("nginx-log", RGBColor(80, 224, 104)),
    ("log", RGBColor(68, 44, 128)),
    ("log-json", RGBColor(224, 20, 20)),
    ("iceoryx2", RGBColor(191, 57, 137)),
    ("kernel", RGBColor(145, 152, 161)),
    ("kernel-spin", RGBColor(72, 80, 90)),
    ("kernel-splice", RGBColor(132, 82, 36)),
    ("kernel-sendfile", RGBColor(226, 176, 140)),
    ("kernel-mmsg", RGBColor(132, 82, 36)),
    ("kernel-512", RGBColor(226, 176, 140)),
    ("libc", RGBColor(145, 152, 161)),
    ("atomic_inc", RGBColor(145, 152, 161)),
    ("for_loop", RGBColor(72, 80, 90)),
    ("lock", RGBColor(132, 82, 36)),
    ("malloc", RGBColor(191, 57, 137)),
    ("hugepage", RGBColor(9, 105, 218)),
    ("memfd", RGBColor(219, 134, 0)),
    ("opaque", RGBColor(130, 80, 223)),
    ("copy", RGBColor(191, 57, 137)),
    ("copy-2shards", RGBColor(104, 20, 224)),
    ("kernel-block", RGBColor(72, 80, 90)),
    ("kernel-taps", RGBColor(20, 20, 150)),
    ("smoltcp", RGBColor(132, 82, 36)),
    ("smoltcp-65521", RGBColor(226, 176, 140)),
    ("smoltcp-tso", RGBColor(52, 170, 190)),
    ("gvisor", RGBColor(130, 80, 223)),
    ("uring", RGBColor(0, 138, 94)),
    ("uring-zc", RGBColor(112, 178, 12)),
    ("alone", RGBColor(205, 60, 50)),
    ("idle", RGBColor(9, 105, 218)),
    ("devmem", RGBColor(0, 138, 94)),
    ("host", RGBColor(145, 152, 161)),
    ("recv-copy", RGBColor(191, 57, 137)),
    ("send-copy", RGBColor(191, 100, 20)),
    ("single", RGBColor(9, 105, 218)),
    ("batched", RGBColor(112, 178, 12)),
    ("zc", RGBColor(219, 134, 0)),
    ("zc-stacked", RGBColor(112, 178, 12)),
    ("zc-merged", RGBColor(9, 105, 218)),
];

/// The colour of an engine, the same in each plot and table. One that is not known has one by its name.
pub fn colour(engine: &str) -> RGBColor {
    if let Some((_, colour)) = COLOURS.iter().find(|(name, _)| *name == engine) {
        return *colour;
    }
    // FNV-1a: any spread of the names over the hues will do, and the same in each run.
    let hash = engine.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    });
    let (r, g, b) = HSLColor((hash >> 32) as f64 / f64::from(u32::MAX), 0.55, 0.42).rgb();
    RGBColor(r, g, b)
}

/// The same colour for a style sheet.
pub fn css(engine: &str) -> String {
    let RGBColor(r, g, b) = colour(engine);
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// The ratio axis, linear from 0 or logarithmic from the smallest power of two below all.
#[derive(Clone, Copy, Debug)]
struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// Where the highest ratio is, in pixels from the top.
    top: i32,
}

impl Axis {
    fn over(ratios: &[f64], top: i32) -> Axis {
        let most = ratios.iter().copied().fold(1.0, f64::max);
        let least = ratios.iter().copied().fold(1.0, f64::min).max(1.0 / 64.0);
        if most >= LOGARITHMIC_FROM {
            Axis { low: (least * 0.99).log2().floor(), high: (most * 1.4).log2(), logarithmic: true, top }
        } else {
            Axis { low: 0.0, high: most * 1.15, logarithmic: false, top }
        }
    }

    /// The height of a ratio in the plot, in pixels from the top.
    fn at(&self, ratio: f64) -> i32 {
        let y = if self.logarithmic { ratio.max(1e-9).log2() } else { ratio };
        let share = (y.clamp(self.low, self.high) - self.low) / (self.high - self.low);
        self.bottom() - (share * f64::from(TALL)).round() as i32
    }

    fn bottom(&self) -> i32 {
        self.top + TALL
    }

    fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            return (self.low as i32..=self.high.floor() as i32).map(|power| 2f64.powi(power)).collect();
        }
        let step =
            [0.1, 0.2, 0.25, 0.5, 1.0, 2.0].into_iter().find(|step| self.high / step <= 7.0).unwrap_or(2.0);
        (0..).map(|i| f64::from(i) * step).take_while(|ratio| *ratio <= self.high).collect()
    }
}

/// A bar or a point.
struct Mark {
    ratio: f64,
    low: f64,
    high: f64,
    reach: Option<f64>,
}

fn mark(case: &CaseResult, engine: &EngineResult, metric: &str) -> Option<Mark> {
    let figure = figure(&case.engines, engine.engine, metric)?;
    let ratio = figure.ratio?;
    let spread = figure.ratio_spread;
    let reach = case
        .verdicts
        .iter()
        .find(|v| v.engine == engine.engine && v.metric == metric)
        .and_then(|verdict| verdict.line);
    Some(Mark { ratio, low: spread.map_or(ratio, |s| s.low), high: spread.map_or(ratio, |s| s.high), reach })
}

/// A group of bars for each case of `result` that has ratios in `metric`; `None` if there are none.
pub fn bars(result: &RowResult, metric: &str) -> Result<Option<String>> {
    let groups: Vec<(&CaseResult, Vec<(&str, Mark)>)> = result
        .cases
        .iter()
        .map(|case| {
            let others = case.engines.iter().filter(|engine| engine.engine != case.baseline);
            (case, others.filter_map(|e| Some((e.engine, mark(case, e, metric)?))).collect())
        })
        .filter(|(_, marks): &(_, Vec<_>)| !marks.is_empty())
        .collect();
    let Some((first, _)) = groups.first() else { return Ok(None) };
    let marks = || groups.iter().flat_map(|(_, marks)| marks);
    let ratios: Vec<f64> = marks().flat_map(|(_, m)| [m.high, m.ratio, m.reach.unwrap_or(1.0)]).collect();
    let mut engines: Vec<&str> = Vec::new();
    for (engine, _) in marks() {
        if !engines.contains(engine) {
            engines.push(engine);
        }
    }
    let legend = Legend::of(&engines, marks().any(|(_, mark)| mark.reach.is_some()));
    let axis = Axis::over(&ratios, legend.bottom());
    let right = right_of(first.baseline);
    let slot = f64::from(right - LEFT) / groups.len() as f64;
    let names = Names::of(groups.iter().map(|(case, _)| case.case.as_str()), slot);
    draw(axis.bottom() + names.height(), |canvas| {
        canvas.legend(&legend)?;
        canvas.frame(axis, first.baseline, right)?;
        let widest = groups.iter().map(|(_, marks)| marks.len()).max().unwrap_or(1);
        let width = (slot * 0.8 / widest as f64).min(64.0) as i32;
        for (i, (case, marks)) in groups.iter().enumerate() {
            let centre = LEFT + (slot * (i as f64 + 0.5)) as i32;
            let start = centre - width * marks.len() as i32 / 2;
            for (j, (engine, mark)) in marks.iter().enumerate() {
                canvas.bar(axis, (start + width * j as i32, width), engine, mark)?;
            }
            canvas.name(&names.lines(&case.case), (centre, axis.bottom() + 8))?;
        }
        Ok(())
    })
    .map(Some)
}

/// A line for each engine over the cases; one plot, with its name, for each suffix after the `/` of the cases' names.
pub fn lines(result: &RowResult, metric: &str) -> Result<Vec<(String, String)>> {
    let mut groups: Vec<(&str, Vec<(&str, &CaseResult)>)> = Vec::new();
    for case in &result.cases {
        let (name, group) = case.case.rsplit_once('/').unwrap_or((&case.case, ""));
        match groups.iter_mut().find(|(known, _)| *known == group) {
            Some((_, cases)) => cases.push((name, case)),
            None => groups.push((group, vec![(name, case)])),
        }
    }
    let mut plots = Vec::new();
    for (group, cases) in groups {
        if let Some(svg) = lines_of(&cases, metric)? {
            plots.push((group.to_owned(), svg));
        }
    }
    Ok(plots)
}

fn lines_of(cases: &[(&str, &CaseResult)], metric: &str) -> Result<Option<String>> {
    let baseline = cases[0].1.baseline;
    let right = right_of(baseline);
    let slot = f64::from(right - LEFT) / cases.len() as f64;
    let centre = |i: usize| LEFT + (slot * (i as f64 + 0.5)) as i32;
    let mut engines: Vec<(&str, Vec<(i32, Mark)>)> = Vec::new();
    for (i, (_, case)) in cases.iter().enumerate() {
        for engine in &case.engines {
            let Some(mark) = mark(case, engine, metric) else { continue };
            match engines.iter_mut().find(|(known, _)| *known == engine.engine) {
                Some((_, marks)) => marks.push((centre(i), mark)),
                None => engines.push((engine.engine, vec![(centre(i), mark)])),
            }
        }
    }
    if engines.is_empty() {
        return Ok(None);
    }
    let ratios: Vec<f64> = engines.iter().flat_map(|(_, marks)| marks.iter().map(|(_, m)| m.ratio)).collect();
    let legend = Legend::of(&engines.iter().map(|(engine, _)| *engine).collect::<Vec<_>>(), false);
    let axis = Axis::over(&ratios, legend.bottom());
    // Every label where there is room, else every second or third.
    let each = (44.0 / slot).ceil().max(1.0) as usize;
    let names = Names::of(cases.iter().map(|(name, _)| *name).step_by(each), slot * each as f64);
    draw(axis.bottom() + names.height(), |canvas| {
        canvas.legend(&legend)?;
        canvas.frame(axis, baseline, right)?;
        for (engine, marks) in &engines {
            let points: Vec<(i32, i32)> = marks.iter().map(|(x, mark)| (*x, axis.at(mark.ratio))).collect();
            let stroke = colour(engine).stroke_width(if *engine == "auto" { 3 } else { 2 });
            canvas.put(&PathElement::new(points.clone(), stroke))?;
            for point in points {
                canvas.put(&Circle::new(point, 3, colour(engine).filled()))?;
            }
        }
        for (i, (name, _)) in cases.iter().enumerate().step_by(each) {
            canvas.name(&names.lines(name), (centre(i), axis.bottom() + 8))?;
        }
        Ok(())
    })
    .map(Some)
}

/// The width that a text surely has room in, whatever font the page finds, in pixels.
fn width_of(text: &str, size: f64) -> i32 {
    (text.chars().count() as f64 * size * 0.64).ceil() as i32
}

/// The right end of the scale: the baseline's name stands beside it.
fn right_of(baseline: &str) -> i32 {
    WIDTH - 12 - width_of(baseline, 12.0).clamp(40, WIDTH / 3)
}

/// What the colours mean, in as many lines as that takes.
struct Legend<'a> {
    /// None: the line that must be reached. Where each begins, from the left and from the top.
    entries: Vec<(Option<&'a str>, (i32, i32))>,
}

impl<'a> Legend<'a> {
    const REACH: &'static str = "must reach";

    fn of(engines: &[&'a str], reach: bool) -> Legend<'a> {
        let mut entries = Vec::new();
        // Below the axis's title.
        let (mut x, mut y) = (LEFT, LINE / 2 + LINE);
        for entry in engines.iter().copied().map(Some).chain(reach.then_some(None)) {
            let wide = Legend::wide(entry);
            if x > LEFT && x + wide > WIDTH {
                (x, y) = (LEFT, y + LINE);
            }
            entries.push((entry, (x, y)));
            x += wide + 18;
        }
        Legend { entries }
    }

    fn wide(entry: Option<&str>) -> i32 {
        entry.map_or(28 + width_of(Legend::REACH, 13.0), |engine| 18 + width_of(engine, 13.0))
    }

    /// Where the plot may begin: below it, and the figure on the highest bar.
    fn bottom(&self) -> i32 {
        self.entries.last().map_or(LINE, |(_, (_, y))| *y) + LINE + 8
    }
}

/// The names of the cases, below the plot.
struct Names {
    /// The most characters that a line may have.
    most: usize,
    /// Lines of the name that has the most.
    lines: usize,
}

impl Names {
    fn of<'n>(names: impl Iterator<Item = &'n str>, slot: f64) -> Names {
        let mut all = Names { most: (slot / (13.0 * 0.64)).max(3.0) as usize, lines: 1 };
        all.lines = names.map(|name| all.lines(name).len()).max().unwrap_or(1);
        all
    }

    fn height(&self) -> i32 {
        16 + self.lines as i32 * LINE
    }

    /// A name, broken behind its slashes and hyphens where it is too long for a line; a word that is too long, anywhere.
    fn lines(&self, name: &str) -> Vec<String> {
        let mut lines = vec![String::new()];
        for word in name.split_inclusive(['/', '-']) {
            let letters: Vec<char> = word.chars().collect();
            for part in letters.chunks(self.most) {
                let last = lines.len() - 1;
                if !lines[last].is_empty() && lines[last].chars().count() + part.len() > self.most {
                    lines.push(part.iter().collect());
                } else {
                    lines[last].extend(part);
                }
            }
        }
        lines
    }
}

/// Draws into a fresh SVG that takes the width of the page and the page's font.
fn draw(height: i32, content: impl FnOnce(&Canvas<'_>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32)).into_drawing_area();
        let canvas = Canvas { root };
        content(&canvas)?;
        canvas.root.present().map_err(|e| anyhow!("{e}"))?;
    }
    let size = format!("width=\"{WIDTH}\" height=\"{height}\" ");
    Ok(svg.replacen(&size, "role=\"img\" ", 1))
}

struct Canvas<'a> {
    root: DrawingArea<SVGBackend<'a>, Shift>,
}

impl<'a> Canvas<'a> {
    fn put<E>(&self, element: &E) -> Result<()>
    where
        for<'b> &'b E: plotters::element::PointCollection<'b, (i32, i32)>,
        E: plotters::element::Drawable<SVGBackend<'a>>,
    {
        self.root.draw(element).map_err(|e| anyhow!("drawing the plot: {e}"))
    }

    fn text(
        &self,
        text: &str,
        at: (i32, i32),
        size: f64,
        colour: RGBColor,
        anchor: (HPos, VPos),
    ) -> Result<()> {
        let style =
            ("system-ui, sans-serif", size).into_font().color(&colour).pos(Pos::new(anchor.0, anchor.1));
        self.put(&Text::new(text.to_owned(), at, style))
    }

    fn line(&self, from: (i32, i32), to: (i32, i32), style: impl Into<ShapeStyle>) -> Result<()> {
        self.put(&PathElement::new(vec![from, to], style))
    }

    /// The scale, its lines, and the strong line of the baseline.
    fn frame(&self, axis: Axis, baseline: &str, right: i32) -> Result<()> {
        for ratio in axis.ticks() {
            let y = axis.at(ratio);
            self.line((LEFT, y), (right, y), GRID.stroke_width(1))?;
            let label = format!("{}x", (ratio * 1000.0).round() / 1000.0);
            self.text(&label, (LEFT - 8, y), 12.0, SOFT, (HPos::Right, VPos::Center))?;
        }
        let one = axis.at(1.0);
        self.line((LEFT, one), (right, one), SOFT.stroke_width(2))?;
        self.text(baseline, (right + 6, one), 12.0, SOFT, (HPos::Left, VPos::Center))
    }

    /// A case's name, from its first line's middle down.
    fn name(&self, lines: &[String], (x, mut y): (i32, i32)) -> Result<()> {
        for line in lines {
            self.text(line, (x, y), 13.0, INK, (HPos::Center, VPos::Top))?;
            y += LINE;
        }
        Ok(())
    }

    /// The axis's title, and below it what the colours mean.
    fn legend(&self, legend: &Legend<'_>) -> Result<()> {
        self.text(TITLE, (LEFT, LINE / 2), 12.0, SOFT, (HPos::Left, VPos::Center))?;
        for &(entry, (x, y)) in &legend.entries {
            let Some(engine) = entry else {
                self.line((x, y), (x + 22, y), REACH.stroke_width(3))?;
                self.text(Legend::REACH, (x + 28, y), 13.0, INK, (HPos::Left, VPos::Center))?;
                continue;
            };
            self.put(&Rectangle::new([(x, y - 6), (x + 12, y + 6)], colour(engine).filled()))?;
            self.text(engine, (x + 18, y), 13.0, INK, (HPos::Left, VPos::Center))?;
        }
        Ok(())
    }

    fn bar(&self, axis: Axis, (left, width): (i32, i32), engine: &str, mark: &Mark) -> Result<()> {
        let (right, middle) = (left + width - 2, left + width / 2 - 1);
        // On the logarithmic axis a bar grows from 1, up or down; on the linear one from 0.
        let foot = if axis.logarithmic { axis.at(1.0) } else { axis.bottom() };
        let top = axis.at(mark.ratio);
        self.put(&Rectangle::new([(left, top.min(foot)), (right, top.max(foot))], colour(engine).filled()))?;
        let (low, high) = (axis.at(mark.low), axis.at(mark.high));
        self.line((middle, low), (middle, high), INK.stroke_width(1))?;
        for end in [low, high] {
            self.line((middle - 3, end), (middle + 3, end), INK.stroke_width(1))?;
        }
        if let Some(reach) = mark.reach {
            let y = axis.at(reach);
            self.line((left - 3, y), (right + 3, y), REACH.stroke_width(3))?;
        }
        if width >= 22 {
            let label = number(mark.ratio);
            let y = high.min(top).min(mark.reach.map_or(i32::MAX, |reach| axis.at(reach) - 1));
            self.text(&label, (middle, y - 4), 12.0, INK, (HPos::Center, VPos::Bottom))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Scale;
    use crate::rows::ROWS;

    /// How far apart two colours are, at most 441.
    fn apart(one: RGBColor, other: RGBColor) -> f64 {
        let part = |a: u8, b: u8| (f64::from(a) - f64::from(b)).powi(2);
        (part(one.0, other.0) + part(one.1, other.1) + part(one.2, other.2)).sqrt()
    }

    #[test]
    fn engines_of_a_row_are_told_apart_by_their_colours() {
        for row in ROWS {
            let mut engines: Vec<_> =
                (row.cases)(Scale::Full).into_iter().flat_map(|case| case.engines).collect();
            engines.sort_unstable();
            engines.dedup();
            for (i, one) in engines.iter().enumerate() {
                for other in &engines[..i] {
                    let far = apart(colour(one), colour(other));
                    assert!(far > 40.0, "{}: {one} and {other} look alike ({far:.0})", row.name);
                }
            }
        }
        assert_ne!(colour("some engine"), colour("another engine"));
    }

    #[test]
    fn what_the_colours_mean_has_room() {
        let long = "an-engine-with-a-name-that-nobody-would-give-to-one";
        let mut engines = vec!["a"; 9];
        engines.extend([long; 5]);
        let legend = Legend::of(&engines, true);
        assert_eq!(legend.entries.len(), engines.len() + 1);
        for pair in legend.entries.windows(2) {
            let [(entry, (x, y)), (_, (next, row))] = pair else { unreachable!("two each") };
            assert!(
                next > &(x + Legend::wide(*entry)) || (row > y && *next == LEFT),
                "{entry:?} reaches into the next"
            );
        }
        for (entry, (x, y)) in &legend.entries {
            assert!(x + Legend::wide(*entry) <= WIDTH, "{entry:?} is cut off");
            assert!(
                *y - LINE / 2 >= LINE && y + LINE / 2 < legend.bottom(),
                "{entry:?} lies in what is above or below"
            );
        }
        assert!(LEFT + width_of(TITLE, 12.0) <= WIDTH);
        assert!(right_of("kernel-sendfile") + 6 + width_of("kernel-sendfile", 12.0) <= WIDTH);
    }

    #[test]
    fn long_names_are_broken() {
        let names = Names::of(["file/16M/plain", "x"].into_iter(), 80.0);
        assert_eq!(
            (names.lines("file/16M/plain"), names.lines),
            (vec!["file/16M/".into(), "plain".to_owned()], 2)
        );
        assert_eq!(names.lines("x"), ["x"]);
        assert_eq!(names.lines("").len(), 1);
        assert_eq!(names.lines("abcdefghijklmnop").concat(), "abcdefghijklmnop");
        assert!(names.lines("abcdefghijklmnop").iter().all(|line| line.len() <= names.most));
        assert!(names.height() > Names::of(["x"].into_iter(), 80.0).height());
    }
}
