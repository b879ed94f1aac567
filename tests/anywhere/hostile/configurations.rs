//! Hostile configuration files of the agent. `agent --probe` reads the configuration file if no argument names a
//! socket.

use super::{Case, DURATIONS, RANGES};

fn case(content: impl Into<Vec<u8>>, name: String, says: &str) -> Case {
    Case::new(name, &["agent", "--probe", "--config", "FILE"], content, 2, says)
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        case("[]", "a list".to_owned(), "input:1: "),
        case("7", "a number".to_owned(), "input:1: "),
        case("a: [", "an open bracket".to_owned(), "input:1: "),
        case("node: n1\nnode: n2\n", "a key twice".to_owned(), "input:2: "),
        case(b"node: \xff\n".to_vec(), "no UTF-8".to_owned(), "is not UTF-8 text"),
        case("x".repeat(2 << 20), "two megabytes".to_owned(), "is longer than 1048576 bytes"),
        case(format!("node: &a x\ncontext: [{}]\n", "*a,".repeat(50_000)), "aliases".to_owned(), "input:"),
        case("node\u{202e}: x\n", "a key that turns".to_owned(), "input:1: unknown key"),
        case("limits: 5\n", "limits of a number".to_owned(), "input:1: "),
    ];
    for key in ["interval", "request-timeout"] {
        for value in DURATIONS {
            cases.push(case(format!("{key}: \"{value}\"\n"), format!("{key} {value}"), "input:1: "));
        }
    }
    for value in RANGES {
        cases.push(case(format!("node-port-range: \"{value}\"\n"), format!("node-port-range {value}"), "input:1: "));
    }
    for value in ["0", "-1", "101", ".nan", ".inf", "many", "[]"] {
        cases.push(case(format!("cpu-percent: {value}\n"), format!("cpu-percent {value}"), "input:1: "));
    }
    for value in ["192.0.2.1", ":80", "a:80", "192.0.2.1:65536", "\"\"", "[]"] {
        cases.push(case(format!("listen: {value}\n"), format!("listen {value}"), "input:1: "));
    }
    let percents =
        ["ephemeral_warning_percent", "ephemeral_critical_percent", "fds_warning_percent", "band_warning_percent"];
    for key in percents.into_iter().chain(["fds_critical_percent", "proxy_lag_seconds"]) {
        for value in ["0", "-1", "90000", "many"] {
            cases.push(case(format!("node: n1\nlimits:\n  {key}: {value}\n"), format!("{key} {value}"), "input:3: "));
        }
    }
    cases
}
