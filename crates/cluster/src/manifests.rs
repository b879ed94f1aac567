//! Reads files: output of `kubectl get -o yaml` or `-o json`, and manifests that a person wrote. A file may have
//! several documents and Lists.
//!
//! Documents are streamed. For a file of any length, memory contains only the facts, one object and one megabyte. The
//! first megabyte is read at once. If a JSON file is shorter than a megabyte, the parser receives the whole text, and
//! is several times as fast.

use std::{
    io::{BufReader, Cursor, ErrorKind, Read},
    ops::RangeInclusive,
};

use serde::de::DeserializeSeed;
use serde_json::{
    de::{self, IoRead, StrRead},
    error::Category,
};
use serde_saphyr::{MessageFormatter, UserMessageFormatter};

use super::{
    error::Error,
    facts_builder::FactsBuilder,
    input::{Accepted, Input},
    input_meter::{InputMeter, MeteredInput},
    object_reader::{DocumentSummary, ObjectReader, Sink},
    tree::Node,
    yaml_documents::Documents,
    yaml_options,
};
use portreeve_facts::{Gap, Source, Why, text};

const BUFFER: usize = 64 << 10;
/// The number of bytes of a file that are read in one piece before the parser begins.
pub const SHORT: usize = 1 << 20;
/// After more errors than this number, the rest of the input is not read.
const MOST_ERRORS: usize = 1_000;
/// The longest object of an input, in bytes. An API server accepts 3 MiB.
const OBJECT: usize = 4 << 20;
/// A message with these words is from an object reader. The report does not add "not YAML" to a message with these
/// words.
const EXPECTED: &str = "expected a Kubernetes object";
const MESSAGE: usize = 200;

/// Reads every input. If an input fails, the error names the input, and the other inputs are still read.
pub fn read(inputs: &[Input], accepted: Accepted) -> FactsBuilder {
    let mut facts = FactsBuilder::default();
    let mut errors = Vec::new();
    for input in inputs {
        let place = input.to_string();
        match input.open(accepted) {
            Ok(opened) => {
                let length = opened.length;
                errors.extend(read_from(&place, opened, length, SHORT, &mut facts));
            }
            Err(source) => errors.push(Error::Unreadable { place, source }),
        }
    }
    conclude(inputs, &errors, &mut facts);
    facts
}

/// Reads one input to its end, or to its first fatal error. `length` is the length of the input in bytes, or 0 if the
/// length is not known. `short` is the number of bytes that are read in one piece.
pub fn read_from(place: &str, input: impl Read, length: u64, short: usize, facts: &mut FactsBuilder) -> Vec<Error> {
    let meter = InputMeter::new(OBJECT);
    let mut beginning = Vec::with_capacity(usize::try_from(length).unwrap_or(short).min(short));
    let mut reader = MeteredInput { reader: input, meter: &meter };
    let read = reader.by_ref().take(short as u64).read_to_end(&mut beginning);
    let whole = match read {
        Ok(read) => read < short,
        Err(source) if beginning.is_empty() => return vec![Error::Unreadable { place: place.to_owned(), source }],
        // If a read fails, the bytes before the failure are still used. The next read reports the failure.
        Err(_) => false,
    };
    let bytes = match beginning.as_slice() {
        [0xfe, 0xff, ..] | [0xff, 0xfe, ..] => return vec![Error::Utf16 { place: place.to_owned() }],
        [0xef, 0xbb, 0xbf, bytes @ ..] => bytes,
        bytes => bytes,
    };
    let mut found = 0_usize;
    let mut sink = |kind: Option<&str>, object: Result<Node, String>| {
        found += 1;
        if meter.count_object() {
            match object {
                Ok(object) => facts.add_document(place, kind, &object),
                Err(why) => facts.reject(Gap::new(Source::Services, Why::Malformed, format!("{place}: {why}"))),
            }
        }
    };
    let mut read = match bytes.trim_ascii_start() {
        [b'{' | b'[', ..] => match str::from_utf8(bytes) {
            Ok(text) if whole => read_json(place, StrRead::new(text), &meter, &mut sink),
            _ => {
                let all = BufReader::with_capacity(BUFFER, Cursor::new(bytes).chain(reader));
                read_json(place, IoRead::new(all), &meter, &mut sink)
            }
        },
        _ => read_yaml(place, Cursor::new(bytes).chain(reader), first_strange_byte(bytes), &meter, &mut sink),
    };
    // An empty List with a kind is valid. Any other input without objects is an error.
    if found == 0 && read.errors.is_empty() {
        let place = place.to_owned();
        match (read.lists, read.empty.is_empty()) {
            (0, _) => read.errors.push(Error::Empty { place }),
            (_, true) => read.errors.push(Error::Hollow { place }),
            _ => {}
        }
    }
    // The kind of an empty List says nothing about the input: kubectl writes an empty List in the same form for every
    // kind.
    for kind in read.empty {
        facts.unused.get_or_insert(kind);
    }
    read.errors
}

