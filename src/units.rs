//! Quantities with their units: bytes, FLOPs, seconds, dollars, tokens and their rates.
//!
//! Every quantity is a newtype, so that only dimensionally right arithmetic compiles, and every one
//! parses and prints the way a data sheet writes it (`"80GiB"`, `"400Gb/s"`, `"989.4TFLOP/s"`).
//! Times inside tables, schedules and searches are whole picoseconds ([`Picos`]): integer sums are
//! associative, so itemised times add up exactly and results do not depend on the order of work.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A quantity's text was not understood; `expected` shows how one is written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}; expected something like {example}")]
pub struct ParseQuantityError {
    text: String,
    what: &'static str,
    example: &'static str,
}

/// Reads `<number><unit>`; the unit decides the factor.
fn parse_with_units(
    text: &str,
    units: &[(&str, f64)],
    what: &'static str,
    example: &'static str,
) -> Result<f64, ParseQuantityError> {
    let err = || ParseQuantityError { text: text.to_owned(), what, example };
    let compact: String = text.chars().filter(|c| !c.is_whitespace() && *c != '_').collect();
    // The unit is the longest known suffix; what is left must be a number (so `1e9B` works).
    let mut best: Option<(&str, f64)> = None;
    for &(unit, factor) in units {
        let longer = best.is_none_or(|(b, _)| unit.len() > b.len());
        if compact.ends_with(unit) && longer {
            best = Some((unit, factor));
        }
    }
    let (unit, factor) = best.ok_or_else(err)?;
    let number: f64 = compact[..compact.len() - unit.len()].parse().map_err(|_| err())?;
    let value = number * factor;
    if !value.is_finite() || value < 0.0 {
        return Err(err());
    }
    // Negative zero becomes zero.
    Ok(value + 0.0)
}

/// Largest whole quantity that is read from text: sums of many stay inside 64 bits.
const LARGEST_WHOLE: f64 = 1e18;

/// Reads a whole quantity, rounded.
fn parse_whole(
    text: &str,
    units: &[(&str, f64)],
    what: &'static str,
    example: &'static str,
) -> Result<u64, ParseQuantityError> {
    let value = parse_with_units(text, units, what, example)?;
    if value > LARGEST_WHOLE {
        return Err(ParseQuantityError { text: text.to_owned(), what, example });
    }
    Ok(value.round() as u64)
}

macro_rules! float_quantity {
    ($(#[$doc:meta])* $name:ident, $what:literal, $example:literal, $units:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
        pub struct $name(pub f64);

        impl $name {
            /// Reads the quantity with its unit.
            pub fn parse(text: &str) -> Result<Self, ParseQuantityError> {
                parse_with_units(text, $units, $what, $example).map(Self)
            }
            /// The larger of two.
            #[must_use]
            pub fn max(self, other: Self) -> Self {
                Self(self.0.max(other.0))
            }
            /// The smaller of two.
            #[must_use]
            pub fn min(self, other: Self) -> Self {
                Self(self.0.min(other.0))
            }
        }
        impl std::str::FromStr for $name {
            type Err = ParseQuantityError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::parse(text)
            }
        }
        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }
        impl Mul<f64> for $name {
            type Output = Self;
            fn mul(self, factor: f64) -> Self {
                Self(self.0 * factor)
            }
        }
        impl Div<f64> for $name {
            type Output = Self;
            fn div(self, divisor: f64) -> Self {
                Self(self.0 / divisor)
            }
        }
        impl Div for $name {
            type Output = f64;
            fn div(self, other: Self) -> f64 {
                self.0 / other.0
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
                Self(iter.map(|x| x.0).sum())
            }
        }
        impl From<$name> for f64 {
            /// The bare number in the unit without a prefix: for output formats whose field names carry it.
            fn from(quantity: $name) -> f64 {
                quantity.0
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct TextVisitor;
                impl Visitor<'_> for TextVisitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                        write!(f, "{} in quotes, such as {}", $what, $example)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        $name::parse(text).map_err(E::custom)
                    }
                }
                deserializer.deserialize_any(TextVisitor)
            }
        }
        impl Serialize for $name {
            /// As it prints where that reads back as the same value, else in its base unit with all digits.
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let shown = self.to_string();
                if Self::parse(&shown).is_ok_and(|read| read.0.to_bits() == self.0.to_bits()) {
                    return serializer.serialize_str(&shown);
                }
                let base = $units.iter().find(|&&(_, factor)| factor == 1.0).map_or("", |&(unit, _)| unit);
                serializer.collect_str(&format_args!("{}{base}", self.0))
            }
        }
    };
}

