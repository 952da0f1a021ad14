//! Curves as SVG.

use std::path::Path;

use plotters::prelude::*;

#[derive(Debug, Clone)]
pub struct Chart {
    pub title: String,
    pub x: &'static str,
    pub y: &'static str,
    pub series: Vec<Series>,
}

#[derive(Debug, Clone)]
pub struct Series {
    pub name: String,
    /// In order of x.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: u32 = 640;
const HEIGHT: u32 = 420;

/// Draws the charts side by side into a file.
///
/// # Errors
/// A line: the file could not be written.
pub fn write(charts: &[Chart], path: &Path) -> Result<(), String> {
    let fail = |e: &dyn std::fmt::Display| format!("can't write {}: {e}", path.display());
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH * charts.len() as u32, HEIGHT)).into_drawing_area();
        root.fill(&WHITE).map_err(|e| fail(&e))?;
        for (chart, area) in charts.iter().zip(root.split_evenly((1, charts.len()))) {
            draw(chart, &area).map_err(|e| fail(&e))?;
        }
        root.present().map_err(|e| fail(&e))?;
    }
    std::fs::write(path, svg).map_err(|e| fail(&e))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(chart: &Chart, area: &Area<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let points = || chart.series.iter().flat_map(|s| &s.points);
    let (left, right) = points().fold((f64::MAX, f64::MIN), |(l, r), p| (l.min(p.0), r.max(p.0)));
    let top = points().fold(0.0f64, |t, p| t.max(p.1));
    let mut context = ChartBuilder::on(area)
        .caption(&chart.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(left..right.max(left + 1e-9), 0.0..(top * 1.05).max(1e-9))?;
    context.configure_mesh().x_desc(chart.x).y_desc(chart.y).light_line_style(WHITE).draw()?;
    for (i, series) in chart.series.iter().enumerate() {
        let colour = Palette99::pick(i);
        let style = ShapeStyle::from(&colour).stroke_width(2);
        context
            .draw_series(LineSeries::new(series.points.iter().copied(), style))?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        context.draw_series(series.points.iter().map(|p| Circle::new(*p, 3, colour.filled())))?;
    }
    let legend = SeriesLabelPosition::UpperLeft;
    context.configure_series_labels().position(legend).background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_curve_is_in_the_file() {
        let series = |name: &str| Series { name: name.to_owned(), points: vec![(1.0, 0.5), (2.0, 0.0)] };
        let chart = Chart { title: "rates".to_owned(), x: "x", y: "y", series: vec![series("ours"), series("theirs")] };
        let path = std::env::temp_dir().join(format!("lowtide-lab-plot-{}.svg", std::process::id()));
        write(&[chart.clone(), chart], &path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(text.starts_with("<svg") && text.contains("ours") && text.contains("theirs"));
        assert_eq!(text.matches("rates").count(), 2);
        assert!(write(&[], Path::new("/nonexistent/plot.svg")).is_err());
    }
}
