//! The options of `graft run` that say what is linked and how.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use graft::link::{self, Unwind};
use graft_protocol::ExecAddr;

use super::inputs::Files;

/// What is linked, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct LinkArgs {
    /// Objects (.o) and archives (.a, .rlib) to link
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// The function to run, called as `main` is
    #[arg(long, value_name = "NAME", default_value = "main")]
    pub(crate) entry: String,
    /// Also link libNAME.a, searched for in the folders of -L
    #[arg(short = 'l', value_name = "NAME")]
    libraries: Vec<String>,
    /// A folder to search for libraries, in this order
    #[arg(short = 'L', value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Link all members of every archive, not only those that are needed
    #[arg(long)]
    whole_archive: bool,
    /// Define a symbol at an address, in decimal or 0x... form
    #[arg(long, value_name = "NAME=ADDRESS", value_parser = absolute)]
    abs: Vec<(String, ExecAddr)>,
    /// Let NAME stand for whatever OTHER stands for
    #[arg(long, value_name = "NAME=OTHER", value_parser = alias)]
    alias: Vec<(String, String)>,
}

impl LinkArgs {
    /// Reads the inputs, and the libraries behind them.
    pub(crate) fn read(&self) -> anyhow::Result<Files> {
        let mut paths = self.inputs.clone();
        for name in &self.libraries {
            paths.push(self.library(name)?);
        }
        let members = if self.whole_archive { link::Members::All } else { link::Members::ByNeed };
        Files::read(&paths, members)
    }

    /// Whether `path` is one of the inputs, under whatever name.
    pub(crate) fn has_input(&self, path: &Path) -> bool {
        let file = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
        let found = file(path);
        found.is_some() && self.inputs.iter().any(|input| file(input) == found)
    }

    /// What the linker is asked for, on pages of `page_size` bytes.
    pub(crate) fn options(&self, page_size: u64) -> link::Options {
        link::Options {
            entry: Some(self.entry.clone()),
            // No executor has an unwinder that would read them.
            unwind: Unwind::IfUsed,
            page_size,
            absolute: self.abs.clone(),
            aliases: self.alias.clone(),
            ..link::Options::default()
        }
    }

    fn library(&self, name: &str) -> anyhow::Result<PathBuf> {
        let file = format!("lib{name}.a");
        let found = self.folders.iter().map(|folder| folder.join(&file)).find(|path| path.is_file());
        let Some(found) = found else {
            let searched: Vec<_> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
            match searched.is_empty() {
                true => bail!("no {file} for -l {name}: no folder to search was given (-L DIR)"),
                false => bail!("no {file} for -l {name} in {}", searched.join(", ")),
            }
        };
        Ok(found)
    }
}

fn pair(text: &str) -> Result<(&str, &str), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok((name, value)),
        _ => Err(format!("`{text}` is not of the form NAME=VALUE")),
    }
}

fn absolute(text: &str) -> Result<(String, ExecAddr), String> {
    let (name, value) = pair(text)?;
    Ok((name.to_owned(), address(value)?))
}

fn alias(text: &str) -> Result<(String, String), String> {
    pair(text).map(|(name, other)| (name.to_owned(), other.to_owned()))
}

/// An address of the executor, in decimal or with `0x`.
pub(crate) fn address(text: &str) -> Result<ExecAddr, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map(ExecAddr).map_err(|_| format!("`{text}` is no address: decimal or 0x..., at most 64 bits"))
}

/// An address to link to: in the half of the address space that programs have, where a page begins.
pub(crate) fn slab_address(text: &str) -> Result<ExecAddr, String> {
    const PAGE: u64 = 4096;
    let parsed = address(text)?;
    if parsed.is_null() || !parsed.is_aligned(PAGE) || parsed.0 >= 1 << 47 {
        return Err(format!(
            "`{text}` is no place for a program: a multiple of {PAGE} above 0 and below 0x800000000000, please"
        ));
    }
    Ok(parsed)
}

/// A file to write beside what is linked.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    use anyhow::Context;
    fs::write(path, bytes).with_context(|| format!("cannot write `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_pairs_and_addresses_are_numbers() {
        assert_eq!(absolute("x=0xfee00000"), Ok((String::from("x"), ExecAddr(0xfee0_0000))));
        assert_eq!(absolute("x=16"), Ok((String::from("x"), ExecAddr(16))));
        assert_eq!(alias("a=b"), Ok((String::from("a"), String::from("b"))));
        assert_eq!(slab_address("0x10000000"), Ok(ExecAddr(0x1000_0000)));
        for bad in ["0", "1", "0x10000001", "0x800000000000", "0x7fffffffffff000", "x"] {
            assert!(slab_address(bad).is_err(), "{bad}");
        }
        for bad in ["", "x", "=1", "x=", "x=-1", "x=0x", "x=0x1ffffffffffffffff"] {
            assert!(absolute(bad).is_err(), "{bad}");
        }
    }
}
