//! Files: any output of `kubectl get -o yaml` or `-o json`, several documents, Lists, and manifests written by hand.
//!
//! Documents are streamed: memory is that of one object and a megabyte beyond the facts, however long the file is. That
//! megabyte is read at once: JSON that ends in it is parsed as the text it is, with which the parser is several times as
//! fast.

use std::{
    fmt, fs,
    io::{self, BufReader, Cursor, Read},
    path::PathBuf,
};

use serde::de::DeserializeSeed;
use serde_json::de::{self, IoRead, StrRead};
use serde_saphyr::{MessageFormatter, UserMessageFormatter};

use super::{
    error::Error,
    facts_builder::FactsBuilder,
    object_reader::{DocumentSummary, ObjectReader},
    slim_object::SlimObject,
    yaml_documents::Documents,
};
use crate::facts::{Gap, Source, Why, text};

/// Bytes read from a file at a time.
const BUFFER: usize = 64 << 10;
/// Bytes that are read at once and held.
const SHORT: usize = 1 << 20;
/// The longest message of a parser that is passed on, in bytes.
const MESSAGE: usize = 200;

/// Where manifests are read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A file; its content decides what it holds, not its name.
    File(PathBuf),
    /// Standard input, `-`.
    Stdin,
}

impl From<PathBuf> for Input {
    fn from(path: PathBuf) -> Self {
        if path.as_os_str() == "-" { Self::Stdin } else { Self::File(path) }
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.write_str(&text::clean(&path.to_string_lossy(), text::NAME)),
            Self::Stdin => f.write_str("standard input"),
        }
    }
}

/// Reads every input; one that fails is named, and loses nothing of the others.
pub(super) fn read(inputs: &[Input]) -> FactsBuilder {
    let mut facts = FactsBuilder::default();
    let mut broken: Option<Error> = None;
    for input in inputs {
        let place = input.to_string();
        let errors = match open(input, &place) {
            Ok(opened) => read_from(&place, opened, &mut facts),
            Err(error) => vec![error],
        };
        for error in errors {
            facts.reject(error.gap(Source::Services));
            broken.get_or_insert(error);
        }
    }
    name_what_is_missing(&mut facts, broken.as_ref());
    facts
}

/// Reads one input to its end, or to where it breaks.
fn read_from(place: &str, Opened { mut reader, length }: Opened, facts: &mut FactsBuilder) -> Vec<Error> {
    let mut beginning = Vec::with_capacity(length.min(SHORT));
    let read = reader.by_ref().take(SHORT as u64).read_to_end(&mut beginning);
    let whole = match read {
        Ok(read) => read < SHORT,
        Err(source) if beginning.is_empty() => return vec![Error::Unreadable { place: place.to_owned(), source }],
        // What comes before an error counts, and the error comes again.
        Err(_) => false,
    };
    let bytes = match beginning.as_slice() {
        [0xfe, 0xff, ..] | [0xff, 0xfe, ..] => return vec![Error::Utf16 { place: place.to_owned() }],
        [0xef, 0xbb, 0xbf, bytes @ ..] => bytes,
        bytes => bytes,
    };
    let mut found = 0_usize;
    let mut sink = |object| {
        found += 1;
        facts.add(place, object);
    };
    let mut read = match bytes.trim_ascii_start() {
        [b'{' | b'[', ..] => match str::from_utf8(bytes) {
            Ok(text) if whole => read_json(place, StrRead::new(text), &mut sink),
            _ => {
                let all = BufReader::with_capacity(BUFFER, Cursor::new(bytes).chain(reader));
                read_json(place, IoRead::new(all), &mut sink)
            }
        },
        _ => read_yaml(place, Cursor::new(bytes).chain(reader), &mut sink),
    };
    // An empty List is an answer; a file in which not even a List was found is none.
    if read.lists == 0 && found == 0 && read.errors.is_empty() {
        read.errors.push(Error::Empty { place: place.to_owned() });
    }
    read.errors
}

/// What became of the documents of one input.
#[derive(Default)]
struct Documented {
    lists: usize,
    errors: Vec<Error>,
}

impl Documented {
    fn note(&mut self, place: &str, summary: &DocumentSummary) {
        self.lists += usize::from(summary.list);
        if summary.cut {
            self.errors.push(Error::Cut { place: place.to_owned() });
        }
    }
}

/// An input that is there.
struct Opened {
    reader: Box<dyn Read>,
    /// Its length in bytes; 0 where it is not known.
    length: usize,
}

