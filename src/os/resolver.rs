//! Host names in a statically linked executable.

/// Keeps a static glibc from loading the NSS modules of the host's own glibc, which crashes when
/// the two differ (hosts with `resolve` or `myhostname` in nsswitch.conf). Names are looked up in
/// /etc/hosts and in the DNS, as musl does.
///
/// Must run before the first lookup. Source: <nss.h>, `__nss_configure_lookup`.
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
pub fn prepare() {
    use std::ffi::{c_char, c_int};

    #[allow(unsafe_code)]
    // SAFETY: the signature is that of <nss.h>; both strings live for ever and end in zero.
    let _status = unsafe {
        unsafe extern "C" {
            fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
        }
        __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr())
    };
}

/// Nothing to do: this libc loads no modules, or the host's own.
#[cfg(not(all(target_env = "gnu", target_feature = "crt-static")))]
pub fn prepare() {}
