//! Checks that the readers of cluster objects keep their promises for any file and for any answer of an API server.

use kube::{client::ConfigExt as _, config::Kubeconfig};

use portreeve_cluster::{
    ApiServer, answer,
    component_config::{proxy_configuration, range_argument},
    connect,
    error::Error,
    facts_builder::FactsBuilder,
    input::Input,
    manifests,
    objects::{self, Notes, Object},
    settings::Settings,
};
use portreeve_facts::{ClusterFacts, Gap, Source, names, text};

fn shown(text: &str, longest: usize) {
    assert!(text.len() <= longest && !text.chars().any(text::is_invisible), "{text:?}");
}

fn sound(facts: &ClusterFacts) {
    assert!(facts.rejected.len() <= 65, "{}", facts.rejected.len());
    facts.rejected.iter().for_each(|gap| shown(&gap.detail, 512));
    for service in facts.services.seen().into_iter().flatten() {
        assert!(names::is_label(&service.name) && names::is_label(&service.namespace), "{service:?}");
        assert!(service.ports.iter().all(|port| port.port > 0 && port.node_port != Some(0)), "{service:?}");
        service.uid.iter().for_each(|uid| shown(&String::from(uid.clone()), text::NAME));
        service.proxy_name.iter().for_each(|name| shown(name, text::NAME));
    }
    for pod in facts.pods.seen().into_iter().flatten() {
        assert!(names::is_subdomain(&pod.name) && names::is_label(&pod.namespace), "{pod:?}");
    }
    for node in facts.nodes.seen().into_iter().flatten() {
        assert!(names::is_subdomain(&node.name), "{node:?}");
        node.kubelet_version.iter().chain(&node.container_runtime).for_each(|it| shown(it, text::NAME));
    }
}

fn finished(facts: FactsBuilder) -> ClusterFacts {
    let facts = facts.finish("here".to_owned(), true, None);
    sound(&facts);
    facts
}

/// The result of reading one file of manifests: the facts, the errors, and whether the file has settings or an object
/// of an unused kind.
fn read_manifests(bytes: &[u8], at_once: usize) -> (ClusterFacts, Vec<Gap>, bool) {
    let mut facts = FactsBuilder::default();
    let errors = manifests::read_from("here", bytes, bytes.len() as u64, at_once, &mut facts);
    let found = facts.unused.is_some() || facts.settings != Settings::default();
    let gaps: Vec<Gap> = errors.iter().map(|error| error.gap(Source::Services)).collect();
    gaps.iter().for_each(|gap| shown(&gap.detail, 512));
    manifests::conclude(&[Input::Stdin], &errors, &mut facts);
    (finished(facts), gaps, found)
}

/// The reader gives a reason for each part that it does not read. Input in pieces gives the same facts as input in one
/// piece. The reader never treats a cut file as complete.
pub fn manifest(bytes: &[u8]) {
    let (facts, errors, found) = read_manifests(bytes, manifests::SHORT);
    let (services, slices) = (facts.services.seen().map(Vec::len), facts.endpoint_slices.seen().map(Vec::len));
    let objects = [services, slices, facts.pods.seen().map(Vec::len), facts.nodes.seen().map(Vec::len)];
    let known = objects.into_iter().flatten().any(|count| count > 0);
    let wrong = !errors.is_empty() || !facts.rejected.is_empty();
    // Some complete objects give no facts: an EndpointSlice without a Service, and a ConfigMap without settings.
    let text = String::from_utf8_lossy(bytes);
    let whole = || ["Slice", "ConfigMap", "Configuration", "Network"].iter().any(|kind| text.contains(kind));
    assert!(wrong || found || known || services.is_some() || whole(), "{text:?} was read without a fact or an error");
    // After an error, the facts must not treat a missing object as absent, or a list of endpoints as complete.
    assert!(errors.is_empty() || (slices.is_none() && services != Some(0)), "{text:?} is broken, and healthy");
    let begins = |bytes: &[u8]| bytes.trim_ascii_start().first().is_some_and(|byte| b"{[".contains(byte));
    if !begins(bytes) || bytes.trim_ascii_start().len() < bytes.len() {
        return;
    }
    let (streamed, streamed_errors, _) = read_manifests(bytes, 1 + bytes.len() % 61);
    assert_eq!(streamed_errors.len(), errors.len(), "{text:?}");
    if errors.is_empty() {
        assert_eq!(streamed, facts, "{text:?}");
        let place = bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>() % bytes.len();
        let (start, rest) = bytes.split_at(place);
        let cut = !rest.trim_ascii().is_empty() && !begins(rest);
        assert!(!cut || !read_manifests(start, manifests::SHORT).1.is_empty(), "{text:?}, cut at {place}, is complete");
    }
}

