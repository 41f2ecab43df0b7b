//! Memory protections: the three that exist, and the bit set the wire uses for them.
//!
//! There is no writable-and-executable protection, and none without any access: the wire can spell both
//! (`RemoteAllocGroup`), [`AllocGroup::from_bits`] refuses them.

use core::fmt;

/// What loaded code may do with a page. A page that can be written can never be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Prot {
    /// Read only, never executed.
    Read,
    /// Read and write, never executed.
    ReadWrite,
    /// Read and execute, never written.
    ReadExec,
}

impl Prot {
    const READ: u8 = 1;
    const WRITE: u8 = 2;
    const EXEC: u8 = 4;

    /// The protection bits of LLVM's `RemoteAllocGroup`: 1 read, 2 write, 4 execute.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Read => Self::READ,
            Self::ReadWrite => Self::READ | Self::WRITE,
            Self::ReadExec => Self::READ | Self::EXEC,
        }
    }

    /// Whether the page can be written.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        matches!(self, Self::ReadWrite)
    }

    /// Whether the page can be executed.
    #[must_use]
    pub const fn is_executable(self) -> bool {
        matches!(self, Self::ReadExec)
    }
}

impl fmt::Display for Prot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "R--",
            Self::ReadWrite => "RW-",
            Self::ReadExec => "R-X",
        })
    }
}

/// How long a segment is needed (LLVM's `MemLifetime`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lifetime {
    /// Until its region is deinitialized or its reservation released.
    #[default]
    Standard,
    /// Only until the finalize actions of its request have run.
    Finalize,
}

/// A segment's protection and lifetime (LLVM's `RemoteAllocGroup`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocGroup {
    /// What the segment's pages allow.
    pub prot: Prot,
    /// How long the segment is needed.
    pub lifetime: Lifetime,
}

/// Why a `RemoteAllocGroup` byte is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocGroupError {
    /// Bits beyond the four defined ones are set.
    UndefinedBits(u8),
    /// Both write and execute are asked for.
    WriteAndExecute(u8),
    /// The segment could not be read: no access at all, or write or execute without read.
    NotReadable(u8),
}

impl fmt::Display for AllocGroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UndefinedBits(bits) => write!(f, "allocation group {bits:#04x} has undefined bits (defined: 0x0f)"),
            Self::WriteAndExecute(bits) => {
                write!(f, "allocation group {bits:#04x} is writable and executable; use two segments")
            }
            Self::NotReadable(bits) => write!(f, "allocation group {bits:#04x} is not readable"),
        }
    }
}

impl core::error::Error for AllocGroupError {}

impl AllocGroup {
    const FINALIZE: u8 = 8;

    /// The group's byte on the wire: 1 read, 2 write, 4 execute, 8 finalize lifetime.
    #[must_use]
    pub const fn bits(self) -> u8 {
        let lifetime = match self.lifetime {
            Lifetime::Standard => 0,
            Lifetime::Finalize => Self::FINALIZE,
        };
        self.prot.bits() | lifetime
    }

    /// The group that `bits` stands for.
    ///
    /// # Errors
    /// Undefined bits, write together with execute, or a segment that cannot be read.
    pub const fn from_bits(bits: u8) -> Result<Self, AllocGroupError> {
        if bits & 0xf0 != 0 {
            return Err(AllocGroupError::UndefinedBits(bits));
        }
        let prot = match bits & 7 {
            1 => Prot::Read,
            3 => Prot::ReadWrite,
            5 => Prot::ReadExec,
            6 | 7 => return Err(AllocGroupError::WriteAndExecute(bits)),
            _ => return Err(AllocGroupError::NotReadable(bits)),
        };
        let lifetime = if bits & Self::FINALIZE == 0 { Lifetime::Standard } else { Lifetime::Finalize };
        Ok(Self { prot, lifetime })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_a_group_or_a_named_error() {
        for bits in 0..=u8::MAX {
            match AllocGroup::from_bits(bits) {
                Ok(group) => assert_eq!(group.bits(), bits),
                Err(AllocGroupError::UndefinedBits(b)) => assert!(b > 0x0f),
                Err(AllocGroupError::WriteAndExecute(b)) => assert_eq!(b & 6, 6),
                Err(AllocGroupError::NotReadable(b)) => assert_eq!(b & 1, 0),
            }
        }
    }
}
