//! The relay between a played client and a played executor.
