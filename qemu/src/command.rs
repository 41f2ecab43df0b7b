//! What a machine is made of, and the command line that says so to QEMU.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The board.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MachineKind {
    /// QEMU's smallest: no PCI, no firmware to speak of, the fastest start.
    #[default]
    Microvm,
    /// A PC of today, with PCI and the short firmware `qboot`.
    Q35,
}

impl MachineKind {
    /// The board's name on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Microvm => "microvm",
            Self::Q35 => "q35",
        }
    }

    /// The board of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Microvm, Self::Q35].into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for MachineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who executes the guest's instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accel {
    /// Software emulation: works everywhere.
    #[default]
    Tcg,
    /// The host's processor, through the KVM device. Some hosts offer the device and cannot run an ordinary guest, so this is
    /// never chosen by itself.
    Kvm,
}

impl Accel {
    /// The accelerator's name on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcg => "tcg",
            Self::Kvm => "kvm",
        }
    }

    /// The accelerator of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Tcg, Self::Kvm].into_iter().find(|accel| accel.name() == name)
    }
}

/// Which serial ports the board has. Less than both is for tests of the boot check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SerialPorts {
    /// COM1 for the protocol, COM2 for the console.
    #[default]
    Both,
    /// No COM1: the executor has no line.
    ConsoleOnly,
}

/// A machine to start. The fields with good defaults are filled in by [`Machine::new`].
#[derive(Clone, Debug)]
pub struct Machine {
    /// The executor's image, an ELF file with a PVH note.
    pub image: PathBuf,
    /// The board.
    pub kind: MachineKind,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// QEMU's name of the processor, with its switches, such as `max,-nx`.
    pub cpu: String,
    /// Who executes the guest's instructions.
    pub accel: Accel,
    /// The kernel command line; empty for none.
    pub cmdline: String,
    /// The serial ports.
    pub serial: SerialPorts,
    /// After this time the machine is killed; none for a machine that stays.
    pub time_limit: Option<Duration>,
    /// How long QEMU may take to connect its channels.
    pub start_limit: Duration,
    /// The QEMU program, looked up in `PATH` when it has no slash.
    pub program: PathBuf,
    /// More arguments for QEMU, last on its command line.
    pub extra_args: Vec<OsString>,
}

impl Machine {
    /// A microvm with 128 MiB and software emulation, without a time limit.
    #[must_use]
    pub fn new(image: impl Into<PathBuf>) -> Self {
        Self {
            image: image.into(),
            kind: MachineKind::default(),
            memory_mib: 128,
            cpu: String::from("max"),
            accel: Accel::default(),
            cmdline: String::new(),
            serial: SerialPorts::default(),
            time_limit: None,
            start_limit: Duration::from_secs(20),
            program: PathBuf::from("qemu-system-x86_64"),
            extra_args: Vec::new(),
        }
    }

    /// The arguments for QEMU, with the sockets of the channels in `directory`.
    pub(crate) fn arguments(&self, directory: &Path) -> Vec<OsString> {
        let mut arguments = Arguments(Vec::new());
        arguments.pair("-machine", self.board());
        arguments.pair("-accel", self.accel.name());
        if self.kind == MachineKind::Q35 {
            arguments.pair("-bios", "qboot.rom");
        }
        arguments.pair("-cpu", &self.cpu);
        arguments.pair("-m", self.memory_mib.to_string());
        for word in ["-nodefaults", "-no-user-config", "-no-reboot"] {
            arguments.word(word);
        }
        arguments.pair("-display", "none");
        arguments.pair("-device", "isa-debug-exit,iobase=0xf4,iosize=0x04");
        for channel in Channel::ALL {
            arguments.chardev(channel, directory);
            match channel {
                Channel::Line if self.serial == SerialPorts::ConsoleOnly => {}
                Channel::Line => arguments.pair("-device", "isa-serial,iobase=0x3f8,irq=4,chardev=line"),
                Channel::Console => arguments.pair("-device", "isa-serial,iobase=0x2f8,irq=3,chardev=console"),
                Channel::Log => arguments.pair("-device", "isa-debugcon,iobase=0xe9,chardev=log"),
            }
        }
        arguments.pair("-kernel", self.image.as_os_str());
        if !self.cmdline.is_empty() {
            arguments.pair("-append", &self.cmdline);
        }
        arguments.0.extend(self.extra_args.iter().cloned());
        arguments.0
    }

