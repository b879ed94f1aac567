//! Every rule of the catalogue has been seen to speak and to be silent, on a node or in a cluster that a test made for
//! real.

use std::{collections::BTreeSet, fs, path::Path};

use portreeve_rules::RULES;

/// A rule; the test in which it speaks; the one in which something close to that is no reason to. Both are a file of
/// `tests` and a function, and never the same one.
type Row = (&'static str, (&'static str, &'static str), (&'static str, &'static str));

const SEEN: &[Row] = &[
    (
        "listener-on-node-port",
        ("node/matrix.rs", "every_cell_of_the_matrix_is_told_with_severity_and_affects"),
        ("node/proxy.rs", "a_list_of_addresses_moves_the_verdict_to_the_listed_one"),
    ),
    (
        "client-socket-on-node-port",
        ("node/ranges.rs", "a_client_socket_on_a_node_port_is_swallowed_in_ipvs_mode_only"),
        ("node/near_misses.rs", "a_client_socket_beside_a_node_port_or_of_another_protocol_is_no_conflict"),
    ),
    (
        "client-socket-blocks-port",
        ("node/claims.rs", "a_connection_from_the_port_of_a_health_check_keeps_the_proxy_off_it"),
        ("node/near_misses.rs", "connections_to_a_health_check_that_is_served_keep_nobody_off_it"),
    ),
    (
        "listener-blocks-host-network-pod",
        ("node/host_network.rs", "a_process_with_the_port_of_a_crashing_host_network_pod_is_told"),
        ("node/host_network.rs", "a_ready_pod_another_port_and_another_protocol_block_nobody"),
    ),
    (
        "external-ip-is-node-address",
        ("node/addresses.rs", "a_cluster_ip_service_with_a_peers_address_takes_the_peer_away_in_ipvs_mode_only"),
        ("node/addresses.rs", "an_external_ip_that_is_no_nodes_is_nobodys_loss"),
    ),
    (
        "external-ip-shadows-node-port",
        ("node/claims.rs", "an_external_ip_of_this_node_takes_anothers_node_port_there"),
        ("node/near_misses.rs", "an_external_ip_with_another_port_or_of_another_node_shadows_nothing"),
    ),
    (
        "ipvs-holds-foreign-address",
        ("node/addresses.rs", "a_peers_address_on_kube_ipvs0_without_a_service_is_foreign"),
        ("node/addresses.rs", "an_address_held_here_is_said_once_with_the_service_that_brought_it"),
    ),
    (
        "node-holds-peer-address",
        ("node/twice.rs", "a_peers_address_on_a_link_of_this_node_cuts_the_peer_off"),
        ("node/twice.rs", "a_virtual_address_of_no_node_and_a_node_under_its_older_name_are_no_peers"),
    ),
    (
        "external-address-claimed-twice",
        ("node/twice.rs", "an_external_ip_and_a_load_balancer_with_one_address_and_port_are_told_to_both"),
        ("node/twice.rs", "one_address_with_two_ports_or_protocols_is_shared_on_purpose"),
    ),
    (
        "node-port-claimed-twice",
        ("node/twice.rs", "one_node_port_of_two_services_and_a_daemon_set_is_told_of_each_service"),
        ("node/twice.rs", "neighbours_of_a_node_port_claim_another_one"),
    ),
    (
        "host-port-claimed-twice",
        ("node/twice.rs", "one_host_port_of_two_daemon_sets_is_told_once"),
        ("node/twice.rs", "a_daemon_set_of_other_nodes_or_with_another_host_port_claims_nothing_twice"),
    ),
    (
        "ephemeral-range-overlaps-node-ports",
        ("node/ranges.rs", "the_overlap_is_critical_in_ipvs_mode_while_an_allocated_port_is_uncovered"),
        ("node/near_misses.rs", "an_ephemeral_range_that_begins_behind_the_node_ports_or_spares_them_overlaps_nothing"),
    ),
    (
        "ephemeral-ports-near-exhaustion",
        ("node/corpus.rs", "thousands_of_connections_in_time_wait"),
        ("node/near_misses.rs", "as_many_connections_as_exhaust_a_narrow_range_leave_the_usual_one_free"),
    ),
    (
        "host-port-equals-node-port",
        ("node/claims.rs", "a_host_port_equal_to_a_node_port_is_told_per_mode_and_endpoints"),
        ("node/claims.rs", "a_host_port_of_another_number_or_protocol_is_no_conflict"),
    ),
    (
        "host-port-takes-listener",
        ("node/claims.rs", "a_host_port_takes_what_a_process_listens_for"),
        ("node/near_misses.rs", "a_host_port_beside_a_listener_or_of_another_protocol_takes_nothing"),
    ),
    (
        "pod-waits-for-host-port",
        ("node/host_network.rs", "a_pod_that_waits_for_the_host_port_of_another_is_told_of_its_service"),
        ("node/host_network.rs", "a_pod_that_waits_for_another_port_or_node_is_not_kept_from_it_here"),
    ),
    (
        "host-port-left-behind",
        ("node/redirected.rs", "a_redirection_to_a_pod_that_is_gone_takes_the_connections_of_the_next"),
        ("node/redirected.rs", "the_redirection_of_a_pod_that_lives_is_healthy"),
    ),
    (
        "host-port-in-node-port-range",
        ("node/twice.rs", "a_host_port_in_the_node_port_range_is_ignored_by_cilium_and_latent_elsewhere"),
        ("node/twice.rs", "a_host_port_before_the_node_port_range_is_served"),
    ),
    (
        "masquerade-uses-node-ports",
        ("lab/ipvs.rs", "a_masqueraded_connection_on_a_node_port_is_judged_as_it_works"),
        ("lab/verdicts/masquerade.rs", "a_masqueraded_connection_on_a_node_port_is_judged_as_it_works"),
    ),
    (
        "health-check-node-port-unserved",
        ("node/claims.rs", "a_health_check_that_somebody_else_serves_drops_the_node_from_its_load_balancer"),
        ("node/claims.rs", "a_health_check_that_names_its_service_is_served"),
    ),
    (
        "proxy-health-port-taken",
        ("node/proxy.rs", "a_program_that_has_the_health_port_of_a_kube_proxy_is_named"),
        ("node/near_misses.rs", "a_kube_proxy_that_has_its_health_port_and_one_that_answers_nobody_lose_nothing"),
    ),
    (
        "proxy-near-fd-limit",
        ("node/proxy.rs", "the_demand_of_a_proxy_that_holds_ports_is_compared_with_its_limit"),
        ("node/proxy.rs", "a_proxy_that_holds_no_ports_never_nears_its_limit"),
    ),
    (
        "proxy-left-behind",
        ("node/addresses.rs", "an_address_that_no_service_explains_was_left_behind"),
        ("node/addresses.rs", "ten_thousand_cluster_ips_on_kube_ipvs0_are_no_strain_and_no_finding"),
    ),
    (
        "node-port-range-crowded",
        ("node/ranges.rs", "bands_are_counted_as_the_api_server_cuts_them"),
        ("node/near_misses.rs", "a_band_that_is_in_use_up_to_its_threshold_is_not_crowded"),
    ),
    (
        "node-port-range-disagreement",
        ("lab/bands.rs", "cilium_with_a_range_of_its_own_disagrees_with_the_api_server"),
        ("node/corpus.rs", "a_cilium_node_without_kube_proxy"),
    ),
    (
        "node-port-outside-range",
        ("node/ranges.rs", "an_assumed_range_is_not_judged_for_crowding_and_a_port_outside_disproves_it"),
        ("node/corpus.rs", "a_kubeadm_node_in_each_mode"),
    ),
    (
        "fixed-node-port-in-dynamic-band",
        ("lab/server.rs", "a_written_port_in_the_dynamic_band_is_worth_knowing_and_no_alarm"),
        (
            "node/near_misses.rs",
            "a_written_port_of_the_static_band_and_a_chosen_one_of_the_dynamic_band_are_in_their_place",
        ),
    ),
    (
        "listener-in-node-port-range",
        ("node/claims.rs", "a_listener_inside_the_range_is_told_until_a_service_has_its_port"),
        ("node/near_misses.rs", "listeners_around_the_node_port_range_are_outside_of_it"),
    ),
    (
        "node-port-range-covers-daemons",
        ("node/corpus.rs", "a_range_without_daemons_and_one_that_covers_them"),
        ("node/near_misses.rs", "a_range_that_begins_behind_the_last_daemon_covers_none"),
    ),
    (
        "own-port-taken",
        ("node/agent.rs", "a_taken_port_is_a_finding_and_taken_as_soon_as_it_is_free"),
        ("node/near_misses.rs", "a_listener_on_the_agents_port_at_another_address_leaves_the_agent_its_own"),
    ),
];

/// A test of the package as a rule's witness: nothing when it is one, else what is wrong.
fn complaint(rule: &str, (file, function): (&str, &str)) -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
    let text = fs::read_to_string(&path).unwrap_or_default();
    let is_test = text.contains(&format!("#[test]\nfn {function}() {{"));
    // What is silent may say that nothing at all is told.
    let is_about_it = text.contains(rule) || text.contains("alarms(");
    (!is_test || !is_about_it).then(|| format!("tests/{file} has no test {function} about {rule}"))
}

