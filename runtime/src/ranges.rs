//! An ordered map of disjoint address ranges, each with a value: free space, reservations, blocks of a heap.
//!
//! A treap in one vector: expected logarithmic time for every operation, among them the search for the lowest range of at
//! least some length (each node knows the longest range below it). Not the standard B-tree, whose insertion cannot report
//! that memory ran out: here only [`RangeMap::reserve`] allocates, and it can fail.

use alloc::vec::Vec;

use graft_protocol::{ExecAddr, ExecRange};

/// The executor has no memory left for its own records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRecords;

impl core::fmt::Display for NoRecords {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("out of memory: the executor has none left for its own records")
    }
}

const NIL: u32 = u32::MAX;

#[derive(Debug)]
struct Node<V> {
    range: ExecRange,
    /// The longest range of this subtree, in bytes.
    longest: u64,
    priority: u32,
    left: u32,
    /// The right child; of a vacant node the next vacant one.
    right: u32,
    /// `None` in a vacant node.
    value: Option<V>,
}

/// Disjoint ranges in address order.
#[derive(Debug)]
pub(crate) struct RangeMap<V> {
    nodes: Vec<Node<V>>,
    root: u32,
    vacant: u32,
    len: usize,
    seed: u32,
}

impl<V> RangeMap<V> {
    pub(crate) const fn new() -> Self {
        Self { nodes: Vec::new(), root: NIL, vacant: NIL, len: 0, seed: 0x9e37_79b9 }
    }

    /// The number of ranges.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Makes sure that `insert` succeeds until there are `total` ranges.
    pub(crate) fn reserve(&mut self, total: usize) -> Result<(), NoRecords> {
        let more = total.saturating_sub(self.nodes.len());
        self.nodes.try_reserve(more).map_err(|_| NoRecords)
    }

    /// Adds a range that overlaps none of the others; gives the value back when there is no memory for the record.
    pub(crate) fn insert(&mut self, range: ExecRange, value: V) -> Result<(), V> {
        // xorshift (Marsaglia 2003): the priorities need only be unrelated to the addresses.
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 17;
        self.seed ^= self.seed << 5;
        let node = Node { range, longest: range.len(), priority: self.seed, left: NIL, right: NIL, value: Some(value) };
        let index = self.vacant;
        let index = if let Some(slot) = self.nodes.get_mut(index as usize) {
            self.vacant = slot.right;
            *slot = node;
            index
        } else {
            let Some(index) = u32::try_from(self.nodes.len()).ok().filter(|index| *index != NIL) else {
                return node.value.map_or(Ok(()), Err);
            };
            if self.nodes.try_reserve(1).is_err() {
                return node.value.map_or(Ok(()), Err);
            }
            self.nodes.push(node);
            index
        };
        let (below, above) = self.split(self.root, range.start());
        let below = self.merge(below, index);
        self.root = self.merge(below, above);
        self.len += 1;
        Ok(())
    }

    /// Takes out the range that begins at `start`.
    pub(crate) fn remove(&mut self, start: ExecAddr) -> Option<(ExecRange, V)> {
        let (below, rest) = self.split(self.root, start);
        let (found, above) = start.checked_add(1).map_or((rest, NIL), |next| self.split(rest, next));
        let taken = self.nodes.get_mut(found as usize).and_then(|node| {
            node.right = self.vacant;
            node.value.take().map(|value| (node.range, value))
        });
        let kept = if taken.is_some() {
            self.vacant = found;
            self.len -= 1;
            above
        } else {
            self.merge(found, above)
        };
        self.root = self.merge(below, kept);
        taken
    }

    /// The range with the highest start at or below `addr`.
    pub(crate) fn at_or_below(&self, addr: ExecAddr) -> Option<(ExecRange, &V)> {
        let node = self.node(self.find_at_or_below(addr))?;
        Some((node.range, node.value.as_ref()?))
    }

    /// The range that holds the byte at `addr`.
    pub(crate) fn covering(&self, addr: ExecAddr) -> Option<(ExecRange, &V)> {
        self.at_or_below(addr).filter(|(range, _)| range.contains(addr))
    }

    /// As [`Self::covering`], to change the value.
    pub(crate) fn covering_mut(&mut self, addr: ExecAddr) -> Option<(ExecRange, &mut V)> {
        let index = self.find_at_or_below(addr);
        let node = self.nodes.get_mut(index as usize).filter(|node| node.range.contains(addr))?;
        Some((node.range, node.value.as_mut()?))
    }

    /// The range with the lowest start at or above `addr`.
    pub(crate) fn at_or_above(&self, addr: ExecAddr) -> Option<(ExecRange, &V)> {
        let (mut at, mut best) = (self.root, None);
        while let Some(node) = self.node(at) {
            if node.range.start() >= addr {
                best = Some(node);
                at = node.left;
            } else {
                at = node.right;
            }
        }
        best.and_then(|node| Some((node.range, node.value.as_ref()?)))
    }

    /// The length of the longest range in bytes; 0 when there is none.
    pub(crate) fn longest_len(&self) -> u64 {
        self.longest(self.root)
    }

