//! Manifests as somebody wrote them: files, folders and standard input, with the place of every field that claims a port.
//!
//! The objects become the same facts as those of any other file. Each document is held as a tree while it is read, within
//! bounds; one that is broken loses nothing of the others.

mod claims;
mod folder;
mod json_documents;
mod node;
mod templates;

use std::{
    collections::{BTreeMap, HashSet},
    io::{BufReader, Cursor, Read},
    ops::RangeInclusive,
    path::PathBuf,
    sync::Arc,
};

use serde::{Deserialize, de::DeserializeSeed};

use self::{
    claims::{Fields, Lines},
    folder::{Found, Origin},
    json_documents::json_documents,
    node::{Node, Value},
    templates::Templates,
};
use super::{
    facts_builder::FactsBuilder,
    input::Input,
    manifests::{Fault, first_strange_byte, yaml_fault},
    object_reader::ObjectReader,
    slim_object::SlimObject,
    yaml_documents::Documents,
    yaml_options,
};
use portreeve_facts::{
    ClusterFacts, FileName, Gap, Manifest, Place, Reading, Service, ServiceKind, Source, Template, Why, WorkloadKind,
    names, text,
};

/// The longest file that is read, in bytes.
const LONGEST: u64 = 32 << 20;
/// How deep Lists may stand in Lists.
const DEEPEST: usize = 8;
/// Broken documents of one file that are named; where they are broken without end, the first ones tell enough.
const MOST_ERRORS: usize = 16;
/// The kinds that are skipped are counted by name, so many of them.
const MOST_KINDS: usize = 1_000;
/// What a file is for.
const WANTED: &str = "Kubernetes objects in YAML or JSON; the templates of a chart have to be rendered first";

/// What was found in files.
#[derive(Clone, Debug)]
pub struct ManifestFiles {
    /// The objects as facts; among [`ClusterFacts::rejected`] is what could not be read.
    pub facts: ClusterFacts,
    /// The objects as they are written, in their order.
    pub manifests: Vec<Manifest>,
    /// How many objects were read whole.
    pub whole: usize,
    /// How many objects had the name of one that was there already. They may be meant for several namespaces.
    pub again: usize,
    /// How many files were read.
    pub files: usize,
    /// How many objects of other kinds there were, by kind; a document without one has the empty kind.
    pub skipped: BTreeMap<String, usize>,
    /// Where the fields are that could not be read, by the words that tell of them.
    pub places: BTreeMap<String, Place>,
}

/// Reads files and folders. An object without a namespace goes to `namespace`. One that fails is named, and loses nothing of
/// the others.
pub fn read_manifests(paths: &[PathBuf], namespace: Option<&str>) -> ManifestFiles {
    let mut reader = Reader { namespace, ..Reader::default() };
    for path in paths {
        let named = Input::from(path.clone()).to_string();
        let Found { files, failures, origin } = folder::files(path);
        if files.is_empty() && failures.is_empty() {
            reader.fail(format!("{named}: holds no file *.yaml, *.yml or *.json"));
        }
        failures.into_iter().for_each(|failure| reader.fail(failure));
        files.iter().for_each(|file| reader.read(file, origin));
    }
    let Reader { facts, manifests, whole, again, files, skipped, places, .. } = reader;
    let origin = paths.iter().map(|path| Input::from(path.clone()).to_string()).collect::<Vec<_>>().join(", ");
    let mut facts = facts.finish(origin, true, None);
    if let Reading::Seen(services) = &mut facts.services {
        services.iter_mut().map(Arc::make_mut).for_each(as_created);
    }
    ManifestFiles { facts, manifests, whole, again, files, skipped, places }
}

/// What of a Service is there once it is created.
fn as_created(service: &mut Service) {
    // What the API server refuses takes no number from others.
    if service.kind == ServiceKind::ClusterIp {
        service.ports.iter_mut().for_each(|port| port.node_port = None);
    }
    if service.kind != ServiceKind::LoadBalancer || !service.external_local {
        service.health_check_node_port = None;
    }
    // Whoever writes a manifest writes its nodePort. What came from a cluster says itself who chose it.
    if service.uid.is_none() {
        service.ports.iter_mut().for_each(|port| port.fixed = Some(port.node_port.is_some()));
    }
}

#[derive(Default)]
struct Reader<'a> {
    namespace: Option<&'a str>,
    facts: FactsBuilder,
    manifests: Vec<Manifest>,
    /// Kind, namespace and name of each object that has a name of its own.
    names: HashSet<(&'static str, String, String)>,
    whole: usize,
    again: usize,
    files: usize,
    skipped: BTreeMap<String, usize>,
    places: BTreeMap<String, Place>,
}

