//! Plots of ratios: bars for each case, or lines over the cases, with the line that must be reached drawn in.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::element::{Circle, PathElement, Rectangle, Text};
use plotters::prelude::{Color, DrawingArea, IntoDrawingArea, IntoFont, RGBColor, SVGBackend, ShapeStyle};
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::runner::{CaseResult, EngineResult, RowResult, figure};
use crate::words::number;

const INK: RGBColor = RGBColor(31, 35, 40);
const SOFT: RGBColor = RGBColor(101, 109, 118);
const GRID: RGBColor = RGBColor(228, 231, 235);
const REACH: RGBColor = RGBColor(207, 34, 46);
const WIDTH: i32 = 1040;
const HEIGHT: i32 = 380;
const LEFT: i32 = 56;
const RIGHT: i32 = WIDTH - 92;
const TOP: i32 = 44;
const BOTTOM: i32 = HEIGHT - 34;
/// From this ratio on the axis is logarithmic.
const LOGARITHMIC_FROM: f64 = 8.0;

/// The colour of an engine, the same in each plot and table.
pub fn colour(engine: &str) -> RGBColor {
    match engine {
        "auto" => RGBColor(0, 138, 94),
        "nt" => RGBColor(9, 105, 218),
        "cached" => RGBColor(219, 134, 0),
        "auto-spin" => RGBColor(130, 80, 223),
        "auto-block" => RGBColor(74, 170, 190),
        "nginx" => RGBColor(191, 57, 137),
        "kernel-spin" => RGBColor(87, 96, 106),
        _ => RGBColor(145, 152, 161),
    }
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
}

impl Axis {
    fn over(ratios: &[f64]) -> Axis {
        let most = ratios.iter().copied().fold(1.0, f64::max);
        let least = ratios.iter().copied().fold(1.0, f64::min).max(1.0 / 64.0);
        if most >= LOGARITHMIC_FROM {
            Axis { low: (least * 0.99).log2().floor(), high: (most * 1.4).log2(), logarithmic: true }
        } else {
            Axis { low: 0.0, high: most * 1.15, logarithmic: false }
        }
    }

    /// The height of a ratio in the plot, in pixels from the top.
    fn at(&self, ratio: f64) -> i32 {
        let y = if self.logarithmic { ratio.max(1e-9).log2() } else { ratio };
        let share = (y.clamp(self.low, self.high) - self.low) / (self.high - self.low);
        BOTTOM - (share * f64::from(BOTTOM - TOP)).round() as i32
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
    let axis = Axis::over(&ratios);
    let mut engines: Vec<&str> = Vec::new();
    for (engine, _) in marks() {
        if !engines.contains(engine) {
            engines.push(engine);
        }
    }
    draw(|canvas| {
        canvas.legend(&engines, marks().any(|(_, mark)| mark.reach.is_some()))?;
        canvas.frame(axis, first.baseline)?;
        let slot = f64::from(RIGHT - LEFT) / groups.len() as f64;
        let widest = groups.iter().map(|(_, marks)| marks.len()).max().unwrap_or(1);
        let width = (slot * 0.8 / widest as f64).min(64.0) as i32;
        for (i, (case, marks)) in groups.iter().enumerate() {
            let centre = LEFT + (slot * (i as f64 + 0.5)) as i32;
            let start = centre - width * marks.len() as i32 / 2;
            for (j, (engine, mark)) in marks.iter().enumerate() {
                canvas.bar(axis, (start + width * j as i32, width), engine, mark)?;
            }
            canvas.text(&case.case, (centre, BOTTOM + 8), 13.0, INK, (HPos::Center, VPos::Top))?;
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
    let slot = f64::from(RIGHT - LEFT) / cases.len() as f64;
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
    let axis = Axis::over(&ratios);
    draw(|canvas| {
        canvas.legend(&engines.iter().map(|(engine, _)| *engine).collect::<Vec<_>>(), false)?;
        canvas.frame(axis, cases[0].1.baseline)?;
        for (engine, marks) in &engines {
            let points: Vec<(i32, i32)> = marks.iter().map(|(x, mark)| (*x, axis.at(mark.ratio))).collect();
            let stroke = colour(engine).stroke_width(if *engine == "auto" { 3 } else { 2 });
            canvas.put(&PathElement::new(points.clone(), stroke))?;
            for point in points {
                canvas.put(&Circle::new(point, 3, colour(engine).filled()))?;
            }
        }
        // Every label where there is room, else every second or third.
        let each = (44.0 / slot).ceil().max(1.0) as usize;
        for (i, (name, _)) in cases.iter().enumerate().step_by(each) {
            canvas.text(name, (centre(i), BOTTOM + 8), 13.0, INK, (HPos::Center, VPos::Top))?;
        }
        Ok(())
    })
    .map(Some)
}

/// Draws into a fresh SVG that takes the width of the page and the page's font.
fn draw(content: impl FnOnce(&Canvas<'_>) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH as u32, HEIGHT as u32)).into_drawing_area();
        let canvas = Canvas { root };
        content(&canvas)?;
        canvas.root.present().map_err(|e| anyhow!("{e}"))?;
    }
    let size = format!("width=\"{WIDTH}\" height=\"{HEIGHT}\" ");
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
    fn frame(&self, axis: Axis, baseline: &str) -> Result<()> {
        for ratio in axis.ticks() {
            let y = axis.at(ratio);
            self.line((LEFT, y), (RIGHT, y), GRID.stroke_width(1))?;
            let label = format!("{}x", (ratio * 1000.0).round() / 1000.0);
            self.text(&label, (LEFT - 8, y), 12.0, SOFT, (HPos::Right, VPos::Center))?;
        }
        let one = axis.at(1.0);
        self.line((LEFT, one), (RIGHT, one), SOFT.stroke_width(2))?;
        self.text(baseline, (RIGHT + 6, one), 12.0, SOFT, (HPos::Left, VPos::Center))
    }

    fn legend(&self, engines: &[&str], reach: bool) -> Result<()> {
        let mut x = LEFT;
        for engine in engines {
            self.put(&Rectangle::new([(x, 14), (x + 12, 26)], colour(engine).filled()))?;
            self.text(engine, (x + 18, 20), 13.0, INK, (HPos::Left, VPos::Center))?;
            x += 18 + 8 * engine.len() as i32 + 22;
        }
        if reach {
            self.line((x, 20), (x + 22, 20), REACH.stroke_width(3))?;
            self.text("must reach", (x + 28, 20), 13.0, INK, (HPos::Left, VPos::Center))?;
        }
        self.text(
            "ratio against the baseline, larger is better; whiskers: lowest and highest round",
            (RIGHT, 20),
            12.0,
            SOFT,
            (HPos::Right, VPos::Center),
        )
    }

    fn bar(&self, axis: Axis, (left, width): (i32, i32), engine: &str, mark: &Mark) -> Result<()> {
        let (right, middle) = (left + width - 2, left + width / 2 - 1);
        // On the logarithmic axis a bar grows from 1, up or down; on the linear one from 0.
        let foot = if axis.logarithmic { axis.at(1.0) } else { BOTTOM };
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
