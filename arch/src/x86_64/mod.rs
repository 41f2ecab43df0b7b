//! x86-64. Most of it is pure and compiles everywhere; [`checkpoint`] needs the processor, `bare` the whole machine.

#[cfg(all(target_os = "none", target_arch = "x86_64"))]
pub mod bare;
pub mod boot_info;
#[cfg(target_arch = "x86_64")]
pub mod checkpoint;
pub mod fault;
pub mod paging;
