//! The table of all rows, printed when the last row of the process is there.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use super::{Controller, Executor, KNOWN, RACES, Verdict};
use crate::place;
use crate::programs::PROGRAMS;

/// One for each of [`RACES`].
const RACE_MARKS: [char; RACES.len()] = ['*', '\'', '+', '"'];

struct Row {
    executor: Executor,
    controller: Controller,
    verdicts: Vec<Verdict>,
}

impl Row {
    /// How many of its cells took more than one attempt.
    fn retried(&self) -> String {
        let (mut cells, mut retried, mut attempts) = (0, 0, 0);
        for verdict in &self.verdicts {
            match verdict {
                Verdict::Absent => continue,
                Verdict::RightAfterRace(_, retries) => {
                    retried += 1;
                    attempts += retries;
                }
                _ => {}
            }
            cells += 1;
        }
        let row = format!("{} x {}", self.executor.short(), self.controller.short());
        let further = if attempts > 0 { format!(" ({attempts} further attempts)") } else { String::new() };
        format!("{row}: retried: {retried} of {cells} cells{further}")
    }
}

/// Where the table goes besides standard error.
#[must_use]
pub fn table_file() -> PathBuf {
    place::scratch("interop").join("table.txt")
}

/// Adds a row; once `rows_in_all` rows are there, the whole table goes to standard error and to a file in the build
/// directory.
pub(super) fn record(executor: Executor, controller: Controller, verdicts: Vec<Verdict>, rows_in_all: usize) {
    static ROWS: Mutex<Vec<Row>> = Mutex::new(Vec::new());
    let mut rows = ROWS.lock().unwrap_or_else(PoisonError::into_inner);
    let row = Row { executor, controller, verdicts };
    // Not `eprintln!`: the test harness swallows that of a test that passes.
    let _ = std::io::stderr().write_all(format!("{}\n", row.retried()).as_bytes());
    rows.push(row);
    if rows.len() == rows_in_all {
        rows.sort_by_key(|row| (row.executor, row.controller));
        let table = render(&rows);
        let _ = std::io::stderr().write_all(table.as_bytes());
        let _ = std::fs::write(table_file(), table);
    }
}

fn render(rows: &[Row]) -> String {
    let mut out = String::from("\nThe interop matrix: `ok` is status and console output as they must be.\n\n");
    let width = PROGRAMS.iter().map(|program| program.name.len()).max().unwrap_or(0);
    let heads: Vec<(String, String)> =
        rows.iter().map(|row| (row.executor.short().to_owned(), row.controller.short().to_owned())).collect();
    let columns: Vec<usize> = heads.iter().map(|(a, b)| a.len().max(b.len()) + 1).collect();
    let _ = write!(out, "{:width$} ", "");
    for ((executor, _), column) in heads.iter().zip(&columns) {
        let _ = write!(out, "{executor:>column$}");
    }
    let _ = write!(out, "\n{:width$} ", "program");
    for ((_, controller), column) in heads.iter().zip(&columns) {
        let _ = write!(out, "{controller:>column$}");
    }
    out.push('\n');
    let mut used = vec![false; KNOWN.len()];
    let mut raced = vec![false; RACES.len()];
    let (mut right, mut known_cells, mut wrong) = (0, 0, 0);
    for (place, program) in PROGRAMS.iter().enumerate() {
        let _ = write!(out, "{:width$} ", program.name);
        for (row, column) in rows.iter().zip(&columns) {
            let text = match &row.verdicts[place] {
                Verdict::Right => {
                    right += 1;
                    "ok".to_owned()
                }
                Verdict::RightAfterRace(race, _) => {
                    right += 1;
                    let number = RACES.iter().position(|other| std::ptr::eq(other, *race)).unwrap_or(0);
                    raced[number] = true;
                    format!("ok{}", RACE_MARKS[number])
                }
                Verdict::Absent => "-".to_owned(),
                Verdict::Wrong(_) => {
                    wrong += 1;
                    "WRONG".to_owned()
                }
                Verdict::Known(known) => {
                    known_cells += 1;
                    let number = KNOWN.iter().position(|other| std::ptr::eq(other, *known)).unwrap_or(0);
                    used[number] = true;
                    format!("({})", number + 1)
                }
            };
            let _ = write!(out, "{text:>column$}");
        }
        out.push('\n');
    }
    for row in rows {
        let _ = writeln!(out, "{}", row.retried());
    }
    for (number, known) in KNOWN.iter().enumerate().filter(|(number, _)| used[*number]) {
        let _ = writeln!(out, "({}) {}", number + 1, known.why);
    }
    for (number, race) in RACES.iter().enumerate().filter(|(number, _)| raced[*number]) {
        let _ = writeln!(out, "({}) {}", RACE_MARKS[number], race.why);
    }
    let _ =
        writeln!(out, "{right} ok, {wrong} wrong, {known_cells} impossible for a stock tool, or left out, as listed");
    out
}
