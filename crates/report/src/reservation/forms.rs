//! The list of ports in the format of each platform. A list has digits, commas and hyphens, which need no quotes in
//! these formats.

use serde_json::json;

use super::ReservationReport;
use crate::terminal::tidy;

const SYSCTL: &str = "net.ipv4.ip_local_reserved_ports";
/// The last file name in alphabetical order. If several files set one value, sysctl uses the last file.
const FILE: &str = "/etc/sysctl.d/zz-node-ports.conf";

/// A platform with its own file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of platforms")]
pub enum ReservationForm {
    Sysctl,
    Talos,
    Openshift,
    Bottlerocket,
    Al2023,
    Aks,
    Kubespray,
    Kops,
}

/// The content of the file for a platform.
///
/// # Errors
/// The reason as text, if the platform has no setting that helps.
pub fn reservation_file(form: ReservationForm, report: &ReservationReport<'_>) -> Result<String, String> {
    let ports = report.list.ports.to_string();
    let file = match form {
        ReservationForm::Sysctl => sysctl(&ports),
        ReservationForm::Talos => talos(&ports),
        ReservationForm::Openshift => openshift(&ports),
        ReservationForm::Bottlerocket => bottlerocket(&ports),
        ReservationForm::Al2023 => al2023(&ports),
        ReservationForm::Aks => return aks(report),
        ReservationForm::Kubespray => kubespray(&ports),
        ReservationForm::Kops => kops(&ports),
    };
    // The file also contains the notes, because users keep the file longer than the output in a terminal.
    let remarks = missing(report).into_iter().chain(report.fleet.doubts());
    Ok(remarks.fold(file, |file, remark| format!("{file}# {remark}\n")))
}

fn missing(report: &ReservationReport<'_>) -> Option<String> {
    let missing = match (report.partial, report.unread.len()) {
        (Some(partial), _) => Some(format!("{}. The list lacks the reserved ports of the other nodes.", tidy(partial))),
        (None, 0) => None,
        (None, unread) => {
            let nodes = if unread == 1 { "1 node reserves" } else { &format!("{unread} nodes reserve") };
            Some(format!("the ports that {nodes} are not known, and are not in the list."))
        }
    };
    missing.map(|words| format!("Incomplete: {words}"))
}

/// The file in the format of sysctl.d(5).
fn sysctl(ports: &str) -> String {
    format!("# {FILE}, on each node; `sysctl --system` applies it.\n{SYSCTL} = {ports}\n")
}

/// <https://docs.siderolabs.com/talos/v1.13/reference/configuration/v1alpha1/config>, `machine.sysctls`. From 1.14 on,
/// a document `SysctlConfig` can have the same settings, and Talos merges the document with `machine.sysctls`.
fn talos(ports: &str) -> String {
    format!(
        "# A patch of the machine configuration: talosctl patch machineconfig --nodes NODES --patch @FILE\n\
         machine:\n  sysctls:\n    {SYSCTL}: \"{ports}\"\n"
    )
}

/// <https://docs.openshift.com/container-platform/4.14/nodes/nodes/nodes-node-tuning-operator.html>. A node has only
/// one profile. So each profile here includes the node's default profile (cluster-node-tuning-operator,
/// assets/tuned/manifests/default-cr-tuned.yaml). The profile with the lowest priority number is used, and the default
/// profiles have numbers from 30 on.
fn openshift(ports: &str) -> String {
    let profile = |parent: &str| {
        format!(
            "  - name: node-ports-{parent}\n    data: |\n      [main]\n      summary=Keeps NodePorts from outgoing connections\n      \
             include={parent}\n      [sysctl]\n      {SYSCTL}=\"{ports}\"\n"
        )
    };
    format!(
        "# oc apply -f FILE. If nodes have a profile of your own, add this [sysctl] part to your profile instead.\n\
         apiVersion: tuned.openshift.io/v1\nkind: Tuned\nmetadata:\n  name: node-ports\n  \
         namespace: openshift-cluster-node-tuning-operator\nspec:\n  profile:\n{}{}  recommend:\n  \
         - match:\n    - label: node-role.kubernetes.io/master\n    - label: node-role.kubernetes.io/infra\n    priority: 20\n    profile: node-ports-openshift-control-plane\n  \
         - priority: 21\n    profile: node-ports-openshift-node\n",
        profile("openshift-control-plane"),
        profile("openshift-node"),
    )
}

/// <https://bottlerocket.dev/en/os/latest/api/settings/kernel/>, `settings.kernel.sysctl`.
fn bottlerocket(ports: &str) -> String {
    format!(
        "# User data of new nodes; on a running node: apiclient apply < FILE\n[settings.kernel.sysctl]\n\"{SYSCTL}\" = \"{ports}\"\n"
    )
}

