//! The files to link, read into memory.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use graft::link::{self, Input, Members};

/// Files and the members of thin archives among them.
#[derive(Debug)]
pub(crate) struct Files(Vec<File>);

#[derive(Debug)]
struct File {
    name: String,
    bytes: Vec<u8>,
    thin: Vec<(String, Vec<u8>)>,
    members: Members,
}

impl Files {
    /// Reads `paths`; `members` says which members of archives are linked.
    pub(crate) fn read(paths: &[PathBuf], members: Members) -> anyhow::Result<Self> {
        paths.iter().map(|path| File::read(path, members)).collect::<anyhow::Result<_>>().map(Self)
    }

    pub(crate) fn inputs(&self) -> Vec<Input<'_>> {
        self.0.iter().map(File::input).collect()
    }
}

impl File {
    fn input(&self) -> Input<'_> {
        let thin = self.thin.iter().map(|(name, bytes)| (name.clone(), bytes.as_slice())).collect();
        Input { thin, members: self.members, ..Input::new(&self.name, &self.bytes) }
    }

    fn read(path: &Path, which: Members) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let bytes = read(path)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let members = link::thin_members(&name, &bytes)?;
        let thin = members
            .into_iter()
            .map(|member| {
                let bytes = read(&folder.join(&member)).with_context(|| format!("{name} is a thin archive"))?;
                Ok((member, bytes))
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { name, bytes, thin, members: which })
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let kind = fs::metadata(path).map(|file| file.file_type());
    if kind.is_ok_and(|kind| kind.is_char_device() || kind.is_block_device()) {
        anyhow::bail!("cannot read `{}`: it is a device, which has no end", path.display());
    }
    fs::read(path).map_err(|error| {
        let advice = meant_for_the_program(path);
        anyhow::anyhow!("cannot read `{}`: {error}{advice}", path.display())
    })
}

/// The advice for an input that is not there and looks like an argument of the program.
fn meant_for_the_program(path: &Path) -> &'static str {
    let looks_like_a_file = path.extension().is_some() || path.components().count() > 1;
    if looks_like_a_file || path.exists() {
        return "";
    }
    "; the program's own arguments follow `--`"
}
