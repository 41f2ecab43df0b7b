//! The order of sections in the image.
//!
//! Read-only first, with the GOT at its end; then code, the stubs first and so next to the GOT; then data, its zero-fill
//! last and the large objects of it behind the small, so that what code reaches through 32 bits stays near however large
//! the rest is. What is marked large (`.ldata`, `.lbss`) follows.

use std::collections::HashSet;

use graft_protocol::Prot;
use object::elf;

use super::segment::{Fill, Filler, Full, Piece};
use super::{INDIRECT_STUB_SIZE, Layout, NOWHERE, SLOT_SIZE, STUB_SIZE, UnwindPlan, unwind_index_size};
use crate::link::LayoutError;
use crate::link::name::printable;
use crate::link::parse::{Array, Kind, Role, Section};
use crate::link::resolve::{Definition, Program, SectionId};

/// Sections of the large code model (psABI: `SHF_X86_64_LARGE`).
const SHF_LARGE: u32 = 0x1000_0000;

/// Zero-fill larger than this goes behind the rest.
const BIG: u64 = 1 << 20;

/// How much zero-fill may become content because symbols delimit it together with content.
const MIXED_LIMIT: u64 = 1 << 20;

/// Programs smaller than this need no slots for instructions that can do without: 2 GiB, and ample room for padding.
const NEAR: u64 = 1 << 30;

/// What compilers use at the thread pointer: its own address, and a stack protector's value 40 bytes on.
const THREAD_CONTROL: u64 = 64;

/// The kinds of pages, in address order.
const ORDER: [Prot; 6] = [Prot::Read, Prot::ReadExec, Prot::ReadWrite, Prot::Read, Prot::ReadExec, Prot::ReadWrite];
const READ: usize = 0;
const CODE: usize = 1;
const DATA: usize = 2;
/// From here on, what is marked large.
const LARGE: usize = 3;

const ROLES: [Role; 3] = [Role::Preinit, Role::Init, Role::Fini];

/// One thing to lay out.
#[derive(Clone, Copy)]
struct Item {
    what: What,
    size: u64,
    align: u64,
}

#[derive(Clone, Copy)]
enum What {
    Content(SectionId),
    Zero(SectionId),
    /// By index in the program's list.
    Common(usize),
    Got,
    Stubs,
    IndirectStubs,
    IndirectSlots,
    Unwind,
    UnwindIndex,
    /// What lies at the thread pointer.
    ThreadControl,
}

/// Sections between `__start_` and `__stop_` symbols.
struct Run {
    /// Index of the name.
    named: usize,
    items: Vec<Item>,
}

/// What goes into one kind of pages, in this order.
#[derive(Default)]
struct Pages {
    content: Vec<Item>,
    runs: Vec<Run>,
    /// Thread-local storage: content, zero-fill, and what lies behind it.
    thread: Vec<Item>,
    zero_runs: Vec<Run>,
    zero: Vec<Item>,
    big: Vec<Item>,
}

pub(super) fn place<'p>(program: &'p Program<'p>) -> Result<Layout<'p>, LayoutError> {
    let page_size = program.options.page_size;
    if !page_size.is_power_of_two() || !(1024..=1 << 30).contains(&page_size) {
        return Err(LayoutError::PageSize(page_size));
    }
    let mut layout = Layout {
        program,
        shapes: Vec::new(),
        chunks: Vec::new(),
        sections: vec![NOWHERE; program.states.len()],
        commons: vec![NOWHERE; program.commons.len()],
        named: vec![(NOWHERE, NOWHERE); program.named.len()],
        arrays: [(NOWHERE, NOWHERE); 3],
        array_order: arrays(program),
        thread: (NOWHERE, NOWHERE),
        got: NOWHERE,
        slots: Vec::new(),
        stubs: NOWHERE,
        indirect: (NOWHERE, NOWHERE),
        unwind: plan_unwind(program),
        unwind_index: NOWHERE,
        size: 0,
        align: page_size,
    };
    let mut pages = sort(program)?;
    add_synthetic(&mut layout, &mut pages);
    let mut placer = Placer { filler: Filler::new(page_size), layout };
    for (kind, (pages, prot)) in pages.iter().zip(ORDER).enumerate() {
        placer.fill(pages, prot, kind == DATA)?;
    }
    placer.finish()
}

