//! For every variant of every rule, one test shows that the program reports the variant. Another test shows a similar
//! case without a report. The tests use a real node or cluster if possible.

use std::{collections::BTreeSet, fs, path::Path};

use portreeve_rules::ids::{IDS, Id};

/// A variant, a test in which the program reports the variant, and a test of a similar case without a report. A test is
/// a file and a function. The file is in `tests`, or in a crate if no real node or cluster can show the case. The two
/// tests must differ.
type Row = (&'static str, (&'static str, &'static str), (&'static str, &'static str));

const SEEN: &[Row] = &[
    (
        "listener-on-node-port/loses",
        ("node/matrix.rs", "every_case_of_the_matrix_has_its_severity_and_affects"),
        ("node/proxy.rs", "a_list_of_addresses_moves_the_verdict_to_the_listed_address"),
    ),
    (
        "listener-on-node-port/trap",
        (
            "crates/rules/src/listener_on_node_port/tests.rs",
            "an_address_outside_node_port_addresses_is_a_trap_in_iptables_mode",
        ),
        ("crates/rules/src/listener_on_node_port/tests.rs", "a_trap_is_on_an_address_of_this_node_outside_vrfs"),
    ),
    (
        "listener-on-node-port/no-return",
        (
            "crates/rules/src/listener_on_node_port/tests.rs",
            "where_cilium_refuses_bind_a_listener_is_told_that_it_cannot_return",
        ),
        (
            "crates/rules/src/listener_on_node_port/tests.rs",
            "the_proxys_own_socket_an_endpoint_and_another_proxys_service_are_silent",
        ),
    ),
    (
        "listener-on-node-port/latent",
        ("node/claims.rs", "a_listener_inside_the_range_is_reported_until_a_service_has_its_port"),
        ("node/near_misses.rs", "listeners_around_the_node_port_range_are_outside_of_it"),
    ),
    (
        "connection-on-port/answers-taken",
        ("node/ranges.rs", "a_client_socket_on_a_node_port_is_swallowed_in_ipvs_mode_only"),
        ("node/near_misses.rs", "a_client_socket_beside_a_node_port_or_of_another_protocol_is_no_conflict"),
    ),
    (
        "connection-on-port/blocks",
        ("node/claims.rs", "a_connection_from_the_port_of_a_health_check_blocks_the_proxy"),
        ("node/near_misses.rs", "connections_to_a_served_health_check_do_not_block_it"),
    ),
    (
        "connection-on-port/blocks-in-pod",
        ("node/in_pods.rs", "a_connection_of_a_crashing_pod_with_the_port_of_its_server_is_reported"),
        ("node/in_pods.rs", "a_connection_of_a_healthy_pod_or_from_another_port_blocks_no_server"),
    ),
    (
        "host-network-port-taken/listener",
        ("node/host_network.rs", "a_process_with_the_port_of_a_crashing_host_network_pod_is_reported"),
        ("node/host_network.rs", "a_ready_pod_another_port_and_another_protocol_block_no_pod"),
    ),
    (
        "host-network-port-taken/refused",
        ("lab/behind_cilium/live.rs", "who_cannot_bind_again_is_told_before_and_after"),
        (
            "crates/rules/src/listener_blocks_host_network_pod/tests/cilium.rs",
            "where_cilium_refuses_bind_a_node_port_is_in_the_way_of_a_pod",
        ),
    ),
    (
        "host-network-port-taken/agent",
        ("node/agent.rs", "a_taken_port_is_a_finding_and_the_agent_uses_the_port_when_it_is_free"),
        ("node/near_misses.rs", "a_listener_on_the_agents_port_at_another_address_does_not_block_the_agent"),
    ),
    (
        "host-network-port-taken/daemon",
        ("anywhere/lint/rules.rs", "ports_of_daemons_are_known"),
        (
            "crates/rules/src/pod_port_of_daemon.rs",
            "another_port_or_protocol_a_pods_own_port_and_pods_that_are_there_are_silent",
        ),
    ),
    (
        "external-ip-conflict/node-address",
        ("node/addresses.rs", "a_cluster_ip_service_with_a_peers_address_cuts_the_peer_off_in_ipvs_mode_only"),
        ("node/addresses.rs", "an_external_ip_that_is_no_nodes_address_is_no_conflict"),
    ),
    (
        "external-ip-conflict/takes-listener",
        ("crates/rules/src/external_ip_is_node_address/tests.rs", "a_daemon_on_the_claimed_port_of_this_node_loses_it"),
        (
            "crates/rules/src/external_ip_is_node_address/tests.rs",
            "the_sockets_of_an_old_proxy_and_of_an_endpoint_lose_nothing",
        ),
    ),
    (
        "external-ip-conflict/takes-node-port",
        ("node/claims.rs", "an_external_ip_of_this_node_takes_anothers_node_port_there"),
        ("node/near_misses.rs", "an_external_ip_with_another_port_or_of_another_node_shadows_nothing"),
    ),
    (
        "external-ip-conflict/claimed-twice",
        ("node/twice.rs", "an_external_ip_and_a_load_balancer_with_one_address_and_port_are_both_reported"),
        ("node/twice.rs", "one_address_with_two_ports_or_protocols_is_shared_on_purpose"),
    ),
    (
        "external-ip-conflict/cluster-ip",
        ("anywhere/lint/against.rs", "an_external_ip_is_compared_with_nodes_and_cluster_ips"),
        ("anywhere/lint/rules.rs", "an_address_and_port_of_two_services_is_told_once_at_each"),
    ),
    (
        "address-held-twice/ipvs",
        ("node/addresses.rs", "a_peers_address_on_kube_ipvs0_without_a_service_is_foreign"),
        ("node/addresses.rs", "an_address_on_this_node_is_reported_once_with_its_service"),
    ),
    (
        "address-held-twice/link",
        ("node/twice.rs", "a_peers_address_on_a_link_of_this_node_cuts_the_peer_off"),
        ("node/twice.rs", "a_virtual_address_and_the_older_name_of_this_node_are_no_peers"),
    ),
    (
        "address-held-twice/announced-elsewhere",
        ("node/twice.rs", "an_address_that_kube_vip_announces_on_another_node_is_reported_until_it_is_deleted"),
        ("node/twice.rs", "an_address_that_kube_vip_announces_here_or_routes_to_each_node_is_healthy"),
    ),
    (
        "node-port-claimed-twice/lost",
        (
            "crates/rules/src/node_port_claimed_twice/tests.rs",
            "two_services_of_a_cluster_with_one_number_lose_connections",
        ),
        ("node/twice.rs", "neighbours_of_a_node_port_are_other_ports"),
    ),
    (
        "node-port-claimed-twice/refused",
        ("node/twice.rs", "one_node_port_of_two_services_and_a_daemon_set_is_reported_for_each_service"),
        ("node/twice.rs", "neighbours_of_a_node_port_are_other_ports"),
    ),
    (
        "node-port-claimed-twice/anew",
        ("crates/rules/src/node_port_claimed_twice/tests.rs", "what_works_until_it_is_created_anew_is_a_warning"),
        (
            "crates/rules/src/node_port_claimed_twice/tests.rs",
            "one_service_may_have_a_number_for_two_protocols_and_not_twice_for_one",
        ),
    ),
    (
        "node-port-claimed-twice/pods",
        ("crates/rules/src/node_port_claimed_twice/tests.rs", "a_workload_of_a_file_will_want_the_port"),
        (
            "crates/rules/src/node_port_claimed_twice/tests.rs",
            "a_workload_with_another_port_or_protocol_or_with_pods_to_judge_is_silent",
        ),
    ),
    (
        "node-port-claimed-twice/own",
        (
            "crates/rules/src/node_port_claimed_twice/tests.rs",
            "a_services_own_pods_in_the_hosts_network_are_information",
        ),
        ("crates/rules/src/node_port_claimed_twice/tests.rs", "a_workload_loses_nothing_to_a_service_of_another_proxy"),
    ),
    (
        "host-port-conflict/node-port",
        ("node/claims.rs", "a_host_port_equal_to_a_node_port_is_reported_by_mode_and_endpoints"),
        ("node/claims.rs", "a_host_port_of_another_number_or_protocol_is_no_conflict"),
    ),
    (
        "host-port-conflict/takes-listener",
        ("node/claims.rs", "a_host_port_takes_the_connections_of_a_listener"),
        ("node/near_misses.rs", "a_host_port_beside_a_listener_or_of_another_protocol_takes_nothing"),
    ),
    (
        "host-port-conflict/no-network",
        (
            "crates/rules/src/host_port_takes_listener/tests.rs",
            "a_pod_that_gets_no_network_is_told_where_its_runtime_has_to_open_the_port",
        ),
        (
            "crates/rules/src/host_port_takes_listener/tests.rs",
            "a_pod_without_a_network_is_silent_if_no_process_has_its_host_port",
        ),
    ),
    (
        "host-port-conflict/health-check",
        ("crates/rules/src/host_port_in_node_port_range.rs", "a_health_check_with_the_number_is_a_warning"),
        ("crates/rules/src/host_port_in_node_port_range.rs", "a_number_that_a_service_has_is_reported_elsewhere"),
    ),
    (
        "host-port-conflict/ignored",
        ("node/twice.rs", "a_host_port_in_the_node_port_range_is_ignored_with_cilium_and_latent_otherwise"),
        ("node/twice.rs", "a_host_port_before_the_node_port_range_is_served"),
    ),
    (
        "host-port-conflict/latent",
        ("node/twice.rs", "a_host_port_in_the_node_port_range_is_ignored_with_cilium_and_latent_otherwise"),
        ("crates/rules/src/host_port_in_node_port_range.rs", "host_network_finished_and_foreign_pods_are_silent"),
    ),
    (
        "pod-waits-for-port/pod",
        ("node/host_network.rs", "a_pod_that_waits_for_the_host_port_of_another_pod_is_reported_with_its_service"),
        ("node/host_network.rs", "a_pod_that_waits_for_another_port_or_node_is_not_blocked_here"),
    ),
    (
        "pod-waits-for-port/workloads",
        ("node/twice.rs", "one_host_port_of_two_daemon_sets_is_reported_once"),
        ("node/twice.rs", "a_daemon_set_of_other_nodes_or_with_another_host_port_claims_nothing_twice"),
    ),
    (
        "pod-waits-for-port/replicas",
        ("anywhere/lint/rules.rs", "several_pods_of_one_workload_cannot_have_one_port_of_a_node"),
        ("anywhere/lint/rules.rs", "two_daemon_sets_with_one_host_port_are_told_at_both"),
    ),
    (
        "stale-redirection/host-port",
        ("node/redirected.rs", "a_redirection_to_a_deleted_pod_takes_the_connections_of_the_next_pod"),
        ("node/redirected.rs", "the_redirection_of_a_running_pod_is_healthy"),
    ),
    (
        "stale-redirection/proxy",
        ("node/addresses.rs", "an_address_without_a_service_was_left_behind"),
        ("node/addresses.rs", "ten_thousand_cluster_ips_on_kube_ipvs0_are_no_strain_and_no_finding"),
    ),
    (
        "health-check-unserved/nobody",
        ("crates/rules/src/health_check_node_port_unserved.rs", "nobody_there_is_critical_for_outside_clients"),
        (
            "crates/rules/src/health_check_node_port_unserved.rs",
            "an_excluded_node_another_proxy_and_another_policy_are_silent",
        ),
    ),
    (
        "health-check-unserved/other",
        ("node/claims.rs", "a_health_check_that_another_program_serves_removes_the_node_from_its_load_balancer"),
        ("node/claims.rs", "a_health_check_that_names_its_service_is_served"),
    ),
    (
        "health-check-unserved/one-family",
        ("crates/rules/src/health_check_node_port_unserved.rs", "a_family_that_the_proxy_is_kept_off_is_told"),
        (
            "crates/rules/src/health_check_node_port_unserved.rs",
            "the_proxys_own_listener_and_the_right_answer_are_healthy",
        ),
    ),
    (
        "health-check-unserved/proxy",
        ("node/proxy.rs", "a_program_that_has_the_health_port_of_a_kube_proxy_is_named"),
        ("node/near_misses.rs", "a_kube_proxy_with_its_health_port_and_a_kube_proxy_that_never_answers_lose_nothing"),
    ),
    (
        "ephemeral-range-overlap/node-ports",
        ("node/ranges.rs", "the_overlap_is_critical_in_ipvs_mode_while_an_allocated_port_is_uncovered"),
        ("node/near_misses.rs", "an_ephemeral_range_after_the_node_ports_or_without_them_overlaps_nothing"),
    ),
    (
        "ephemeral-range-overlap/servers",
        ("node/ranges.rs", "a_wide_range_over_the_port_of_a_server_is_a_warning_until_it_is_reserved"),
        (
            "crates/rules/src/ephemeral_range_overlaps_node_ports/tests.rs",
            "apart_or_covered_is_healthy_however_many_entries_cover",
        ),
    ),
    (
        "ephemeral-range-overlap/no-start",
        (
            "crates/rules/src/ephemeral_range_overlaps_node_ports/tests.rs",
            "what_the_agent_of_cilium_does_at_its_next_start_is_told",
        ),
        (
            "crates/rules/src/ephemeral_range_overlaps_node_ports/tests.rs",
            "apart_or_covered_is_healthy_however_many_entries_cover",
        ),
    ),
    (
        "ephemeral-range-overlap/workload",
        ("anywhere/lint/rules.rs", "a_port_that_the_kernel_chooses_is_told_of_the_hosts_network_and_of_a_host_port"),
        (
            "crates/rules/src/pod_port_in_ephemeral_range.rs",
            "what_the_kernel_does_not_choose_and_pods_that_are_there_are_silent",
        ),
    ),
    (
        "ephemeral-ports-near-exhaustion/node",
        ("node/corpus.rs", "thousands_of_connections_in_time_wait"),
        ("node/near_misses.rs", "connections_that_exhaust_a_narrow_range_do_not_exhaust_the_usual_range"),
    ),
    (
        "ephemeral-ports-near-exhaustion/pod",
        ("node/in_pods.rs", "a_pod_that_uses_most_ports_of_its_own_range_is_reported_with_the_range"),
        ("node/in_pods.rs", "a_pod_that_uses_half_of_its_own_range_is_silent"),
    ),
    (
        "masquerade-source-ports/taken",
        ("lab/ipvs.rs", "a_masqueraded_connection_on_a_node_port_is_judged_as_it_works"),
        ("lab/verdicts/masquerade.rs", "a_masqueraded_connection_on_a_node_port_is_judged_as_it_works"),
    ),
    (
        "masquerade-source-ports/cilium",
        (
            "crates/rules/src/masquerade_uses_node_ports.rs",
            "iptables_that_masquerades_for_cilium_is_a_warning_about_the_cluster",
        ),
        (
            "crates/rules/src/masquerade_uses_node_ports.rs",
            "cilium_that_masquerades_by_itself_or_has_no_node_port_is_silent_and_so_is_kube_proxy",
        ),
    ),
    (
        "masquerade-source-ports/host-port",
        ("lab/behind_cilium/masquerade.rs", "an_answer_to_the_number_of_a_host_port_goes_to_the_pod_and_is_told"),
        ("crates/rules/src/masquerade_draws_host_port.rs", "what_cilium_does_not_draw_is_silent"),
    ),
    (
        "masquerade-source-ports/tunnel",
        ("node/tunnels.rs", "a_tunnels_port_that_rules_exclude_from_conntrack_is_information"),
        ("node/tunnels.rs", "a_port_without_a_tunnel_and_a_tracked_port_lose_no_answers"),
    ),
    (
        "masquerade-source-ports/pool",
        ("node/masquerade.rs", "a_destination_that_uses_most_source_ports_of_a_rule_is_reported_with_the_pods"),
        ("node/masquerade.rs", "three_quarters_of_the_source_ports_of_a_rule_are_enough"),
    ),
    (
        "node-port-range-crowded/crowded",
        ("node/ranges.rs", "bands_are_counted_as_the_api_server_splits_them"),
        ("node/near_misses.rs", "a_band_that_is_in_use_up_to_its_threshold_is_not_crowded"),
    ),
    (
        "node-port-range-crowded/spilled",
        ("node/ranges.rs", "spilling_into_the_static_band_is_a_warning"),
        ("crates/rules/src/node_port_range_crowded.rs", "a_used_static_band_and_ports_outside_the_range_do_not_crowd"),
    ),
    (
        "node-port-range-crowded/full",
        ("crates/rules/src/node_port_range_crowded.rs", "a_full_range_is_critical"),
        ("crates/rules/src/node_port_range_crowded.rs", "a_full_dynamic_band_spills_into_the_static_one"),
    ),
    (
        "node-port-range-mismatch/component",
        ("lab/bands.rs", "cilium_with_a_range_of_its_own_disagrees_with_the_api_server"),
        ("node/corpus.rs", "a_cilium_node_without_kube_proxy"),
    ),
    (
        "node-port-range-mismatch/reserved",
        (
            "crates/rules/src/node_port_range_disagreement.rs",
            "a_reserved_list_of_the_old_range_leaves_the_rest_to_the_kernel",
        ),
        (
            "crates/rules/src/node_port_range_disagreement.rs",
            "a_list_that_never_covered_another_range_is_no_disagreement",
        ),
    ),
    (
        "node-port-range-mismatch/outside",
        ("node/ranges.rs", "an_assumed_range_is_not_judged_for_crowding_and_a_port_outside_disproves_it"),
        ("node/corpus.rs", "a_kubeadm_node_in_each_mode"),
    ),
    (
        "node-port-range-mismatch/band",
        ("lab/server.rs", "a_written_port_in_the_dynamic_band_is_worth_knowing_and_no_alarm"),
        (
            "node/near_misses.rs",
            "a_written_port_of_the_static_band_and_a_chosen_one_of_the_dynamic_band_are_in_their_place",
        ),
    ),
    (
        "node-port-range-mismatch/daemons",
        ("node/corpus.rs", "a_range_without_daemons_and_a_range_that_covers_them"),
        ("node/near_misses.rs", "a_range_after_the_last_daemon_covers_no_daemon"),
    ),
    (
        "proxy-near-fd-limit/near",
        ("node/proxy.rs", "the_demand_of_a_proxy_that_holds_ports_is_compared_with_its_limit"),
        ("node/proxy.rs", "a_proxy_that_holds_no_ports_never_nears_its_limit"),
    ),
    (
        "tunnel-port-conflict/devices",
        (
            "node/tunnels.rs",
            "a_tunnel_that_another_tunnel_keeps_down_is_reported_and_owner_names_the_tunnel_that_is_up",
        ),
        ("node/tunnels.rs", "two_tunnels_with_the_same_options_share_a_port_if_one_or_both_are_up"),
    ),
    (
        "tunnel-port-conflict/listener",
        ("node/tunnels.rs", "a_process_that_keeps_a_tunnel_down_is_named"),
        ("node/tunnels.rs", "two_tunnels_with_the_same_options_share_a_port_if_one_or_both_are_up"),
    ),
    (
        "port-field-refused/node-port",
        ("anywhere/lint/refused.rs", "a_node_port_needs_a_type_that_has_one"),
        ("anywhere/lint/refused.rs", "an_update_that_writes_the_number_that_it_has_is_taken"),
    ),
    (
        "port-field-refused/twice",
        (
            "lab/claimed_twice/node_port.rs",
            "a_port_or_a_name_that_a_service_has_twice_is_told_if_the_api_server_refuses_the_service",
        ),
        ("anywhere/lint/refused.rs", "in_the_hosts_network_a_host_port_is_the_container_port"),
    ),
    (
        "port-field-refused/host-network",
        ("anywhere/lint/refused.rs", "in_the_hosts_network_a_host_port_is_the_container_port"),
        ("anywhere/lint/refused.rs", "a_pod_has_a_port_of_the_node_once"),
    ),
];

/// The error if the file does not have this test, or does not name the variant. For a test without a report, the file
/// needs only the rule's id.
fn complaint(rule: &str, is_silent: bool, (file, function): (&str, &str)) -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = if file.starts_with("crates/") { root.to_owned() } else { root.join("tests") };
    let text = fs::read_to_string(folder.join(file)).unwrap_or_default();
    let (id, variant) = rule.split_once('/').unwrap_or((rule, ""));
    let is_test = text.split("#[test]\n").skip(1).any(|it| it.trim_start().starts_with(&format!("fn {function}() ")));
    // A test that expects silence may assert that there is no finding at all. A file below `crates` is about one rule,
    // so its test need not name the id.
    let names = [rule.to_owned(), format!("\"{id}\"")];
    let of_crate = file.starts_with("crates/") && (is_silent || text.contains(&format!("\"{variant}\"")));
    let silence = is_silent && (text.contains(&format!("{id}/")) || text.contains("alarms("));
    let is_about_it = of_crate || silence || names.iter().any(|it| text.contains(it));
    (!is_test || !is_about_it).then(|| format!("{file} has no test {function} about {rule}"))
}

