//! The C library for loaded code: its functions by name, and its standard output made the executor's console.
//!
//! A program may print with `puts` (the executor's) and `printf` (the C library's) in turn. For the order to be right, and
//! for all of it to reach whoever has the console, the C library's `stdout` becomes an unbuffered stream that writes to
//! the console like everything else.
#![expect(unsafe_code, reason = "dlsym, and the C library's stdout")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::Once;

use graft_protocol::ExecAddr;
use graft_runtime::exports;

/// `cookie_io_functions_t` of glibc and musl.
#[repr(C)]
struct CookieFunctions {
    read: Option<extern "C" fn(*mut c_void, *mut c_char, usize) -> isize>,
    write: Option<extern "C" fn(*mut c_void, *const c_char, usize) -> isize>,
    seek: Option<extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: Option<extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    static mut stdout: *mut libc::FILE;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: CookieFunctions) -> *mut libc::FILE;
}

/// Makes the C library's standard output the console, once and for good: the stream that was there is kept, because it
/// may hold what was printed before, which [`end_process`] writes out.
pub(crate) fn redirect_stdout() {
    static DONE: Once = Once::new();
    DONE.call_once(replace_stdout);
}

fn replace_stdout() {
    extern "C" fn write(_: *mut c_void, bytes: *const c_char, len: usize) -> isize {
        // SAFETY: the C library's own bytes, or those of loaded code that prints without a buffer.
        unsafe { exports::graft_write(bytes.cast(), len) };
        isize::try_from(len).unwrap_or(isize::MAX)
    }
    let functions = CookieFunctions { read: None, write: Some(write), seek: None, close: None };
    // SAFETY: the mode is a C string, and the functions live as long as the program.
    let stream = unsafe { fopencookie(ptr::null_mut(), c"w".as_ptr(), functions) };
    if stream.is_null() {
        return;
    }
    // SAFETY: the stream is new. Unbuffered: what is printed before a fault was printed.
    unsafe { libc::setvbuf(stream, ptr::null_mut(), libc::_IONBF, 0) };
    // SAFETY: the variable is there to be assigned (glibc manual, "Standard Streams"), and no other thread prints.
    unsafe { stdout = stream };
}

/// Ends the process after writing out what the C library still buffers.
///
/// Not by returning from `main`: loaded code may have left functions to call then, and is not there any more.
pub(crate) fn end_process(status: u8) -> ! {
    // SAFETY: a null stream means all of them.
    unsafe { libc::fflush(ptr::null_mut()) };
    // SAFETY: has no conditions.
    unsafe { libc::_exit(i32::from(status)) }
}

/// The address of a function or variable of the C library, or of any library of this process.
pub(crate) fn find(name: &[u8]) -> Option<ExecAddr> {
    let name = CString::new(name).ok()?;
    // SAFETY: a C string; the default handle searches what the process has loaded.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then(|| ExecAddr(found.expose_provenance() as u64))
}

/// `free` and `realloc` that know the C library's blocks (`strdup`'s, say) besides the executor's.
pub(crate) fn find_override(name: &[u8]) -> Option<ExecAddr> {
    extern "C" fn free(block: *mut c_void) {
        if block.is_null() || exports::is_block(block.cast()) {
            // SAFETY: null, or a block just looked up.
            unsafe { exports::free(block.cast()) };
        } else {
            // SAFETY: loaded code says it is a block of the C library, which checks that as it does for any program.
            unsafe { libc::free(block) };
        }
    }
    extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
        if block.is_null() || exports::is_block(block.cast()) {
            // SAFETY: null, or a block just looked up.
            return unsafe { exports::realloc(block.cast(), size) }.cast();
        }
        // SAFETY: as in `free`.
        unsafe { libc::realloc(block, size) }
    }
    let function = match name {
        b"free" => free as *const (),
        b"realloc" => realloc as *const (),
        _ => return None,
    };
    Some(ExecAddr(function.addr() as u64))
}
