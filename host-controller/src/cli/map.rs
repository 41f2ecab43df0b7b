//! `--show-map`: where everything of a linked program lies.

use std::fmt::Write as _;

use graft::link::{Image, PlacedSection, printable};
use graft_protocol::ExecAddr;

use super::json::Json;
use super::report::Report;

/// Shows segments, sections, symbols and the GOT, in address order.
pub(crate) fn show(image: &Image<'_>, report: Report) {
    report.event("map", fields(image), text(image).trim_end());
}

fn fields(image: &Image<'_>) -> Vec<(&'static str, Json)> {
    let hex = |value: u64| Json::from(format!("{value:#x}"));
    let segments = image.segments.iter().map(|segment| {
        Json::Object(vec![
            ("addr", hex(segment.addr.0)),
            ("size", segment.size.into()),
            ("content", (segment.content.len() as u64).into()),
            ("prot", segment.group.prot.to_string().into()),
        ])
    });
    let sections = sorted_sections(image).into_iter().map(|section| {
        Json::Object(vec![
            ("addr", hex(section.range.start().0)),
            ("size", section.range.len().into()),
            ("name", printable(section.name).into()),
            ("file", section.file.into()),
        ])
    });
    let symbols = image.symbols().into_iter().map(|symbol| {
        Json::Object(vec![
            ("addr", hex(symbol.range.start().0)),
            ("size", symbol.range.len().into()),
            ("name", printable(symbol.name).into()),
            ("file", symbol.file.into()),
        ])
    });
    let entries = |pairs: Vec<(String, ExecAddr)>| {
        Json::List(
            pairs
                .into_iter()
                .map(|(name, addr)| Json::Object(vec![("addr", hex(addr.0)), ("for", name.into())]))
                .collect(),
        )
    };
    vec![
        ("segments", Json::List(segments.collect())),
        ("sections", Json::List(sections.collect())),
        ("symbols", Json::List(symbols.collect())),
        ("got", entries(image.got_slots())),
        ("stubs", entries(image.stubs())),
    ]
}

fn sorted_sections<'l>(image: &Image<'l>) -> Vec<PlacedSection<'l>> {
    let mut sections: Vec<_> = image.sections().filter(|section| !section.range.is_empty()).collect();
    sections.sort_by_key(|section| (section.range.start(), section.range.end()));
    sections
}

fn text(image: &Image<'_>) -> String {
    let mut out = format!("map of {}\n", image.range());
    // Writing to a string does not fail.
    for segment in &image.segments {
        let _ = writeln!(
            out,
            "segment {:#012x} {:>9} bytes {}, {} of them content",
            segment.addr.0,
            segment.size,
            segment.group.prot,
            segment.content.len()
        );
    }
    for section in sorted_sections(image) {
        let name = printable(section.name);
        let _ = writeln!(
            out,
            "section {:#012x} {:>9} {name}  ({})",
            section.range.start().0,
            section.range.len(),
            section.file
        );
    }
    for symbol in image.symbols() {
        let name = printable(symbol.name);
        let _ = writeln!(
            out,
            "symbol  {:#012x} {:>9} {name}  ({})",
            symbol.range.start().0,
            symbol.range.len(),
            symbol.file
        );
    }
    for (what, entries) in [("got    ", image.got_slots()), ("stub   ", image.stubs())] {
        for (name, addr) in entries {
            let _ = writeln!(out, "{what} {:#012x} {:>9} {name}", addr.0, 8);
        }
    }
    out
}