const SECOND_UNITS: &[(&str, f64)] = &[
    ("s", 1.0),
    ("ms", 1e-3),
    ("us", 1e-6),
    ("ns", 1e-9),
    ("min", 60.0),
    ("h", 3600.0),
    ("d", 86_400.0),
    ("days", 86_400.0),
];

float_quantity!(
    /// Seconds.
    Seconds, "a time", "\"10s\", \"30d\" or \"18us\"", SECOND_UNITS);
float_quantity!(
    /// Floating-point operations.
    Flops, "a number of FLOPs", "\"1.5TFLOP\"",
    &[("FLOP", 1.0), ("GFLOP", 1e9), ("TFLOP", 1e12), ("PFLOP", 1e15)]);
float_quantity!(
    /// Floating-point operations per second.
    FlopRate, "a compute rate", "\"989.4TFLOP/s\"",
    &[("FLOP/s", 1.0), ("GFLOP/s", 1e9), ("TFLOP/s", 1e12), ("PFLOP/s", 1e15)]);
float_quantity!(
    /// Bytes per second. Network line rates may be given in bits (`Gb/s`).
    Bandwidth, "a bandwidth", "\"3.35TB/s\" or \"400Gb/s\"",
    &[("B/s", 1.0), ("MB/s", 1e6), ("GB/s", 1e9), ("TB/s", 1e12), ("Mb/s", 1e6 / 8.0), ("Gb/s", 1e9 / 8.0), ("Tb/s", 1e12 / 8.0)]);
float_quantity!(
    /// Watts.
    Watts, "a power", "\"700W\"", &[("W", 1.0), ("kW", 1e3), ("MW", 1e6)]);
float_quantity!(
    /// Electrical energy.
    WattHours, "an energy", "\"21.2GWh\"", &[("Wh", 1.0), ("kWh", 1e3), ("MWh", 1e6), ("GWh", 1e9)]);
float_quantity!(
    /// United States dollars.
    Dollars, "an amount of money", "\"2.5USD\" or \"5e6USD\"", &[("USD", 1.0)]);
float_quantity!(
    /// Dollars per hour, of one accelerator unless said otherwise.
    DollarsPerHour, "a price per hour", "\"2.5USD/h\"", &[("USD/h", 1.0)]);

/// Engineering notation: three significant digits and a decimal prefix.
fn prefixed(f: &mut fmt::Formatter, value: f64, unit: &str, prefixes: &[(f64, &str)]) -> fmt::Result {
    for &(scale, prefix) in prefixes {
        if value.abs() >= scale {
            return write!(f, "{}{prefix}{unit}", shortest(value / scale));
        }
    }
    write!(f, "{}{unit}", shortest(value))
}

/// At most four significant digits, exact where the value has fewer.
fn shortest(value: f64) -> String {
    let exact = format!("{value}");
    if exact.len() <= 6 {
        return exact;
    }
    let magnitude = if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 };
    let decimals = (3 - magnitude).max(0) as usize;
    format!("{value:.decimals$}")
}