fn open(input: &Input, place: &str) -> Result<Opened, Error> {
    let unreadable = |source| Error::Unreadable { place: place.to_owned(), source };
    match input {
        Input::Stdin => Ok(Opened { reader: Box::new(io::stdin().lock()), length: 0 }),
        Input::File(path) => {
            let file = fs::File::open(path).map_err(unreadable)?;
            let metadata = file.metadata().map_err(unreadable)?;
            if metadata.is_dir() {
                return Err(Error::Directory { place: place.to_owned() });
            }
            let length = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
            Ok(Opened { reader: Box::new(file), length })
        }
    }
}

/// One JSON document after the other, and at least one.
fn read_json<'a>(place: &str, reader: impl de::Read<'a>, sink: &mut dyn FnMut(SlimObject)) -> Documented {
    let mut documented = Documented::default();
    let mut parser = serde_json::Deserializer::new(reader);
    loop {
        match (ObjectReader { kind: None, closed: true, sink: &mut *sink }).deserialize(&mut parser) {
            Ok(summary) => documented.note(place, &summary),
            Err(error) => {
                documented.errors.push(json_error(place, error));
                return documented;
            }
        }
        // That there is more is an error with a line and a column, which have to be counted.
        if parser.end().is_ok() {
            return documented;
        }
    }
}

fn json_error(place: &str, error: serde_json::Error) -> Error {
    let place = place.to_owned();
    if error.is_io() {
        return Error::Unreadable { place, source: error.into() };
    }
    let (line, column) = (error.line() as u64, error.column() as u64);
    let message = error.to_string();
    // serde_json ends every message with the place, which is named already.
    let what = message.rsplit_once(" at line ").map_or(message.as_str(), |(what, _)| what);
    Error::Malformed { place, line, column, what: text::clean(what, MESSAGE) }
}

/// One YAML document after the other; one that breaks loses only its own rest.
fn read_yaml(place: &str, reader: impl Read, sink: &mut dyn FnMut(SlimObject)) -> Documented {
    let mut documented = Documented::default();
    let mut documents = Documents::new(BufReader::with_capacity(BUFFER, reader));
    loop {
        match documents.advance() {
            Ok(true) => {}
            Ok(false) => return documented,
            Err(source) => {
                documented.errors.push(Error::Unreadable { place: place.to_owned(), source });
                return documented;
            }
        }
        let first_line = documents.line();
        let result =
            serde_saphyr::with_deserializer_from_reader_with_options(&mut documents, yaml_options(), |parser| {
                ObjectReader { kind: None, closed: false, sink: &mut *sink }.deserialize(parser)
            });
        match result {
            Ok(summary) => documented.note(place, &summary),
            Err(error) => {
                let what = UserMessageFormatter.format_message(error.without_snippet());
                let at = error.location();
                documented.errors.push(Error::Malformed {
                    place: place.to_owned(),
                    line: at.map_or_else(|| documents.line(), |at| first_line + at.line().saturating_sub(1)),
                    column: at.map_or(1, |at| at.column()),
                    what: text::clean(&what, MESSAGE),
                });
            }
        }
    }
}

/// Bounds for YAML: none on length, which is streamed; those on depth, anchors and aliases stay, so that a few lines
/// cannot become a billion.
fn yaml_options() -> serde_saphyr::Options {
    let bounds = serde_saphyr::budget! {
        max_reader_input_bytes: None,
        max_events: usize::MAX,
        max_nodes: usize::MAX,
        max_total_scalar_bytes: usize::MAX,
    };
    serde_saphyr::options! {
        budget: bounds,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 100_000 },
        with_snippet: false,
        emit_comments: false,
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::PassThrough,
    }
}

/// What a file does not hold is unknown. An input without Services is different: it shows that there are none.
fn name_what_is_missing(facts: &mut FactsBuilder, broken: Option<&Error>) {
    if let Some(error) = broken {
        // The missing part may hold the very endpoints that keep a Service alive.
        facts.mark_all_missing(&[Source::EndpointSlices], error);
        if facts.services.is_empty() {
            facts.mark_all_missing(&[Source::Services], error);
        }
    }
    let empty = [
        (Source::EndpointSlices, facts.endpoint_slices.is_empty(), "EndpointSlice"),
        (Source::Pods, facts.pods.is_empty(), "Pod"),
        (Source::Nodes, facts.nodes.is_empty(), "Node"),
    ];
    for (source, _, kind) in empty.into_iter().filter(|(_, empty, _)| *empty) {
        facts.mark_missing(broken.map_or_else(
            || Gap::new(source, Why::NotAsked, format!("the input holds no {kind}")),
            |error| error.gap(source),
        ));
    }
}
