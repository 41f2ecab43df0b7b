//! What Graft says on standard error: lines for people, or one JSON object per event.

use std::io::Write;

use super::exit;
use super::json::Json;

/// Where and how things are reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    json: bool,
    verbose: bool,
}

impl Report {
    pub(crate) const fn new(json: bool, verbose: bool) -> Self {
        Self { json, verbose }
    }

    /// Whether reports are JSON.
    pub(crate) const fn is_json(self) -> bool {
        self.json
    }

    /// Reports an event: `text` for people, or its name and fields.
    pub(crate) fn event(self, name: &str, fields: Vec<(&'static str, Json)>, text: &str) {
        if self.json {
            let mut members = vec![("event", Json::from(name))];
            members.extend(fields);
            write_line(&Json::Object(members).to_string());
        } else {
            write_line(&format!("graft: {text}"));
        }
    }

    /// Says something worth knowing.
    pub(crate) fn note(self, text: &str) {
        self.event("note", vec![("text", text.into())], text);
    }

    /// Says something only who asked for more wants to know.
    pub(crate) fn detail(self, text: &str) {
        if self.verbose {
            self.note(text);
        }
    }

    /// Shows a line of the executor's own log, to who asked for more.
    pub(crate) fn log(self, line: &str) {
        if self.verbose {
            self.event("log", vec![("line", line.into())], &format!("[executor] {line}"));
        }
    }

    /// The exit code of a command, after saying why it failed when it did.
    pub(crate) fn exit_code(self, outcome: anyhow::Result<u8>) -> u8 {
        outcome.unwrap_or_else(|error| {
            self.error(&error);
            exit::FAILED
        })
    }

    /// Says why Graft failed.
    fn error(self, error: &anyhow::Error) {
        let text = format!("{error:#}");
        self.event("error", vec![("text", text.as_str().into())], &format!("error: {text}"));
    }
}

/// Writes a line at once, so that lines of several threads do not mix.
fn write_line(line: &str) {
    let mut bytes = line.as_bytes().to_vec();
    bytes.push(b'\n');
    // When standard error is gone, nobody listens.
    let _ = std::io::stderr().lock().write_all(&bytes);
}
