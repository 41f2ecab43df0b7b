//! Fills segments: pages of one protection, content before zero-fill.

use graft_protocol::{AllocGroup, Lifetime, Prot};

use crate::link::resolve::SectionId;

/// One segment before the base is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentShape {
    /// Protection and lifetime.
    pub group: AllocGroup,
    /// Distance from the base, in bytes, a multiple of the page size.
    pub offset: u64,
    /// Size in bytes, a multiple of the page size.
    pub size: u64,
    /// How many bytes from the start have content; zeroes follow.
    pub content: u64,
}

/// What has content in a segment, in address order.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    pub pieces: Vec<(Piece, u64)>,
}

/// Something with content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Section(SectionId),
    Got,
    Stubs,
    IndirectStubs,
    IndirectSlots,
    Unwind,
    UnwindIndex,
}

/// Whether bytes come with a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    Content(Piece),
    Zero,
}

/// The address space does not reach.
#[derive(Debug)]
pub(super) struct Full;

/// Lays pieces out one behind the other.
#[derive(Debug)]
pub(super) struct Filler {
    page_size: u64,
    prot: Prot,
    /// The end of what is laid out.
    pub offset: u64,
    /// Whether the last segment still grows.
    open: bool,
    pub shapes: Vec<SegmentShape>,
    pub chunks: Vec<Chunk>,
    pub align: u64,
}

impl Filler {
    pub(super) fn new(page_size: u64) -> Self {
        Self {
            page_size,
            prot: Prot::Read,
            offset: 0,
            open: false,
            shapes: Vec::new(),
            chunks: Vec::new(),
            align: page_size,
        }
    }

    /// What follows has protection `prot`, on pages of its own.
    pub(super) fn start(&mut self, prot: Prot) -> Result<(), Full> {
        self.close()?;
        self.prot = prot;
        Ok(())
    }

    /// Lays out `size` bytes at a multiple of `align`, a power of two; their offset from the base.
    pub(super) fn put(&mut self, size: u64, align: u64, fill: Fill) -> Result<u64, Full> {
        let start = align_up(self.offset, align)?;
        let end = start.checked_add(size).ok_or(Full)?;
        if size == 0 {
            return Ok(start);
        }
        self.align = self.align.max(align);
        // Padding of a page or more is left out of the segment rather than shipped. It comes of an alignment larger than
        // that, so what follows starts on a page.
        if self.open && matches!(fill, Fill::Content(_)) && start - self.offset >= self.page_size {
            self.close()?;
        }
        if !self.open {
            let group = AllocGroup { prot: self.prot, lifetime: Lifetime::Standard };
            let offset = start & !(self.page_size - 1);
            self.shapes.push(SegmentShape { group, offset, size: 0, content: 0 });
            self.chunks.push(Chunk::default());
            self.open = true;
        }
        if let (Some(shape), Some(chunk)) = (self.shapes.last_mut(), self.chunks.last_mut()) {
            shape.size = end - shape.offset;
            if let Fill::Content(piece) = fill {
                shape.content = end - shape.offset;
                chunk.pieces.push((piece, start));
            }
        }
        self.offset = end;
        Ok(start)
    }

    /// Ends the segment at the end of its last page.
    pub(super) fn close(&mut self) -> Result<(), Full> {
        self.offset = align_up(self.offset, self.page_size)?;
        if let (true, Some(shape)) = (self.open, self.shapes.last_mut()) {
            shape.size = self.offset - shape.offset;
        }
        self.open = false;
        Ok(())
    }
}

fn align_up(offset: u64, align: u64) -> Result<u64, Full> {
    offset.checked_next_multiple_of(align).ok_or(Full)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Fill = Fill::Content(Piece::Got);

    #[test]
    fn content_comes_first_and_segments_end_on_pages() {
        let mut filler = Filler::new(4096);
        filler.start(Prot::Read).unwrap();
        assert_eq!(filler.put(10, 1, ANY).unwrap(), 0);
        assert_eq!(filler.put(8, 16, ANY).unwrap(), 16);
        assert_eq!(filler.put(5000, 8, Fill::Zero).unwrap(), 24);
        filler.start(Prot::ReadWrite).unwrap();
        assert_eq!(filler.put(1, 1, Fill::Zero).unwrap(), 8192);
        filler.close().unwrap();
        let shapes: Vec<_> = filler.shapes.iter().map(|shape| (shape.offset, shape.size, shape.content)).collect();
        assert_eq!(shapes, [(0, 8192, 24), (8192, 4096, 0)]);
    }

    #[test]
    fn padding_of_pages_is_not_content() {
        let mut filler = Filler::new(4096);
        filler.start(Prot::ReadWrite).unwrap();
        filler.put(1, 1, ANY).unwrap();
        assert_eq!(filler.put(1, 2 << 20, ANY).unwrap(), 2 << 20);
        filler.close().unwrap();
        let content: u64 = filler.shapes.iter().map(|shape| shape.content).sum();
        assert_eq!((content, filler.align), (2, 2 << 20));
        assert_eq!(filler.shapes[1].offset, 2 << 20);
    }

    #[test]
    fn the_end_of_the_address_space_is_an_error() {
        let mut filler = Filler::new(4096);
        filler.put(u64::MAX - 10, 1, Fill::Zero).unwrap();
        assert!(filler.close().is_err());
        assert!(filler.put(20, 1, Fill::Zero).is_err());
    }

    #[test]
    fn empty_pieces_open_no_segment() {
        let mut filler = Filler::new(4096);
        filler.put(0, 16, ANY).unwrap();
        filler.close().unwrap();
        assert!(filler.shapes.is_empty());
    }
}
