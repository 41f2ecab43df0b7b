//! Names the linker script of the bare image by its absolute path: a relative one would be looked up in the directory that
//! cargo was started in.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let wanted = |name: &str| std::env::var(name).unwrap_or_default();
    if wanted("CARGO_CFG_TARGET_OS") != "none" {
        return;
    }
    let script = format!("{}/{}.ld", wanted("CARGO_MANIFEST_DIR"), wanted("CARGO_CFG_TARGET_ARCH"));
    println!("cargo::rerun-if-changed={script}");
    println!("cargo::rustc-link-arg-bins=-T{script}");
}
