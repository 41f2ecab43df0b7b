//! What the executor does.
#![no_std]
