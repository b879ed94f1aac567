//! Manifests from a user: files, folders and standard input, with the place of every field that claims a port.
//!
//! The objects become the same facts as objects from other files. While a document is read, it is kept as a tree of
//! limited size. If a document is broken, the other documents are still read.

mod claims;
mod folder;
mod json_documents;
mod templates;

use std::{
    collections::{BTreeMap, HashSet},
    io::{BufReader, Cursor, Read},
    iter,
    ops::RangeInclusive,
    path::PathBuf,
    sync::Arc,
};

use serde::Deserialize;

use self::{
    claims::{Fields, Lines, Written},
    folder::{Found, Origin},
    json_documents::json_documents,
    templates::Templates,
};
use super::{
    facts_builder::FactsBuilder,
    input::Input,
    manifests::{Fault, first_strange_byte, yaml_fault},
    objects::{FieldError, Identity, Metadata, Notes, Object as _, Service, Workload, decode, group},
    tree::{Node, Value},
    yaml_documents::Documents,
    yaml_options,
};
use portreeve_facts::{
    self as facts, ClusterFacts, FileName, Gap, Manifest, Place, Reading, ServiceKind, Source, Why, WorkloadKind, text,
};

/// The longest file that is read, in bytes.
const LONGEST: u64 = 32 << 20;
const DEEPEST: usize = 8;
const MOST_ERRORS: usize = 16;
const MOST_KINDS: usize = 1_000;
const WANTED: &str = "Kubernetes objects in YAML or JSON";
/// The end of an error about a file that may be a template of a chart.
const RENDER: &str = "; render a chart first: helm template . | portreeve lint -";

/// The objects and the errors of the files that were read.
#[derive(Clone, Debug)]
pub struct ManifestFiles {
    /// The objects as facts.
    pub facts: ClusterFacts,
    /// The objects with their places, in the order of the files.
    pub manifests: Vec<Manifest>,
    /// The errors. Each error has its place, if the place is known.
    pub failures: Vec<(Gap, Option<Place>)>,
    /// The number of objects of all kinds, including skipped and rejected objects. A document without a kind counts as
    /// one object.
    pub objects: usize,
    /// The number of objects that were read in full.
    pub whole: usize,
    /// The number of objects that have the kind, namespace and name of an earlier object. The user may apply the
    /// repeated objects to different namespaces.
    pub again: usize,
    /// The number of files that were read.
    pub files: usize,
    /// Folders of Helm charts. Portreeve does not read these folders, because helm must render the charts first.
    pub charts: Vec<PathBuf>,
    /// One text for each skipped patch that is outside of the kustomization's folder, or that a kustomization also
    /// lists under `resources`.
    pub left_out: Vec<String>,
    /// The number of skipped objects, by kind. For a document without a kind, the key is empty.
    pub skipped: BTreeMap<String, usize>,
}

/// Reads files and folders. An object without a namespace gets `namespace`. If a file cannot be read, an error names
/// the file, and the other files are still read.
pub fn read_manifests(paths: &[PathBuf], namespace: Option<&str>) -> ManifestFiles {
    let mut reader = Reader { namespace, ..Reader::default() };
    let (mut charts, mut left_out) = (Vec::new(), Vec::new());
    for path in paths {
        let named = Input::from(path.clone()).to_string();
        let Found { files, failures, charts: found, patched, left_out: of_path, origin, .. } = folder::files(path);
        if files.is_empty() && failures.is_empty() && found.is_empty() && patched.is_empty() {
            reader.fail(format!("{named}: has no file *.yaml, *.yml or *.json"));
        }
        failures.into_iter().for_each(|failure| reader.fail(failure));
        files.iter().for_each(|file| reader.read(file, origin));
        for folder in patched {
            reader.skip(&format!("patch file of the kustomization {}", folder.display()));
        }
        charts.extend(found);
        left_out.extend(of_path);
    }
    let Reader { facts, manifests, places, objects, whole, again, files, skipped, .. } = reader;
    let origin = paths.iter().map(|path| Input::from(path.clone()).to_string()).collect::<Vec<_>>().join(", ");
    let mut facts = facts.finish(origin, true, None);
    if let Reading::Seen(services) = &mut facts.services {
        services.iter_mut().map(Arc::make_mut).for_each(as_created);
    }
    // If there are too many errors, the last rejected item is only the number of the other errors. This number has no
    // place in a file.
    let failures = facts.rejected.iter().cloned().zip(places.into_iter().chain(iter::repeat(None))).collect();
    ManifestFiles { facts, manifests, failures, objects, whole, again, files, charts, left_out, skipped }
}

