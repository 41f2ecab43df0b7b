//! What an executor said of itself, and which dialect follows from that.

use std::collections::HashMap;

use graft_protocol::{Dialects, ExecAddr, Instance, Name, Setup, WrapperId, decode, map_key};
use thiserror::Error;

use crate::link::printable;

/// The name by which LLVM 23's executors are told from LLVM 22's.
const LOOKUP_OF_LLVM23: &str = "orc_rt_ci_sps_NativeDylibManager_lookup";

/// Why a Setup cannot be worked with.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PeerError {
    /// No layout can be computed for such pages.
    #[error("the executor announces a page size of {0} bytes, which is not a power of two of at least 16")]
    PageSize(u64),
    /// It runs no x86-64 code.
    #[error("the executor is `{0}`; programs are linked for x86_64")]
    Architecture(String),
}

/// An executor: what it is, and what it offers.
#[derive(Clone, Debug)]
pub struct Peer {
    triple: String,
    page_size: u64,
    symbols: HashMap<Vec<u8>, ExecAddr>,
    map: HashMap<Vec<u8>, Vec<u8>>,
    dialects: Dialects,
    published: Dialects,
}

impl Peer {
    pub(crate) fn new(setup: &Setup<'_>) -> Result<Self, PeerError> {
        if !setup.page_size.is_power_of_two() || setup.page_size < 16 {
            return Err(PeerError::PageSize(setup.page_size));
        }
        let triple = setup.triple.to_string();
        let architecture = triple.split('-').next().unwrap_or("");
        if !matches!(architecture, "x86_64" | "") {
            return Err(PeerError::Architecture(printable(setup.triple.0)));
        }
        Ok(Self {
            triple,
            page_size: setup.page_size,
            symbols: setup.symbols.iter().map(|(name, addr)| (name.0.to_vec(), addr)).collect(),
            map: setup.map.iter().map(|(key, blob)| (key.0.to_vec(), blob.0.to_vec())).collect(),
            dialects: dialects_of(|name| setup.symbol(name).is_some()),
            published: published(|name| setup.symbol(name).is_some()),
        })
    }

    /// The target triple.
    #[must_use]
    pub fn triple(&self) -> &str {
        &self.triple
    }

    /// The page size in bytes, a power of two.
    #[must_use]
    pub const fn page_size(&self) -> u64 {
        self.page_size
    }

    /// The generations it is spoken to in, the newest of LLVM's first. Where a name means different things to two of
    /// them, only one is here.
    #[must_use]
    pub const fn dialects(&self) -> Dialects {
        self.dialects
    }

    /// The generations whose clients find their names here.
    #[must_use]
    pub const fn published(&self) -> Dialects {
        self.published
    }

    /// Where the wrapper function is, in a dialect the executor speaks.
    #[must_use]
    pub fn wrapper(&self, id: WrapperId) -> Option<ExecAddr> {
        self.first(id.names())
    }

    /// Where the instance is.
    #[must_use]
    pub fn instance(&self, instance: Instance) -> Option<ExecAddr> {
        self.first(instance.names())
    }

    /// The names published, with their addresses, in order of names.
    #[must_use]
    pub fn symbols(&self) -> Vec<(String, ExecAddr)> {
        let mut all: Vec<_> =
            self.symbols.iter().map(|(name, addr)| (String::from_utf8_lossy(name).into_owned(), *addr)).collect();
        all.sort();
        all
    }

    /// The largest message it takes, header included, in bytes; `u64::MAX` when it does not say.
    #[must_use]
    pub fn max_message(&self) -> u64 {
        self.map.get(map_key::MAX_MESSAGE.as_bytes()).and_then(|blob| decode::<u64>(blob).ok()).unwrap_or(u64::MAX)
    }

    /// The handle of the executor itself as a library, when it says so without being asked.
    #[must_use]
    pub fn library(&self) -> Option<ExecAddr> {
        self.map.get(map_key::LIBRARY.as_bytes()).and_then(|blob| decode(blob).ok())
    }

    fn first(&self, names: &[Name]) -> Option<ExecAddr> {
        names
            .iter()
            .filter(|name| name.dialects.intersects(self.dialects))
            .find_map(|name| self.symbols.get(name.name.as_bytes()).copied())
    }
}

/// The dialects that have all the names without which their clients do not run a program.
fn published(has: impl Fn(&str) -> bool) -> Dialects {
    let all = |ids: &[WrapperId], dialect: Dialects| {
        ids.iter().all(|id| id.names().iter().any(|name| name.dialects.intersects(dialect) && has(name.name)))
    };
    let memory = [WrapperId::Initialize, WrapperId::Deinitialize, WrapperId::Release];
    let mut dialects = Dialects::empty();
    if all(&[WrapperId::Finalize, WrapperId::Deallocate, WrapperId::Lookup], Dialects::LLVM19) {
        dialects |= Dialects::LLVM19;
    }
    if all(&memory, Dialects::LLVM22) && all(&[WrapperId::Resolve22], Dialects::LLVM22) {
        dialects |= Dialects::LLVM22;
    }
    if all(&memory, Dialects::LLVM23) && has(LOOKUP_OF_LLVM23) {
        dialects |= Dialects::LLVM23;
    }
    if all(&[WrapperId::CallMain], Dialects::GRAFT) {
        dialects |= Dialects::GRAFT;
    }
    dialects
}

