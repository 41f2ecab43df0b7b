//! `--check`: the linked image against rules from a file.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use graft::check;
use graft::link::Image;

use super::report::Report;

/// How many rules that do not hold are shown.
const MOST_SHOWN: usize = 20;

/// Fails when a rule in the file does not hold, or it has none.
pub(crate) fn check(image: &Image<'_>, path: &Path, report: Report) -> anyhow::Result<()> {
    let text = fs::read(path).with_context(|| path.display().to_string())?;
    let check::Outcome { rules, failures } = check::check(image, &String::from_utf8_lossy(&text));
    if rules == 0 {
        bail!("{}: no rules: lines that begin with `# jitlink-check:`", path.display());
    }
    if failures.is_empty() {
        let text = format!("{}: all {rules} rules hold", path.display());
        report.event(
            "check",
            vec![("file", path.display().to_string().into()), ("rules", (rules as u64).into())],
            &text,
        );
        return Ok(());
    }
    let mut words: Vec<_> = failures.iter().take(MOST_SHOWN).map(|failure| format!("\n  {failure}")).collect();
    if let Some(more) = failures.len().checked_sub(MOST_SHOWN).filter(|more| *more > 0) {
        words.push(format!("\n  and {more} more"));
    }
    bail!("{}: {} of {rules} rules do not hold{}", path.display(), failures.len(), words.concat());
}