impl Reader<'_> {
    fn fail(&mut self, what: String) {
        self.facts.reject(Gap::new(Source::Services, Why::Malformed, what));
    }

    /// Notes the places of what was rejected since there were so many: where the words name a field, that field's.
    fn note_places(&mut self, before: usize, object: &Node, place: &Place, lines: &Lines<'_>) {
        for gap in self.facts.rejected().iter().skip(before) {
            let field = gap.detail.strip_prefix(&place.to_string()).and_then(|rest| rest.split(": ").nth(2));
            let field = field.and_then(|words| words.split(' ').next()).map_or(object, |way| object.at_field(way));
            let place = if std::ptr::eq(field, object) { place.clone() } else { lines.place(field) };
            self.places.insert(gap.detail.clone(), place);
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
        // A file that was rendered before has lines of its own.
        let mut templates = Templates::new(if *input == Input::Stdin { bytes } else { &[] });
        let (mut found, mut errors, before) = (0_usize, 0_usize, self.facts.rejected().len());
        let mut take = |node, lines: RangeInclusive<u64>| match node {
            Ok(node) => {
                let lines = Lines { file: &file, first: *lines.start(), template: templates.of(lines) };
                found += self.document(node, None, DEEPEST, &lines);
            }
            Err(error) => {
                found += 1;
                errors += 1;
                let template = templates.of(lines.clone());
                if errors <= MOST_ERRORS {
                    self.broken(&file, yaml_fault(lines, first_strange_byte(bytes), &error), template);
                }
            }
        };
        if let Some(documents) = json_documents(bytes) {
            documents.for_each(|(lines, text)| take(tree(Cursor::new(text)), lines));
        } else {
            let mut documents = Documents::new(BufReader::new(Cursor::new(bytes)));
            // Bytes in memory do not fail.
            while let Ok(true) = documents.advance() {
                let first = documents.line();
                let node = tree(&mut documents);
                take(node, first..=documents.line());
            }
        }
        if errors > MOST_ERRORS {
            self.fail(format!("{file}: {} more documents are broken", errors - MOST_ERRORS));
        }
        // So YAML reads `nodePort: {{ .Values.port }}`.
        let is_mapping = |gap: &Gap| gap.detail.contains(" is a mapping, wanted ");
        if bytes.windows(2).any(|two| two == b"{{") && self.facts.rejected().iter().skip(before).any(is_mapping) {
            self.fail(format!("{file}: has {{{{ }}}} in the place of a value, wanted {WANTED}"));
        }
        if found == 0 && origin == Origin::Folder {
            // As kubectl does: a file in which everything is commented out is there on purpose.
            self.skip("empty file");
        } else if found == 0 {
            self.fail(format!("{file}: holds nothing, wanted {WANTED}"));
        }
    }

    fn broken(&mut self, file: &FileName, Fault { line, column, what }: Fault, template: Option<Template>) {
        let place = Place { file: file.clone(), line, column, width: 1, template };
        let before = self.facts.rejected().len();
        self.fail(format!("{place}: {what}; wanted {WANTED}"));
        self.places.extend(self.facts.rejected().iter().skip(before).map(|gap| (gap.detail.clone(), place.clone())));
    }

    /// Takes a document, an item of a List or a List, and returns how many objects were found.
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
                // Of keys that are there twice the last is what kubectl reads.
                let items =
                    fields.iter_mut().rfind(|(key, node)| key == "items" && matches!(node.value, Value::List(_)));
                match items.map(|(_, node)| &mut node.value) {
                    Some(Value::List(items)) if !kind.is_empty() || may_be_objects(items) => {
                        let of = kind.strip_suffix("List").filter(|of| !of.is_empty());
                        self.items(std::mem::take(items), of, depth, lines)
                    }
                    _ => self.skip(&kind),
                }
            }
            Value::Mapping(_) => self.object(&kind, node, lines),
            Value::Flag(_) | Value::Number(_) | Value::Fraction(_) | Value::Text(_) | Value::List(_) => {
                let place = lines.place(&node);
                let before = self.facts.rejected().len();
                self.fail(format!("{place}: is no Kubernetes object, wanted {WANTED}"));
                self.note_places(before, &node, &place, lines);
                1
            }
        }
    }

    fn items(&mut self, items: Vec<Node>, kind: Option<&str>, depth: usize, lines: &Lines<'_>) -> usize {
        let Some(depth) = depth.checked_sub(1) else {
            self.fail(format!("{}: Lists stand too deep in Lists", lines.file));
            return 1;
        };
        // An empty List is an answer.
        items.into_iter().map(|item| self.document(item, kind, depth, lines)).sum::<usize>().max(1)
    }

    fn skip(&mut self, kind: &str) -> usize {
        let kind = text::clean(kind, text::NAME);
        if self.skipped.len() < MOST_KINDS || self.skipped.contains_key(&kind) {
            *self.skipped.entry(kind).or_default() += 1;
        } else {
            *self.skipped.entry("others".to_owned()).or_default() += 1;
        }
        1
    }

    fn object(&mut self, kind: &str, mut node: Node, lines: &Lines<'_>) -> usize {
        let version = node.field("apiVersion").and_then(Node::text).unwrap_or_default();
        let group = group(version).to_owned();
        let is_of = |wanted: &str| group.is_empty() || group == wanted;
        let workload = WorkloadKind::ALL.into_iter().find(|it| it.name() == kind && is_of(it.group()));
        if workload.is_none() && (kind, group.as_str()) != ("Service", "") {
            let group = if group.is_empty() { String::new() } else { format!(".{group}") };
            return self.skip(&format!("{kind}{group}"));
        }
        // What a workload made is told of the workload.
        if workload.is_some() && is_controlled(&node) {
            return self.skip(&format!("{kind} of a controller"));
        }
        let is_named = node.at_path("metadata.name").is_some();
        name(&mut node, self.namespace);
        let place = lines.place(&node);
        let (rejections, before) = (self.facts.rejections(), self.facts.rejected().len());
        let (facts, replicas) = (&mut self.facts, replicas(&node));
        match workload {
            None => {
                read(kind, &node, &mut |object| facts.add(&place.to_string(), object));
                self.note("Service", (&node, is_named), lines, |node| claims::of_service(node, lines));
            }
            Some(workload) => {
                let keeps_old_pods =
                    workload == WorkloadKind::Deployment && keeps_old_pods(&node, replicas.unwrap_or(1));
                let add =
                    &mut |object| facts.add_workload(&place.to_string(), (workload, replicas, keeps_old_pods), object);
                read(kind, &with_template(workload, node.clone()), add);
                self.note(workload.name(), (&node, is_named), lines, |node| {
                    let mut fields = claims::of_pods(workload, node, lines);
                    // Without pods nobody wants their ports.
                    fields.claims.retain(|_| replicas != Some(0));
                    fields
                });
            }
        }
        self.note_places(before, &node, &place, lines);
        self.whole += usize::from(self.facts.rejections() == rejections);
        1
    }

    /// Keeps the object as it is written. One with an impossible name is rejected by whoever converts it.
    fn note(
        &mut self,
        kind: &'static str,
        (node, is_named): (&Node, bool),
        lines: &Lines<'_>,
        fields: impl FnOnce(&Node) -> Fields,
    ) {
        let of = |path| node.at_path(path).and_then(Node::text).unwrap_or_default().to_owned();
        let (name, namespace) = (of("metadata.name"), Some(of("metadata.namespace")).filter(|it| !it.is_empty()));
        let namespace = namespace.unwrap_or_else(|| "default".to_owned());
        if names::is_subdomain(&name) && names::is_label(&namespace) {
            let Fields { claims, refused } = fields(node);
            let is_new = !is_named || self.names.insert((kind, namespace.clone(), name.clone()));
            self.again += usize::from(!is_new);
            let accepts = claims::accepts(node, lines);
            self.manifests.push(Manifest { kind, namespace, name, accepts, claims, refused });
        }
    }
}