    /// The lowest range of at least `len` bytes.
    pub(crate) fn first_fit(&self, len: u64) -> Option<ExecRange> {
        let len = len.max(1);
        let mut at = self.root;
        loop {
            let node = self.node(at).filter(|node| node.longest >= len)?;
            if self.longest(node.left) >= len {
                at = node.left;
            } else if node.range.len() >= len {
                return Some(node.range);
            } else {
                at = node.right;
            }
        }
    }

    fn find_at_or_below(&self, addr: ExecAddr) -> u32 {
        let (mut at, mut best) = (self.root, NIL);
        while let Some(node) = self.node(at) {
            if node.range.start() <= addr {
                best = at;
                at = node.right;
            } else {
                at = node.left;
            }
        }
        best
    }

    fn node(&self, index: u32) -> Option<&Node<V>> {
        self.nodes.get(index as usize)
    }

    fn longest(&self, index: u32) -> u64 {
        self.node(index).map_or(0, |node| node.longest)
    }

    fn set_children(&mut self, index: u32, left: u32, right: u32) {
        let below = self.longest(left).max(self.longest(right));
        if let Some(node) = self.nodes.get_mut(index as usize) {
            (node.left, node.right) = (left, right);
            node.longest = node.range.len().max(below);
        }
    }

    /// The subtree `index` in two: starts below `at`, and the rest.
    fn split(&mut self, index: u32, at: ExecAddr) -> (u32, u32) {
        let Some(node) = self.node(index) else { return (NIL, NIL) };
        let (left, right) = (node.left, node.right);
        if node.range.start() < at {
            let (low, high) = self.split(right, at);
            self.set_children(index, left, low);
            (index, high)
        } else {
            let (low, high) = self.split(left, at);
            self.set_children(index, high, right);
            (low, index)
        }
    }

    /// One subtree of two, all starts of the first below those of the second.
    fn merge(&mut self, low: u32, high: u32) -> u32 {
        let (Some(a), Some(b)) = (self.node(low), self.node(high)) else {
            return if low == NIL { high } else { low };
        };
        if a.priority >= b.priority {
            let (left, right) = (a.left, a.right);
            let right = self.merge(right, high);
            self.set_children(low, left, right);
            low
        } else {
            let (left, right) = (b.left, b.right);
            let left = self.merge(low, left);
            self.set_children(high, left, right);
            high
        }
    }
}

impl RangeMap<()> {
    /// Adds a range of free space and joins it with the neighbours it touches. Without memory for the record the space
    /// stays unused; a neighbour's record is used where there is one.
    pub(crate) fn insert_joined(&mut self, range: ExecRange) {
        let (mut start, mut end) = (range.start(), range.end());
        if let Some((below, ())) = self.at_or_below(start)
            && below.end() == start
        {
            start = below.start();
            self.remove(start);
        }
        if let Some((above, ())) = self.at_or_above(end)
            && above.start() == end
        {
            end = above.end();
            self.remove(above.start());
        }
        if let Some(joined) = ExecRange::new(start, end) {
            let _ = self.insert(joined, ());
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    use super::*;

    fn range(start: u64, len: u64) -> ExecRange {
        ExecRange::from_len(ExecAddr(start), len).unwrap()
    }

    #[test]
    fn agrees_with_an_ordered_map() {
        let mut map = RangeMap::new();
        let mut model = BTreeMap::new();
        let mut state = 7_u64;
        let steps = if cfg!(miri) { 300 } else { 20_000 };
        for step in 0..steps {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let slot = (state >> 33) % 64;
            let len = 1 + (state >> 45) % 16;
            let start = slot * 16;
            if step % 3 == 0 {
                assert_eq!(map.remove(ExecAddr(start)).map(|(r, v)| (r.len(), v)), model.remove(&start));
            } else {
                model.entry(start).or_insert_with(|| {
                    map.insert(range(start, len), step).unwrap();
                    (len, step)
                });
            }
            assert_eq!(map.len(), model.len());
            let probe = (state >> 20) % 1100;
            let expected = model.range(..=probe).next_back().map(|(s, (l, v))| (range(*s, *l), v));
            assert_eq!(map.at_or_below(ExecAddr(probe)), expected);
            assert_eq!(map.covering(ExecAddr(probe)), expected.filter(|(r, _)| r.contains(ExecAddr(probe))));
            let above = model.range(probe..).next().map(|(s, (l, v))| (range(*s, *l), v));
            assert_eq!(map.at_or_above(ExecAddr(probe)), above);
            let fit = model.iter().find(|(_, (l, _))| *l >= len).map(|(s, (l, _))| range(*s, *l));
            assert_eq!(map.first_fit(len), fit);
        }
        let all: Vec<u64> = model.keys().copied().collect();
        all.iter().for_each(|start| assert!(map.remove(ExecAddr(*start)).is_some()));
        assert_eq!((map.len(), map.first_fit(0)), (0, None));
    }

    #[test]
    fn slots_are_used_again() {
        let mut map = RangeMap::new();
        map.reserve(2).unwrap();
        for round in 0..100 {
            map.insert(range(round, 1), ()).unwrap();
            map.remove(ExecAddr(round)).unwrap();
        }
        assert_eq!(map.nodes.len(), 1);
    }
}
