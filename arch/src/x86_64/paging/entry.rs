//! One page-table entry: what its 64 bits mean at each level (SDM 3A §4.5).

use ::x86_64::structures::paging::PageTableFlags as Flags;
use graft_protocol::Prot;

use super::{Access, Cache, Frame};

/// Bits 12 to 51: the physical address of a table or page.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// A level of the tree: 4 is the root's, 1 holds the entries of 4 KiB pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Level(u32);

impl Level {
    pub(super) const ROOT: Self = Self(4);
    pub(super) const LOWEST: Self = Self(1);
    pub(super) const TWO_MIB: Self = Self(2);
    pub(super) const ONE_GIB: Self = Self(3);

    /// The level of the tables that entries of this level point to.
    pub(super) const fn below(self) -> Self {
        Self(self.0 - 1)
    }

    const fn shift(self) -> u32 {
        3 + 9 * self.0
    }

    /// The bytes of address space one entry stands for.
    pub(super) const fn entry_bytes(self) -> u64 {
        1 << self.shift()
    }

    /// The entry that `address` belongs to, in a table of this level.
    pub(super) const fn index(self, address: u64) -> usize {
        (address >> self.shift()) as usize & 511
    }
}

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing is mapped.
    Absent,
    /// Not present, but a page (or everything below) shall appear as zeroes when touched.
    DemandZero,
    /// A table of the level below.
    Table(Frame),
    /// A page of this level's size.
    Page(Frame),
}

/// A page-table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry(pub(super) u64);

impl Entry {
    pub(super) const ABSENT: Self = Self(0);

    /// Not present, so that the processor ignores all other bits: one of them is the mark.
    pub(super) const DEMAND_ZERO: Self = Self(Flags::BIT_9.bits());

    /// Whether a page is the last stop depends on the level: bit 7 says so in the middle ones.
    pub(super) const fn kind(self, level: Level) -> Kind {
        if self.0 & Flags::PRESENT.bits() == 0 {
            return if self.0 & Self::DEMAND_ZERO.0 == 0 { Kind::Absent } else { Kind::DemandZero };
        }
        let is_page = level.0 == 1 || self.0 & Flags::HUGE_PAGE.bits() != 0;
        let frame = Frame(self.0 & ADDRESS);
        if is_page { Kind::Page(frame) } else { Kind::Table(frame) }
    }

    /// An entry for `table`. It allows everything: the protection is the page's alone.
    pub(super) const fn table(table: Frame) -> Self {
        Self(table.0 | Flags::PRESENT.bits() | Flags::WRITABLE.bits() | Flags::USER_ACCESSIBLE.bits())
    }

    pub(super) const fn page(frame: Frame, level: Level, prot: Prot, cache: Cache) -> Self {
        let huge = if level.0 == 1 { 0 } else { Flags::HUGE_PAGE.bits() };
        let uncached = match cache {
            Cache::WriteBack => 0,
            Cache::Device => Flags::NO_CACHE.bits() | Flags::WRITE_THROUGH.bits(),
        };
        Self(frame.0 | Flags::PRESENT.bits() | huge | uncached).with_prot(prot)
    }

    /// The same page for code in these rings.
    pub(super) const fn for_access(self, access: Access) -> Self {
        match access {
            Access::Supervisor => Self(self.0 & !Flags::USER_ACCESSIBLE.bits()),
            Access::User => Self(self.0 | Flags::USER_ACCESSIBLE.bits()),
        }
    }

    /// The rings that may access a page.
    pub(super) const fn access(self) -> Access {
        if self.0 & Flags::USER_ACCESSIBLE.bits() == 0 { Access::Supervisor } else { Access::User }
    }

    /// The same page with another protection.
    pub(super) const fn with_prot(self, prot: Prot) -> Self {
        let both = Flags::WRITABLE.bits() | Flags::NO_EXECUTE.bits();
        let bits = match prot {
            Prot::Read => Flags::NO_EXECUTE.bits(),
            Prot::ReadWrite => both,
            Prot::ReadExec => 0,
        };
        Self((self.0 & !both) | bits)
    }

    /// The protection of a page. An entry that this module did not make could be writable and executable; it counts as
    /// writable, the one that needs care.
    pub(super) const fn prot(self) -> Prot {
        if self.0 & Flags::WRITABLE.bits() != 0 {
            Prot::ReadWrite
        } else if self.0 & Flags::NO_EXECUTE.bits() != 0 {
            Prot::Read
        } else {
            Prot::ReadExec
        }
    }

    /// What the entry at `index` of the table below says, when this one is replaced by a table that means the same.
    pub(super) const fn split(self, level: Level, index: usize) -> Self {
        match self.kind(level) {
            Kind::Page(frame) => {
                let below = level.below();
                let rest = self.0 & !ADDRESS & !Flags::HUGE_PAGE.bits();
                let huge = if below.0 == 1 { 0 } else { Flags::HUGE_PAGE.bits() };
                // The index is below 512 and entries are at most 1 GiB: the sum stays inside the frame of this page.
                Self((frame.0 + index as u64 * below.entry_bytes()) | rest | huge)
            }
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protections_are_the_three_that_exist() {
        for prot in [Prot::Read, Prot::ReadWrite, Prot::ReadExec] {
            for cache in [Cache::WriteBack, Cache::Device] {
                let entry = Entry::page(Frame(0x20_0000), Level::TWO_MIB, prot, cache);
                assert_eq!(entry.prot(), prot);
                assert_eq!(entry.kind(Level::TWO_MIB), Kind::Page(Frame(0x20_0000)));
                let writable = entry.0 & 2 != 0;
                let executable = entry.0 >> 63 == 0;
                assert!(!(writable && executable));
            }
        }
        let bits = Entry::page(Frame(0x5000), Level::LOWEST, Prot::ReadExec, Cache::WriteBack).0;
        assert_eq!(bits, 0x5001);
    }

    #[test]
    fn a_split_page_means_the_same() {
        let gib = Entry::page(Frame(0x4000_0000), Level::ONE_GIB, Prot::Read, Cache::WriteBack);
        let mib = gib.split(Level::ONE_GIB, 3);
        assert_eq!(mib.kind(Level::TWO_MIB), Kind::Page(Frame(0x4060_0000)));
        let page = mib.split(Level::TWO_MIB, 511);
        assert_eq!(page.kind(Level::LOWEST), Kind::Page(Frame(0x407f_f000)));
        assert_eq!(page.prot(), Prot::Read);
        assert_eq!(page.0 & 0x80, 0, "bit 7 of a 4 KiB entry selects a memory type");
        assert_eq!(Entry::DEMAND_ZERO.split(Level::ROOT, 1), Entry::DEMAND_ZERO);
    }
}
