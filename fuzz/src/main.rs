//! One program for every target: libFuzzer runs the one that the environment variable `TARGET` names.

#![no_main]

use std::{env, sync::OnceLock};

use libfuzzer_sys::fuzz_target;
use portreeve::{cli::fuzzing as cli, cluster::fuzzing as cluster, kernel::fuzzing as kernel};

/// Takes arbitrary bytes, and panics where a promise is broken.
type Target = fn(&[u8]);

/// The same names as in `targets`, which says how each is run.
const TARGETS: [(&str, Target); 20] = [
    ("netlink-dump", kernel::netlink_dump),
    ("sock-diag-message", kernel::sock_diag_message),
    ("route-message", kernel::route_message),
    ("netfilter-message", kernel::netfilter_message),
    ("proc-net-file", kernel::proc_net_file),
    ("proc-file", kernel::proc_file),
    ("resolv-conf", kernel::resolv_conf),
    ("proxy-answer", kernel::proxy_answer),
    ("manifest-yaml", cluster::manifest),
    ("manifest-json", cluster::manifest),
    ("api-list", cluster::api_list),
    ("watch-lines", cluster::watch_lines),
    ("flagz", cluster::flagz),
    ("component-config", cluster::component_config),
    ("kubeconfig", cluster::kubeconfig),
    ("snapshot", cli::snapshot),
    ("agents-answer", cli::agents_answer),
    ("configuration-file", cli::configuration_file),
    ("arguments", cli::arguments),
    ("strange-text", cli::strange_text),
];

static TARGET: OnceLock<Target> = OnceLock::new();

fuzz_target!(|bytes: &[u8]| {
    let target = TARGET.get_or_init(|| {
        let wanted = env::var("TARGET").unwrap_or_default();
        let found = TARGETS.iter().find(|(name, _)| *name == wanted);
        found.unwrap_or_else(|| panic!("TARGET is {wanted:?}, and not in `fuzz/targets`")).1
    });
    target(bytes);
});
