//! What the loader tells: the memory map, the command line, where ACPI is. Copied out of the loader's structures, which
//! lie in memory that becomes ours.
//!
//! Two loaders are understood: PVH (`hvm_start_info`, Xen's public `arch-x86/hvm/start_info.h`), as QEMU's `-kernel`
//! does, and multiboot2 (its specification, section 3.6), as GRUB does. Both are read through [`PhysicalMemory`].

use core::fmt;

/// More entries than any firmware's map was seen to have.
const MOST_REGIONS: usize = 128;
const LONGEST_CMDLINE: usize = 1024;

const PVH_MAGIC: u32 = 0x336e_c578;
/// Firmware map type 1, in both protocols: memory that is free to use (ACPI §15.2).
const USABLE: u32 = 1;

/// How to read the physical memory that the loader's structures are in.
pub trait PhysicalMemory {
    /// Fills `out` from the address `at`; `false` when that memory cannot be read.
    fn read(&self, at: u64, out: &mut [u8]) -> bool;
}

/// One entry of the memory map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryRegion {
    /// Its first physical address.
    pub start: u64,
    /// The physical address behind its last byte.
    pub end: u64,
    /// Whether it is memory free to use. Anything else may be firmware, ACPI tables or devices.
    pub usable: bool,
}

/// Why nothing could be learnt from the loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootInfoError {
    /// The loader followed neither protocol.
    UnknownLoader,
    /// PVH's structure starts with another number.
    BadMagic(u32),
    /// A structure of the loader lies where no memory can be read.
    Unreadable(u64),
    /// The loader gave no memory map.
    NoMemoryMap,
    /// The memory map has more entries than are kept.
    TooManyRegions,
}

impl fmt::Display for BootInfoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownLoader => f.write_str("the loader is neither PVH nor multiboot2"),
            Self::BadMagic(magic) => write!(f, "the PVH start info has the magic number {magic:#x}"),
            Self::Unreadable(at) => write!(f, "the loader's data at {at:#x} cannot be read"),
            Self::NoMemoryMap => f.write_str("the loader gave no memory map"),
            Self::TooManyRegions => write!(f, "the memory map has more than {MOST_REGIONS} entries"),
        }
    }
}

impl core::error::Error for BootInfoError {}

/// How the image was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loader {
    /// At the PVH entry.
    Pvh,
    /// At the ELF entry, with multiboot2's number in EAX.
    Multiboot2,
}

/// A copy of what the loader told.
#[derive(Clone, Debug)]
pub struct BootInfo {
    regions: [MemoryRegion; MOST_REGIONS],
    region_count: usize,
    cmdline: [u8; LONGEST_CMDLINE],
    cmdline_len: usize,
}

impl BootInfo {
    /// Reads the structures of `loader` at the physical address `at`.
    ///
    /// # Errors
    /// When they are not what they should be.
    pub fn read(memory: &impl PhysicalMemory, loader: Loader, at: u64) -> Result<Self, BootInfoError> {
        let mut info = Self {
            regions: [MemoryRegion::default(); MOST_REGIONS],
            region_count: 0,
            cmdline: [0; LONGEST_CMDLINE],
            cmdline_len: 0,
        };
        match loader {
            Loader::Pvh => info.read_pvh(&Reader(memory), at)?,
            Loader::Multiboot2 => info.read_multiboot2(&Reader(memory), at)?,
        }
        if info.region_count == 0 { Err(BootInfoError::NoMemoryMap) } else { Ok(info) }
    }

    /// The memory map, as the firmware made it: unsorted, perhaps overlapping.
    #[must_use]
    pub fn regions(&self) -> &[MemoryRegion] {
        self.regions.get(..self.region_count).unwrap_or_default()
    }

