//! Writes JSON: the few forms that reports need.

use std::fmt;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    /// A number without a fraction.
    Int(i128),
    /// A number of milliseconds or the like, with three decimals.
    Decimal(f64),
    /// A text.
    Text(String),
    /// Values in order.
    List(Vec<Self>),
    /// Named values in order.
    Object(Vec<(&'static str, Self)>),
}

macro_rules! from_integers {
    ($($int:ty),*) => {$(
        impl From<$int> for Json {
            fn from(value: $int) -> Self {
                Self::Int(value.into())
            }
        }
    )*};
}
from_integers!(u8, u32, u64, i64);

impl From<&str> for Json {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for Json {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<f64> for Json {
    fn from(value: f64) -> Self {
        Self::Decimal(value)
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(value) => write!(f, "{value}"),
            Self::Decimal(value) if value.is_finite() => write!(f, "{value:.3}"),
            Self::Decimal(_) => f.write_str("null"),
            Self::Text(text) => string(text, f),
            Self::List(values) => {
                f.write_str("[")?;
                for (index, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if index > 0 { "," } else { "" })?;
                }
                f.write_str("]")
            }
            Self::Object(members) => {
                f.write_str("{")?;
                for (index, (name, value)) in members.iter().enumerate() {
                    f.write_str(if index > 0 { "," } else { "" })?;
                    string(name, f)?;
                    write!(f, ":{value}")?;
                }
                f.write_str("}")
            }
        }
    }
}

fn string(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    use fmt::Write;
    f.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            '\t' => f.write_str("\\t")?,
            '\r' => f.write_str("\\r")?,
            // All of them are below 0x10000.
            c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_json() {
        let value = Json::Object(vec![
            ("text", "a \"b\"\\\n\u{1}é".into()),
            ("list", Json::List(vec![1_u8.into(), (-1_i64).into(), 0.5.into(), Json::Decimal(f64::NAN)])),
        ]);
        assert_eq!(value.to_string(), "{\"text\":\"a \\\"b\\\"\\\\\\n\\u0001é\",\"list\":[1,-1,0.500,null]}");
    }
}