fn as_created(service: &mut facts::Service) {
    // The API server refuses a nodePort in a ClusterIP Service. The refused Service takes no nodePort from other
    // Services.
    if service.kind == ServiceKind::ClusterIp {
        service.ports.iter_mut().for_each(|port| port.node_port = None);
    }
    if service.kind != ServiceKind::LoadBalancer || !service.external_local {
        service.health_check_node_port = None;
    }
    // If a manifest contains a nodePort, a user chose this nodePort. An object from a cluster has a uid, and the
    // managedFields of the object show who chose the nodePort.
    if service.uid.is_none() {
        service.ports.iter_mut().for_each(|port| port.fixed = Some(port.node_port.is_some()));
    }
}

#[derive(Default)]
struct Reader<'a> {
    namespace: Option<&'a str>,
    facts: FactsBuilder,
    manifests: Vec<Manifest>,
    /// Kind, namespace and name of each object. Objects with a generated name are left out.
    names: HashSet<(&'static str, String, String)>,
    objects: usize,
    whole: usize,
    again: usize,
    files: usize,
    skipped: BTreeMap<String, usize>,
    /// The places of the rejected items, in the order of the items.
    places: Vec<Option<Place>>,
    /// The number of errors at a field whose value is a mapping.
    mappings: usize,
}

