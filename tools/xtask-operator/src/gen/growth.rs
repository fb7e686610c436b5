//! Picture of the cost of a join, from one host to 5,000, as SVG.

use std::fmt::Write as _;

/// Measured joins, one line for each profile of `cargo xtask bench join` that differs only in its number of hosts: hosts, `seconds`,
/// `peak_rss_mib`, `api_writes_per_host` and `cpu_seconds`.
const MEASURED: &str = include_str!("growth.tsv");
/// Seconds that the Windows Machine Config Operator takes for each host, one host after another. A log in its pull request 2157 shows 540 for one.
const WMCO_SECONDS: f64 = 540.0;
/// Size of a panel, and the margin around its axes, in pixels.
const PANEL: (f64, f64) = (360.0, 230.0);
const MARGIN: (f64, f64) = (52.0, 34.0);
/// Range of the hosts' axis.
const HOSTS: (f64, f64) = (1.0, 10_000.0);

/// Diagram of one quantity over the number of hosts, with logarithmic axes.
struct Panel {
    title: &'static str,
    /// Column of the measured values.
    column: usize,
    /// Range of the values' axis: powers of ten.
    range: (f64, f64),
}

const PANELS: [Panel; 4] = [
    Panel { title: "Seconds until all hosts are Ready", column: 1, range: (1.0, 10_000_000.0) },
    Panel { title: "Memory of the operator in MiB", column: 2, range: (10.0, 1_000.0) },
    Panel { title: "Writes to the API server per host", column: 3, range: (1.0, 100.0) },
    Panel { title: "Processor seconds of the operator", column: 4, range: (0.01, 1_000.0) },
];

/// Returns the picture.
pub(super) fn growth() -> String {
    let rows: Vec<Vec<f64>> =
        MEASURED.lines().map(|line| line.split('\t').filter_map(|cell| cell.parse().ok()).collect()).collect();
    let (width, height) = (2.0 * PANEL.0, 2.0 * PANEL.1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#7a7a7a\">\n\
         <title>Cost of a join from one host to 5,000</title>\n"
    );
    for (panel, place) in PANELS.iter().zip([(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)]) {
        let points: Vec<(f64, f64)> = rows.iter().filter_map(|row| Some((row[0], *row.get(panel.column)?))).collect();
        panel.draw(&mut svg, (place.0 * PANEL.0, place.1 * PANEL.1), &points);
    }
    svg + "</svg>\n"
}

impl Panel {
    fn draw(&self, svg: &mut String, origin: (f64, f64), points: &[(f64, f64)]) {
        let at = |(hosts, value): (f64, f64)| {
            let part = |value: f64, (low, high): (f64, f64)| (value / low).log10() / (high / low).log10();
            let x = origin.0 + MARGIN.0 + part(hosts, HOSTS) * (PANEL.0 - MARGIN.0 - 16.0);
            let y = origin.1 + PANEL.1 - MARGIN.1 - part(value, self.range) * (PANEL.1 - 2.0 * MARGIN.1);
            (x, y)
        };
        let (left, bottom) = at((HOSTS.0, self.range.0));
        let (right, top) = at((HOSTS.1, self.range.1));
        let _ =
            writeln!(svg, "<text x=\"{left:.0}\" y=\"{:.0}\" font-weight=\"bold\">{}</text>", top - 12.0, self.title);
        for value in powers(self.range) {
            let (_, y) = at((1.0, value));
            let _ =
                writeln!(svg, "<path d=\"M{left:.0} {y:.1}H{right:.0}\" stroke=\"#7a7a7a\" stroke-opacity=\".3\"/>");
            let _ = writeln!(
                svg,
                "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 6.0,
                y + 4.0,
                short(value)
            );
        }
        for hosts in powers(HOSTS) {
            let (x, _) = at((hosts, self.range.0));
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                short(hosts)
            );
        }
        if self.column == 1 {
            let wmco: Vec<(f64, f64)> = [1.0, 5_000.0].map(|hosts| at((hosts, hosts * WMCO_SECONDS))).to_vec();
            line(svg, &wmco, "#c2410c\" stroke-dasharray=\"6 4");
            let _ = writeln!(
                svg,
                "<text x=\"{:.0}\" y=\"{:.0}\" fill=\"#c2410c\">WMCO: 540 s each</text>",
                left + 8.0,
                top + 40.0
            );
        }
        let points: Vec<(f64, f64)> = points.iter().copied().map(at).collect();
        line(svg, &points, "#2563eb");
        for (x, y) in points {
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"#2563eb\"/>");
        }
    }
}

fn line(svg: &mut String, points: &[(f64, f64)], stroke: &str) {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let points = points.join(" ");
    let _ = writeln!(svg, "<polyline points=\"{points}\" fill=\"none\" stroke-width=\"2\" stroke=\"{stroke}\"/>");
}

/// Returns the powers of ten in a range.
fn powers((low, high): (f64, f64)) -> impl Iterator<Item = f64> {
    std::iter::successors(Some(low), |value| Some(value * 10.0)).take_while(move |value| *value <= high * 1.001)
}

/// Returns a power of ten as a label, for example `10k`.
fn short(value: f64) -> String {
    match value {
        value if value >= 999_999.0 => format!("{:.0}M", value / 1_000_000.0),
        value if value >= 999.0 => format!("{:.0}k", value / 1_000.0),
        value if value >= 0.99 => format!("{value:.0}"),
        value => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_measured_join_is_drawn_in_each_panel() {
        let rows = MEASURED.lines().count();
        assert!(rows >= 5 && MEASURED.lines().all(|line| line.split('\t').count() == 5), "{MEASURED}");
        let svg = growth();
        assert_eq!(svg.matches("<circle").count(), 4 * rows);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn labels_are_powers_of_ten() {
        let labels = |range| powers(range).map(short).collect::<Vec<_>>().join(" ");
        assert_eq!(labels((0.01, 1_000.0)), "0.01 0.10 1 10 100 1k");
        assert_eq!(labels((1.0, 10_000_000.0)), "1 10 100 1k 10k 100k 1M 10M");
    }
}
