//! The dashboard with real data, as a picture for the documentation: a Prometheus scrapes the operator while hosts join, change and fail.

use std::{fmt::Write as _, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use api::IntOrPercent;
use serde_json::{Value, json};
use testbed::{
    prometheus::{Prometheus, Series},
    sim::{Fault, SimOptions},
};
use tokio::time::sleep;

use super::{
    rollout::spec,
    world::{World, without_heartbeats},
};
use crate::deploy::dashboards::{self, COLUMNS, Form, Panel};

/// Where to.
#[derive(clap::Args)]
pub(super) struct Args {
    /// File to write.
    #[arg(long, value_name = "FILE", default_value = "docs/guide/dashboard.svg")]
    out: PathBuf,
    /// Minutes of data.
    #[arg(long, default_value_t = 10)]
    minutes: u32,
}

const HOSTS: u32 = 24;
/// Simulated hosts have no exporter of Windows.
const WITHOUT_DATA: &str = "Hosts";
/// Points of a line.
const POINTS: u32 = 120;

/// Causes what the dashboard shows, and draws it.
pub(super) async fn run(args: &Args) -> Result<()> {
    let sim = SimOptions { boot: Duration::from_secs(5), ..without_heartbeats() };
    let mut world = World::start(HOSTS, 1, sim).await?;
    let prometheus = Prometheus::without_tls(&json!({"groups": []}))?;
    prometheus.target(world.operator.metrics_address(), "", "windows-node-pools")?;
    let minute = Duration::from_mins(1);
    let last = world.hosts.last().context("no host")?.clone();
    last.fault(Fault::WrongKey);
    world.apply(&spec(110)).await?;
    sleep(minute * args.minutes / 3).await;
    let mut slow = spec(100);
    if let Some(rollout) = &mut slow.rollout {
        rollout.max_unavailable = Some(IntOrPercent::Int(2));
    }
    world.apply(&slow).await?;
    sleep(minute * args.minutes / 3).await;
    last.mend();
    sleep(minute * args.minutes / 3).await;
    world.operator.check()?;

    let step = Duration::from_mins(u64::from(args.minutes)) / POINTS;
    let mut rows = Vec::new();
    for (title, panels) in dashboards::rows().into_iter().filter(|(title, _)| *title != WITHOUT_DATA) {
        let mut drawn = Vec::new();
        for panel in panels {
            let series = series(&prometheus, &panel, step).await?;
            drawn.push(Drawn { panel, series });
        }
        rows.push((title, drawn));
    }
    std::fs::write(&args.out, picture(&rows, args.minutes))?;
    println!("wrote {}", args.out.display());
    Ok(())
}

/// A panel with its data.
struct Drawn {
    panel: Panel,
    series: Vec<(String, Series)>,
}

/// What a panel shows, each line with its name.
async fn series(prometheus: &Prometheus, panel: &Panel, step: Duration) -> Result<Vec<(String, Series)>> {
    let mut all = Vec::new();
    for (legend, query) in &panel.queries {
        let query = query.replace("$pool", ".*");
        let points = if panel.form == Form::Graph { POINTS } else { 0 };
        for one in prometheus.range(&query, step, points).await? {
            let name = if legend.is_empty() { labels(&one.labels) } else { named(legend, &one.labels) };
            all.push((name, one));
        }
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(all)
}

/// The legend with the values of labels in place of their names. Of a label that there is only in a cluster, the name stays.
fn named(legend: &str, labels: &Value) -> String {
    let mut name = legend.to_owned();
    for (label, value) in labels.as_object().into_iter().flatten() {
        name = name.replace(&format!("{{{{{label}}}}}"), value.as_str().unwrap_or_default());
    }
    name.replace("{{", "").replace("}}", "")
}

fn labels(labels: &Value) -> String {
    let values = labels.as_object().into_iter().flatten().map(|(_, value)| value.as_str().unwrap_or_default());
    values.collect::<Vec<_>>().join("  ")
}

/// Pixels of a column and of a line of the grid.
const COLUMN: usize = 50;
const LINE: usize = 30;
const COLOURS: [&str; 8] = ["#3274d9", "#299c46", "#e0752d", "#b877d9", "#c4162a", "#0f9b8e", "#8f7700", "#5f5f5f"];
/// Lines of a legend or a table.
const MOST: usize = 8;

/// Draws rows of panels. Pure.
fn picture(rows: &[(String, Vec<Drawn>)], minutes: u32) -> String {
    let (mut body, mut y) = (String::new(), 0);
    for (title, panels) in rows {
        let _ = write!(body, "<text x='6' y='{}' class='row'>{}</text>", y * LINE + 21, escaped(title));
        y += 1;
        let (mut x, mut highest) = (0, 0);
        for drawn in panels {
            let (w, h) = (drawn.panel.width, drawn.panel.height);
            if x + w > COLUMNS {
                (x, y, highest) = (0, y + highest, 0);
            }
            let _ = write!(body, "<g transform='translate({} {})'>", x * COLUMN, y * LINE);
            body += &panel(drawn, w * COLUMN, h * LINE, minutes);
            body += "</g>\n";
            (x, highest) = (x + w, highest.max(h));
        }
        y += highest;
    }
    let (w, h) = (COLUMNS * COLUMN, y * LINE);
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {w} {h}' font-family='sans-serif' font-size='11'>\n\
         <style>.row{{font-size:14px;font-weight:bold}}.title{{font-weight:bold}}.number{{font-size:40px}}.faint{{fill:#777}}</style>\n\
         <rect width='{w}' height='{h}' fill='#f4f5f5'/>\n{body}</svg>\n"
    )
}

fn panel(drawn: &Drawn, w: usize, h: usize, minutes: u32) -> String {
    let mut text = format!(
        "<rect x='3' y='3' width='{}' height='{}' fill='#fff' stroke='#ddd'/><text x='10' y='20' class='title'>{}</text>",
        w - 6,
        h - 6,
        escaped(&drawn.panel.title)
    );
    match drawn.panel.form {
        Form::Number => {
            let value = drawn.series.first().and_then(|(_, s)| s.last()).map_or("No data".into(), |v| amount(v, ""));
            let _ =
                write!(text, "<text x='{}' y='{}' text-anchor='middle' class='number'>{value}</text>", w / 2, h - 30);
        }
        Form::Table => {
            for (n, (name, _)) in drawn.series.iter().take(MOST).enumerate() {
                let _ = write!(text, "<text x='10' y='{}'>{}</text>", 45 + n * 22, escaped(name));
            }
        }
        Form::Graph => text += &graph(drawn, w, h, minutes),
    }
    if drawn.series.is_empty() && drawn.panel.form != Form::Number {
        let _ = write!(text, "<text x='{}' y='{}' text-anchor='middle' class='faint'>No data</text>", w / 2, h / 2);
    }
    text
}

/// Lines over time, with the legend below them.
fn graph(drawn: &Drawn, w: usize, h: usize, minutes: u32) -> String {
    let pixels = |n: usize| u32::try_from(n).map_or(0.0, f64::from);
    let legend = drawn.series.len().min(MOST).div_ceil(2);
    let (left, top, right, bottom) = (55.0, 32.0, pixels(w) - 14.0, pixels(h - 26 - legend * 14));
    let highest = drawn.series.iter().flat_map(|(_, s)| &s.points).map(|(_, v)| *v).fold(0.0, f64::max);
    let highest = if highest > 0.0 { highest } else { 1.0 };
    let mut text = String::new();
    for part in [0.0, 0.5, 1.0] {
        let y = bottom - part * (bottom - top);
        let label = amount(part * highest, &drawn.panel.unit);
        let _ = write!(
            text,
            "<path d='M{left} {y:.1}H{right}' stroke='#eee'/><text x='{}' y='{:.1}' text-anchor='end' class='faint'>{label}</text>",
            left - 5.0,
            y + 4.0
        );
    }
    for (at, label) in [(left, format!("-{minutes} min")), (right, "now".into())] {
        let anchor = if at > left { "end" } else { "start" };
        let _ =
            write!(text, "<text x='{at}' y='{:.1}' text-anchor='{anchor}' class='faint'>{label}</text>", bottom + 13.0);
    }
    for (n, (name, series)) in drawn.series.iter().enumerate() {
        let colour = COLOURS[n % COLOURS.len()];
        let points = series.points.iter().map(|(at, value)| {
            format!("{:.1},{:.1}", left + at * (right - left), bottom - value / highest * (bottom - top))
        });
        let points = points.collect::<Vec<_>>().join(" ");
        let _ = write!(text, "<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='1.5'/>");
        if n < MOST {
            let (x, y) = (12 + (n % 2) * (w / 2 - 10), h - 8 - (legend - 1 - n / 2) * 14);
            let _ = write!(
                text,
                "<rect x='{x}' y='{}' width='10' height='3' fill='{colour}'/><text x='{}' y='{y}'>{}</text>",
                y - 5,
                x + 14,
                escaped(name)
            );
        }
    }
    text
}

/// A number as people read it.
fn amount(value: f64, unit: &str) -> String {
    match unit {
        "bytes" => format!("{:.0} MiB", value / f64::from(1 << 20)),
        "s" if value >= 120.0 => format!("{:.0} min", value / 60.0),
        "s" => format!("{value:.1} s"),
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_each_panel_and_what_it_shows() {
        let one = |labels: Value, points: &[(f64, f64)]| Series { labels, points: points.to_vec() };
        let all = dashboards::rows();
        let rows: Vec<(String, Vec<Drawn>)> = all
            .iter()
            .map(|(title, panels)| {
                let series = one(json!({"pool": "a<b"}), &[(0.0, 1.0), (1.0, 3.0)]);
                let drawn =
                    |panel: &Panel| Drawn { panel: panel.clone(), series: vec![("a<b".to_owned(), series.clone())] };
                (title.clone(), panels.iter().map(drawn).collect())
            })
            .collect();
        let text = picture(&rows, 10);
        for (title, panels) in &all {
            assert!(text.contains(title) && panels.iter().all(|p| text.contains(&p.title)), "{title}");
        }
        assert!(text.contains("a&lt;b") && !text.contains("a<b") && text.contains("polyline") && text.contains(">3<"));
        let empty = |panel: &Panel| Drawn { panel: panel.clone(), series: Vec::new() };
        assert!(picture(&[("t".into(), all[1].1.iter().map(empty).collect())], 10).contains("No data"));
    }

    #[test]
    fn a_legend_names_values() {
        let labels = json!({"pool": "east", "phase": "Ready"});
        assert_eq!(named("{{pool}} {{phase}}", &labels), "east Ready");
        assert_eq!(super::labels(&labels), "Ready  east");
    }
}
