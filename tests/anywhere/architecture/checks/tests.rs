//! Each check on a small tree in which it has to complain, and on the nearest one in which it must not.

use super::*;

fn file(path: &str, text: &str) -> File {
    File { path: path.to_owned(), text: text.to_owned() }
}

#[track_caller]
fn expect(check: fn(&[File]) -> Vec<Complaint>, files: &[File], complaints: &[&str]) {
    assert_eq!(check(files), complaints);
}

#[test]
fn a_rule_that_asks_the_ledger_is_caught_however_it_is_written() {
    let complaint = ["src/rules/a.rs:1: rules may not know ledger"];
    for text in [
        "use crate::ledger::Board;",
        "use crate::{facts::Gap, ledger::Board};",
        "use super::super::ledger;",
        "mod tests { use super::super::super::ledger; }",
        "fn f() -> crate::ledger::Board { todo() }",
    ] {
        expect(edges, &[file("src/rules/a.rs", text)], &complaint);
    }
    expect(edges, &[file("src/rules/a.rs", "use crate::{facts::Gap, findings, rules::Rule}; // crate::ledger")], &[]);
}

#[test]
fn kernel_and_cluster_never_meet() {
    expect(
        edges,
        &[file("src/kernel/mod.rs", "use crate::cluster;")],
        &["src/kernel/mod.rs:1: kernel may not know cluster"],
    );
    expect(
        edges,
        &[file("src/cluster/mod.rs", "use super::kernel;")],
        &["src/cluster/mod.rs:1: cluster may not know kernel"],
    );
}

#[test]
fn main_knows_the_cli_only() {
    expect(
        edges,
        &[file("src/main.rs", "use portreeve::{cli, kernel};")],
        &["src/main.rs:1: main may not know kernel"],
    );
}

#[test]
fn a_room_without_its_never_is_caught() {
    let complaint = ["src/ledger/mod.rs:1: does not open with its job and a line `//! Never: ...`"];
    expect(rooms, &[file("src/ledger/mod.rs", "//! Since when.\n")], &complaint);
    expect(rooms, &[file("src/ledger/mod.rs", "//! Never: measures.\n")], &complaint);
    expect(rooms, &[file("src/ledger/mod.rs", "//! Since when.\n//!\n//! Never: measures.\n")], &[]);
}

#[test]
fn an_eleventh_room_is_caught() {
    let attic = file("src/attic/mod.rs", "//! Things.\n//!\n//! Never: tidy.\n");
    expect(rooms, &[attic], &["src/attic: is no room"]);
}

#[test]
fn a_pure_room_that_reaches_out_is_caught() {
    for (text, complaint) in [
        ("use std::{fmt, fs};", "src/facts/a.rs:1: facts may not use std::fs"),
        ("use std::net::{IpAddr, TcpStream};", "src/facts/a.rs:1: facts may not use std::net::TcpStream"),
        ("async fn f() { tokio::task::yield_now().await }", "src/facts/a.rs:1: facts may not use tokio"),
        ("use kube::Client;", "src/facts/a.rs:1: facts may not use kube"),
        ("fn f() { time::SystemTime::now(); }", "src/facts/a.rs:1: facts reads SystemTime"),
        ("fn f() { Timestamp::now(); }", "src/facts/a.rs:1: facts may not use Timestamp::now"),
    ] {
        expect(doors, &[file("src/facts/a.rs", text)], &[complaint]);
    }
    expect(doors, &[file("src/facts/a.rs", "use std::net::IpAddr;"), file("src/kernel/a.rs", "use std::fs;")], &[]);
}

#[test]
fn an_io_room_keeps_to_its_own_crates() {
    expect(doors, &[file("src/kernel/a.rs", "use kube::Client;")], &["src/kernel/a.rs:1: kernel may not use kube"]);
    expect(
        doors,
        &[file("src/cluster/a.rs", "use netlink_sys::Socket;")],
        &["src/cluster/a.rs:1: cluster may not use netlink_sys"],
    );
}

#[test]
fn a_file_that_no_mod_line_reaches_is_caught() {
    let lib = file("src/lib.rs", "pub mod facts; // mod lost;\nmod a { mod b; }");
    let facts = file("src/facts/mod.rs", "mod ports;");
    let ports = file("src/facts/ports.rs", "#[cfg(test)]\nmod tests;");
    let tests = file("src/facts/ports/tests.rs", "");
    let inline = file("src/a/b.rs", "");
    let target = file("tests/anywhere/main.rs", "");
    let house = [lib, facts, ports, tests, inline, target];
    expect(orphans, &house, &[]);
    for path in ["src/lost.rs", "src/facts/lost.rs", "tests/anywhere/lost.rs", "tests/nowhere/ports.rs"] {
        let complaint = format!("{path}:1: no `mod` line leads here, so it is never compiled");
        let lost = house.iter().map(|one| file(&one.path, &one.text)).chain([file(path, "")]);
        expect(orphans, &lost.collect::<Vec<_>>(), &[&complaint]);
    }
}

