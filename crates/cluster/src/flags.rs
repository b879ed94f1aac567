//! Command-line flags in the forms that other programs accept: `--name=value`, `--name value`, and a flag inside
//! another flag.

pub(super) const RANGE_FLAG: &str = "service-node-port-range";

#[derive(Debug, Default)]
pub(super) struct Flags {
    words: Vec<String>,
}

impl Flags {
    pub(super) fn arguments(arguments: &[String]) -> Self {
        Self { words: arguments.to_vec() }
    }

    /// Splits each argument into words, because an argument may be a whole shell line.
    pub(super) fn words<'a>(arguments: impl Iterator<Item = &'a str>) -> Self {
        Self { words: arguments.flat_map(str::split_whitespace).map(str::to_owned).collect() }
    }

    /// The flags that one program passes on to another, such as `proxy-mode=ipvs` in
    /// `--kube-proxy-arg=proxy-mode=ipvs`.
    pub(super) fn passed_on(&self, name: &str) -> Self {
        Self { words: self.values(name).map(|flag| format!("--{}", flag.trim_start_matches('-'))).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    pub(super) fn runs(&self, program: &str) -> bool {
        self.words.iter().any(|word| word.rsplit('/').next() == Some(program))
    }

    /// The last value of a flag, as in Go's flag sets.
    pub(super) fn last(&self, name: &str) -> Option<&str> {
        self.values(name).next_back()
    }

    /// The value of a boolean flag. `None` if the flag is absent, or if its value is not a boolean word.
    pub(super) fn switch(&self, name: &str) -> Option<bool> {
        self.last(name).and_then(go_bool)
    }

    fn values<'a>(&'a self, name: &str) -> impl DoubleEndedIterator<Item = &'a str> {
        self.words.iter().enumerate().filter_map(move |(index, word)| {
            let rest = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?.strip_prefix(name)?;
            match rest.strip_prefix('=') {
                Some(value) => Some(value),
                None if rest.is_empty() => self.words.get(index + 1).map(String::as_str),
                None => None,
            }
        })
    }
}

/// A boolean word, parsed as Go's `strconv.ParseBool` does.
pub(super) fn go_bool(word: &str) -> Option<bool> {
    match word {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
