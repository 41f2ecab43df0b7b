//! Targets as text.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use graft_qemu::{Accel, MachineKind};
use thiserror::Error;

use super::{QemuTarget, Target};

/// The forms of a target, for help texts.
pub const FORMS: &str =
    "hosted | qemu[:KEY=VALUE,...] | tcp:HOST:PORT | unix:PATH | serial:DEVICE[@BAUD] | exec:PROGRAM";

/// The settings of a QEMU target, for help texts.
pub const QEMU_KEYS: &str = "machine=microvm|q35, mem=MIB, cpu=MODEL, accel=tcg|kvm, image=PATH";
/// With less, the image is outside of the memory. With more, its own boot check says what is missing.
const LEAST_MEMORY_MIB: u32 = 2;
const DEFAULT_BAUD: u32 = 115_200;

/// Why a text names no target.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TargetError {
    /// It begins as no target does.
    #[error("`{0}` is no target; a target is {FORMS}")]
    UnknownForm(String),
    /// Something follows a word that stands alone.
    #[error("`{0}`: nothing may follow `hosted`")]
    Surplus(String),
    /// The address has no port, or not a usable one.
    #[error("`{0}`: a TCP target is tcp:HOST:PORT with a port from 1 to 65535")]
    Port(String),
    /// Nothing follows the colon.
    #[error("`{0}` names no {1}")]
    Empty(String, &'static str),
    /// The speed is no number.
    #[error("`{0}`: a serial target is serial:DEVICE[@BAUD], the speed in bits per second")]
    Baud(String),
    /// A key of `qemu:` that is not known.
    #[error("`{0}` is no setting of a qemu target; those are {QEMU_KEYS}")]
    QemuKey(String),
    /// A value of `qemu:` that its key does not take.
    #[error("`{value}` is no value for `{key}`; the settings of a qemu target are {QEMU_KEYS}")]
    QemuValue {
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
    /// Memory that ends where the runtime begins: a machine that could not even say so.
    #[error(
        "`mem={0}`: the runtime lies above the first MiB of a machine's memory; give it at least {LEAST_MEMORY_MIB}"
    )]
    QemuMemory(u32),
    /// A key given twice.
    #[error("the setting `{0}` is given twice")]
    QemuTwice(String),
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let (form, rest) = text.split_once(':').map_or((text, None), |(form, rest)| (form, Some(rest)));
        let some = |what| rest.filter(|rest| !rest.is_empty()).ok_or(TargetError::Empty(text.to_owned(), what));
        match form {
            "hosted" if rest.is_some() => Err(TargetError::Surplus(text.to_owned())),
            "hosted" => Ok(Self::Hosted),
            "exec" => Ok(Self::Exec(PathBuf::from(some("program")?))),
            "qemu" => rest.map_or(Ok(QemuTarget::default()), parse_qemu).map(Self::Qemu),
            "tcp" => {
                let bad = || TargetError::Port(text.to_owned());
                let (host, port) = some("address")?.rsplit_once(':').ok_or_else(bad)?;
                let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
                match port.parse() {
                    Ok(port) if port != 0 && !host.is_empty() => Ok(Self::Tcp { host: host.to_owned(), port }),
                    _ => Err(bad()),
                }
            }
            "unix" => Ok(Self::Unix(PathBuf::from(some("socket")?))),
            "serial" => {
                let rest = some("device")?;
                let (device, baud) = rest.rsplit_once('@').unwrap_or((rest, ""));
                let baud = if rest.contains('@') { baud.parse().unwrap_or(0) } else { DEFAULT_BAUD };
                if device.is_empty() {
                    return Err(TargetError::Empty(text.to_owned(), "device"));
                }
                if baud == 0 {
                    return Err(TargetError::Baud(text.to_owned()));
                }
                Ok(Self::Serial { device: device.to_owned(), baud })
            }
            _ => Err(TargetError::UnknownForm(text.to_owned())),
        }
    }
}

