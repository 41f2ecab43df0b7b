//! What the CPU does.
#![no_std]