/// Whether a list without a kind may be one of objects, and not that of somebody's values.
fn may_be_objects(items: &[Node]) -> bool {
    items.is_empty() || items.iter().any(|item| matches!(item.value, Value::Mapping(_)))
}

/// A document as a tree.
fn tree(document: impl Read) -> Result<Node, serde_saphyr::Error> {
    let options = yaml_options::tree();
    serde_saphyr::with_deserializer_from_reader_with_options(document, options, |parser| Node::deserialize(parser))
}

/// How many pods it wants at a time: of a Job no more than are to end.
fn replicas(node: &Node) -> Option<i64> {
    let of = |path: &str| node.at_path(path).and_then(Node::number);
    let of_job = |spec: &str| {
        let parallelism = of(&format!("{spec}.parallelism"))?;
        Some(of(&format!("{spec}.completions")).map_or(parallelism, |completions| parallelism.min(completions)))
    };
    of("spec.replicas").or_else(|| of_job("spec")).or_else(|| of_job("spec.jobTemplate.spec"))
}

/// Whether a Deployment of so many pods keeps the old ones until new ones are ready (kubernetes pkg/controller/deployment/util
/// `ResolveFenceposts`: percentages of `maxSurge` are rounded up, and of `maxUnavailable` down, to one where both are nothing).
fn keeps_old_pods(node: &Node, replicas: i64) -> bool {
    let is_rolled = node.at_path("spec.strategy.type").and_then(Node::text).is_none_or(|it| it == "RollingUpdate");
    let some = |field: &str, round_up: i64| {
        let value = node.at_path(&format!("spec.strategy.rollingUpdate.{field}"));
        let percent = match value.map(|it| (it.number(), it.text())) {
            Some((Some(number), _)) => return Some(number),
            Some((_, Some(text))) => text.strip_suffix('%')?.parse::<i64>().ok()?,
            Some((None, None)) | None => 25,
        };
        Some(replicas.checked_mul(percent)?.checked_add(round_up)? / 100)
    };
    is_rolled && some("maxUnavailable", 0) == Some(0) && some("maxSurge", 99).is_some_and(|surge| surge > 0)
}