/// The arrays of functions, in the order of execution before the entry.
fn arrays(program: &Program<'_>) -> Vec<SectionId> {
    let mut list: Vec<(Role, u32, SectionId)> = program
        .live()
        .filter_map(|(id, section)| match section.kind {
            Kind::Array(Array { role, priority, .. }) => Some((role, priority, id)),
            _ => None,
        })
        .collect();
    // Stable: equal priorities run in link order.
    list.sort_by_key(|(role, priority, _)| (*role, *priority));
    list.into_iter().map(|(_, _, id)| id).collect()
}

/// Decides which records of unwind tables are kept, one behind the other and a terminator behind the last.
fn plan_unwind(program: &Program<'_>) -> UnwindPlan {
    let mut plan = UnwindPlan::default();
    for (index, table) in program.unwind.iter().enumerate() {
        let mut offsets = Vec::with_capacity(table.records.len());
        for record in &table.records {
            offsets.push(plan.size);
            if record.live {
                // Never more than the object's own bytes.
                plan.size = plan.size.saturating_add(u64::try_from(record.bytes.len()).unwrap_or(u64::MAX));
            }
        }
        plan.records.push(offsets);
        plan.tables.insert(table.id, index);
    }
    if plan.size > 0 || program.unwind_referenced {
        plan.size = plan.size.saturating_add(4);
    }
    plan
}

/// Sorts the sections of the program by kind of pages; arrays of functions are placed apart.
fn sort(program: &Program<'_>) -> Result<[Pages; 6], LayoutError> {
    let mut pages: [Pages; 6] = Default::default();
    let mut in_runs = HashSet::new();
    let mut mixed = 0_u64;
    for (index, named) in program.named.iter().enumerate().filter(|(_, named)| named.live) {
        let sections = || named.members.iter().map(|id| program.section(*id));
        let any = |flag| sections().any(|section| section.has(flag));
        let kind = match (any(elf::SHF_EXECINSTR), any(elf::SHF_WRITE)) {
            (true, true) => return Err(LayoutError::WriteExecute { section: printable(named.name) }),
            (true, false) => CODE,
            (false, true) => DATA,
            (false, false) => READ,
        };
        in_runs.extend(named.members.iter().copied());
        let zero = sections().filter(|section| section.kind == Kind::Zero).map(|section| section.size);
        let zero = zero.fold(0_u64, u64::saturating_add);
        if sections().all(|section| section.kind == Kind::Zero) {
            let items = named.members.iter().map(|id| zero_item(*id, program.section(*id))).collect();
            pages[kind].zero_runs.push(Run { named: index, items });
        } else {
            mixed = mixed.saturating_add(zero);
            if mixed > MIXED_LIMIT {
                return Err(LayoutError::MixedZeroFill { section: printable(named.name), zero, limit: MIXED_LIMIT });
            }
            let items = named.members.iter().map(|id| content_item(*id, program.section(*id))).collect();
            pages[kind].runs.push(Run { named: index, items });
        }
    }
    pages[DATA].thread = thread_items(program);
    for (id, section) in program.live() {
        if section.has(elf::SHF_TLS) || (!in_runs.is_empty() && in_runs.contains(&id)) {
            continue;
        }
        let pages = &mut pages[kind_of_pages(section)];
        match section.kind {
            Kind::Array(_) => {}
            Kind::Zero if section.size > BIG => pages.big.push(zero_item(id, section)),
            Kind::Zero => pages.zero.push(zero_item(id, section)),
            _ => pages.content.push(content_item(id, section)),
        }
    }
    Ok(pages)
}

/// The block of thread-local storage: initial values first, and no padding the thread pointer does not ask for, so that
/// offsets are what any linker makes them (psABI §3.4.2: the block ends at the thread pointer).
fn thread_items(program: &Program<'_>) -> Vec<Item> {
    if !program.thread_local {
        return Vec::new();
    }
    let of = |kind| program.live().filter(move |(_, section)| section.has(elf::SHF_TLS) && section.kind == kind);
    let content = of(Kind::Content).map(|(id, section)| content_item(id, section));
    let mut items: Vec<Item> = content.chain(of(Kind::Zero).map(|(id, section)| zero_item(id, section))).collect();
    let align = items.iter().map(|item| item.align).max().unwrap_or(1);
    items.push(Item { what: What::ThreadControl, size: THREAD_CONTROL, align });
    items
}