pub fn api_list(bytes: &[u8]) {
    list_of::<objects::Service>(bytes);
    list_of::<objects::EndpointSlice>(bytes);
    list_of::<objects::Pod>(bytes);
    list_of::<objects::Node>(bytes);
}

fn list_of<K: Object>(bytes: &[u8]) {
    let add = FactsBuilder::add_listed::<K>;
    if let Ok((facts, ..)) = answer::parse("here", bytes, K::KIND, Default::default(), add) {
        finished(facts);
    }
}

pub fn watch_lines(bytes: &[u8]) {
    crate::watch::watch_lines(bytes, sound);
}

pub fn flagz(bytes: &[u8]) {
    let mut settings = Settings::default();
    let named = settings.flagz("here".to_owned(), &String::from_utf8_lossy(bytes));
    assert_eq!(named, settings != Settings::default());
    match settings.node_port_range() {
        portreeve_facts::Reading::Seen(range) => assert!(range.range.first <= range.range.last),
        portreeve_facts::Reading::Gap(gap) => shown(&gap.detail, 1024),
    }
}

pub fn component_config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut errors = Notes::default();
    if let Some(config) = proxy_configuration("here".to_owned(), &text, &mut errors) {
        let texts = [&config.mode, &config.detect_local_mode, &config.cluster_cidr];
        texts.into_iter().flatten().chain(&config.node_port_addresses).for_each(|it| shown(it, text::NAME));
    }
    range_argument(&text, &mut errors).iter().for_each(|it| shown(it, text::NAME));
    errors.into_iter().for_each(|error| shown(&error, 1024));
}

const SECRET: &str = "s3cr3t-0f-a-us3r";

fn said(what: String) {
    shown(&Error::Credentials { place: "kubeconfig here".to_owned(), what }.gap(Source::Services).detail, 512);
}

fn parse(yaml: &str) -> Result<Kubeconfig, String> {
    Kubeconfig::from_yaml(yaml).map_err(connect::of_kubeconfig)
}

/// The reader reads no file and starts no program that the kubeconfig names.
pub fn kubeconfig(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    parse(&text).and_then(usable).err().into_iter().for_each(said);
    // The kubeconfig has a token and then the input, and the input may cause an error. An error must not print the
    // token. Input that contains the text of the token is skipped: the text may be a name, and errors print names.
    if text.len().is_multiple_of(4) && !text.contains(SECRET) {
        let behind = format!("users:\n- name: u\n  user:\n    token: {SECRET}\n    {text}");
        if let Err(what) = parse(&behind).and_then(usable) {
            assert!(!what.contains(SECRET), "{what:?} shows a token");
            said(what);
        }
    }
    if let Ok(server) = text.parse::<ApiServer>() {
        let shown = server.to_string();
        assert!(shown.starts_with("https://") && !shown.contains(['@', '?']), "{server}");
        assert_eq!(shown.parse(), Ok(server));
    }
}

/// Asserts that a kubeconfig merged with itself does not change, that no address contains a password, and that no token
/// gets lost. Returns the reason if the kubeconfig cannot be used.
fn usable(mut config: Kubeconfig) -> Result<(), String> {
    let counts = |config: &Kubeconfig| [config.clusters.len(), config.auth_infos.len(), config.contexts.len()];
    let twice = config.clone().merge(config.clone()).expect("a kubeconfig can be merged with itself");
    assert_eq!(counts(&twice), counts(&config));
    assert_eq!(twice.current_context, config.current_context);
    for cluster in config.clusters.iter_mut().filter_map(|it| it.cluster.as_mut()) {
        cluster.certificate_authority = None;
    }
    for user in config.auth_infos.iter_mut().filter_map(|it| it.auth_info.as_mut()) {
        (user.token_file, user.client_certificate, user.client_key, user.exec) = (None, None, None, None);
    }
    let mut made = connect::configured(config, None)?;
    let address = made.cluster_url.to_string();
    let place = made.cluster_url.authority().map_or("", |it| it.as_str());
    assert!(!place.contains('@'), "{address} has a password");
    let user = &mut made.auth_info;
    let wanted = user.token.is_some() && user.auth_provider.is_none() && user.username.is_none();
    connect::take_token(user)?;
    assert!(!wanted || user.token.is_some(), "the token is gone");
    made.auth_layer().map(drop).map_err(|error| error.to_string())
}
