//! Numbers with their noise, and the aim beside them.

use std::fmt;
use std::time::Duration;

/// Measurements of one thing.
#[derive(Debug)]
pub(crate) struct Figure {
    values: Vec<f64>,
    unit: &'static str,
}

impl Figure {
    /// Times, shown in milliseconds.
    pub(crate) fn of_times(times: impl IntoIterator<Item = Duration>) -> Self {
        Self::new(times.into_iter().map(|time| time.as_secs_f64() * 1e3), "ms")
    }

    /// Any values in `unit`.
    pub(crate) fn new(values: impl IntoIterator<Item = f64>, unit: &'static str) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self { values, unit }
    }

    /// The middle value.
    pub(crate) fn median(&self) -> f64 {
        match self.values.len() {
            0 => f64::NAN,
            len if len % 2 == 1 => self.values[len / 2],
            len => f64::midpoint(self.values[len / 2 - 1], self.values[len / 2]),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { values, unit } = self;
        let (Some(least), Some(most)) = (values.first(), values.last()) else {
            return f.write_str("not measured");
        };
        let (middle, runs) = (self.median(), values.len());
        if runs == 1 {
            return write!(f, "{:>9} {unit}", round(*least));
        }
        if least == most {
            return write!(f, "{:>9} {unit}  (in each of {runs} runs)", round(*least));
        }
        write!(f, "{:>9} {unit}  ({} to {} in {runs} runs)", round(middle), round(*least), round(*most))
    }
}

/// Three digits that mean something, and no decimals where there were none.
fn round(value: f64) -> String {
    match value.abs() {
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Prints a line of the report; `aim` says what the figure should be.
pub(crate) fn line(name: &str, figure: &Figure, aim: Option<Aim>) {
    let verdict = aim.map_or(String::new(), |aim| {
        let met = figure.median() <= aim.at_most;
        format!("   aim: at most {} {}{}", round(aim.at_most), figure.unit, if met { "" } else { "  NOT MET" })
    });
    println!("  {name:<58} {figure}{verdict}");
}

/// What a median should not exceed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aim {
    pub(crate) at_most: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_shows_its_range() {
        let shown = |values: &[f64]| Figure::new(values.iter().copied(), "x").to_string().trim_start().to_owned();
        assert_eq!(shown(&[]), "not measured");
        assert_eq!(shown(&[4.0]), "4 x");
        assert_eq!(shown(&[4.0, 4.0, 4.0]), "4 x  (in each of 3 runs)");
        assert_eq!(shown(&[7.0, 4.0, 5.0]), "5 x  (4 to 7 in 3 runs)");
        assert_eq!(shown(&[1.0, 2.0]), "1.50 x  (1 to 2 in 2 runs)");
    }
}