/// A test that shows both shows neither by itself.
fn one_for_both((rule, speaks, silent): &Row) -> Option<String> {
    (speaks == silent).then(|| format!("{rule}: {} is named for both", speaks.1))
}

#[test]
fn every_rule_has_been_seen_to_speak_and_to_be_silent() {
    let seen: BTreeSet<&str> = SEEN.iter().map(|(rule, ..)| *rule).collect();
    let rules: BTreeSet<&str> = RULES.iter().map(|rule| rule.id.0).collect();
    let missing: Vec<_> = rules.difference(&seen).collect();
    assert!(missing.is_empty(), "SEEN in tests/anywhere/catalogue.rs has no line for {missing:?}");
    let gone: Vec<_> = seen.difference(&rules).collect();
    assert!(gone.is_empty(), "SEEN in tests/anywhere/catalogue.rs has lines for {gone:?}, which are no rules");
    let witnesses = SEEN.iter().flat_map(|(rule, speaks, silent)| [(rule, *speaks), (rule, *silent)]);
    let mut complaints: Vec<_> = witnesses.filter_map(|(rule, witness)| complaint(rule, witness)).collect();
    complaints.extend(SEEN.iter().filter_map(one_for_both));
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn a_test_that_is_gone_or_about_something_else_is_no_witness() {
    let gone = ("node/claims.rs", "a_test_that_nobody_wrote");
    assert!(complaint("host-port-equals-node-port", gone).is_some());
    let about_clients = ("node/ranges.rs", "a_client_socket_on_a_node_port_is_swallowed_in_ipvs_mode_only");
    assert!(complaint("client-socket-on-node-port", about_clients).is_none());
    assert!(complaint("host-port-equals-node-port", about_clients).is_some());
}

#[test]
fn one_test_for_both_is_caught() {
    let (one, another) = (("node/claims.rs", "a_test"), ("node/claims.rs", "another_test"));
    assert!(one_for_both(&("own-port-taken", one, one)).is_some());
    assert!(one_for_both(&("own-port-taken", one, another)).is_none());
}
