//! The other way in: GRUB loads the image by multiboot2, from a disc, on a machine with a real firmware.

use std::fs;
use std::process::Command;
use std::time::Duration;

use graft_tests::{child, place, tools};

const LIMIT: Duration = Duration::from_secs(120);

/// What the image tells QEMU's debug-exit device after its self-test, as QEMU's exit status: `code << 1 | 1`.
const SELF_TEST_PASSED: i32 = 0x20 << 1 | 1;

/// Lets GRUB start the image without asking.
const MENU: &str = "multiboot2 /boot/graft selftest\nboot\n";

#[test]
fn the_self_test_passes_when_grub_loads_the_image() {
    let folder = place::scratch("multiboot2");
    let (root, disc, log) = (folder.join("root"), folder.join("disc.iso"), folder.join("log"));
    fs::create_dir_all(root.join("boot/grub")).unwrap();
    fs::copy(place::image().unwrap(), root.join("boot/graft")).unwrap();
    fs::write(root.join("boot/grub/grub.cfg"), MENU).unwrap();
    let mut make = Command::new(tools::packaged("grub-mkrescue", "grub-common").unwrap());
    make.args(["-d", tools::GRUB_MODULES, "-o"]).arg(&disc).arg(&root);
    let made = child::run(&mut make, LIMIT).unwrap();
    assert!(made.success(), "{}: {}", made.end, made.stderr);

    let mut qemu = Command::new(tools::packaged("qemu-system-x86_64", "qemu-system-x86").unwrap());
    qemu.args(["-machine", "q35", "-accel", "tcg", "-cpu", "max", "-m", "128", "-nodefaults", "-no-reboot"]);
    qemu.args(["-display", "none", "-serial", "null", "-serial", "null"]);
    qemu.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"]);
    qemu.arg("-debugcon").arg(format!("file:{}", log.display())).arg("-cdrom").arg(&disc);
    let run = child::run(&mut qemu, LIMIT).unwrap();
    let log = String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned();
    assert_eq!(run.end, child::End::Exit(SELF_TEST_PASSED), "{}\n{log}", run.stderr);
    assert!(log.contains("self-test passed"), "{log}");
}