/// Hands the object, which may have its kind of its List, on to whoever converts those of other sources.
fn read(kind: &str, node: &Node, sink: &mut dyn FnMut(SlimObject)) {
    // A tree in memory has no errors of its own: what is wrong in a field stays in the field.
    drop(ObjectReader { kind: Some(kind), closed: true, sink }.deserialize(node));
}

/// The group of an `apiVersion`; empty for that of the core.
fn group(version: &str) -> &str {
    version.split_once('/').map_or("", |(group, _)| group)
}

/// Whether a workload made it, as the policies in deploy/policies ask. What an operator made is told nowhere else: the ports
/// of its resource are not known.
fn is_controlled(node: &Node) -> bool {
    let owners = node.at_path("metadata.ownerReferences").map_or(&[][..], Node::items);
    owners.iter().filter(|owner| owner.field("controller").is_some_and(Node::is_true)).any(|owner| {
        let text = |key| owner.field(key).and_then(Node::text);
        let is_of = |wanted| text("apiVersion").is_none_or(|version| group(version) == wanted);
        match text("kind") {
            Some("ReplicationController") => is_of(""),
            Some("Pod") | None => false,
            Some(kind) => WorkloadKind::ALL.into_iter().any(|it| it.name() == kind && is_of(it.group())),
        }
    })
}

/// Writes into an object what the API server would: the namespace that it goes to, and a name of the one that it generates.
fn name(node: &mut Node, namespace: Option<&str>) {
    let at = node.at;
    let Value::Mapping(fields) = &mut node.value else { return };
    let Some((_, metadata)) = fields.iter_mut().find(|(key, _)| key == "metadata") else { return };
    let generated = metadata.field("generateName").and_then(Node::text).map(|it| it.trim_end_matches('-').to_owned());
    // kubectl takes an empty one for one that is not there.
    let is_empty = |node: &Node| matches!(node.value, Value::Null) || node.text() == Some("");
    let lacks = |key| metadata.field(key).is_none_or(is_empty);
    let (lacks_name, lacks_namespace) = (lacks("name"), lacks("namespace"));
    let Value::Mapping(fields) = &mut metadata.value else { return };
    let mut put = |key: &str, text: &str| {
        fields.retain(|(name, node)| name != key || !is_empty(node));
        fields.push((key.to_owned(), Node { at, width: 1, value: Value::Text(text.to_owned()) }));
    };
    if let Some(generated) = generated.filter(|_| lacks_name) {
        put("name", &generated);
    }
    if let Some(namespace) = namespace.filter(|_| lacks_namespace) {
        put("namespace", namespace);
    }
}

/// The object with the spec of its pods where a Deployment has it.
fn with_template(kind: WorkloadKind, node: Node) -> Node {
    let at = node.at;
    let mapping = |fields: Vec<(&str, Node)>| Node {
        at,
        width: 1,
        value: Value::Mapping(fields.into_iter().map(|(key, node)| (key.to_owned(), node)).collect()),
    };
    let part = |path: &str| node.at_path(path).cloned();
    let spec = match kind {
        WorkloadKind::Pod => part("spec").map(|spec| mapping(vec![("template", mapping(vec![("spec", spec)]))])),
        WorkloadKind::CronJob => part("spec.jobTemplate.spec"),
        _ => return node,
    };
    let parts = [("metadata", part("metadata")), ("spec", spec)];
    mapping(parts.into_iter().filter_map(|(key, node)| Some((key, node?))).collect())
}
