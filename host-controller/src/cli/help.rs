//! What follows the help texts.

use std::sync::LazyLock;

use graft::transport::QEMU_KEYS;

use super::exit;

/// The functions of the executor that loaded code may call without defining them.
const FUNCTIONS: &str = "  console  puts, putchar, graft_write(bytes, length)
  memory   malloc, calloc, realloc, aligned_alloc, free, memcpy, memmove, memset, memcmp, strlen
  program  exit, _exit, _Exit, abort
  machine  graft_uptime_ns() -> nanoseconds since boot
  calls    graft_dispatch, also as __orc_rt_jit_dispatch: call a handler of the controller
  (the hosted executor also has all of its process's C library)";

/// After the help of the whole command.
pub(crate) static GENERAL: LazyLock<String> =
    LazyLock::new(|| format!("Settings of a qemu target:\n  {QEMU_KEYS}\n\n{}", exit::HELP));

/// After the help of `graft run`.
pub(crate) static RUN: LazyLock<String> =
    LazyLock::new(|| format!("Functions that are there for the program:\n{FUNCTIONS}\n\n{}", GENERAL.as_str()));
