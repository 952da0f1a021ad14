//! Charts as inline SVG. Colours are classes (`style.css`), which follow the reader's light or dark
//! mode, and paper.

use maud::{Markup, html};
use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 270.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 46.0;

/// A curve or layer: one value for each x.
pub struct Layer<'a> {
    pub name: &'a str,
    pub class: &'static str,
    pub values: Vec<f64>,
}

pub type Show = fn(f64) -> String;

pub struct Chart<'a> {
    /// Alternative text.
    pub title: &'a str,
    /// With the unit.
    pub x_name: &'a str,
    /// With the unit.
    pub y_name: &'a str,
    pub xs: &'a [f64],
    pub x_show: Show,
    pub y_show: Show,
    /// Ticks at powers of two times this, as with bytes; else decimal.
    pub y_binary: bool,
    /// The same of x.
    pub x_binary: bool,
}

struct Scale {
    from: f64,
    to: f64,
    start: f64,
    length: f64,
}

impl Scale {
    fn at(&self, value: f64) -> f64 {
        let span = (self.to - self.from).max(f64::MIN_POSITIVE);
        self.start + self.length * ((value - self.from) / span).clamp(0.0, 1.0)
    }
}

/// About five round values over a range.
fn ticks(from: f64, to: f64, binary: bool) -> Vec<f64> {
    let rough = (to - from).max(f64::MIN_POSITIVE) / 5.0;
    let step = if binary {
        rough.log2().ceil().exp2()
    } else {
        let power = 10f64.powf(rough.log10().floor());
        [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|step| *step >= rough).unwrap_or(10.0 * power)
    };
    let first = (from / step).ceil() as i64;
    let last = (to / step + 1e-9).floor() as i64;
    (first..=last).map(|i| i as f64 * step).collect()
}