#[test]
fn the_four_hundred_and_first_line_is_caught() {
    expect(length, &[file("src/facts/a.rs", &"\n".repeat(400))], &[]);
    expect(length, &[file("src/facts/a.rs", &"\n".repeat(401))], &["src/facts/a.rs:400: goes on to line 401"]);
}

#[test]
fn a_house_of_long_files_is_caught() {
    let lines = |count: usize| file("src/facts/a.rs", &"\n".repeat(count));
    let tests = || file("tests/kernel/a.rs", &"\n".repeat(400));
    expect(median, &[lines(1), lines(137), lines(400), tests(), tests()], &[]);
    let complaint = ["src: half of the files have 138 lines or more, not 137 or fewer"];
    expect(median, &[lines(1), lines(138), lines(400)], &complaint);
}

#[test]
fn the_data_planes_know_facts_only_and_rules_may_know_them() {
    let complaint = ["src/dataplane/a.rs:1: dataplane may not know findings"];
    expect(edges, &[file("src/dataplane/a.rs", "use crate::{facts::Gap, findings::Vantage};")], &complaint);
    expect(edges, &[file("src/rules/a.rs", "use crate::dataplane::owner;")], &[]);
    let complaint = ["src/ledger/a.rs:1: ledger may not know dataplane"];
    expect(edges, &[file("src/ledger/a.rs", "use crate::dataplane::owner;")], &complaint);
    let complaint = ["src/dataplane/a.rs:1: dataplane may not use std::fs"];
    expect(doors, &[file("src/dataplane/a.rs", "use std::fs;")], &complaint);
}

#[test]
fn a_rule_outside_the_registry_or_without_one_of_its_tests_is_caught() {
    let rule =
        "pub(super) static RULE: Rule = Rule {}; fn t() { expect_problem(); expect_healthy(); expect_unknown(); }";
    let registry = "static RULES: &[&Rule] = &[&a::RULE];";
    expect(rules, &[file("src/rules/mod.rs", registry), file("src/rules/a.rs", rule)], &[]);
    let other = [file("src/rules/mod.rs", registry), file("src/rules/b.rs", rule)];
    expect(rules, &other, &["src/rules/b.rs:1: `&b::RULE` is not in `RULES`"]);
    let untested = rule.replace("expect_unknown();", "/* expect_unknown() */");
    let half = [file("src/rules/mod.rs", registry), file("src/rules/a.rs", &untested)];
    expect(rules, &half, &["src/rules/a.rs:1: no test uses `expect_unknown`"]);
}

#[test]
fn an_ignored_test_is_caught() {
    for text in ["#[ignore]", "#[ignore = \"slow\"]", "#[cfg_attr(ci, ignore)]"] {
        expect(ignored, &[file("tests/kernel/a.rs", text)], &["tests/kernel/a.rs:1: an ignored test is no test"]);
    }
    expect(ignored, &[file("tests/kernel/a.rs", "#[test]\nfn ignore() {}")], &[]);
}

#[test]
fn bad_style_is_caught() {
    expect(style, &[file("src/facts/a.rs", "mod b;")], &["src/facts/a.rs:1: does not open with its job"]);
    expect(
        style,
        &[file("src/facts/utils.rs", "//! Things.")],
        &["src/facts/utils.rs:1: is a junk drawer by its name"],
    );
    let holders = file("src/rules/holders.rs", "//! Things.");
    expect(style, &[holders], &["src/rules/holders.rs:1: is a junk drawer by its name"]);
    for (text, complaint) in [
        ("fn get_name() {}", "src/facts/a.rs:2: a function's name needs no `get_`"),
        ("use crate::facts::*;", "src/facts/a.rs:2: imports a glob"),
        (concat!("// see /home", "/me/notes"), "src/facts/a.rs:2: names a folder of one machine"),
    ] {
        expect(style, &[file("src/facts/a.rs", &format!("//! A.\n{text}"))], &[complaint]);
    }
    let fine = "//! A.\nuse super::*;\nuse proptest::prelude::*;\nfn get() { root(\"/proc/self/root\") }";
    expect(style, &[file("src/facts/a.rs", fine)], &[]);
}
