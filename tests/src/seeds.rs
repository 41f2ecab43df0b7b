//! What the fuzz targets begin with: the recorded dialogues in pieces, and objects of every kind.
//!
//! All of it is made at start from what is in the tree. Each target has its own form of input: see `fuzz/fuzz_targets`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use graft_protocol::{ExecAddr, Message, WrapperId};

use crate::programs::{Compiler, Unit};
use crate::{child, objects, place, tools};

/// Longer ones would only slow the fuzzer down.
const LONGEST: usize = 16 << 10;

/// No message of the recordings is larger.
const MESSAGE_LIMIT: u64 = 1 << 20;

/// Objects that are inputs by themselves: source, compiler, options.
const OBJECTS: &[(&str, Compiler, &str)] = &[
    ("ret.c", Compiler::Gcc, "-O2"),
    ("data.c", Compiler::Gcc, ""),
    ("data.c", Compiler::Clang, "-O2 -fno-pic"),
    ("data.c", Compiler::Gcc, "-O1 -fPIC -mcmodel=large"),
    ("weak.c", Compiler::Clang, "-O0 -fPIC"),
    ("common_main.c", Compiler::Gcc, "-fcommon"),
    ("got_main.c", Compiler::Gcc, "-O2 -fPIC -fno-plt"),
    ("switch.c", Compiler::Gcc, "-O2 -ffunction-sections -fdata-sections"),
    // COMDAT groups.
    ("cxx.cpp", Compiler::Gxx, "-O0"),
    ("cxx.cpp", Compiler::ClangXx, "-O1 -ffunction-sections"),
    // Compressed debug information.
    ("debug.c", Compiler::Gcc, "-g -gz -O1"),
    // Compact relocations.
    ("debug.c", Compiler::Clang, "-O1 -Wa,--allow-experimental-crel,--crel"),
    ("rust.rs", Compiler::RustBare, "-O"),
];

/// The members of an archive.
const ARCHIVE: &[Unit] = &[
    Unit { source: "archive_main.c", compiler: Compiler::Gcc, flags: "-O2" },
    Unit { source: "archive_wanted.c", compiler: Compiler::Clang, flags: "-O1" },
    Unit { source: "archive_deeper.c", compiler: Compiler::Gcc, flags: "-O0" },
];

/// Fills `folder` with what the fuzz target `name` begins with, in place of what was in it, and says how many there are.
///
/// # Errors
///
/// Fails when something of it cannot be read, compiled or written.
pub fn plant(name: &str, folder: &Path) -> Result<usize, String> {
    let seeds = match name {
        "message" => of_dialogues(message)?,
        "session" => of_dialogues(session)?,
        "sps" => of_dialogues(sps)?,
        "object" => objects()?,
        _ => return Err(format!("no fuzz target is called {name}")),
    };
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    let mut known = HashSet::new();
    for seed in seeds.into_iter().filter(|seed| name == "object" || seed.len() <= LONGEST) {
        if !known.contains(&seed) {
            let path = folder.join(format!("{:04}", known.len()));
            fs::write(&path, &seed).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
            known.insert(seed);
        }
    }
    Ok(known.len())
}

/// A recorded dialogue, cut into messages.
struct Dialogue {
    to_executor: Vec<Vec<u8>>,
    from_executor: Vec<Vec<u8>>,
}