    /// The words of the kernel command line.
    fn words(&self) -> impl Iterator<Item = &[u8]> {
        let cmdline = self.cmdline.get(..self.cmdline_len).unwrap_or_default();
        cmdline.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty())
    }

    /// Whether `word` is on the kernel command line.
    #[must_use]
    pub fn has_word(&self, word: &str) -> bool {
        self.words().any(|found| found == word.as_bytes())
    }

    fn add_region(&mut self, start: u64, len: u64, kind: u32) -> Result<(), BootInfoError> {
        // qboot pads its map with empty entries.
        if len == 0 {
            return Ok(());
        }
        let slot = self.regions.get_mut(self.region_count).ok_or(BootInfoError::TooManyRegions)?;
        *slot = MemoryRegion { start, end: start.saturating_add(len), usable: kind == USABLE };
        self.region_count += 1;
        Ok(())
    }

    fn read_pvh(&mut self, memory: &Reader<'_, impl PhysicalMemory>, at: u64) -> Result<(), BootInfoError> {
        let magic = memory.u32(at)?;
        if magic != PVH_MAGIC {
            return Err(BootInfoError::BadMagic(magic));
        }
        let cmdline = memory.u64(at.wrapping_add(24))?;
        if cmdline != 0 {
            self.read_cmdline(memory, cmdline, LONGEST_CMDLINE)?;
        }
        let map = memory.u64(at.wrapping_add(40))?;
        let entries = memory.u32(at.wrapping_add(48))?;
        for number in 0..u64::from(entries) {
            let entry = map.wrapping_add(number * 24);
            let (start, len) = (memory.u64(entry)?, memory.u64(entry.wrapping_add(8))?);
            self.add_region(start, len, memory.u32(entry.wrapping_add(16))?)?;
        }
        Ok(())
    }

    fn read_multiboot2(&mut self, memory: &Reader<'_, impl PhysicalMemory>, at: u64) -> Result<(), BootInfoError> {
        let end = at.saturating_add(memory.u32(at)?.into());
        let mut tag = at.wrapping_add(8);
        while tag < end {
            let (kind, size) = (memory.u32(tag)?, memory.u32(tag.wrapping_add(4))?);
            let next = tag.saturating_add(size.max(8).into());
            match kind {
                0 => break,
                1 => self.read_cmdline(memory, tag.wrapping_add(8), size.saturating_sub(8) as usize)?,
                6 => self.read_multiboot2_map(memory, tag, next)?,
                _ => {}
            }
            tag = next.saturating_add(7) & !7;
        }
        Ok(())
    }

    fn read_multiboot2_map(
        &mut self,
        memory: &Reader<'_, impl PhysicalMemory>,
        tag: u64,
        end: u64,
    ) -> Result<(), BootInfoError> {
        // Entries may grow; their first 20 bytes stay.
        let entry_size = u64::from(memory.u32(tag.wrapping_add(8))?.max(20));
        let mut entry = tag.wrapping_add(16);
        while entry.saturating_add(entry_size) <= end {
            let (start, len) = (memory.u64(entry)?, memory.u64(entry.wrapping_add(8))?);
            self.add_region(start, len, memory.u32(entry.wrapping_add(16))?)?;
            entry = entry.saturating_add(entry_size);
        }
        Ok(())
    }

    /// Copies the string at `at`: up to its NUL, to `limit` bytes, or to what fits. A longer line loses its end.
    fn read_cmdline(
        &mut self,
        memory: &Reader<'_, impl PhysicalMemory>,
        at: u64,
        limit: usize,
    ) -> Result<(), BootInfoError> {
        self.cmdline_len = 0;
        for (offset, slot) in (0..).zip(self.cmdline.iter_mut()).take(limit) {
            let [byte] = memory.bytes(at.wrapping_add(offset))?;
            if byte == 0 {
                break;
            }
            *slot = byte;
            self.cmdline_len += 1;
        }
        Ok(())
    }
}

struct Reader<'a, M>(&'a M);