impl Reader<'_> {
    fn fail(&mut self, what: String) {
        self.refuse(Source::Services, what, None);
    }

    fn refuse(&mut self, source: Source, what: String, place: Option<Place>) {
        self.facts.reject(Gap::new(source, Why::Malformed, what));
        if self.places.len() < self.facts.rejected().len() {
            self.places.push(place);
        }
    }

    fn read(&mut self, input: &Input, origin: Origin) {
        let file = folder::name(input);
        self.files += 1;
        let bytes = match input.read(origin.accepted(), LONGEST) {
            Ok(bytes) => bytes,
            Err(error) => return self.fail(format!("{file}: cannot be read: {error}")),
        };
        let bytes = match bytes.as_slice() {
            [0xfe, 0xff, ..] | [0xff, 0xfe, ..] => return self.fail(format!("{file}: is UTF-16, wanted UTF-8")),
            [0xef, 0xbb, 0xbf, bytes @ ..] => bytes,
            bytes => bytes,
        };
        // Only standard input can come directly from helm. In a file with saved output of helm, Portreeve reports the
        // lines of this file.
        let mut templates = Templates::new(if *input == Input::Stdin { bytes } else { &[] });
        let has_braces = bytes.windows(2).any(|two| two == b"{{");
        let (mut found, mut errors, before) = (0_usize, 0_usize, self.mappings);
        let mut take = |node, lines: RangeInclusive<u64>| match node {
            Ok(node) => {
                let (first, template) = (*lines.start(), templates.of(lines));
                let lines = Lines { file: &file, first, template: template.as_ref() };
                found += self.document(node, None, DEEPEST, &lines);
            }
            Err(error) => {
                found += 1;
                errors += 1;
                self.objects += 1;
                let template = templates.of(lines.clone());
                if errors <= MOST_ERRORS {
                    let fault = yaml_fault(lines, first_strange_byte(bytes), &error);
                    self.broken(&file, fault, template, has_braces);
                }
            }
        };
        if let Some(documents) = json_documents(bytes) {
            documents.for_each(|(lines, text)| take(tree(Cursor::new(text)), lines));
        } else {
            let mut documents = Documents::new(BufReader::new(Cursor::new(bytes)));
            // The bytes are in memory, so reading them cannot fail.
            while let Ok(true) = documents.advance() {
                let first = documents.line();
                let node = tree(&mut documents);
                take(node, first..=documents.line());
            }
        }
        if errors > MOST_ERRORS {
            self.fail(format!("{file}: {} more documents are broken", errors - MOST_ERRORS));
        }
        // A YAML parser parses `nodePort: {{ .Values.port }}` as a mapping.
        if has_braces && self.mappings > before {
            self.fail(format!("{file}: has {{{{ }}}} as a value, wanted {WANTED}{RENDER}"));
        }
        if found == 0 && origin == Origin::Folder {
            // As in kubectl, a file that contains only comments is not an error. The file counts as skipped.
            self.skip("empty file");
        } else if found == 0 {
            self.fail(format!("{file}: is empty, wanted {WANTED}"));
        }
    }

    fn broken(&mut self, file: &FileName, fault: Fault, template: Option<FileName>, has_braces: bool) {
        let Fault { line, column, what } = fault;
        let place = Place { file: file.clone(), line, column, width: 1, template };
        let render = if has_braces { RENDER } else { "" };
        self.refuse(Source::Services, format!("{place}: {what}; wanted {WANTED}{render}"), Some(place));
    }

    fn document(&mut self, node: Node, inherited: Option<&str>, depth: usize, lines: &Lines<'_>) -> usize {
        let written = node.field("kind").and_then(Node::text);
        let kind = written.or(inherited).unwrap_or_default().to_owned();
        match node.value {
            Value::Null => 0,
            Value::List(items) if inherited.is_none() && may_be_objects(&items) => {
                self.items(items, None, depth, lines)
            }
            Value::List(_) if inherited.is_none() => self.skip(""),
            Value::Mapping(mut fields) if kind.is_empty() || kind.ends_with("List") => {
                let items =
                    fields.iter_mut().find(|(key, node)| key == "items" && matches!(node.value, Value::List(_)));
                match items.map(|(_, node)| &mut node.value) {
                    Some(Value::List(items)) if !kind.is_empty() || may_be_objects(items) => {
                        let of = kind.strip_suffix("List").filter(|of| !of.is_empty());
                        self.items(std::mem::take(items), of, depth, lines)
                    }
                    _ => self.skip(&kind),
                }
            }
            Value::Mapping(_) => self.object(&kind, &node, lines),
            Value::Flag(_) | Value::Number(_) | Value::Fraction(_) | Value::Text(_) | Value::List(_) => {
                let place = lines.place(&node);
                self.objects += 1;
                self.refuse(
                    Source::Services,
                    format!("{place}: is not a Kubernetes object, wanted {WANTED}"),
                    Some(place),
                );
                1
            }
        }
    }

    fn items(&mut self, items: Vec<Node>, kind: Option<&str>, depth: usize, lines: &Lines<'_>) -> usize {
        let Some(depth) = depth.checked_sub(1) else {
            self.fail(format!("{}: too many Lists inside Lists", lines.file));
            return 1;
        };
        // An empty List counts as one object, because it is valid.
        items.into_iter().map(|item| self.document(item, kind, depth, lines)).sum::<usize>().max(1)
    }

    fn skip(&mut self, kind: &str) -> usize {
        self.objects += 1;
        let kind = text::clean(kind, text::NAME);
        if self.skipped.len() < MOST_KINDS || self.skipped.contains_key(&kind) {
            *self.skipped.entry(kind).or_default() += 1;
        } else {
            *self.skipped.entry("others".to_owned()).or_default() += 1;
        }
        1
    }

    fn object(&mut self, kind: &str, node: &Node, lines: &Lines<'_>) -> usize {
        let group = group(node.field("apiVersion").and_then(Node::text).unwrap_or_default());
        let is_of = |wanted: &str| group.is_empty() || group == wanted;
        let workload = WorkloadKind::ALL.into_iter().find(|it| it.name() == kind && is_of(it.group()));
        if workload.is_none() && (kind, group) != ("Service", "") {
            return self.skip(&if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") });
        }
        let written = Written { object: node, lines };
        let read = match workload {
            None => self.service(written),
            Some(workload) => self.workload(workload, written),
        };
        let manifest = match read {
            Ok(Some(manifest)) => manifest,
            // A workload made this pod. The claims of the pod are reported for the workload.
            Ok(None) => return self.skip(&format!("{kind} of a controller")),
            Err(error) => {
                let title = Identity::of(node).title;
                let source = if workload.is_none() { Source::Services } else { Source::Pods };
                if workload.is_none() {
                    self.facts.note_unread_service(&title);
                }
                self.objects += 1;
                self.mappings += usize::from(matches!(node.at_field(&error.path).value, Value::Mapping(_)));
                let place = written.place(&error.path);
                let object = format!("{kind} {title}");
                self.refuse(source, format!("{place}: {}: {error}", object.trim_end()), Some(place));
                return 1;
            }
        };
        self.objects += 1;
        self.whole += 1;
        self.manifests.push(manifest);
        1
    }

    fn service(&mut self, written: Written<'_>) -> Result<Option<Manifest>, FieldError> {
        let mut service: Service = decode(written.object)?;
        let metadata = service.metadata.get_or_insert_default();
        let is_named = metadata.complete(self.namespace, self.objects)?;
        let manifest = manifest(Service::KIND, metadata, written)?;
        let fields = claims::of_service(&service, written);
        service.add_to(&mut self.facts, &mut Notes::default())?;
        Ok(Some(self.noted(manifest, is_named, fields)))
    }

    /// The manifest of a workload. `None` if the object belongs to another workload.
    fn workload(&mut self, kind: WorkloadKind, written: Written<'_>) -> Result<Option<Manifest>, FieldError> {
        let mut workload = Workload::read(kind, written.object)?;
        let metadata = workload.metadata.get_or_insert_default();
        if metadata.is_of_a_workload() {
            return Ok(None);
        }
        let is_named = metadata.complete(self.namespace, self.objects)?;
        let manifest = manifest(kind.name(), metadata, written)?;
        let mut fields = workload.pods().map(|pods| claims::of_pods(kind, pods, written)).unwrap_or_default();
        // A workload with 0 replicas needs no ports.
        fields.claims.retain(|_| workload.replicas() != Some(0));
        self.facts.workloads.extend(workload.facts(kind)?.map(Arc::new));
        Ok(Some(self.noted(manifest, is_named, fields)))
    }

    /// Adds the claims to the manifest, and counts an object that is written again. An object without a written name
    /// always counts as new.
    fn noted(&mut self, manifest: Manifest, is_named: bool, Fields { claims, refused }: Fields) -> Manifest {
        let Manifest { kind, namespace, name, .. } = &manifest;
        let is_new = !is_named || self.names.insert((kind, namespace.clone(), name.clone()));
        self.again += usize::from(!is_new);
        Manifest { claims, refused, ..manifest }
    }
}

fn manifest(kind: &'static str, metadata: &Metadata, written: Written<'_>) -> Result<Manifest, FieldError> {
    let (namespace, name) = (metadata.namespace()?, metadata.name()?);
    let accepts = claims::accepts(metadata, written);
    Ok(Manifest { kind, namespace, name, accepts, claims: Vec::new(), refused: Vec::new() })
}

/// Whether a list without a kind may contain objects. A list of plain values cannot contain objects.
fn may_be_objects(items: &[Node]) -> bool {
    items.is_empty() || items.iter().any(|item| matches!(item.value, Value::Mapping(_)))
}

fn tree(document: impl Read) -> Result<Node, serde_saphyr::Error> {
    let options = yaml_options::tree();
    serde_saphyr::with_deserializer_from_reader_with_options(document, options, |parser| Node::deserialize(parser))
}
