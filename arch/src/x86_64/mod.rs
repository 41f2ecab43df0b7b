//! x86-64. [`paging`] and [`fault`] are pure and compile everywhere; [`checkpoint`] needs the processor, `bare` the whole
//! machine.

#[cfg(target_arch = "x86_64")]
pub mod checkpoint;
pub mod fault;
pub mod paging;