const DECIMAL: &[(f64, &str)] = &[(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];

/// A quantity as people read it, its unit apart from its number; files and options have them together.
#[must_use]
pub fn spaced(quantity: impl fmt::Display) -> String {
    let text = quantity.to_string();
    let number = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    format!("{number} {}", &text[number.len()..])
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.0.abs() {
            s if s >= 3.0 * 86_400.0 => write!(f, "{}d", shortest(self.0 / 86_400.0)),
            s if s >= 3.0 * 3600.0 => write!(f, "{}h", shortest(self.0 / 3600.0)),
            s if s >= 1.0 || s == 0.0 => write!(f, "{}s", shortest(self.0)),
            s if s >= 1e-3 => write!(f, "{}ms", shortest(self.0 * 1e3)),
            s if s >= 1e-6 => write!(f, "{}us", shortest(self.0 * 1e6)),
            _ => write!(f, "{}ns", shortest(self.0 * 1e9)),
        }
    }
}
impl fmt::Display for Flops {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        prefixed(f, self.0, "FLOP", DECIMAL)
    }
}
impl fmt::Display for FlopRate {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        prefixed(f, self.0, "FLOP/s", DECIMAL)
    }
}
impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        prefixed(f, self.0, "B/s", &DECIMAL[1..4])
    }
}
impl fmt::Display for Watts {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        prefixed(f, self.0, "W", &DECIMAL[3..])
    }
}
impl fmt::Display for WattHours {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        prefixed(f, self.0, "Wh", &DECIMAL[2..])
    }
}
impl fmt::Display for Dollars {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}USD", shortest(self.0))
    }
}
impl fmt::Display for DollarsPerHour {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}USD/h", shortest(self.0))
    }
}

impl Seconds {
    /// Rounds to whole picoseconds; times beyond 200 days saturate.
    #[must_use]
    pub fn picos(self) -> Picos {
        Picos((self.0 * 1e12).round() as u64)
    }
}
impl Div<FlopRate> for Flops {
    type Output = Seconds;
    fn div(self, rate: FlopRate) -> Seconds {
        Seconds(self.0 / rate.0)
    }
}
impl Div<Bandwidth> for Bytes {
    type Output = Seconds;
    fn div(self, rate: Bandwidth) -> Seconds {
        Seconds(self.0 as f64 / rate.0)
    }
}
impl Mul<Seconds> for Watts {
    type Output = WattHours;
    fn mul(self, time: Seconds) -> WattHours {
        WattHours(self.0 * time.0 / 3600.0)
    }
}
impl Mul<Seconds> for DollarsPerHour {
    type Output = Dollars;
    fn mul(self, time: Seconds) -> Dollars {
        Dollars(self.0 * time.0 / 3600.0)
    }
}

macro_rules! integer_quantity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl $name {
            /// Nothing.
            pub const ZERO: Self = Self(0);
            /// The difference, or zero where it would be negative.
            #[must_use]
            pub fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
            /// Scales by a factor and rounds to the nearest unit.
            #[must_use]
            pub fn scale(self, factor: f64) -> Self {
                Self((self.0 as f64 * factor).round() as u64)
            }
        }
        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }
        impl Mul<u64> for $name {
            type Output = Self;
            fn mul(self, factor: u64) -> Self {
                Self(self.0 * factor)
            }
        }
        impl Div<u64> for $name {
            type Output = Self;
            fn div(self, divisor: u64) -> Self {
                Self(self.0 / divisor)
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
                Self(iter.map(|x| x.0).sum())
            }
        }
    };
}

integer_quantity!(
    /// Bytes, whole.
    Bytes
);
integer_quantity!(
    /// Whole picoseconds: the unit of every time inside tables, schedules and searches.
    Picos
);
integer_quantity!(
    /// Tokens of training data.
    Tokens
);

impl Picos {
    /// The same time in seconds.
    #[must_use]
    pub fn seconds(self) -> Seconds {
        Seconds(self.0 as f64 / 1e12)
    }
}
impl fmt::Display for Picos {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.seconds().fmt(f)
    }
}
impl Serialize for Picos {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.seconds().0)
    }
}

const BYTE_UNITS: &[(&str, f64)] = &[
    ("B", 1.0),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("PB", 1e15),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    // A bare number means bytes, so that `--memory-limit 75e9` works.
    ("", 1.0),
];

impl Bytes {
    /// Reads `"80GiB"`, `"80GB"` or a bare number of bytes such as `75e9`.
    pub fn parse(text: &str) -> Result<Self, ParseQuantityError> {
        parse_whole(text, BYTE_UNITS, "an amount of memory", "\"80GiB\", \"80GB\" or 80e9").map(Self)
    }
    /// Decimal gigabytes.
    #[must_use]
    pub fn gigabytes(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// Rounds a computed amount up to a whole byte.
    #[must_use]
    pub fn from_f64(bytes: f64) -> Self {
        Self(bytes.ceil().max(0.0) as u64)
    }
}
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        prefixed(f, self.0 as f64, "B", DECIMAL)
    }
}
impl std::str::FromStr for Bytes {
    type Err = ParseQuantityError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}
impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl Visitor<'_> for TextVisitor {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an amount of memory, such as \"80GiB\" or a whole number of bytes")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                Bytes::parse(text).map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }
        }
        deserializer.deserialize_any(TextVisitor)
    }
}
impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl Tokens {
    /// Reads `"15T"`, `"800B"` (billion) or a bare number.
    pub fn parse(text: &str) -> Result<Self, ParseQuantityError> {
        let units = &[("", 1.0), ("K", 1e3), ("M", 1e6), ("B", 1e9), ("T", 1e12)];
        parse_whole(text, units, "a number of tokens", "15T, 800B or 1e12").map(Self)
    }
}
impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        prefixed(f, self.0 as f64, "", &[(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")])
    }
}
impl std::str::FromStr for Tokens {
    type Err = ParseQuantityError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}
impl<'de> Deserialize<'de> for Tokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl Visitor<'_> for TextVisitor {
            type Value = Tokens;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a number of tokens, such as \"800B\" or a whole number")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Tokens, E> {
                Tokens::parse(text).map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, tokens: u64) -> Result<Tokens, E> {
                Ok(Tokens(tokens))
            }
        }
        deserializer.deserialize_any(TextVisitor)
    }
}
impl Serialize for Tokens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

/// Serialises a quantity as a bare number; for fields whose name carries the unit (`usd_per_step`).
///
/// # Errors
/// Those of the serialiser.
pub fn as_number<Q: Copy + Into<f64>, S: Serializer>(quantity: &Q, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((*quantity).into())
}

/// The product of counts, `u64::MAX` where it is more.
#[must_use]
pub fn product<const N: usize>(counts: [u32; N]) -> u64 {
    counts.into_iter().map(u64::from).fold(1, u64::saturating_mul)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_sheet_quantities_parse() {
        assert_eq!(Bytes::parse("80GiB").unwrap(), Bytes(85_899_345_920));
        assert_eq!(Bytes::parse("75e9").unwrap(), Bytes(75_000_000_000));
        assert_eq!(Bandwidth::parse("400Gb/s").unwrap(), Bandwidth(50e9));
        assert_eq!(FlopRate::parse("989.4 TFLOP/s").unwrap(), FlopRate(989.4e12));
        assert_eq!(Seconds::parse("18us").unwrap(), Seconds(18e-6));
        assert_eq!(Tokens::parse("15T").unwrap(), Tokens(15_000_000_000_000));
        assert!(Seconds::parse("-3s").is_err());
        assert!(Dollars::parse("NaNUSD").is_err());
        assert!(Bytes::parse("lots").is_err());
        assert!(Bytes::parse("1e30B").is_err());
        assert!(Tokens::parse("1e300").is_err());
        assert!(Seconds::parse("1e400s").is_err());
        assert_eq!(Seconds::parse("-0s").unwrap().0.to_bits(), 0);
    }

    #[test]
    fn quantities_are_stored_without_loss() {
        let values =
            [0.0, 1.0 / 3.0, 18e-6, 1e-300, 3.351_234_567_89e12, 989.4e12, f64::MAX, f64::MIN_POSITIVE];
        for value in values {
            let stored = (Seconds(value), Bandwidth(value), DollarsPerHour(value), FlopRate(value));
            let text = ron::to_string(&stored).unwrap();
            assert_eq!(
                ron::from_str::<(Seconds, Bandwidth, DollarsPerHour, FlopRate)>(&text),
                Ok(stored),
                "{text}"
            );
        }
        assert_eq!(ron::to_string(&Bandwidth(3.35e12)).unwrap(), "\"3.35TB/s\"");
    }

    #[test]
    fn quantities_print_as_they_parse() {
        for text in ["989.4TFLOP/s", "3.35TB/s"] {
            let shown = text.parse::<FlopRate>().map(|x| x.to_string());
            let shown = shown.or_else(|_| text.parse::<Bandwidth>().map(|x| x.to_string())).unwrap();
            assert_eq!(shown, text);
        }
        assert_eq!(Bytes(80_000_000_000).to_string(), "80GB");
        assert_eq!(Picos(12_345_000_000_000).to_string(), "12.345s");
    }
}
