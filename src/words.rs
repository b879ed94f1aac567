//! Words that a flag accepts: shells complete them, and an error names the nearest one.

use std::ffi::OsStr;

use clap::{
    Arg, Command, Error,
    builder::{PossibleValue, StringValueParser, TypedValueParser},
};

use portreeve_facts::text;

/// Parses one of some words. Other texts than these words may be accepted too.
#[derive(Clone)]
pub(super) struct Words<T> {
    pub(super) words: fn() -> Vec<PossibleValue>,
    pub(super) parse: fn(&str) -> Result<T, String>,
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Words<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, Error> {
        let Self { words, parse } = self.clone();
        let parse = move |typed: String| {
            parse(&typed).map_err(|wanted| {
                let words = words();
                let names: Vec<&str> = words.iter().map(PossibleValue::get_name).collect();
                format!("{wanted}{}", text::did_you_mean(&typed, &names))
            })
        };
        StringValueParser::new().try_map(parse).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.words)().into_iter()))
    }
}
