//! Addresses of the executor, as numbers the controller can reason about.
//!
//! An [`ExecAddr`] is not a pointer: on the controller nothing lives there, and on the executor it is a claim of the
//! peer until a check turned it into something usable. All arithmetic is checked.

use core::fmt;

/// An address in the executor's virtual address space.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ExecAddr(pub u64);

impl ExecAddr {
    /// The null address: "none" wherever the protocol allows an address to be absent.
    pub const NULL: Self = Self(0);

    /// Whether this is the null address.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The address `bytes` further on, or `None` past the end of the address space.
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The distance in bytes from `start` to here, or `None` when `start` lies behind.
    #[must_use]
    pub const fn checked_offset_from(self, start: Self) -> Option<u64> {
        self.0.checked_sub(start.0)
    }

    /// Whether the address is a multiple of `align`, a power of two.
    #[must_use]
    pub const fn is_aligned(self, align: u64) -> bool {
        self.0 & (align.wrapping_sub(1)) == 0
    }

    /// The next multiple of `align` (a power of two) at or above, or `None` past the end of the address space.
    #[must_use]
    pub const fn align_up(self, align: u64) -> Option<Self> {
        let mask = align.wrapping_sub(1);
        match self.0.checked_add(mask) {
            Some(sum) => Some(Self(sum & !mask)),
            None => None,
        }
    }

    /// The multiple of `align` (a power of two) at or below.
    #[must_use]
    pub const fn align_down(self, align: u64) -> Self {
        Self(self.0 & !align.wrapping_sub(1))
    }
}

impl fmt::Debug for ExecAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for ExecAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A half-open range `[start, end)` of executor addresses; `start <= end` always holds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ExecRange {
    start: ExecAddr,
    end: ExecAddr,
}

impl ExecRange {
    /// The range from `start` up to and not including `end`, or `None` when it would run backwards.
    #[must_use]
    pub const fn new(start: ExecAddr, end: ExecAddr) -> Option<Self> {
        if start.0 <= end.0 { Some(Self { start, end }) } else { None }
    }

    /// The range of `len` bytes at `start`, or `None` past the end of the address space.
    #[must_use]
    pub const fn from_len(start: ExecAddr, len: u64) -> Option<Self> {
        match start.checked_add(len) {
            Some(end) => Some(Self { start, end }),
            None => None,
        }
    }

    /// The first address.
    #[must_use]
    pub const fn start(self) -> ExecAddr {
        self.start
    }

    /// The address behind the last one.
    #[must_use]
    pub const fn end(self) -> ExecAddr {
        self.end
    }

    /// The length in bytes.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Whether the range holds no byte.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.start.0 == self.end.0
    }

    /// Whether `addr` lies inside.
    #[must_use]
    pub const fn contains(self, addr: ExecAddr) -> bool {
        self.start.0 <= addr.0 && addr.0 < self.end.0
    }

    /// Whether every byte of `other` lies inside; an empty range lies inside when its address does not leave the range.
    #[must_use]
    pub const fn encloses(self, other: Self) -> bool {
        self.start.0 <= other.start.0 && other.end.0 <= self.end.0
    }

    /// Whether the two share a byte.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start.0 < other.end.0 && other.start.0 < self.end.0
    }

    /// The smallest range of whole pages around this one, or `None` past the end of the address space.
    ///
    /// `page_size` is in bytes, a power of two.
    #[must_use]
    pub const fn to_pages(self, page_size: u64) -> Option<Self> {
        match self.end.align_up(page_size) {
            Some(end) => Some(Self { start: self.start.align_down(page_size), end }),
            None => None,
        }
    }
}

impl fmt::Debug for ExecRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

impl fmt::Display for ExecRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_stops_at_the_end_of_the_address_space() {
        let top = ExecAddr(u64::MAX);
        assert_eq!(top.checked_add(1), None);
        assert_eq!(top.align_up(4096), None);
        assert_eq!(top.align_down(4096), ExecAddr(0xffff_ffff_ffff_f000));
        assert_eq!(ExecRange::from_len(top, 2), None);
        assert_eq!(ExecRange::new(ExecAddr(2), ExecAddr(1)), None);
        assert_eq!(ExecAddr(1).checked_offset_from(ExecAddr(2)), None);
    }

    #[test]
    fn ranges_are_half_open() {
        let a = ExecRange::from_len(ExecAddr(0x1000), 0x1000).unwrap();
        let b = ExecRange::from_len(ExecAddr(0x2000), 0x1000).unwrap();
        assert!(!a.overlaps(b));
        assert!(a.contains(ExecAddr(0x1fff)) && !a.contains(ExecAddr(0x2000)));
        let odd = ExecRange::from_len(ExecAddr(0x1001), 0x1000).unwrap();
        assert!(odd.overlaps(b) && !a.encloses(odd));
        assert_eq!(odd.to_pages(4096), ExecRange::new(ExecAddr(0x1000), ExecAddr(0x3000)));
    }
}