/// Line and column of the first byte that is not UTF-8.
pub fn first_strange_byte(bytes: &[u8]) -> Option<(u64, u64)> {
    let error = str::from_utf8(bytes).err()?;
    error.error_len()?;
    let before = &bytes[..error.valid_up_to()];
    let line = before.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
    let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() as u64 + 1;
    Some((line, column))
}

#[derive(Default)]
struct Documented {
    lists: usize,
    empty: Vec<String>,
    errors: Vec<Error>,
}

impl Documented {
    fn note(&mut self, place: &str, summary: DocumentSummary) {
        self.lists += usize::from(summary.list);
        if summary.cut {
            self.errors.push(Error::Cut { place: place.to_owned() });
        }
        if summary.part {
            self.errors.push(Error::Page { place: place.to_owned() });
        }
        if self.empty.len() < 8 {
            self.empty.extend(summary.empty);
        }
    }
}

fn read_json<'a>(place: &str, reader: impl de::Read<'a>, meter: &InputMeter, sink: &mut Sink<'_>) -> Documented {
    let mut documented = Documented::default();
    let mut parser = serde_json::Deserializer::new(reader);
    loop {
        match (ObjectReader { closed: true, sink: &mut *sink }).deserialize(&mut parser) {
            Ok(summary) => documented.note(place, summary),
            Err(error) => {
                documented.errors.push(json_error(place, meter, &error));
                return documented;
            }
        }
        // Text after the first document is an error with a line and a column. For this error, the parser must have
        // counted all lines.
        if parser.end().is_ok() {
            return documented;
        }
    }
}

fn json_error(place: &str, meter: &InputMeter, error: &serde_json::Error) -> Error {
    let place = place.to_owned();
    let (line, column) = (error.line() as u64, error.column() as u64);
    if let Some((why, what)) = meter.fault() {
        return Error::Beyond { place, line, why, what };
    }
    let message = error.to_string();
    // serde_json adds the position to each message. The position is removed here, because the report shows it
    // separately.
    let what = message.rsplit_once(" at line ").map_or(message.as_str(), |(what, _)| what);
    let what = if error.classify() == Category::Data { what.to_owned() } else { format!("not JSON: {what}") };
    Error::Malformed { place, line, column, what: text::clean(&what, MESSAGE) }
}

/// Reads YAML documents. After an error in a document, reading continues with the next document.
fn read_yaml(
    place: &str,
    reader: impl Read,
    strange: Option<(u64, u64)>,
    meter: &InputMeter,
    sink: &mut Sink<'_>,
) -> Documented {
    let mut documented = Documented::default();
    let mut documents = Documents::new(BufReader::with_capacity(BUFFER, reader));
    loop {
        match documents.advance() {
            Ok(true) => {}
            Ok(false) => return documented,
            Err(error) => {
                let (why, what) = meter.fault().unwrap_or_else(|| (Why::Malformed, error.to_string()));
                documented.errors.push(Error::Beyond { place: place.to_owned(), line: documents.line(), why, what });
                return documented;
            }
        }
        let first_line = documents.line();
        let result = serde_saphyr::with_deserializer_from_reader_with_options(
            &mut documents,
            yaml_options::streamed(),
            |parser| ObjectReader { closed: false, sink: &mut *sink }.deserialize(parser),
        );
        match result {
            Ok(summary) => documented.note(place, summary),
            Err(error) => {
                if let Some((why, what)) = meter.fault() {
                    let line = documents.line();
                    documented.errors.push(Error::Beyond { place: place.to_owned(), line, why, what });
                    return documented;
                }
                let Fault { line, column, what } = yaml_fault(first_line..=documents.line(), strange, &error);
                documented.errors.push(Error::Malformed { place: place.to_owned(), line, column, what });
            }
        }
        // An input may have any number of broken documents. The first errors are enough for a report.
        if documented.errors.len() > MOST_ERRORS {
            return documented;
        }
    }
}