/// <https://awslabs.github.io/amazon-eks-ami/nodeadm>: user data are a MIME multi-part document. cloud-init reads this
/// part (<https://cloudinit.readthedocs.io/en/latest/reference/modules.html>, `write_files` and `runcmd`). The first
/// line of the part, `#cloud-config`, is the part's type.
fn al2023(ports: &str) -> String {
    format!(
        "#cloud-config\n# A part of the user data, beside the part of the NodeConfig: Content-Type: text/cloud-config\n\
         write_files:\n- path: {FILE}\n  content: |\n    {SYSCTL} = {ports}\nruncmd:\n- [sysctl, --system]\n"
    )
}

/// <https://learn.microsoft.com/azure/aks/custom-node-configuration>: AKS has a setting for the ephemeral port range,
/// but no setting for reserved ports. The format is JSON, which has no comments.
fn aks(report: &ReservationReport<'_>) -> Result<String, String> {
    if let Some(words) = missing(report) {
        return Err(format!("The format of AKS is JSON, which has no comments. {words}"));
    }
    let range = report.fleet.range_above().ok_or(
        "AKS has no setting for reserved ports, and too few ports above the NodePorts are left for outgoing connections: make the NodePort range narrower",
    )?;
    let config = json!({"sysctls": {"netIpv4IpLocalPortRange": format!("{} {}", range.first, range.last)}});
    Ok(format!("{config:#}\n"))
}

/// <https://github.com/kubernetes-sigs/kubespray>, roles/kubernetes/node/tasks/main.yml, *Ensure nodePort range is
/// reserved*: Kubespray replaces the value of `additional_sysctl` with the NodePort range. So this playbook runs after
/// Kubespray.
fn kubespray(ports: &str) -> String {
    format!(
        "# A playbook to run after each run of cluster.yml, because cluster.yml reserves only the NodePort range:\n\
         # ansible-playbook -i INVENTORY FILE\n\
         - hosts: k8s_cluster\n  become: true\n  tasks:\n  - name: Keep NodePorts from outgoing connections\n    \
         ansible.posix.sysctl:\n      name: {SYSCTL}\n      value: \"{ports}\"\n      sysctl_file: {FILE}\n      \
         sysctl_set: true\n      state: present\n"
    )
}

