//! The executor as a program: the whole of a bare machine, or a Linux process.
#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "linux")]
mod hosted;
#[cfg(target_os = "none")]
mod image;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    hosted::main()
}