impl Chart<'_> {
    pub fn stacked(&self, layers: &[Layer<'_>], lines: &[Layer<'_>]) -> Markup {
        let mut tops: Vec<Vec<f64>> = vec![vec![0.0; self.xs.len()]];
        for layer in layers {
            let below = &tops[tops.len() - 1];
            tops.push(below.iter().zip(&layer.values).map(|(below, value)| below + value).collect());
        }
        let most = tops.iter().chain(lines.iter().map(|line| &line.values)).flatten().fold(0.0f64, |most, y| most.max(*y));
        let (x, y) = self.scales(most);
        let area = |i: usize| {
            let mut path = line(self.xs, &tops[i + 1], &x, &y);
            for (at, bottom) in self.xs.iter().zip(&tops[i]).rev() {
                let _ = write!(path, "L{:.1} {:.1}", x.at(*at), y.at(*bottom));
            }
            path + "Z"
        };
        self.frame(
            &x,
            &y,
            layers,
            lines,
            &html! {
                @for (i, layer) in layers.iter().enumerate() { path class={ "fill " (layer.class) } d=(area(i)) {} }
                @for curve in lines { path class={ "line " (curve.class) } d=(line(self.xs, &curve.values, &x, &y)) {} }
            },
        )
    }

    /// One bar for each x. `edge`: the text at a bar's left edge.
    pub fn bars(&self, bars: &Layer<'_>, edge: &dyn Fn(usize) -> Option<String>) -> Markup {
        let most = bars.values.iter().fold(0.0f64, |most, y| most.max(*y));
        let (_, y) = self.scales(most);
        let n = self.xs.len().max(1) as f64;
        let x = Scale { from: 0.0, to: n, start: LEFT, length: WIDTH - LEFT - RIGHT };
        let width = x.length / n;
        self.frame(
            &x,
            &y,
            std::slice::from_ref(bars),
            &[],
            &html! {
                @for (i, value) in bars.values.iter().enumerate() {
                    @let top = y.at(*value);
                    rect class={ "fill " (bars.class) } x=(tenth(x.at(i as f64) + 1.0)) y=(tenth(top))
                        width=(tenth((width - 2.0).max(1.0)))
                        height=(tenth(HEIGHT - BOTTOM - top)) {}
                    @if let Some(edge) = edge(i) {
                        text class="tick" x=(tenth(x.at(i as f64))) y=(HEIGHT - BOTTOM + 17.0) text-anchor="middle" { (edge) }
                    }
                }
            },
        )
    }

    fn scales(&self, most: f64) -> (Scale, Scale) {
        let (from, to) = (self.xs.first().copied().unwrap_or(0.0), self.xs.last().copied().unwrap_or(1.0));
        let x = Scale { from, to, start: LEFT, length: WIDTH - LEFT - RIGHT };
        let most = if most > 0.0 { most * 1.05 } else { 1.0 };
        (x, Scale { from: 0.0, to: most, start: HEIGHT - BOTTOM, length: -(HEIGHT - BOTTOM - TOP) })
    }

    fn frame(&self, x: &Scale, y: &Scale, layers: &[Layer<'_>], lines: &[Layer<'_>], inside: &Markup) -> Markup {
        let (bottom, middle) = (HEIGHT - BOTTOM, LEFT + (WIDTH - LEFT - RIGHT) / 2.0);
        html! {
            figure {
                svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(self.title) {
                    @for tick in ticks(y.from, y.to, self.y_binary) {
                        path class="grid" d={ "M" (LEFT) " " (tenth(y.at(tick))) "H" (WIDTH - RIGHT) } {}
                        text class="tick" x=(LEFT - 6.0) y=(tenth(y.at(tick) + 4.0)) text-anchor="end" { ((self.y_show)(tick)) }
                    }
                    (inside)
                    path class="axis" d={ "M" (LEFT) " " (TOP) "V" (bottom) "H" (WIDTH - RIGHT) } {}
                    @for tick in ticks(x.from, x.to, self.x_binary) {
                        path class="axis" d={ "M" (tenth(x.at(tick))) " " (bottom) "v4" } {}
                        @let anchor = if x.at(tick) > WIDTH - 3.0 * RIGHT { "end" } else { "middle" };
                        text class="tick" x=(tenth(x.at(tick))) y=(bottom + 17.0) text-anchor=(anchor) { ((self.x_show)(tick)) }
                    }
                    text class="name" x=(middle) y=(HEIGHT - 8.0) text-anchor="middle" { (self.x_name) }
                    text
                        class="name"
                        transform={ "translate(13 " (TOP + (bottom - TOP) / 2.0) ") rotate(-90)" }
                        text-anchor="middle" {
                            (self.y_name)
                        }
                }
                figcaption {
                    @for layer in layers.iter().rev().filter(|layer| layer.values.iter().any(|value| *value > 0.0)) {
                        span class="key" { span class={ "swatch " (layer.class) } {} (layer.name) }
                    }
                    @for curve in lines { span class="key" { span class={ "stroke " (curve.class) } {} (curve.name) } }
                }
            }
        }
    }
}

fn tenth(value: f64) -> String {
    format!("{value:.1}")
}

fn line(xs: &[f64], ys: &[f64], x: &Scale, y: &Scale) -> String {
    let mut path = String::new();
    for (i, (at, value)) in xs.iter().zip(ys).enumerate() {
        let _ = write!(path, "{}{:.1} {:.1}", if i == 0 { 'M' } else { 'L' }, x.at(*at), y.at(*value));
    }
    path
}

/// One divided bar: name, class, value and its text.
pub fn divided(title: &str, parts: &[(&str, &'static str, f64, String)]) -> Markup {
    let total: f64 = parts.iter().map(|part| part.2).sum();
    if total <= 0.0 {
        return html! {};
    }
    let bars = parts.iter().scan(0.0, |at, (_, class, value, _)| {
        let (from, width) = (*at, WIDTH * value / total);
        *at += width;
        Some((class, from, width))
    });
    html! {
        figure {
            svg viewBox={ "0 0 " (WIDTH) " 34" } role="img" aria-label=(title) {
                @for (class, from, width) in bars {
                    rect class={ "fill " (class) } x=(tenth(from)) y="2" width=(tenth(width)) height="30" {}
                }
            }
            figcaption {
                @for (name, class, _, shown) in parts {
                    span class="key" { span class={ "swatch " (class) } {} (name) ": " (shown) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(0.0, 10.0, false), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(0.0, 5.0 * 256.0, true), [0.0, 256.0, 512.0, 768.0, 1024.0, 1280.0]);
        assert!(ticks(0.0, 0.0, false).len() < 3);
    }
}