impl<M: PhysicalMemory> Reader<'_, M> {
    fn bytes<const N: usize>(&self, at: u64) -> Result<[u8; N], BootInfoError> {
        let mut bytes = [0; N];
        if self.0.read(at, &mut bytes) { Ok(bytes) } else { Err(BootInfoError::Unreadable(at)) }
    }

    fn u32(&self, at: u64) -> Result<u32, BootInfoError> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: u64) -> Result<u64, BootInfoError> {
        self.bytes(at).map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    /// Memory that starts at address 0x1000.
    struct Low(Vec<u8>);

    impl PhysicalMemory for Low {
        fn read(&self, at: u64, out: &mut [u8]) -> bool {
            let Some(start) = at.checked_sub(0x1000) else { return false };
            let Some(source) = self.0.get(start as usize..start as usize + out.len()) else { return false };
            out.copy_from_slice(source);
            true
        }
    }

    fn pvh(entries: u32) -> Low {
        let mut bytes = Vec::new();
        bytes.extend(PVH_MAGIC.to_le_bytes());
        bytes.resize(24, 0);
        bytes.extend(0x1100u64.to_le_bytes());
        bytes.resize(40, 0);
        bytes.extend(0x1200u64.to_le_bytes());
        bytes.extend(entries.to_le_bytes());
        bytes.resize(0x100, 0);
        bytes.extend(b" selftest  poison\0junk");
        bytes.resize(0x200, 0);
        for (start, len, kind) in
            [(0u64, 0x9_fc00u64, 1u64), (0x10_0000, 0x7f0_0000, 1), (0xfeff_c000, 0x4000, 2), (0, 0, 0)]
        {
            bytes.extend(start.to_le_bytes());
            bytes.extend(len.to_le_bytes());
            bytes.extend(kind.to_le_bytes());
        }
        Low(bytes)
    }

    #[test]
    fn pvh_start_info_is_copied() {
        let info = BootInfo::read(&pvh(4), Loader::Pvh, 0x1000).unwrap();
        assert_eq!(info.words().collect::<Vec<_>>(), [&b"selftest"[..], b"poison"]);
        assert!(info.has_word("poison") && !info.has_word("poi"));
        let regions = info.regions();
        assert_eq!(regions.len(), 3, "the empty entry is none");
        assert_eq!(regions[1], MemoryRegion { start: 0x10_0000, end: 0x800_0000, usable: true });
        assert!(!regions[2].usable);
    }

    #[test]
    fn bad_pvh_data_is_named() {
        let read = |memory, at| BootInfo::read(&memory, Loader::Pvh, at).unwrap_err();
        assert_eq!(read(pvh(0), 0x1000), BootInfoError::NoMemoryMap);
        assert_eq!(read(pvh(0), 0x1004), BootInfoError::BadMagic(0));
        assert_eq!(read(pvh(5), 0x1000), BootInfoError::Unreadable(0x1260));
        assert_eq!(read(pvh(0), 0), BootInfoError::Unreadable(0));
    }

    fn multiboot2(tags: &[(u32, &[u8])]) -> Low {
        let mut bytes = [0u8; 8].to_vec();
        for (kind, body) in tags {
            bytes.extend(kind.to_le_bytes());
            bytes.extend((body.len() as u32 + 8).to_le_bytes());
            bytes.extend(*body);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        let total = bytes.len() as u32;
        bytes[..4].copy_from_slice(&total.to_le_bytes());
        Low(bytes)
    }

    #[test]
    fn multiboot2_tags_are_copied() {
        let mut map = Vec::new();
        map.extend(24u32.to_le_bytes());
        map.extend(0u32.to_le_bytes());
        for (start, kind) in [(0x10_0000u64, 1u64), (0x800_0000, 3)] {
            map.extend(start.to_le_bytes());
            map.extend(0x1000u64.to_le_bytes());
            map.extend(kind.to_le_bytes());
        }
        let memory = multiboot2(&[(99, b"whatever"), (1, b"poison\0"), (6, &map), (0, b""), (1, b"late\0")]);
        let info = BootInfo::read(&memory, Loader::Multiboot2, 0x1000).unwrap();
        assert!(info.has_word("poison") && !info.has_word("late"));
        let usable: Vec<bool> = info.regions().iter().map(|region| region.usable).collect();
        assert_eq!(usable, [true, false]);
        let empty = multiboot2(&[(1, b"x\0")]);
        let error = BootInfo::read(&empty, Loader::Multiboot2, 0x1000).unwrap_err();
        assert_eq!(error, BootInfoError::NoMemoryMap);
    }

    #[test]
    fn a_multiboot2_tag_of_no_size_does_not_stop_the_walk() {
        let mut memory = multiboot2(&[(7, b""), (7, b"")]);
        memory.0[12..16].copy_from_slice(&0u32.to_le_bytes());
        assert_eq!(BootInfo::read(&memory, Loader::Multiboot2, 0x1000).unwrap_err(), BootInfoError::NoMemoryMap);
    }
}
