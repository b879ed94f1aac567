//! Mappings whose keys are fields: what other keys hold is skipped, and one in which a key is twice is no value.

/// Makes structs of fields, which are read from a mapping.
macro_rules! mappings {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty = $key:literal,)* })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Default)]
        pub(super) struct $name { $(pub(super) $field: $crate::tolerant_field::Field<$type>,)* }

        impl $crate::tolerant_field::FieldType for $name {
            const EXPECTED: &'static str = "a mapping";

            fn from_map<'de, A: serde::de::MapAccess<'de>>(mut map: A) -> Result<Result<Self, String>, A::Error> {
                #[derive(Clone, Copy, serde::Deserialize)]
                #[serde(field_identifier)]
                #[allow(non_camel_case_types, reason = "named after the fields")]
                enum Key { $(#[serde(rename = $key)] $field,)* #[serde(other)] other_key }

                let mut read = Self::default();
                let (mut known, mut twice) = (0_u64, None);
                while let Some(key) = map.next_key()? {
                    match key {
                        $(Key::$field => read.$field = map.next_value()?,)*
                        Key::other_key => {
                            map.next_value::<serde::de::IgnoredAny>()?;
                            continue;
                        }
                    }
                    let bit = 1 << key as u32;
                    if known & bit != 0 {
                        twice = Some([$($key),*][key as usize]);
                    }
                    known |= bit;
                }
                Ok(twice.map_or(Ok(read), |key| Err(format!("a mapping with {key} twice"))))
            }
        }
    )*};
}
pub(super) use mappings;