fn kind_of_pages(section: &Section<'_>) -> usize {
    let large = if section.has(SHF_LARGE) { LARGE } else { 0 };
    match section.kind {
        Kind::Array(_) => DATA,
        _ if section.has(elf::SHF_EXECINSTR) => large + CODE,
        _ if section.has(elf::SHF_WRITE) => large + DATA,
        _ => large + READ,
    }
}

fn content_item(id: SectionId, section: &Section<'_>) -> Item {
    Item { what: What::Content(id), size: section.size, align: section.align.max(1) }
}

fn zero_item(id: SectionId, section: &Section<'_>) -> Item {
    Item { what: What::Zero(id), size: section.size, align: section.align.max(1) }
}

/// Adds what no object has: unwind records, GOT, stubs, common symbols.
fn add_synthetic(layout: &mut Layout<'_>, pages: &mut [Pages; 6]) {
    let program = layout.program;
    for (index, id) in program.commons.iter().enumerate() {
        let global = &program.globals[id.0];
        let Definition::Common { align, .. } = global.definition else { continue };
        let item = Item { what: What::Common(index), size: global.size, align };
        let list = if global.size > BIG { &mut pages[DATA].big } else { &mut pages[DATA].zero };
        list.push(item);
    }
    let items = pages.iter().flat_map(|pages| {
        let runs = pages.runs.iter().chain(&pages.zero_runs).flat_map(|run| &run.items);
        pages.content.iter().chain(runs).chain(&pages.thread).chain(&pages.zero).chain(&pages.big)
    });
    let total = items.fold(0_u64, |sum, item| sum.saturating_add(item.size).saturating_add(item.align));
    let near = total < NEAR;
    let mut size = 0;
    for slot in &program.slots {
        if slot.always || !near {
            layout.slots.push(size);
            size += SLOT_SIZE;
        } else {
            layout.slots.push(NOWHERE);
        }
    }
    let stubs = STUB_SIZE.saturating_mul(u64::try_from(program.stubs.len()).unwrap_or(u64::MAX));
    pages[READ].content.push(Item { what: What::Unwind, size: layout.unwind.size, align: 8 });
    pages[READ].content.push(Item { what: What::UnwindIndex, size: unwind_index_size(program), align: 4 });
    pages[READ].content.push(Item { what: What::Got, size, align: SLOT_SIZE });
    let indirect = program.indirect_size(INDIRECT_STUB_SIZE);
    let made = [
        Item { what: What::Stubs, size: stubs, align: STUB_SIZE },
        Item { what: What::IndirectStubs, size: indirect, align: if indirect > 0 { INDIRECT_STUB_SIZE } else { 1 } },
    ];
    pages[CODE].content.splice(0..0, made);
    let size = program.indirect_size(SLOT_SIZE);
    pages[DATA].content.push(Item { what: What::IndirectSlots, size, align: if size > 0 { SLOT_SIZE } else { 1 } });
}

struct Placer<'p> {
    filler: Filler,
    layout: Layout<'p>,
}

impl<'p> Placer<'p> {
    fn fill(&mut self, pages: &Pages, prot: Prot, with_arrays: bool) -> Result<(), LayoutError> {
        self.filler.start(prot).map_err(|full| self.too_large(full, "(the start of a segment)", None, 0))?;
        self.put_all(&pages.content)?;
        if with_arrays {
            self.put_arrays()?;
        }
        for run in &pages.runs {
            self.layout.named[run.named] = self.put_all(&run.items)?;
        }
        // At the border of content and zero-fill, as it is both.
        if !pages.thread.is_empty() {
            self.layout.thread.0 = self.put_all(&pages.thread)?.0;
        }
        for run in &pages.zero_runs {
            self.layout.named[run.named] = self.put_all(&run.items)?;
        }
        self.put_all(&pages.zero)?;
        self.put_all(&pages.big)?;
        Ok(())
    }

