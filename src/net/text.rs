//! Pure. Values that are one text in records and answers.

/// Gives a type the two conversions that `#[serde(try_from = "String", into = "String")]` asks for: the text that it
/// displays, read by its `FromStr`.
macro_rules! is_text {
    ($type:ty) => {
        impl TryFrom<String> for $type {
            type Error = <$type as std::str::FromStr>::Err;

            fn try_from(text: String) -> Result<$type, Self::Error> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.to_string()
            }
        }
    };
}

pub(crate) use is_text;
