//! The command line: what it asks for, or why it asks for nothing.

use std::ffi::OsString;
use std::fmt;

/// What the program understands.
pub(crate) const USAGE: &str = "\
usage: graft-runtime listen=HOST:PORT    take one connection there
       graft-runtime filedescs=IN,OUT    read and write these inherited descriptors
       graft-runtime IN OUT              the same
";

/// Where the controller is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    Help,
    Listen { address: String },
    Descriptors { input: i32, output: i32 },
}

/// Why the command line is none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UsageError {
    Nothing,
    NotText {
        index: usize,
    },
    Unknown {
        arg: String,
    },
    TooMany {
        extra: String,
    },
    BadAddress {
        address: String,
    },
    BadDescriptor {
        text: String,
    },
    OneDescriptor {
        text: String,
    },
    /// The console, or the log, would be part of the protocol.
    TakenDescriptor {
        number: i32,
    },
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("no controller given")?,
            Self::NotText { index } => write!(f, "argument {index} is not UTF-8")?,
            Self::Unknown { arg } => write!(f, "'{arg}' is neither listen=HOST:PORT nor filedescs=IN,OUT")?,
            Self::TooMany { extra } => write!(f, "'{extra}' is one argument too many")?,
            Self::BadAddress { address } => {
                write!(f, "'{address}' is not HOST:PORT (an IPv6 address goes in brackets, a port is 0 to 65535)")?;
            }
            Self::BadDescriptor { text } => write!(f, "'{text}' is not a descriptor number")?,
            Self::TakenDescriptor { number: 1 } => {
                f.write_str("descriptor 1 cannot be OUT: the console of the loaded program is there")?;
            }
            Self::TakenDescriptor { number } => write!(f, "descriptor {number} cannot be OUT: the log is there")?,
            Self::OneDescriptor { text } => write!(f, "'{text}' is not two descriptors, IN,OUT")?,
        }
        write!(f, "\n{}", USAGE.trim_end())
    }
}

/// Reads the arguments behind the program's name.
pub(crate) fn parse(args: &[OsString]) -> Result<Plan, UsageError> {
    let mut texts = Vec::new();
    for (index, arg) in args.iter().enumerate() {
        texts.push(arg.to_str().ok_or(UsageError::NotText { index: index + 1 })?);
    }
    match texts.as_slice() {
        [] => Err(UsageError::Nothing),
        ["-h" | "--help"] => Ok(Plan::Help),
        [input, output] if is_number(input) && is_number(output) => descriptors(input, output),
        [one] => parse_one(one),
        [first, extra, ..] => {
            parse_one(first)?;
            Err(UsageError::TooMany { extra: (*extra).to_owned() })
        }
    }
}

fn parse_one(arg: &str) -> Result<Plan, UsageError> {
    if let Some(address) = arg.strip_prefix("listen=") {
        let bad = || UsageError::BadAddress { address: address.to_owned() };
        let (host, port) = address.rsplit_once(':').ok_or_else(bad)?;
        if host.is_empty() || port.parse::<u16>().is_err() || (host.contains(':') && !host.starts_with('[')) {
            return Err(bad());
        }
        return Ok(Plan::Listen { address: address.to_owned() });
    }
    if let Some(pair) = arg.strip_prefix("filedescs=") {
        let one = || UsageError::OneDescriptor { text: pair.to_owned() };
        let (input, output) = pair.split_once(',').ok_or_else(one)?;
        return descriptors(input, output);
    }
    Err(UsageError::Unknown { arg: arg.to_owned() })
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn descriptors(input: &str, output: &str) -> Result<Plan, UsageError> {
    let (input, output) = (descriptor(input)?, descriptor(output)?);
    if matches!(output, 1 | 2) {
        return Err(UsageError::TakenDescriptor { number: output });
    }
    Ok(Plan::Descriptors { input, output })
}

fn descriptor(text: &str) -> Result<i32, UsageError> {
    let number = if is_number(text) { text.parse().ok() } else { None };
    number.ok_or_else(|| UsageError::BadDescriptor { text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Plan, UsageError> {
        parse(&args.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn three_forms_are_understood() {
        assert_eq!(parsed(&["listen=localhost:0"]), Ok(Plan::Listen { address: "localhost:0".into() }));
        assert_eq!(parsed(&["listen=[::1]:99"]), Ok(Plan::Listen { address: "[::1]:99".into() }));
        assert_eq!(parsed(&["filedescs=3,4"]), Ok(Plan::Descriptors { input: 3, output: 4 }));
        assert_eq!(parsed(&["5", "5"]), Ok(Plan::Descriptors { input: 5, output: 5 }));
        assert_eq!(parsed(&["--help"]), Ok(Plan::Help));
    }

    #[test]
    fn everything_else_is_named() {
        assert_eq!(parsed(&[]), Err(UsageError::Nothing));
        assert_eq!(parsed(&["serve"]), Err(UsageError::Unknown { arg: "serve".into() }));
        for address in ["localhost", "localhost:", ":1", "localhost:65536", "::1:80"] {
            let arg = format!("listen={address}");
            assert_eq!(parsed(&[&arg]), Err(UsageError::BadAddress { address: address.into() }));
        }
        assert_eq!(parsed(&["filedescs=3"]), Err(UsageError::OneDescriptor { text: "3".into() }));
        assert_eq!(parsed(&["filedescs=3,-1"]), Err(UsageError::BadDescriptor { text: "-1".into() }));
        assert_eq!(parsed(&["filedescs=3,4", "5"]), Err(UsageError::TooMany { extra: "5".into() }));
        assert_eq!(parsed(&["0", "1"]), Err(UsageError::TakenDescriptor { number: 1 }));
        assert_eq!(parsed(&["filedescs=0,2"]), Err(UsageError::TakenDescriptor { number: 2 }));
        assert!(UsageError::Nothing.to_string().contains("usage: graft-runtime listen=HOST:PORT"));
    }
}
