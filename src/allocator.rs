//! Memory without a system call for each page. musl's allocator asks the kernel for pages, gives them back as soon as
//! they are free and asks again: 37 system calls of an ADD. The first small blocks come from an arena, which gives
//! nothing back: a process that lives for milliseconds needs no more. All others come from musl, by way of
//! [`freed`], so that an agent, which lives for years, loses the arena and no more.

mod freed;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use freed::FreedBlocks;

/// Four times what an ADD allocates in blocks that are not large.
const ARENA: usize = 256 << 10;

/// A larger block has pages of its own, which the kernel has filled with zeros.
const LARGEST: usize = 16 << 10;

/// Takes small blocks from its arena while there is room.
#[repr(align(4096))]
pub struct ArenaFirst {
    arena: UnsafeCell<[u8; ARENA]>,
    /// So many bytes of the arena have been given out.
    used: AtomicUsize,
    freed: FreedBlocks,
}

// SAFETY: blocks of the arena do not overlap, as each is given out by one successful exchange of `used`.
#[allow(unsafe_code)]
unsafe impl Sync for ArenaFirst {}

impl ArenaFirst {
    pub const fn new() -> ArenaFirst {
        ArenaFirst {
            arena: UnsafeCell::new([0; ARENA]),
            used: AtomicUsize::new(0),
            freed: FreedBlocks::new(),
        }
    }

    fn take(&self, layout: Layout) -> Option<*mut u8> {
        if layout.size() > LARGEST || layout.align() > align_of::<ArenaFirst>() {
            return None;
        }
        loop {
            let used = self.used.load(Ordering::Relaxed);
            let begin = used.next_multiple_of(layout.align());
            if begin + layout.size() > ARENA {
                return None;
            }
            if self.moved(used, begin + layout.size()) {
                return Some(self.arena.get().cast::<u8>().wrapping_add(begin));
            }
        }
    }

    /// The end of what is given out was at `from`, and is now at `to`.
    fn moved(&self, from: usize, to: usize) -> bool {
        self.used.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Where in the arena a block begins; `None`: it is musl's.
    fn position(&self, block: *mut u8) -> Option<usize> {
        let position = block.addr().wrapping_sub(self.arena.get().addr());
        (position < ARENA).then_some(position)
    }
}

// SAFETY: a block's address says whose it is, and it goes back there.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for ArenaFirst {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: what the caller promises, here and below.
        self.take(layout).unwrap_or_else(|| unsafe { self.freed.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // The arena gives nothing out twice: it still has the zeros of the executable's .bss.
        self.take(layout).unwrap_or_else(|| unsafe { System.alloc_zeroed(freed::rounded(layout)) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if self.position(block).is_none() {
            unsafe { self.freed.dealloc(block, layout) }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the size, rounded up to the alignment, is no more than isize::MAX.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if let Some(begin) = self.position(block) {
            let fits = size <= LARGEST && begin + size <= ARENA;
            if size <= layout.size() || fits && self.moved(begin + layout.size(), begin + size) {
                return block;
            }
        } else {
            match (freed::list(layout.size()), freed::list(size)) {
                (None, None) => return unsafe { System.realloc(block, layout, size) },
                (old, new) if old == new => return block,
                _ => {}
            }
        }
        unsafe {
            let new = self.alloc(wanted);
            if !new.is_null() {
                new.copy_from_nonoverlapping(block, layout.size().min(size));
                self.dealloc(block, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// A block that is filled with one byte as long as it is somebody's.
    struct Block {
        at: *mut u8,
        layout: Layout,
        filling: u8,
    }

    #[allow(unsafe_code)]
    impl Block {
        fn new(from: &ArenaFirst, size: usize, zeroed: bool, filling: u8) -> Block {
            let layout = Layout::from_size_align(size, 1 << (size % 7)).unwrap();
            // SAFETY: no size here is 0, and the tests keep to what they asked for.
            let at = unsafe { if zeroed { from.alloc_zeroed(layout) } else { from.alloc(layout) } };
            assert!(!at.is_null() && at.addr() % layout.align() == 0, "{layout:?} at {at:?}");
            let block = Block { at, layout, filling };
            assert!(
                !zeroed || block.bytes().iter().all(|byte| *byte == 0),
                "not zeroed: {layout:?}"
            );
            block.fill()
        }

        fn resized(self, from: &ArenaFirst, size: usize) -> Block {
            let at = unsafe { from.realloc(self.at, self.layout, size) };
            let kept = self.layout.size().min(size);
            let layout = Layout::from_size_align(size, self.layout.align()).unwrap();
            let block = Block { at, layout, ..self };
            assert!(block.bytes()[..kept].iter().all(|byte| *byte == block.filling));
            block.fill()
        }

        fn free(self, from: &ArenaFirst) {
            assert!(self.bytes().iter().all(|byte| *byte == self.filling), "somebody else wrote");
            unsafe { from.dealloc(self.at, self.layout) }
        }

        fn bytes(&self) -> &[u8] {
            unsafe { std::slice::from_raw_parts(self.at, self.layout.size()) }
        }

        fn fill(self) -> Block {
            unsafe { self.at.write_bytes(self.filling, self.layout.size()) };
            self
        }
    }

    /// Many more bytes than the arena has, in blocks on both sides of the largest size.
    fn churn(from: &ArenaFirst, seed: u64) {
        let mut random = seed;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(random >> 33).unwrap() % below
        };
        let mut blocks: Vec<Block> = Vec::new();
        for turn in 0..20_000u32 {
            let most = 1 << next(16);
            let size = 1 + next(most);
            match next(5) {
                0 | 1 => blocks.push(Block::new(from, size, turn % 3 == 0, (turn % 251) as u8)),
                2 if !blocks.is_empty() => {
                    // The last one can grow where it is.
                    let which = if turn % 2 == 0 { blocks.len() - 1 } else { next(blocks.len()) };
                    let block = blocks.remove(which).resized(from, size);
                    blocks.push(block);
                }
                _ if !blocks.is_empty() => blocks.remove(next(blocks.len())).free(from),
                _ => {}
            }
        }
        blocks.into_iter().for_each(|block| block.free(from));
    }

    #[test]
    fn no_two_blocks_of_one_thread_or_of_several_overlap() {
        let shared = Box::new(ArenaFirst::new());
        thread::scope(|scope| {
            let shared = &*shared;
            (1..=4).for_each(|seed| drop(scope.spawn(move || churn(shared, seed))));
        });
        (5..25).for_each(|seed| churn(&ArenaFirst::new(), seed));
    }

    #[test]
    fn small_blocks_are_of_the_arena_while_there_is_room() {
        let from = Box::new(ArenaFirst::new());
        let first = Block::new(&from, 100, false, 1);
        assert!(from.position(first.at).is_some());
        let large = Block::new(&from, LARGEST + 1, false, 2);
        assert_eq!(from.position(large.at), None);
        let at = first.at;
        let grown = first.resized(&from, LARGEST);
        assert_eq!(grown.at, at, "the last block grows where it is");
        let moved = grown.resized(&from, LARGEST + 1);
        assert_eq!(from.position(moved.at), None);
        let full: Vec<Block> =
            (0..2 * ARENA / LARGEST).map(|_| Block::new(&from, LARGEST, false, 4)).collect();
        assert_eq!(
            full.iter().filter(|block| from.position(block.at).is_some()).count(),
            ARENA / LARGEST - 1
        );
        full.into_iter().chain([large, moved]).for_each(|block| block.free(&from));
    }
}