fn of_dialogues(seeds: fn(&Dialogue) -> Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, String> {
    let folder = place::root().join("tests/captures");
    let read = |name: &str| fs::read(folder.join(name)).map_err(|error| format!("cannot read {name}: {error}"));
    let index = String::from_utf8(read("index.txt")?).map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    for name in index.lines().filter_map(|line| line.split_once(' ').map(|(name, _)| name)) {
        let to_executor = messages(&read(&format!("{name}.c2e.bin"))?);
        let from_executor = messages(&read(&format!("{name}.e2c.bin"))?);
        all.extend(seeds(&Dialogue { to_executor, from_executor }));
    }
    Ok(all)
}

fn messages(mut stream: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let Ok(Some((_, len))) = Message::split(stream, MESSAGE_LIMIT) {
        let (message, rest) = stream.split_at(len);
        messages.push(message.to_vec());
        stream = rest;
    }
    messages
}

/// Streams: each message alone, and each direction as a whole.
fn message(dialogue: &Dialogue) -> Vec<Vec<u8>> {
    let ways = [&dialogue.to_executor, &dialogue.from_executor];
    ways.iter().flat_map(|way| way.iter().cloned().chain([way.concat()])).collect()
}

/// A byte that says in what pieces they come and whether a good Setup goes ahead, and what an executor said.
fn session(dialogue: &Dialogue) -> Vec<Vec<u8>> {
    const WHOLE: u8 = 0xfe;
    const WHOLE_BEHIND_A_SETUP: u8 = 0xff;
    const PIECES_OF_EIGHT: u8 = 14;
    let with = |head: u8, messages: &[Vec<u8>]| [&[head], &messages.concat()[..]].concat();
    let behind = dialogue.from_executor.get(1..).unwrap_or_default();
    let alone = behind.iter().map(|message| with(WHOLE_BEHIND_A_SETUP, std::slice::from_ref(message)));
    let whole = [WHOLE, PIECES_OF_EIGHT].map(|head| with(head, &dialogue.from_executor));
    alone.chain(whole).chain([with(WHOLE_BEHIND_A_SETUP, behind)]).collect()
}

/// The number of a row, and its arguments or its result.
fn sps(dialogue: &Dialogue) -> Vec<Vec<u8>> {
    let mut names: HashMap<ExecAddr, Vec<u8>> = HashMap::new();
    let mut calls: HashMap<u64, ExecAddr> = HashMap::new();
    let mut seeds = Vec::new();
    let mut add = |names: &HashMap<ExecAddr, Vec<u8>>, target: ExecAddr, bytes: &[u8]| {
        let Some(published) = names.get(&target) else { return };
        for (number, row) in (0_u8..).zip(WrapperId::ALL) {
            if row.names().iter().any(|name| name.name.as_bytes() == published) {
                seeds.push([&[number], bytes].concat());
            }
        }
    };
    for bytes in dialogue.from_executor.iter().take(1).chain(&dialogue.to_executor).chain(&dialogue.from_executor) {
        match Message::split(bytes, MESSAGE_LIMIT) {
            Ok(Some((Message::Setup(setup), _))) => {
                names.extend(setup.symbols.iter().map(|(name, addr)| (addr, name.0.to_vec())));
            }
            Ok(Some((Message::Call { seq_no, target, args }, _))) => {
                calls.insert(seq_no, target);
                add(&names, target, args);
            }
            Ok(Some((Message::Result { seq_no, payload }, _))) => {
                if let Some(target) = calls.get(&seq_no) {
                    add(&names, *target, payload);
                }
            }
            _ => {}
        }
    }
    seeds
}

/// Objects, and an archive of some.
fn objects() -> Result<Vec<Vec<u8>>, String> {
    let folder = place::scratch("seeds");
    let read = |path: &Path| fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()));
    let mut all = Vec::new();
    for (source, compiler, flags) in OBJECTS {
        let unit = Unit { source, compiler: *compiler, flags };
        all.push(read(&objects::compile(&unit, &folder)?)?);
    }
    let members = ARCHIVE.iter().map(|unit| objects::compile(unit, &folder)).collect::<Result<Vec<_>, _>>()?;
    let library = folder.join("seeds.a");
    let ar = tools::packaged("ar", "binutils").map_err(|missing| missing.to_string())?;
    let outcome = child::run(Command::new(ar).arg("rcsD").arg(&library).args(members), Duration::from_secs(60))?;
    if !outcome.success() {
        return Err(format!("ar: {}\n{}", outcome.end, outcome.stderr));
    }
    all.push(read(&library)?);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planted(name: &str) -> Vec<Vec<u8>> {
        let folder = place::scratch("planted").join(name);
        let count = plant(name, &folder).unwrap();
        let seeds: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|seed| fs::read(seed.unwrap().path()).unwrap()).collect();
        assert_eq!(seeds.len(), count);
        seeds
    }

    #[test]
    fn seeds_are_what_their_targets_take() {
        let whole = |seed: &&Vec<u8>| messages(seed).concat() == **seed;
        assert_eq!(planted("message").iter().filter(|seed| !whole(seed)).count(), 0);
        let sessions = planted("session");
        assert!(sessions.iter().any(|seed| seed[0] & 1 == 0) && sessions.iter().any(|seed| seed[0] & 1 == 1));
        // What the recorded dialogues call: the rows of three generations.
        let rows: HashSet<u8> = planted("sps").iter().map(|seed| seed[0]).collect();
        assert!(rows.len() >= 30, "{rows:?}");
        assert!(plant("spam", &place::scratch("planted-spam")).is_err());
    }

    #[test]
    fn objects_of_every_kind_are_there() {
        let seeds = planted("object");
        assert_eq!(seeds.len(), OBJECTS.len() + 1);
        assert!(seeds.iter().any(|seed| seed.starts_with(b"!<arch>\n")));
        let holds = |words: &[u8]| seeds.iter().any(|seed| seed.windows(words.len()).any(|window| window == words));
        for words in [&b".crel.text\0"[..], b".group\0", b".debug_info\0"] {
            assert!(holds(words), "{}", String::from_utf8_lossy(words));
        }
    }
}
