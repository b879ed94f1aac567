//! Reads a snapshot from a JSON document. A stranger may have written the document, and users copy names from a report
//! into commands. So values that no scan can have written are refused.

use serde::Deserialize;

use crate::{ClusterFacts, SNAPSHOT_SCHEMA, Service, Snapshot, Unread, names, text};

impl Snapshot {
    /// Parses a snapshot from its JSON document, as `serde_json` writes it. The schema is checked first, so that the
    /// error for another kind of document names the schema, not a missing field.
    ///
    /// # Errors
    /// Returns an error if the document is not JSON, has another schema, or has a value that no scan can have written.
    pub fn from_json(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Labelled {
            schema: Option<String>,
        }
        let Labelled { schema } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        match schema.as_deref() {
            Some(SNAPSHOT_SCHEMA) => {
                let mut snapshot: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
                snapshot.cluster = snapshot.cluster.in_order();
                // Snapshots of earlier versions lack the entry for an unknown name, because these versions used the
                // hostname as the name.
                if snapshot.cluster.unknown_node().is_none() {
                    let unknown = snapshot.cluster.no_name(&snapshot.kernel.hostname);
                    snapshot.cluster.rejected.extend(unknown);
                }
                impossible(&snapshot).map_or(Ok(snapshot), Err)
            }
            Some(other) => Err(format!(
                "the schema of the document is {:?}, wanted {SNAPSHOT_SCHEMA:?}",
                text::clean(other, text::NAME)
            )),
            None => Err(format!("the document has no schema, wanted {SNAPSHOT_SCHEMA:?}")),
        }
    }
}

/// A text about the first value that no scan can have written: the place, the value, and the expected value.
fn impossible(snapshot: &Snapshot) -> Option<String> {
    let ClusterFacts { services, endpoint_slices, pods, nodes, node_name, .. } = &snapshot.cluster;
    let unread = Unread::Reported("the gap in its place");
    let service = services.known_part(unread).iter().find_map(|service| {
        label("the name of a Service", &service.name)
            .or_else(|| label("the namespace of a Service", &service.namespace))
            .or_else(|| port_zero(service))
    });
    let slice = || {
        let mut slices = endpoint_slices.known_part(unread).iter();
        slices.find_map(|it| label("the namespace of an EndpointSlice", &it.namespace))
    };
    let pod = || {
        let named = |pod| subdomain("the name of a Pod", pod);
        let mut pods = pods.known_part(unread).iter();
        pods.find_map(|it| named(&it.name).or_else(|| label("the namespace of a Pod", &it.namespace)))
    };
    let node = || nodes.known_part(unread).iter().find_map(|it| subdomain("the name of a Node", &it.name));
    let own = || subdomain("the name of this node", node_name.as_deref()?);
    service.or_else(slice).or_else(pod).or_else(node).or_else(own)
}

fn label(what: &str, name: &str) -> Option<String> {
    (!names::is_label(name)).then(|| format!("{what} is {:?}, wanted {}", shown(name), names::LABEL_WORDS))
}

fn subdomain(what: &str, name: &str) -> Option<String> {
    (!names::is_subdomain(name)).then(|| format!("{what} is {:?}, wanted {}", shown(name), names::SUBDOMAIN))
}

fn port_zero(service: &Service) -> Option<String> {
    let mut ports = service.ports.iter();
    let zero =
        ports.any(|port| port.port == 0 || port.node_port == Some(0)) || service.health_check_node_port == Some(0);
    zero.then(|| format!("Service {}/{} has the port 0, wanted 1 to 65535", service.namespace, service.name))
}