/// <https://kops.sigs.k8s.io/cluster_spec/>, `sysctlParameters`: kops writes these parameters last, after its own
/// settings.
fn kops(ports: &str) -> String {
    format!(
        "# A part of the Cluster object: kops edit cluster. Then kops update cluster --yes, and kops rolling-update cluster --yes\n\
         spec:\n  sysctlParameters:\n  - {SYSCTL}={ports}\n"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use portreeve_facts::{Gap, Snapshot, Source, Why};
    use portreeve_rules::{FleetReservation, NodeReservation};

    const WANTED: &str = "2703,30000-32767";

    fn written(form: ReservationForm, range: &str, unread: &[(String, Gap)]) -> Result<String, String> {
        let world = Snapshot::healthy().ephemeral("30000 60999", "2703").node_port_range(range);
        let fleet = FleetReservation { nodes: vec![NodeReservation::of(&world, None).expect("all was read")] };
        let list = fleet.list().expect("a list");
        reservation_file(form, &ReservationReport { unread, ..ReservationReport::of(&fleet, &list) })
    }

    fn file(form: ReservationForm) -> String {
        written(form, "30000-32767", &[]).expect("a file")
    }

    fn yaml(form: ReservationForm) -> Value {
        let text = file(form);
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    #[test]
    fn a_list_without_the_node_ports_that_no_service_has_covers_a_node_in_part_only() {
        // If the list had all NodePorts, only two thousand ports would be left for outgoing connections.
        let world = Snapshot::healthy().ephemeral("32768 60999", "").node_port_range("30000-58999");
        let world = world.service("web", |it| it.node_port(30080));
        let fleet = FleetReservation { nodes: vec![NodeReservation::of(&world, None).expect("all was read")] };
        let list = fleet.list().expect("a list");
        let report = ReservationReport::of(&fleet, &list);
        assert!(!list.whole_range && fleet.nodes[0].lacks(&list).is_empty(), "{list:?}");
        assert!(!report.is_covered());
        let mut text = Vec::new();
        let style = crate::Style { width: 100, colour: false, program: "portreeve".to_owned() };
        crate::write_reservation(&report, &style, &mut text).expect("written");
        let text = String::from_utf8(text).expect("UTF-8");
        assert!(text.starts_with("partly covered") && text.contains("NodePorts that no Service has"), "{text}");
    }

    #[test]
    fn a_node_that_may_need_more_ports_is_only_perhaps_covered() {
        let covered = Snapshot::healthy().ephemeral("40000 60999", "30000-32767,40080");
        let covered = covered.service("web", |it| it.node_port(40080));
        for (world, word) in
            [(covered.clone(), "covered  node n1"), (covered.assumed_range(), "perhaps covered  node n1")]
        {
            let fleet =
                FleetReservation { nodes: vec![NodeReservation::of(&world, None).expect("the lists were read")] };
            let list = fleet.list().expect("a list");
            let report = ReservationReport::of(&fleet, &list);
            let mut text = Vec::new();
            let style = crate::Style { width: 100, colour: false, program: "portreeve".to_owned() };
            crate::write_reservation(&report, &style, &mut text).expect("written");
            let text = String::from_utf8(text).expect("UTF-8");
            assert!(text.starts_with(word), "{text}");
            assert_eq!(report.result(true) == crate::CheckResult::Clear, word.starts_with("covered"), "{text}");
        }
    }

    #[test]
    fn each_platform_reads_the_list_where_it_looks_for_it() {
        let sysctl = file(ReservationForm::Sysctl);
        let lines: Vec<&str> = sysctl.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines, [format!("{SYSCTL} = {WANTED}")]);
        assert_eq!(yaml(ReservationForm::Talos)["machine"]["sysctls"][SYSCTL], WANTED);
        let tuned = yaml(ReservationForm::Openshift);
        let [profiles, recommended] = ["profile", "recommend"].map(|it| tuned["spec"][it].as_array().expect("a list"));
        for (profile, parent) in profiles.iter().zip(["openshift-control-plane", "openshift-node"]) {
            let data = profile["data"].as_str().expect("a text");
            assert!(data.contains(&format!("\ninclude={parent}\n[sysctl]\n{SYSCTL}=\"{WANTED}\"\n")), "{data}");
            assert_eq!(recommended.iter().filter(|it| it["profile"] == profile["name"]).count(), 1);
            let labels = recommended[0]["match"].as_array().expect("labels").len();
            assert_eq!(labels, 2, "either is enough");
        }
        assert!(recommended.iter().all(|it| it["priority"].as_u64().is_some_and(|number| number < 30)));
        let toml: toml_edit::DocumentMut = file(ReservationForm::Bottlerocket).parse().expect("TOML");
        assert_eq!(toml["settings"]["kernel"]["sysctl"][SYSCTL].as_str(), Some(WANTED));
        assert!(file(ReservationForm::Al2023).starts_with("#cloud-config\n"));
        assert_eq!(yaml(ReservationForm::Al2023)["write_files"][0]["content"], format!("{SYSCTL} = {WANTED}\n"));
        let task = &yaml(ReservationForm::Kubespray)[0]["tasks"][0]["ansible.posix.sysctl"];
        assert_eq!((&task["name"], &task["value"]), (&json!(SYSCTL), &json!(WANTED)));
        assert_eq!(yaml(ReservationForm::Kops)["spec"]["sysctlParameters"][0], format!("{SYSCTL}={WANTED}"));
    }

    #[test]
    fn a_platform_without_the_setting_moves_the_other_range() {
        let config: Value = serde_json::from_str(&file(ReservationForm::Aks)).expect("JSON");
        assert_eq!(config["sysctls"]["netIpv4IpLocalPortRange"], "32768 60999");
        let refused = written(ReservationForm::Aks, "30000-60000", &[]).expect_err("no room");
        assert!(refused.contains("too few ports above the NodePorts"), "{refused}");
    }

    #[test]
    fn a_range_that_is_assumed_or_not_the_same_everywhere_is_told_in_the_file() {
        let nodes = ["30000-32767", "20000-22767"].map(|range| Snapshot::healthy().node_port_range(range));
        let assumed = Snapshot::healthy().assumed_range();
        let doubt = |nodes: &[&Snapshot]| {
            let nodes = nodes.iter().map(|it| NodeReservation::of(it, None).expect("all was read")).collect();
            let fleet = FleetReservation { nodes };
            let list = fleet.list().expect("a list");
            let report = ReservationReport::of(&fleet, &list);
            let file = reservation_file(ReservationForm::Sysctl, &report).expect("a file");
            file.lines().last().expect("a line").to_owned()
        };
        assert!(doubt(&[&nodes[0]]).starts_with(SYSCTL));
        assert!(doubt(&[&nodes[0], &nodes[1]]).ends_with("different NodePort ranges: 20000-22767, 30000-32767."));
        assert!(doubt(&[&assumed]).starts_with("# No source names the NodePort range"));
    }

    #[test]
    fn a_file_of_some_nodes_says_so_itself() {
        let gap = Gap::new(Source::Agent, Why::TimedOut, "it hangs");
        for form in [ReservationForm::Sysctl, ReservationForm::Bottlerocket, ReservationForm::Kops] {
            let text = written(form, "30000-32767", &[("n2".to_owned(), gap.clone())]).expect("a file");
            assert!(
                text.ends_with(
                    "\n# Incomplete: the ports that 1 node reserves are not known, and are not in the list.\n"
                ),
                "{text}"
            );
        }
        let refused =
            written(ReservationForm::Aks, "30000-32767", &[("n2".to_owned(), gap)]).expect_err("it cannot say so");
        assert!(refused.contains("Incomplete: the ports that 1 node"), "{refused}");
    }
}