    /// Lays out every array of functions: those that symbols delimit first, by role, then the others.
    fn put_arrays(&mut self) -> Result<(), LayoutError> {
        let program = self.layout.program;
        let all = std::mem::take(&mut self.layout.array_order);
        let array = |id: SectionId| program.array(id);
        for role in ROLES {
            let delimited = all.iter().filter(|id| array(**id).is_some_and(|a| a.role == role && a.is_delimited()));
            let items: Vec<Item> = delimited.map(|id| content_item(*id, program.section(*id))).collect();
            self.layout.arrays[role as usize] = self.put_all(&items)?;
        }
        let others = all.iter().filter(|id| array(**id).is_some_and(|array| !array.is_delimited()));
        let items: Vec<Item> = others.map(|id| content_item(*id, program.section(*id))).collect();
        self.put_all(&items)?;
        self.layout.array_order = all;
        Ok(())
    }

    /// Lays out `items` one behind the other; their start and end.
    fn put_all(&mut self, items: &[Item]) -> Result<(u64, u64), LayoutError> {
        let mut range = None;
        for item in items {
            let fill = match item.what {
                What::Content(id) => Fill::Content(Piece::Section(id)),
                What::Got => Fill::Content(Piece::Got),
                What::Stubs => Fill::Content(Piece::Stubs),
                What::IndirectStubs => Fill::Content(Piece::IndirectStubs),
                What::IndirectSlots => Fill::Content(Piece::IndirectSlots),
                What::Unwind => Fill::Content(Piece::Unwind),
                What::UnwindIndex => Fill::Content(Piece::UnwindIndex),
                What::Zero(_) | What::Common(_) | What::ThreadControl => Fill::Zero,
            };
            let put = self.filler.put(item.size, item.align, fill);
            let offset = put.map_err(|full| self.item_too_large(full, item))?;
            match item.what {
                What::Content(id) | What::Zero(id) => {
                    self.layout.sections[self.layout.program.state_index(id)] = offset;
                }
                What::Common(index) => self.layout.commons[index] = offset,
                What::ThreadControl => self.layout.thread.1 = offset,
                What::Got => self.layout.got = offset,
                What::Stubs => self.layout.stubs = offset,
                What::IndirectStubs => self.layout.indirect.0 = offset,
                What::IndirectSlots => self.layout.indirect.1 = offset,
                What::Unwind => self.layout.unwind.start = offset,
                What::UnwindIndex => self.layout.unwind_index = offset,
            }
            // `put` succeeded: the end exists.
            let end = offset.saturating_add(item.size);
            range = Some((range.map_or(offset, |(start, _)| start), end));
        }
        Ok(range.unwrap_or((self.filler.offset, self.filler.offset)))
    }

    fn finish(mut self) -> Result<Layout<'p>, LayoutError> {
        self.filler.close().map_err(|full| self.too_large(full, "(the end of the last segment)", None, 0))?;
        for slot in self.layout.slots.iter_mut().filter(|slot| **slot != NOWHERE) {
            *slot += self.layout.got;
        }
        self.layout.size = self.filler.offset;
        self.layout.align = self.filler.align;
        self.layout.shapes = self.filler.shapes;
        self.layout.chunks = self.filler.chunks;
        Ok(self.layout)
    }

    fn item_too_large(&self, full: Full, item: &Item) -> LayoutError {
        let program = self.layout.program;
        match item.what {
            What::Content(id) | What::Zero(id) => {
                self.too_large(full, &printable(program.section(id).name), Some(id.object), item.size)
            }
            What::Common(index) => {
                let global = &program.globals[program.commons[index].0];
                self.too_large(full, &format!("COMMON ({})", printable(global.name)), global.owner, item.size)
            }
            _ => self.too_large(full, "made by the linker", None, item.size),
        }
    }

    fn too_large(&self, Full: Full, section: &str, object: Option<usize>, size: u64) -> LayoutError {
        let name = object.and_then(|object| self.layout.program.loaded.get(object));
        let file = name.map_or_else(|| String::from("the program"), |loaded| loaded.object.name.clone());
        LayoutError::TooLarge { file, section: section.to_owned(), size, offset: self.filler.offset }
    }
}
