//! The QEMU machines Graft boots, defined once.
