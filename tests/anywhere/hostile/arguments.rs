//! Hostile arguments.

use portreeve_facts::text::is_invisible;

use super::{Case, DURATIONS, RANGES};

fn case(arguments: &[&str], says: &str) -> Case {
    // If an argument has invisible characters, the error is about these characters: the test then expects no other
    // words.
    let strange = arguments.iter().any(|word| word.chars().any(is_invisible));
    let says = if strange { "" } else { says };
    Case::new(arguments.join(" "), arguments, "", 64, says)
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for value in DURATIONS {
        let [interval, agent, check] = ["agent --interval", "agent --request-timeout", "check --request-timeout"]
            .map(|it| it.split_once(' ').expect("two"));
        for (command, flag) in [interval, agent, check] {
            cases.push(case(&[command, &format!("{flag}={value}")], "is not a duration from 1ms to 1h"));
        }
    }
    for value in RANGES {
        for command in ["check", "agent"] {
            cases.push(case(&[command, &format!("--node-port-range={value}")], "is not a port range"));
        }
        for key in ["node_port_range", "ip_local_port_range"] {
            cases.push(case(
                &["check", "--snapshot", "FILE", "--set", &format!("{key}={value}")],
                "is not a port range",
            ));
        }
    }
    for value in ["", "0", "-1", "65536", "80/", "80/icmp", "80/tcp/udp", "a", "80 ", "8\u{202e}0", "0x50", "1e2"] {
        cases.push(case(&["owner", "--output=text", "--", value], ""));
    }
    for value in ["0", "-0.1", "101", "nan", "inf", "-inf", "", "a", "1\u{200b}", "1e400"] {
        cases.push(case(&["agent", &format!("--cpu-percent={value}")], "is not a share of 0.001 to 100"));
    }
    for value in ["0", "65536", "-1", "1.5", "a", ""] {
        cases.push(case(&["suggest", &format!("--count={value}")], "--count"));
    }
    for value in ["bridge", "", "IPTABLES", "ip\u{202e}vs", "ipvs\nx", "iptables,ipvs"] {
        for command in ["check", "agent"] {
            cases.push(case(&[command, &format!("--proxy-mode={value}")], ""));
        }
    }
    for value in ["http://192.0.2.1", "https://", "ftp://a", "https://u:p@a", "https://a?b", "a\u{202e}", ""] {
        cases.push(case(&["check", &format!("--apiserver={value}")], ""));
    }
    for value in
        ["", "a", "=", "a=b", "proxy_mode=", "route_localnet=2", "tcp_tw_reuse=256", "ip_unprivileged_port_start=-1"]
    {
        cases.push(case(&["check", "--snapshot", "FILE", &format!("--set={value}")], ""));
    }
    for command in ["chek", "\u{202e}check", "che\u{e0041}ck", "check\u{1b}[31m", "-\u{fe0f}-help", "--\u{200b}version"]
    {
        cases.push(case(&[command], ""));
    }
    cases
}