    /// The board with its switches. The microvm keeps its interrupt controller and timer, which the executor uses, and
    /// its own serial port would sit where ours must.
    const fn board(&self) -> &'static str {
        match self.kind {
            MachineKind::Microvm => "microvm,isa-serial=off,rtc=off,acpi=off,auto-kernel-cmdline=off",
            MachineKind::Q35 => "q35",
        }
    }
}

/// One of the machine's byte channels, by its name in file names and on QEMU's command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    Line,
    Console,
    Log,
}

impl Channel {
    pub(crate) const ALL: [Self; 3] = [Self::Line, Self::Console, Self::Log];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Line => "line",
            Self::Console => "console",
            Self::Log => "log",
        }
    }
}

struct Arguments(Vec<OsString>);

impl Arguments {
    fn word(&mut self, word: impl Into<OsString>) {
        self.0.push(word.into());
    }

    fn pair(&mut self, option: &str, value: impl Into<OsString>) {
        self.word(option);
        self.word(value);
    }

    /// A comma in the path would end the value: QEMU reads two as one.
    fn chardev(&mut self, channel: Channel, directory: &Path) {
        let mut value = OsString::from(format!("socket,id={},server=off,path=", channel.name()));
        for (index, part) in split_at_commas(&directory.join(channel.name())).into_iter().enumerate() {
            if index > 0 {
                value.push(",,");
            }
            value.push(part);
        }
        self.pair("-chardev", value);
    }
}

fn split_at_commas(path: &Path) -> Vec<OsString> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    path.as_os_str().as_bytes().split(|byte| *byte == b',').map(|part| OsString::from_vec(part.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(machine: &Machine) -> String {
        let words: Vec<String> =
            machine.arguments(Path::new("/run/x")).iter().map(|word| word.to_string_lossy().into_owned()).collect();
        words.join(" ")
    }

    #[test]
    fn a_microvm_is_the_default() {
        let line = line(&Machine::new("image.elf"));
        assert!(line.starts_with("-machine microvm,isa-serial=off"), "{line}");
        assert!(line.contains(" -accel tcg -cpu max -m 128 "), "{line}");
        assert!(line.contains("-chardev socket,id=line,server=off,path=/run/x/line "), "{line}");
        assert!(line.contains("isa-serial,iobase=0x3f8,irq=4,chardev=line"), "{line}");
        assert!(line.contains(" -no-reboot "), "{line}");
        assert!(line.ends_with("-kernel image.elf"), "{line}");
    }

    #[test]
    fn every_field_reaches_the_command_line() {
        let mut machine = Machine::new("image.elf");
        machine.kind = MachineKind::Q35;
        machine.accel = Accel::Kvm;
        machine.cpu = String::from("max,-nx");
        machine.memory_mib = 2;
        machine.serial = SerialPorts::ConsoleOnly;
        machine.cmdline = String::from("poison");
        machine.extra_args.push(OsString::from("-S"));
        let line = line(&machine);
        assert!(line.starts_with("-machine q35 -accel kvm -bios qboot.rom -cpu max,-nx -m 2 "), "{line}");
        assert!(!line.contains("0x3f8"), "{line}");
        assert!(line.ends_with("-kernel image.elf -append poison -S"), "{line}");
    }

    #[test]
    fn a_comma_in_a_path_is_doubled() {
        let mut arguments = Arguments(Vec::new());
        arguments.chardev(Channel::Log, Path::new("/a,b/c"));
        assert_eq!(arguments.0[1], OsString::from("socket,id=log,server=off,path=/a,,b/c/log"));
    }

    #[test]
    fn names_and_kinds_are_one_to_one() {
        assert_eq!(MachineKind::from_name("q35"), Some(MachineKind::Q35));
        assert_eq!(MachineKind::from_name("pc"), None);
        assert_eq!(Accel::from_name("kvm"), Some(Accel::Kvm));
    }
}