fn one_for_both((rule, speaks, silent): &Row) -> Option<String> {
    (speaks == silent).then(|| format!("{rule}: {} is named for both", speaks.1))
}

#[test]
fn every_rule_has_been_seen_to_speak_and_to_be_silent() {
    let seen: BTreeSet<String> = SEEN.iter().map(|(rule, ..)| (*rule).to_owned()).collect();
    let of = |id: &&'static Id| {
        id.variants.iter().map(|variant| format!("{}/{}", id.name, variant.name)).collect::<Vec<_>>()
    };
    let rules: BTreeSet<String> = IDS.iter().flat_map(of).collect();
    let missing: Vec<_> = rules.difference(&seen).collect();
    assert!(missing.is_empty(), "SEEN in tests/anywhere/catalogue.rs has no line for {missing:?}");
    let gone: Vec<_> = seen.difference(&rules).collect();
    assert!(gone.is_empty(), "SEEN in tests/anywhere/catalogue.rs has lines for {gone:?}, which are no rules");
    let witnesses = SEEN.iter().flat_map(|(rule, speaks, silent)| [(rule, false, *speaks), (rule, true, *silent)]);
    let mut complaints: Vec<_> =
        witnesses.filter_map(|(rule, is_silent, witness)| complaint(rule, is_silent, witness)).collect();
    complaints.extend(SEEN.iter().filter_map(one_for_both));
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn a_test_that_is_gone_or_about_something_else_is_no_witness() {
    let gone = ("node/claims.rs", "a_test_that_nobody_wrote");
    assert!(complaint("host-port-conflict/node-port", false, gone).is_some());
    let about_clients = ("node/ranges.rs", "a_client_socket_on_a_node_port_is_swallowed_in_ipvs_mode_only");
    assert!(complaint("connection-on-port/answers-taken", false, about_clients).is_none());
    assert!(complaint("host-port-conflict/node-port", false, about_clients).is_some());
}

#[test]
fn one_test_for_both_is_caught() {
    let (one, another) = (("node/claims.rs", "a_test"), ("node/claims.rs", "another_test"));
    assert!(one_for_both(&("host-network-port-taken/agent", one, one)).is_some());
    assert!(one_for_both(&("host-network-port-taken/agent", one, another)).is_none());
}