fn parse_qemu(settings: &str) -> Result<QemuTarget, TargetError> {
    let mut target = QemuTarget::default();
    let mut seen: Vec<&str> = Vec::new();
    for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
        // QEMU's processor models carry switches behind commas of their own: cpu=max,-nx.
        if setting.starts_with(['+', '-'])
            && seen.last() == Some(&"cpu")
            && let Some(cpu) = &mut target.cpu
        {
            cpu.push(',');
            cpu.push_str(setting);
            continue;
        }
        let (key, value) = setting.split_once('=').ok_or_else(|| TargetError::QemuKey(setting.to_owned()))?;
        let bad = || TargetError::QemuValue { key: key.to_owned(), value: value.to_owned() };
        let some = || if value.is_empty() { Err(bad()) } else { Ok(value) };
        if seen.contains(&key) {
            return Err(TargetError::QemuTwice(key.to_owned()));
        }
        match key {
            "machine" => target.machine = MachineKind::from_name(value).ok_or_else(bad)?,
            "mem" => match value.parse().ok().filter(|mib| *mib > 0).ok_or_else(bad)? {
                mib if mib < LEAST_MEMORY_MIB => return Err(TargetError::QemuMemory(mib)),
                mib => target.memory_mib = mib,
            },
            "cpu" => target.cpu = Some(some()?.to_owned()),
            "accel" => target.accel = Accel::from_name(value).ok_or_else(bad)?,
            "image" => target.image = Some(PathBuf::from(some()?)),
            _ => return Err(TargetError::QemuKey(setting.to_owned())),
        }
        seen.push(key);
    }
    Ok(target)
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hosted => f.write_str("hosted"),
            Self::Exec(program) => write!(f, "exec:{}", program.display()),
            Self::Qemu(machine) => machine.fmt(f),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Serial { device, baud } => write!(f, "serial:{device}@{baud}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Target, TargetError> {
        text.parse()
    }

    #[test]
    fn every_form_parses_and_prints() {
        for text in [
            "hosted",
            "qemu",
            "qemu:machine=q35,mem=256,cpu=max,-nx,+smep,image=/a/b",
            "tcp:localhost:4711",
            "tcp:[::1]:4711",
            "unix:/run/user/0/graft/line",
            "serial:/dev/ttyUSB0@9600",
            "exec:/usr/bin/x",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        assert_eq!(parse("serial:/dev/ttyS1").unwrap().to_string(), "serial:/dev/ttyS1@115200");
        assert_eq!(parse("qemu:"), parse("qemu"));
        let Target::Qemu(machine) = parse("qemu:cpu=max,-nx,mem=64").unwrap() else { panic!("not qemu") };
        assert_eq!((machine.cpu.as_deref(), machine.memory_mib), (Some("max,-nx"), 64));
    }

    #[test]
    fn bad_targets_have_names_and_say_what_is_accepted() {
        let error = parse("kvm").unwrap_err();
        assert!(error.to_string().contains("hosted | qemu[:KEY=VALUE,...] | tcp:HOST:PORT"), "{error}");
        assert_eq!(parse("qemu:mem=1"), Err(TargetError::QemuMemory(1)));
        assert!(parse("qemu:mem=1").unwrap_err().to_string().ends_with("give it at least 2"));
        assert_eq!(parse("hosted:x"), Err(TargetError::Surplus("hosted:x".into())));
        for text in ["tcp:localhost", "tcp::1", "tcp:h:0", "tcp:h:65536", "tcp:h:"] {
            assert_eq!(parse(text), Err(TargetError::Port(text.into())), "{text}");
        }
        assert_eq!(parse("tcp:"), Err(TargetError::Empty("tcp:".into(), "address")));
        assert_eq!(parse("unix"), Err(TargetError::Empty("unix".into(), "socket")));
        assert_eq!(parse("serial:@9600"), Err(TargetError::Empty("serial:@9600".into(), "device")));
        assert_eq!(parse("serial:x@fast"), Err(TargetError::Baud("serial:x@fast".into())));
        assert_eq!(parse("qemu:-nx"), Err(TargetError::QemuKey("-nx".into())));
        assert_eq!(parse("qemu:disk=1"), Err(TargetError::QemuKey("disk=1".into())));
        assert_eq!(parse("qemu:mem=2,mem=3"), Err(TargetError::QemuTwice("mem".into())));
        for (key, value) in [("machine", "pc"), ("mem", "0"), ("mem", "x"), ("accel", "hvf"), ("image", "")] {
            let error = parse(&format!("qemu:{key}={value}")).unwrap_err();
            assert_eq!(error, TargetError::QemuValue { key: key.into(), value: value.into() });
        }
    }
}
