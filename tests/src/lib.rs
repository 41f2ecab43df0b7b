//! Shared rig of the tests.