fn shown(name: &str) -> String {
    text::clean(name, text::NAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ContainerPort, EndpointSlice, Owner, Protocol, Source, Why,
        healthy::{World, gap},
    };

    #[test]
    fn a_snapshot_survives_the_way_through_a_file() {
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080)).listens("0.0.0.0:30080");
        let bytes = serde_json::to_vec(&world).expect("a snapshot is JSON");
        assert_eq!(Snapshot::from_json(&bytes).expect("it parses"), world);
    }

    #[test]
    fn keys_and_words_of_earlier_versions_are_read() {
        let mut world = Snapshot::healthy().listens_as("0.0.0.0:30080", Owner::NotRead);
        world.connections_at = Some(world.at);
        world.cluster.services = gap(Source::Services, Why::NotRequested);
        let port = ContainerPort { port: 80, host_port: None, host_ip: None, protocol: Protocol::Tcp };
        let world = world.pod("edge", |pod| pod.reported_in_use = vec![port]);
        let mut text = serde_json::to_string(&world).expect("a snapshot is JSON");
        for (is, was) in [
            ("overrides", "said"),
            ("connections_at", "whole_at"),
            ("reported_in_use", "said_in_use"),
            ("not-requested", "not-asked"),
            ("not-read", "not-asked"),
        ] {
            let (is, was) = (format!("\"{is}\""), format!("\"{was}\""));
            assert!(text.contains(&is), "{is}");
            text = text.replace(&is, &was);
        }
        assert_eq!(Snapshot::from_json(text.as_bytes()).expect("it parses"), world);
    }

    fn on_vm(mut world: Snapshot) -> Snapshot {
        (world.cluster.node_name, world.cluster.nodes) = (None, gap(Source::Nodes, Why::NotPermitted));
        world.kernel.hostname = "vm".to_owned();
        world
    }

    #[test]
    fn a_hostname_that_no_object_has_is_not_the_name_of_this_node_where_objects_have_names_of_nodes() {
        let read = |world: &Snapshot| {
            Snapshot::from_json(&serde_json::to_vec(world).expect("a snapshot is JSON")).expect("it parses")
        };
        let unknown = |world: Snapshot| {
            let world = read(&world);
            assert_eq!(read(&world), world, "the reason is noted once");
            (world.cluster.unknown_node().is_some(), world.cluster.unplaced_pod().is_some())
        };
        assert_eq!(unknown(on_vm(Snapshot::healthy())), (false, false), "nothing has a name");
        let edge =
            |node: Option<&str>| on_vm(Snapshot::healthy().pod("edge", |pod| pod.node = node.map(str::to_owned)));
        assert_eq!(unknown(edge(Some("n1"))), (true, true));
        assert_eq!(unknown(edge(Some("vm"))), (false, false));
        assert_eq!(unknown(edge(None)), (false, false));
        let mut configured = edge(Some("n1"));
        configured.cluster.node_name = Some("n2".to_owned());
        assert_eq!(unknown(configured), (false, false));
        let web = |change: fn(World) -> World| on_vm(Snapshot::healthy().service("web", change));
        assert_eq!(unknown(web(|it| it)), (false, false), "each node sends to all endpoints");
        assert_eq!(unknown(web(World::local)), (true, false));
        assert_eq!(unknown(web(World::local_inside)), (true, false));
        let here = |slice: &mut EndpointSlice| slice.endpoints[0].node = Some("vm".to_owned());
        let local = Snapshot::healthy().service("web", |it| it.local().each_slice(here));
        assert_eq!(unknown(on_vm(local)), (true, false), "a tenant can write the name");
        let bound = Snapshot::healthy().pod("edge", |pod| {
            pod.node = Some("vm".to_owned());
            pod.ips.clear();
        });
        assert_eq!(unknown(on_vm(bound)), (true, true), "no kubelet has the pod");
    }

    #[test]
    fn what_no_look_could_have_written_is_refused_by_name() {
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080));
        let text = serde_json::to_string(&world).expect("a snapshot is JSON");
        for (was, is, wanted) in [
            (r#""name":"web""#, r#""name":"--all""#, r#"the name of a Service is "--all", wanted"#),
            (r#""node_port":30080"#, r#""node_port":0"#, "has the port 0, wanted 1 to 65535"),
            (r#"{"first":30000,"last":32767}"#, r#"{"first":32767,"last":30000}"#, "from 32767 to 30000, wanted first"),
        ] {
            assert!(text.contains(was), "{was}");
            let error = Snapshot::from_json(text.replace(was, is).as_bytes()).expect_err("impossible");
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn what_is_no_snapshot_is_told_by_its_kind_or_its_place() {
        for (bytes, wanted) in [
            (&br#"{"schema":"portreeve/v1"}"#[..], "portreeve.snapshot/v1"),
            (br#"{"kind":"List"}"#, "no schema"),
            (br#"{"schema":"portreeve.snapshot/v1"}"#, "line 1 column"),
            (b"{\n  nonsense", "line 2 column"),
        ] {
            let error = Snapshot::from_json(bytes).expect_err("no snapshot");
            assert!(error.contains(wanted), "{error}");
        }
    }
}
