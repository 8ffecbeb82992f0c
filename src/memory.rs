//! Two functions of the C library, with which the compiler compares and moves memory: musl's compare byte by byte, and
//! move towards higher addresses, as each insertion into a list or map does, with an instruction that takes 60 ns for
//! 5 bytes and 230 ns for 200 (these: 3 and 16 ns). They were a fifth of an agent's own time for a pod that starts.

use std::cmp::Ordering;

/// Bytes that are compared at once.
const WORD: usize = size_of::<u64>();

/// # Safety
/// `len` bytes can be read at both.
#[allow(unsafe_code)]
unsafe fn compare(one: *const u8, other: *const u8, len: usize) -> Ordering {
    let words = |at: usize| {
        // SAFETY: only called where a word ends within `len`.
        let word = |of: *const u8| unsafe { of.add(at).cast::<u64>().read_unaligned() }.to_be();
        word(one).cmp(&word(other))
    };
    let mut at = 0;
    while at + WORD <= len {
        if let unequal @ (Ordering::Less | Ordering::Greater) = words(at) {
            return unequal;
        }
        at += WORD;
    }
    if at < len && len >= WORD {
        // The bytes before are equal.
        return words(len - WORD);
    }
    while at < len {
        // SAFETY: within `len`.
        let byte = |of: *const u8| unsafe { *of.add(at) };
        if let unequal @ (Ordering::Less | Ordering::Greater) = byte(one).cmp(&byte(other)) {
            return unequal;
        }
        at += 1;
    }
    Ordering::Equal
}

/// Copies from the end to the beginning, so that `to` may lie within what is copied.
///
/// # Safety
/// `len` bytes can be read at `from` and written at `to`, which does not lie before it.
#[cfg(any(test, target_arch = "x86_64"))]
#[allow(unsafe_code)]
unsafe fn move_up(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: all are within `len`. What is written over was read before.
    unsafe {
        match len {
            0 => {}
            1..4 => {
                let (first, middle, last) = (*from, *from.add(len / 2), *from.add(len - 1));
                *to = first;
                *to.add(len / 2) = middle;
                *to.add(len - 1) = last;
            }
            4..8 => ends::<u32>(to, from, len),
            8..16 => ends::<u64>(to, from, len),
            16..33 => ends::<u128>(to, from, len),
            _ => {
                let first = from.cast::<[u128; 2]>().read_unaligned();
                let mut rest = len;
                while rest > size_of_val(&first) {
                    rest -= size_of_val(&first);
                    let block = from.add(rest).cast::<[u128; 2]>().read_unaligned();
                    to.add(rest).cast::<[u128; 2]>().write_unaligned(block);
                    // Or the compiler may make of this loop what it is here for.
                    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
                }
                to.cast::<[u128; 2]>().write_unaligned(first);
            }
        }
    }
}

/// Copies `len` bytes, of which a `T` at the beginning and one at the end are all.
///
/// # Safety
/// As [`move_up`].
#[cfg(any(test, target_arch = "x86_64"))]
#[allow(unsafe_code)]
unsafe fn ends<T>(to: *mut u8, from: *const u8, len: usize) {
    let last = len - size_of::<T>();
    // SAFETY: what the caller promises.
    unsafe {
        let both = (from.cast::<T>().read_unaligned(), from.add(last).cast::<T>().read_unaligned());
        to.cast::<T>().write_unaligned(both.0);
        to.add(last).cast::<T>().write_unaligned(both.1);
    }
}

#[cfg(all(target_env = "musl", not(debug_assertions)))]
#[allow(unsafe_code)]
mod symbols {
    use std::ffi::{c_int, c_void};

    /// # Safety
    /// As that of <string.h>.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(one: *const c_void, other: *const c_void, len: usize) -> c_int {
        // SAFETY: what the caller promises.
        unsafe { super::compare(one.cast(), other.cast(), len) as c_int }
    }

    /// # Safety
    /// As that of <string.h>.
    #[cfg(target_arch = "x86_64")]
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memmove(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
        // SAFETY: what the caller promises. musl's memcpy begins at the beginning: its own memmove calls it, too.
        unsafe {
            match to.addr().wrapping_sub(from.addr()) < len {
                true => super::move_up(to.cast(), from.cast(), len),
                false => to.copy_from_nonoverlapping(from, len),
            }
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random, below a bound that differs.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(self.0 >> 33).unwrap() % bound
        }

        fn bytes(&mut self, len: usize, kinds: usize) -> Vec<u8> {
            (0..len).map(|_| self.below(kinds) as u8).collect()
        }
    }

    #[test]
    #[allow(unsafe_code)]
    fn bytes_are_compared_in_their_order() {
        let mut numbers = Numbers(1);
        for turn in 0..200_000 {
            let most = 1 << (turn % 8);
            let len = numbers.below(most + 1);
            let one = numbers.bytes(len, 256);
            let mut other = one.clone();
            if let (Some(last), true) = (len.checked_sub(1), turn % 4 != 0) {
                other[numbers.below(last + 1)] = numbers.below(256) as u8;
            }
            // SAFETY: both have this length.
            let found = unsafe { compare(one.as_ptr(), other.as_ptr(), len) };
            assert_eq!(found, one.cmp(&other), "{one:?} {other:?}");
        }
    }

    #[test]
    #[allow(unsafe_code)]
    fn bytes_that_overlap_are_moved_up() {
        let mut numbers = Numbers(2);
        for turn in 0..50_000 {
            let len = numbers.below((1 << (turn % 12)) + 1);
            let (from, up) = (numbers.below(40), numbers.below(len + 1));
            let mut bytes = numbers.bytes(from + up + len + 40, 256);
            let mut wanted = bytes.clone();
            wanted.copy_within(from..from + len, from + up);
            let start = bytes.as_mut_ptr();
            // SAFETY: both lie within the bytes.
            unsafe { move_up(start.add(from + up), start.add(from), len) };
            assert!(bytes == wanted, "{len} bytes from {from} by {up}");
        }
    }
}