/// The dialects that follow from what is `published`.
///
/// LLVM 22 and 23 share nearly all names, and one of them (`resolve`) means different calls: whoever publishes LLVM 23's
/// own lookup name means LLVM 23's form of it. The memory manager's names alone say nothing about that.
fn dialects_of(published: impl Fn(&str) -> bool) -> Dialects {
    let own = |id: WrapperId, dialect: Dialects| {
        id.names().iter().any(|name| name.dialects == dialect && published(name.name))
    };
    let mut dialects = Dialects::empty();
    if own(WrapperId::Finalize, Dialects::LLVM19) {
        dialects |= Dialects::LLVM19;
    }
    if published(LOOKUP_OF_LLVM23) {
        dialects |= Dialects::LLVM23;
    } else if own(WrapperId::Initialize, Dialects::LLVM22.union(Dialects::LLVM23)) {
        dialects |= Dialects::LLVM22;
    }
    if own(WrapperId::CallMain, Dialects::GRAFT) {
        dialects |= Dialects::GRAFT;
    }
    dialects
}

#[cfg(test)]
mod tests {
    use graft_protocol::{Seq, Text};

    use super::*;

    fn peer(names: &[&str]) -> Peer {
        let symbols: Vec<_> =
            names.iter().enumerate().map(|(index, name)| (Text::new(name), ExecAddr(0x1000 + index as u64))).collect();
        let setup = Setup { page_size: 4096, symbols: Seq::new(&symbols), ..Setup::default() };
        Peer::new(&setup).unwrap()
    }

    const FINALIZE: &str = "__llvm_orc_SimpleExecutorMemoryManager_finalize_wrapper";
    const INITIALIZE: &str = "__llvm_orc_SimpleExecutorMemoryManager_initialize_wrapper";
    const LOOKUP: &str = "__llvm_orc_SimpleExecutorDylibManager_lookup_wrapper";
    const RESOLVE: &str = "__llvm_orc_SimpleExecutorDylibManager_resolve_wrapper";
    const LOOKUP23: &str = "orc_rt_ci_sps_NativeDylibManager_lookup";

    #[test]
    fn dialects_follow_from_names() {
        let llvm19 = peer(&[FINALIZE, LOOKUP]);
        assert_eq!(llvm19.dialects(), Dialects::LLVM19);
        assert!(llvm19.wrapper(WrapperId::Lookup).is_some() && llvm19.wrapper(WrapperId::Resolve22).is_none());

        let llvm22 = peer(&[INITIALIZE, RESOLVE]);
        assert_eq!(llvm22.dialects(), Dialects::LLVM22);
        assert_eq!(llvm22.wrapper(WrapperId::Resolve22), Some(ExecAddr(0x1001)));
        assert_eq!(llvm22.wrapper(WrapperId::Resolve), None);

        let llvm23 = peer(&[INITIALIZE, RESOLVE, LOOKUP23]);
        assert_eq!(llvm23.dialects(), Dialects::LLVM23);
        assert_eq!(llvm23.wrapper(WrapperId::Resolve), Some(ExecAddr(0x1001)));
        assert_eq!(llvm23.wrapper(WrapperId::Resolve22), None);

        let ours = peer(&[FINALIZE, LOOKUP, INITIALIZE, RESOLVE, LOOKUP23, "graft_call_main_wrapper"]);
        assert_eq!(ours.dialects(), Dialects::LLVM19 | Dialects::LLVM23 | Dialects::GRAFT);
        assert_eq!(ours.published(), Dialects::GRAFT);
        assert!(ours.wrapper(WrapperId::Resolve).is_some() && ours.wrapper(WrapperId::CallMain).is_some());
    }

    #[test]
    fn what_is_published_may_be_more_than_what_is_spoken() {
        let manager = |function: &str| format!("__llvm_orc_SimpleExecutorMemoryManager_{function}_wrapper");
        let memory: Vec<_> =
            ["finalize", "deallocate", "initialize", "deinitialize", "release"].into_iter().map(manager).collect();
        let mut names: Vec<_> = memory.iter().map(String::as_str).collect();
        names.extend([LOOKUP, RESOLVE, LOOKUP23, "graft_call_main_wrapper"]);
        let ours = peer(&names);
        assert_eq!(ours.published(), Dialects::LLVM | Dialects::GRAFT);
        assert_eq!(ours.dialects(), Dialects::LLVM19 | Dialects::LLVM23 | Dialects::GRAFT);
        assert_eq!(peer(&names[2..7]).published(), Dialects::LLVM22);
    }

    #[test]
    fn bad_page_sizes_are_refused() {
        for page_size in [0, 8, 4095, 12288] {
            let setup = Setup { page_size, ..Setup::default() };
            assert_eq!(Peer::new(&setup).unwrap_err(), PeerError::PageSize(page_size));
        }
    }
}
