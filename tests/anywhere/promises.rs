//! Tests check the promises of `SECURITY.md`: each promise names tests, and each named test exists.
//!
//! A promise is a list item or a table row, in any part of the document. The text between promises contains only
//! explanations. If nothing stops an attacker, the row has the words `nothing` and `no promise`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::permissions::{ACCESS, REVIEWS};

/// The only file that opens netlink sockets.
const OPENS: &str = "crates/kernel/src/netlink/socket.rs";
/// A promise without a test must contain both texts of this list.
const NO_PROMISE: [&str; 2] = ["no promise", "nothing"];
const THREATS: [&str; 2] = ["| asset | protection | tests |", "| attacker | reaches | protection | tests |"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => files(&path),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

fn sources(folders: &[&str]) -> Vec<(PathBuf, String)> {
    let paths = folders.iter().flat_map(|folder| files(&root().join(folder)));
    paths.map(|path| (path.clone(), fs::read_to_string(path).expect("a source"))).collect()
}

/// The source files of the program, without tests and build scripts. For each file: path and text.
fn program() -> Vec<(PathBuf, String)> {
    let below = |path: PathBuf| path.strip_prefix(root()).expect("below the repository").to_owned();
    let all = sources(&["src", "crates"]).into_iter().map(|(path, text)| (below(path), text));
    all.filter(|(path, _)| !path.ends_with("tests.rs") && !path.ends_with("build.rs")).collect()
}

fn document() -> String {
    fs::read_to_string(root().join("SECURITY.md")).expect("a document")
}

/// A test is a function below an attribute that ends with `test]`.
fn tests(source: &str) -> impl Iterator<Item = &str> {
    let after = source.split("test]\n").skip(1);
    after.filter_map(|rest| rest.split_once("fn ")?.1.split_once('(').map(|(name, _)| name))
}

/// The words between backticks that can only be names of tests.
fn named(document: &str) -> impl Iterator<Item = &str> {
    let is_sentence = |word: &&str| {
        word.matches('_').count() >= 3
            && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    document.split('`').skip(1).step_by(2).filter(is_sentence)
}

fn promises(document: &str) -> Vec<String> {
    let is_rule = |line: &str| line.starts_with("|---");
    let mut found: Vec<String> = Vec::new();
    let mut is_open = false;
    let mut lines = document.lines().peekable();
    while let Some(line) = lines.next() {
        let is_head = line.starts_with('|') && (is_rule(line) || lines.peek().is_some_and(|next| is_rule(next)));
        let begins = line.trim_start().starts_with("- ") || line.starts_with('|') && !is_head;
        match found.last_mut() {
            Some(last) if is_open && !begins && line.starts_with("  ") => {
                last.push(' ');
                last.push_str(line.trim());
            }
            _ if begins => found.push(line.to_owned()),
            _ => {}
        }
        is_open = begins || is_open && line.starts_with("  ");
    }
    found
}

fn is_held(promise: &str) -> bool {
    named(promise).next().is_some() || NO_PROMISE.iter().all(|words| promise.contains(words))
}

#[test]
fn every_test_that_the_threat_model_names_is_there() {
    let sources = sources(&["src", "crates", "tests"]);
    let known: BTreeSet<&str> = sources.iter().flat_map(|(_, source)| tests(source)).collect();
    let document = document();
    let missing: Vec<&str> = named(&document).filter(|name| !known.contains(name)).collect();
    assert!(missing.is_empty(), "SECURITY.md names tests that are not there: {missing:#?}");
}

#[test]
fn every_promise_names_a_test() {
    let document = document();
    let promises = promises(&document);
    assert!(!promises.is_empty(), "SECURITY.md has promises");
    let bare: Vec<&String> = promises.iter().filter(|promise| !is_held(promise)).collect();
    assert!(bare.is_empty(), "SECURITY.md promises what no test holds: {bare:#?}");
    for head in THREATS {
        assert!(document.contains(head), "the threat model lacks the table {head}");
    }
}

#[test]
fn a_test_that_is_gone_would_be_missed() {
    let source = "#[test]\nfn a_thing_that_holds() {}\n#[tokio::test]\n#[track]\nasync fn another_thing_that_holds() {}\nfn no_test_at_all() {}";
    assert_eq!(tests(source).collect::<Vec<_>>(), ["a_thing_that_holds", "another_thing_that_holds"]);
    let document = "`a_thing_that_holds`, `pods/proxy`, `endpoints_of`, `--cpu-percent`, `no_test_at_all`";
    assert_eq!(named(document).collect::<Vec<_>>(), ["a_thing_that_holds", "no_test_at_all"]);
}

#[test]
fn a_promise_without_a_test_would_be_missed() {
    let held = "- It holds:\n  `a_thing_that_holds`.";
    let row = "| who | tests |\n|---|---|\n| a | `a_thing_that_holds` |\n| b | nothing | no promise |";
    let all = |text: &str| promises(text).iter().map(|it| is_held(it)).collect::<Vec<_>>();
    assert_eq!(all(&format!("Text.\n\n{held}\n\n{row}\n\nMore.\n")), [true, true, true]);
    assert_eq!(all(&held.replace("`a_thing_that_holds`", "always")), [false]);
    assert_eq!(all(&format!("- It holds.\n{held}")), [false, true]);
    assert_eq!(all(&format!("- It holds.\n\n  {held}")), [false, true], "one within another");
    assert_eq!(all(&format!("- It holds.\n\nLater: {}", &held[2..])), [false], "text behind it is ignored");
    assert_eq!(all(&row.replace("`a_thing_that_holds`", "")), [false, true]);
    assert_eq!(all(&row.replace("nothing", "RBAC")), [true, false], "what holds somebody off is a promise");
}

#[test]
fn no_right_is_asked_for_that_shows_a_secret_or_changes_an_object() {
    for grant in ACCESS {
        assert!(grant.verbs.iter().all(|verb| ["get", "list", "watch"].contains(verb)), "{}", grant.resource);
        assert!(!["secrets", "*"].contains(&grant.resource), "{}", grant.resource);
    }
    let reviews: Vec<_> = REVIEWS.iter().map(|grant| (grant.resource, grant.verbs)).collect();
    assert_eq!(reviews, [("tokenreviews", &["create"][..]), ("subjectaccessreviews", &["create"])]);
}

#[test]
fn no_source_reads_packets_or_the_environment_of_a_process() {
    let sources = sources(&["src", "crates"]);
    assert!(sources.iter().any(|(_, text)| text.contains("\"cmdline\"")), "files of a process are named so");
    for (path, text) in &sources {
        for words in ["\"environ\"", "/environ", "AF_PACKET", "AddressFamily::Packet", "SockProtocol::EthAll", "pcap"] {
            assert!(!text.contains(words), "{}: {words}", path.display());
        }
    }
}

/// Over generic netlink, WireGuard returns the port of a device and also its private key.
#[test]
fn no_source_queries_wireguard() {
    // Names of generic netlink, of crates that use generic netlink, and of ways to open any netlink socket.
    const NAMES: [&str; 7] = [
        "netlinkgeneric",
        "genetlink",
        "netlinkpacketgeneric",
        "wireguardcontrol",
        "afnetlink",
        "addressfamily::netlink",
        "netlinksys",
    ];
    let finds = |text: &str| {
        let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let text = code.join("\n").replace(['_', '-'], "").to_ascii_lowercase();
        NAMES.into_iter().filter(|name| text.contains(name)).collect::<Vec<_>>()
    };
    for query in [
        "netlink_sys::protocols::NETLINK_GENERIC",
        "SockProtocol::NetlinkGeneric",
        "use genetlink::new_connection;",
        "libc::socket(libc::AF_NETLINK, 3, 16)",
        "socket(AddressFamily::Netlink, SockType::Raw, flags, None)",
        "netlink_sys::Socket::new(16)",
        "netlink_packet_generic::GenlMessage",
        "wireguard_control::Device::get",
    ] {
        assert!(!finds(query).is_empty(), "{query}");
    }
    let found = sources(&["src", "crates"]).into_iter().filter_map(|(path, text)| {
        let found = finds(&text);
        (!found.is_empty()).then_some((path, text, found))
    });
    let [(path, text, found)] = &found.collect::<Vec<_>>()[..] else { panic!("not one file opens netlink sockets") };
    assert_eq!((path.strip_prefix(root()), &found[..]), (Ok(Path::new(OPENS)), &["netlinksys"][..]));
    // Each opened socket has one of the families that the file imports.
    let opened = text.split("Socket::new(").skip(1).filter_map(|rest| rest.lines().next());
    assert_eq!(opened.collect::<Vec<_>>(), ["match family {", "NETLINK_ROUTE)?;"]);
    assert!(text.contains("protocols::{NETLINK_NETFILTER, NETLINK_ROUTE, NETLINK_SOCK_DIAG},"), "{text}");
}

#[test]
fn no_unsafe_code_is_compiled() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("a manifest");
    let lints = manifest.split("[workspace.lints.rust]").nth(1).and_then(|rest| rest.split("\n[").next());
    // With `forbid`, no source file can allow unsafe code again.
    assert!(lints.is_some_and(|lints| lints.contains("unsafe_code = \"forbid\"")), "{lints:?}");
    let crates = fs::read_dir(root().join("crates")).expect("crates").map(|entry| entry.expect("a crate").path());
    for place in crates.chain([root().to_owned()]) {
        let manifest = fs::read_to_string(place.join("Cargo.toml")).expect("a manifest");
        assert!(manifest.contains("\n[lints]\nworkspace = true\n"), "{}", place.display());
    }
}

#[test]
fn only_the_demo_starts_programs_and_only_itself() {
    let mut starters = BTreeSet::new();
    for (path, text) in program() {
        for started in text.split("Command::new(").skip(1) {
            let is_itself = path.starts_with("src/demo") && started.starts_with("\"/proc/self/exe\")");
            // The `Command` of clap is not a program: it describes arguments.
            let is_program = |line: &str| line.contains("process::") && line.contains("Command");
            if !is_itself && text.lines().any(is_program) {
                starters.insert(path.display().to_string());
            }
        }
    }
    // `credential_plugin.rs` starts the login program of a kubeconfig. README.md and SECURITY.md name all programs that
    // Portreeve starts.
    assert_eq!(starters, BTreeSet::from(["crates/cluster/src/credential_plugin.rs".to_owned()]));
    for document in ["README.md", "SECURITY.md"] {
        let text = fs::read_to_string(root().join(document)).expect("a document");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in ["*exec plugin*", "`demo` starts copies of Portreeve itself"] {
            assert!(text.contains(words), "{document} does not say: {words}");
        }
    }
}

#[test]
fn on_the_node_only_the_proxy_and_the_health_checks_are_called() {
    let callers = program().into_iter().filter(|(_, text)| text.contains("http::get("));
    let callers: BTreeSet<String> = callers.map(|(path, _)| path.display().to_string()).collect();
    let named = ["health.rs", "proxy/mod.rs"].map(|file| format!("crates/kernel/src/{file}"));
    assert_eq!(callers, named.into(), "README.md and SECURITY.md name who is called");
    for document in ["README.md", "SECURITY.md"] {
        let text = fs::read_to_string(root().join(document)).expect("a document");
        assert!(text.contains("healthCheckNodePorts") && text.contains("kube-proxy"), "{document}");
    }
}
