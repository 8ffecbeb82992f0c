//! Small blocks that were freed wait for the next request of their size. musl unmaps pages when the last of their blocks
//! is free, and maps others for the next one: without this, a changed policy takes an agent a fifth more. A bounded
//! number waits, so that what a peak needed goes back to the kernel.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// musl's blocks are multiples of this, of which it needs [`OWN`] bytes.
const STEP: usize = 16;
const OWN: usize = 4;

/// Sizes of blocks that wait: up to 2 KiB.
const SIZES: usize = 128;

/// Bytes of one size that wait, at most.
const WAITING: usize = 16 << 10;

/// What waits is not looked at, so that taking a block does not wait for its memory: it has probably left the
/// processor's cache.
pub struct FreedBlocks {
    busy: AtomicBool,
    lists: UnsafeCell<FreedLists>,
}

struct FreedLists {
    /// So many blocks of each size wait …
    waiting: [usize; SIZES],
    /// … from the place on that [`FIRST`] has.
    blocks: [*mut u8; FIRST[SIZES]],
}

// SAFETY: only who has set `busy` reads or writes the lists.
#[allow(unsafe_code)]
unsafe impl Sync for FreedBlocks {}

/// What is asked of musl for a block of `layout`: the whole of what it takes for it, so that each block of a list has
/// room for all others of that list.
pub fn rounded(layout: Layout) -> Layout {
    let size = list(layout.size()).map_or(layout.size(), size);
    Layout::from_size_align(size, layout.align()).unwrap_or(layout)
}

/// The list of blocks of `size` bytes; `None`: they never wait.
pub fn list(size: usize) -> Option<usize> {
    let list = (size + OWN - 1) / STEP;
    (list < SIZES).then_some(list)
}

/// Of the blocks of a list, in bytes.
const fn size(list: usize) -> usize {
    (list + 1) * STEP - OWN
}

/// Blocks of a list that wait, at most.
const fn room(list: usize) -> usize {
    WAITING / size(list)
}

/// Where each list begins, and where the last one ends: behind those of all smaller sizes.
const FIRST: [usize; SIZES + 1] = {
    let (mut all, mut list) = ([0; SIZES + 1], 0);
    while list < SIZES {
        all[list + 1] = all[list] + room(list);
        list += 1;
    }
    all
};

#[allow(unsafe_code)]
impl FreedBlocks {
    pub const fn new() -> FreedBlocks {
        let lists = FreedLists { waiting: [0; SIZES], blocks: [ptr::null_mut(); FIRST[SIZES]] };
        FreedBlocks { busy: AtomicBool::new(false), lists: UnsafeCell::new(lists) }
    }

    /// # Safety
    /// As [`GlobalAlloc::alloc`].
    pub unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let list = list(layout.size()).filter(|_| layout.align() <= align_of::<*mut u8>());
        let waiting = list.and_then(|list| {
            self.with(|FreedLists { waiting, blocks }| {
                waiting[list] = waiting[list].checked_sub(1)?;
                Some(blocks[FIRST[list] + waiting[list]])
            })
        });
        waiting.unwrap_or_else(|| unsafe { System.alloc(rounded(layout)) })
    }

    /// # Safety
    /// As [`GlobalAlloc::dealloc`], for a block that [`Self::alloc`] gave, or musl for the layout [`rounded`].
    pub unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let waits = list(layout.size()).and_then(|list| {
            self.with(|FreedLists { waiting, blocks }| {
                (waiting[list] < room(list)).then(|| {
                    blocks[FIRST[list] + waiting[list]] = block;
                    waiting[list] += 1;
                })
            })
        });
        if waits.is_none() {
            unsafe { System.dealloc(block, layout) }
        }
    }

    /// `None` also where another thread is at the lists: nobody waits for it.
    fn with<T>(&self, then: impl FnOnce(&mut FreedLists) -> Option<T>) -> Option<T> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: `busy` was not set, and is until the end.
        let done = then(unsafe { &mut *self.lists.get() });
        self.busy.store(false, Ordering::Release);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[allow(unsafe_code)]
    fn take(from: &FreedBlocks, size: usize, align: usize) -> *mut u8 {
        // SAFETY: no size here is 0.
        let block = unsafe { from.alloc(layout(size, align)) };
        assert!(!block.is_null() && block.addr() % align == 0, "{size} bytes at {block:?}");
        block
    }

    #[allow(unsafe_code)]
    fn give(to: &FreedBlocks, block: *mut u8, size: usize) {
        // SAFETY: the tests give what they took.
        unsafe { to.dealloc(block, layout(size, 1)) }
    }

    #[allow(unsafe_code)]
    fn waiting(of: &FreedBlocks, bytes: usize) -> usize {
        // SAFETY: the tests have one thread.
        unsafe { (*of.lists.get()).waiting[list(bytes).unwrap()] }
    }

    #[test]
    fn a_freed_block_is_the_next_one_of_its_size() {
        let blocks = FreedBlocks::new();
        let (first, second) = (take(&blocks, 93, 8), take(&blocks, 108, 1));
        give(&blocks, first, 93);
        give(&blocks, second, 108);
        assert_ne!(take(&blocks, 92, 8), second, "it has other blocks");
        assert_ne!(take(&blocks, 109, 8), second, "it may need more");
        assert_eq!([take(&blocks, 108, 8), take(&blocks, 100, 2)], [second, first]);
        assert_eq!(waiting(&blocks, 100), 0);
    }

    #[test]
    fn a_block_with_an_alignment_of_its_own_is_not_one_that_waits() {
        let blocks = FreedBlocks::new();
        let all: Vec<_> = (0..40).map(|_| take(&blocks, 64, 8)).collect();
        all.into_iter().for_each(|block| give(&blocks, block, 64));
        let aligned: Vec<_> = (0..40).map(|_| take(&blocks, 64, 64)).collect();
        assert_eq!((aligned.len(), waiting(&blocks, 64)), (40, 40));
    }

    #[test]
    fn no_more_than_a_bounded_number_waits_and_no_large_block() {
        let blocks = FreedBlocks::new();
        let all: Vec<_> = (0..2 * WAITING / 1000).map(|_| take(&blocks, 1000, 8)).collect();
        all.into_iter().for_each(|block| give(&blocks, block, 1000));
        assert_eq!(waiting(&blocks, 1000), WAITING / rounded(layout(1000, 8)).size());
        assert_eq!((list(2044), list(2045)), (Some(SIZES - 1), None));
        assert_eq!(rounded(layout(2045, 8)), layout(2045, 8));
        assert_eq!(
            [1, 12, 13, 2044].map(|size| rounded(layout(size, 1)).size()),
            [12, 12, 28, 2044]
        );
    }
}