/// The place and the error of a broken document.
pub struct Fault {
    pub(crate) line: u64,
    pub(crate) column: u64,
    pub(crate) what: String,
}

/// The place and the error of a document that the parser refused. The document is on `lines`. `strange` is the place of
/// the first byte that is not UTF-8.
pub fn yaml_fault(lines: RangeInclusive<u64>, strange: Option<(u64, u64)>, error: &serde_saphyr::Error) -> Fault {
    let at = error.location().map(|at| (lines.start() + at.line().saturating_sub(1), at.column()));
    let (at, what) = match error.without_snippet() {
        serde_saphyr::Error::IOError { cause } if cause.kind() == ErrorKind::InvalidData => {
            (strange.filter(|(line, _)| lines.contains(line)), "not YAML: not UTF-8 text".to_owned())
        }
        error => {
            let message = UserMessageFormatter.format_message(error);
            let is_yaml = message.contains(EXPECTED);
            (at, if is_yaml { message.into_owned() } else { format!("not YAML: {message}") })
        }
    };
    let (line, column) = at.unwrap_or((*lines.end(), 1));
    Fault { line, column, what: text::clean(&what, MESSAGE) }
}

/// Adds the errors to the facts. For each missing fact, also adds the reason: an error, or the files have no object of
/// the kind. Missing Services are an error, because every cluster has the Service `default/kubernetes`.
pub fn conclude(inputs: &[Input], errors: &[Error], facts: &mut FactsBuilder) {
    errors.iter().for_each(|error| facts.reject(error.gap(Source::Services)));
    if let Some(error) = errors.first() {
        // A file that was not read to its end may contain any object, for example an EndpointSlice. So all facts are
        // incomplete.
        let missing = [
            (Source::EndpointSlices, true),
            (Source::Services, facts.services.is_empty()),
            (Source::Pods, facts.pods.is_empty()),
            (Source::WaitingPods, facts.waiting_pods.is_empty()),
            (Source::Nodes, facts.nodes.is_empty()),
        ];
        for (source, _) in missing.into_iter().filter(|(_, missing)| *missing) {
            facts.mark_missing_with(source, error.gap(Source::Services));
        }
        return;
    }
    // If the input has any Pod, the input counts as a list of all Pods in the cluster, including Pods that wait.
    let no_pod = facts.pods.is_empty() && facts.waiting_pods.is_empty();
    let empty = [
        (Source::Services, !facts.services_known, "Service"),
        (Source::EndpointSlices, facts.endpoint_slices.is_empty(), "EndpointSlice"),
        (Source::Pods, no_pod, "Pod"),
        (Source::WaitingPods, no_pod, "Pod"),
        (Source::Nodes, facts.nodes.is_empty(), "Node"),
    ];
    for (source, _, kind) in empty.into_iter().filter(|(_, empty, _)| *empty) {
        // If the input has only a refused object of this kind, the refusal is the reason why the fact is missing.
        let refused = facts.rejected().iter().find(|gap| gap.source == source).cloned();
        facts.mark_missing(if let Some(refused) = refused.filter(|_| source != Source::Services) {
            refused
        } else if source == Source::Services {
            let places: Vec<String> = inputs.iter().map(ToString::to_string).collect();
            let instead = facts.unused.as_ref().map(|kind| format!(" but for example {kind}"));
            let detail = format!(
                "{}: has no Service{}, wanted all Services of the cluster: each cluster has default/kubernetes",
                places.join(", "),
                instead.unwrap_or_default()
            );
            // A user who names a file expects that the file has Services.
            Gap::new(source, Why::Malformed, detail)
        } else {
            Gap::new(source, Why::NotRequested, format!("the input has no {kind}"))
        });
    }
}
