//! The linker's own archive is what its sources assemble to.

use std::fs;
use std::path::Path;
use std::process::Command;

use object::read::archive::ArchiveFile;
use object::{Object as _, ObjectSection as _, SectionFlags};

/// Name, content and number of relocations of every section that is loaded.
fn sections(bytes: &[u8]) -> Vec<(String, Vec<u8>, usize)> {
    let file = object::File::parse(bytes).unwrap();
    let loaded = file.sections().filter(|section| match section.flags() {
        SectionFlags::Elf { sh_flags } => sh_flags & u64::from(object::elf::SHF_ALLOC) != 0 && section.size() > 0,
        _ => false,
    });
    let parts = |section: object::Section<'_, '_>| {
        (section.name().unwrap().to_owned(), section.data().unwrap().to_vec(), section.relocations().count())
    };
    loaded.map(parts).collect()
}

#[test]
fn the_support_archive_holds_what_its_sources_assemble_to() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/link/support");
    let bytes = fs::read(folder.join("support.a")).unwrap();
    let archive = ArchiveFile::parse(&bytes[..]).unwrap();
    let mut names = Vec::new();
    for member in archive.members() {
        let member = member.unwrap();
        let name = String::from_utf8(member.name().to_vec()).unwrap();
        let source = folder.join(&name).with_extension("s");
        let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("support-{name}"));
        let assembled = Command::new("as").arg(&source).arg("-o").arg(&output).output().unwrap();
        assert!(assembled.status.success(), "{}", String::from_utf8_lossy(&assembled.stderr));
        let assembled = fs::read(&output).unwrap();
        let how = "as NAME.s -o NAME.o for each source, and ar rcD support.a of all";
        assert_eq!(sections(member.data(&bytes[..]).unwrap()), sections(&assembled), "{name} is out of date: {how}");
        names.push(source);
    }
    let sources = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    for source in sources.filter(|path| path.extension().is_some_and(|extension| extension == "s")) {
        assert!(names.contains(&source), "{} is not in the archive", source.display());
    }
}
