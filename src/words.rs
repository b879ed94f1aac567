//! The words that a flag accepts. Shells complete these words, and an error names the nearest word.

use std::ffi::OsStr;

use clap::{
    Arg, Command, Error,
    builder::{PossibleValue, StringValueParser, TypedValueParser},
};

use portreeve_facts::text;

pub(super) fn wanted(wanted: &str, typed: &str, words: &[PossibleValue]) -> String {
    let names: Vec<&str> = words.iter().map(PossibleValue::get_name).collect();
    format!("{wanted}{}", text::did_you_mean(typed, &names))
}

/// The accepted words of a flag. `parse` may accept a text that `words` does not list, for example `ID/VARIANT`.
#[derive(Clone)]
pub(super) struct Words<T> {
    pub(super) words: fn() -> Vec<PossibleValue>,
    /// The error of `parse` lists the accepted words ([`wanted`]).
    pub(super) parse: fn(&str) -> Result<T, String>,
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Words<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, Error> {
        let parse = self.parse;
        StringValueParser::new().try_map(move |typed| parse(&typed)).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.words)().into_iter()))
    }
}
