//! No backtraces where a panic ends the process: the tables that they need are not in the executable
//! (packaging/no-unwinding.ld).

use std::ffi::{c_int, c_void};

/// _URC_END_OF_STACK of <unwind.h>.
const END_OF_STACK: c_int = 5;

/// Instead of that of libunwind, for the standard library: there is no frame. What would print the frames is left out of the
/// executable then, 0.2 MB.
#[allow(unsafe_code)]
// SAFETY: parameters and result are those of <unwind.h>; it calls and touches nothing.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Backtrace(_each: *const c_void, _argument: *mut c_void) -> c_int {
    END_OF_STACK
}
