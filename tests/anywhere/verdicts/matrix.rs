//! Makes the behaviour matrix of the documentation from the recorded answers to test packets.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    net::IpAddr,
    path::Path,
};

use portreeve_facts::{Mode, Snapshot};
use portreeve_rules::findings::Vantage;

use super::{Recording, cilium, judged::is_link_local, recording::NAMESPACE, recordings};

/// The shapes of Services for which the answers differ. The second value of each pair is the name of the shape in the
/// documentation.
const COLUMNS: [(&str, &str); 6] = [
    ("ready", "ready endpoints"),
    ("empty", "no endpoints"),
    ("not-ready", "no ready endpoints"),
    ("draining", "only draining endpoints"),
    ("here", "`Local`, endpoint here"),
    ("elsewhere", "`Local`, endpoints elsewhere"),
];

/// The shapes of Services with special settings of Cilium or addresses on other devices. The second value of each pair
/// is the name of the shape in the documentation.
const APART: [(&str, &str); 9] = [
    ("type-cluster-ip", "`type: ClusterIP`"),
    ("type-node-port", "`type: NodePort`"),
    ("on-other-nodes", "`node: others`"),
    ("global-empty", "`global`, no endpoints"),
    ("of-another-proxy", "`service-proxy-name: another`"),
    ("local-of-no-node", "`Local`, endpoint without a node"),
    ("balancer", "load balancer's address: second"),
    ("balancer-beyond", "load balancer's address: other device"),
    ("external-ip-beyond", "external IP: other device"),
];

/// Cilium's version in recordings that name no version.
const NEWEST_CILIUM: &str = "1.20.2";

/// The text of docs/who-answers.md. A person writes the text, and this test fills in `{table}` and `{pages}`.
const PAGE: &str = include_str!("who-answers.md");

/// The data planes, and the titles of their pages. The recording `NAME-default` has the defaults of a data plane.
const DATA_PLANES: [(&str, &str); 4] = [
    ("iptables", "kube-proxy in iptables mode"),
    ("nftables", "kube-proxy in nftables mode"),
    ("ipvs", "kube-proxy in ipvs mode"),
    ("cilium", "Cilium as the replacement of kube-proxy"),
];

const SHAPES: [&str; 3] = ["ready", "empty", "elsewhere"];
const PATHS: [(&str, &str); 6] = [
    ("remote", "primary"),
    ("remote", "second"),
    ("node", "primary"),
    ("loopback", "127.0.0.1"),
    ("loopback", "::1"),
    ("pods", "primary"),
];

struct Setting {
    name: String,
    words: String,
    recording: Recording,
}

#[test]
fn the_behaviour_matrix_is_up_to_date() {
    let settings: Vec<Setting> = of_kube_proxy().into_iter().chain(of_cilium()).collect();
    let of = |data_plane: &str| settings.iter().filter(move |it| it.name.starts_with(data_plane)).collect::<Vec<_>>();
    let mut pages = Vec::new();
    let mut links = String::new();
    for (data_plane, words) in DATA_PLANES {
        let settings = of(data_plane);
        let (tables, count) = tables(&settings);
        let text = format!(
            "# Who answers: {words}\n\n[Terms](../who-answers.md#words). The first table is for the default settings. A later table with the same columns has only the rows that differ from the first table.\n{tables}"
        );
        pages.push((format!("who-answers/{data_plane}.md"), text));
        links.push_str(&format!(
            "- [{words}](who-answers/{data_plane}.md): {} sets of settings, {count} different tables\n",
            settings.len()
        ));
    }
    let defaults = DATA_PLANES.map(|(it, _)| {
        let name = format!("{it}-default");
        let setting = settings.iter().find(|it| it.name == name).expect("a recording with the defaults");
        answers(&setting.recording)
    });
    let page = PAGE.replace("{table}", &summary(&defaults)).replace("{pages}", &links);
    pages.push(("who-answers.md".to_owned(), page));
    for (name, wanted) in &pages {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
        if env::var_os("UPDATE").is_some() {
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(&path, wanted).expect("a document");
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(found == *wanted, "docs/{name} is old: `make docs`");
    }
}

fn of_kube_proxy() -> Vec<Setting> {
    let in_words = |(name, recording, node): (String, Recording, Snapshot)| {
        let config = node.proxy_config().expect("settings");
        let mode = node.proxy_mode().expect("a mode").value;
        let mut words = Vec::new();
        if let Some(version) = node.kernel.proxy.metrics.seen().and_then(|it| it.version.as_deref()) {
            words.push(format!("kube-proxy {version}"));
        }
        match config.node_port_addresses.join(", ") {
            none if none.is_empty() => words.push("all `nodePortAddresses`".to_owned()),
            listed => words.push(format!("`nodePortAddresses: {listed}`")),
        }
        if let Some(localhost) = config.localhost_node_ports {
            words.push(format!("`localhostNodePorts: {localhost}`"));
        }
        let detector = config.cluster_cidr.as_deref().filter(|it| !it.is_empty());
        words.push(detector.map_or("no `clusterCIDR`".to_owned(), |it| format!("`clusterCIDR: {it}`")));
        if mode == Mode::Iptables && node.kernel.sysctls.route_localnet.seen() == Some(&false) {
            words.push("`route_localnet` is 0".to_owned());
        }
        Setting { name, words: words.join(", "), recording }
    };
    recordings().into_iter().map(in_words).collect()
}

fn of_cilium() -> Vec<Setting> {
    let recordings = cilium::recordings();
    let in_words = |(name, recording): &(String, Recording)| {
        let is_default =
            |(other, it): &&(String, Recording)| other.starts_with("default") && it.version == recording.version;
        let default = &recordings.iter().find(is_default).expect("a recording").1.settings;
        let differs = recording.settings.iter().filter(|(key, value)| default.get(*key) != Some(*value));
        let settings = differs.map(|(key, value)| format!("`{key}: {value}`"));
        let left_out =
            default.keys().filter(|key| !recording.settings.contains_key(*key)).map(|key| format!("no `{key}`"));
        let version = if recording.version.is_empty() { NEWEST_CILIUM } else { &recording.version };
        let mut words: Vec<String> =
            [format!("Cilium {version}")].into_iter().chain(settings).chain(left_out).collect();
        if words.len() == 1 {
            words.push("`devices: \"eth0\"`".to_owned());
        }
        Setting { name: format!("cilium-{name}"), words: words.join(", "), recording: recording.clone() }
    };
    recordings.iter().map(in_words).collect()
}

/// The tables, and their number. All settings with the same answers have one table.
fn tables(settings: &[&Setting]) -> (String, usize) {
    let mut folded: Vec<(String, Vec<&Setting>)> = Vec::new();
    for setting in settings {
        let table = table(&setting.recording);
        match folded.iter_mut().find(|(it, _)| *it == table) {
            Some((_, same)) => same.push(setting),
            None => folded.push((table, vec![setting])),
        }
    }
    // The table of the defaults has all its rows. A table of other settings has only the rows that differ.
    let is_default = |same: &[&Setting]| same.iter().any(|it| it.name.ends_with("-default"));
    folded.sort_by_key(|(_, same)| !is_default(same));
    let default = folded.first().map_or("", |(table, _)| table).to_owned();
    let mut text = String::new();
    for (table, same) in &folded {
        let names: Vec<&str> = same.iter().map(|it| it.name.as_str()).collect();
        text.push_str(&format!("\n## {}\n\n", names.join(", ")));
        for setting in same {
            text.push_str(&format!("- {}: {}\n", setting.name, setting.words));
        }
        let is_alike = default.lines().next() == table.lines().next() && !is_default(same);
        let differs = |row: &&str| !is_alike || !default.lines().skip(2).any(|it| it == *row);
        let rows: Vec<&str> = table.lines().filter(differs).collect();
        text.push_str(&format!("\n{}\n", rows.join("\n")));
    }
    (text, folded.len())
}

/// The answers that clients get while a process listens on all addresses of both families. The key is the client, the
/// address and the shape. The value has the answers for TCP and for UDP.
type Answers<'a> = BTreeMap<(usize, usize, &'a str), Vec<char>>;

fn answers(recording: &Recording) -> Answers<'_> {
    let mut answers = Answers::new();
    for row in recording.listeners.iter().filter(|row| row.bind == "::") {
        for (from, to, letter) in recording.every_cell(row) {
            let Some(place) = place(to) else { continue };
            let letters = answers.entry((client(from), place, row.shape.as_str())).or_default();
            if !letters.contains(&letter) {
                letters.push(letter);
            }
        }
    }
    answers
}

/// The summary shows the answers of each data plane with its default settings.
fn summary(defaults: &[Answers]) -> String {
    let mut text = format!("| Service | from | to | {} |\n", DATA_PLANES.map(|(it, _)| it).join(" | "));
    text.push_str(&format!("|{}\n", "---|".repeat(DATA_PLANES.len() + 3)));
    for shape in SHAPES {
        let service = COLUMNS.iter().find(|(it, _)| *it == shape).expect("a shape").1;
        for (from, to) in PATHS {
            let from = client(from);
            let places: Vec<usize> =
                (0..PLACES.len()).filter(|it| PLACES[*it].1.split(' ').next() == Some(to)).collect();
            let of = |answers: &Answers| {
                let mut each: Vec<String> = places.iter().map(|place| in_words(answers, from, *place, shape)).collect();
                each.dedup();
                each.join(", ")
            };
            let cells: Vec<String> = defaults.iter().map(of).collect();
            text.push_str(&format!("| {service} | {} | {to} | {} |\n", client_in_words(from), cells.join(" | ")));
        }
    }
    text
}

/// If a client gets the same answers at several addresses, these addresses are one row.
fn table(recording: &Recording) -> String {
    let is_apart = recording.listeners.iter().any(|row| row.shape == APART[0].0);
    let all = if is_apart { &APART[..] } else { &COLUMNS };
    let answers = answers(recording);
    let mut rows: Vec<(usize, String, Vec<usize>)> = Vec::new();
    let asked: BTreeSet<(usize, usize)> = answers.keys().map(|(from, place, _)| (*from, *place)).collect();
    // Services with the same answers to all questions are one column.
    let column = |shape: &str| -> Vec<String> {
        asked.iter().map(|(from, place)| in_words(&answers, *from, *place, shape)).collect()
    };
    let mut columns: Vec<(&str, String)> = Vec::new();
    for (shape, words) in all {
        match columns.iter_mut().find(|(other, _)| column(other) == column(shape)) {
            Some((_, head)) => *head += &format!(" /<br>{words}"),
            None => columns.push((shape, (*words).to_owned())),
        }
    }
    let head: Vec<&str> = columns.iter().map(|(_, words)| words.as_str()).collect();
    let mut text = format!("| from | to | {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len() + 2));
    for (from, place) in asked {
        let cells: Vec<String> = columns.iter().map(|(shape, _)| in_words(&answers, from, place, shape)).collect();
        let cells = cells.join(" | ");
        match rows.iter_mut().find(|(client, same, _)| *client == from && *same == cells) {
            Some((.., places)) => places.push(place),
            None => rows.push((from, cells, vec![place])),
        }
    }
    // If several clients get the same answers at the same addresses, these clients are one row.
    let mut folded: Vec<(Vec<String>, String)> = Vec::new();
    for (from, cells, places) in rows {
        let rest = format!("{} | {cells}", places_in_words(&places));
        match folded.iter_mut().find(|(_, other)| *other == rest) {
            Some((clients, _)) => clients.push(client_in_words(from)),
            None => folded.push((vec![client_in_words(from)], rest)),
        }
    }
    for (clients, rest) in folded {
        text.push_str(&format!("| {} | {rest} |\n", clients.join(", ")));
    }
    text
}

fn in_words(answers: &Answers, from: usize, place: usize, shape: &str) -> String {
    let letters = answers.get(&(from, place, shape)).map_or(&[][..], Vec::as_slice);
    letters.iter().map(|letter| words(*letter)).collect::<Vec<_>>().join(" or ")
}

/// The position of a client in the tables. The client [`NAMESPACE`] has the last position.
fn client(from: &str) -> usize {
    Vantage::ALL.iter().position(|it| it.name() == from).unwrap_or_else(|| {
        assert_eq!(from, NAMESPACE);
        Vantage::ALL.len()
    })
}

fn client_in_words(client: usize) -> String {
    Vantage::ALL.get(client).map_or("another namespace".to_owned(), ToString::to_string)
}

/// A place that has no family in its name stands for both families.
fn places_in_words(places: &[usize]) -> String {
    let mut words: Vec<&str> = Vec::new();
    for place in places {
        let (_, place) = PLACES[*place];
        match place
            .strip_suffix(" IPv6")
            .filter(|it| words.last().is_some_and(|last| last.strip_suffix(" IPv4") == Some(*it)))
        {
            Some(both) => *words.last_mut().expect("the same address of IPv4") = both,
            None => words.push(place),
        }
    }
    words.join(", ")
}

/// The addresses of a table in their order. The second value of each pair is the name of the address in the
/// documentation. Each address outside this list has the same answers as an address in this list.
const PLACES: [(&str, &str); 17] = [
    ("192.0.2.1", "primary IPv4"),
    ("2001:db8::1", "primary IPv6"),
    ("192.0.2.2", "second IPv4"),
    ("2001:db8::2", "second IPv6"),
    ("10.244.0.1", "other device IPv4"),
    ("fd00:244::1", "other device IPv6"),
    ("203.0.113.1", "macvlan IPv4"),
    ("2001:db8:a::1", "macvlan IPv6"),
    ("203.0.113.65", "veth with a default route IPv4"),
    ("2001:db8:b::1", "veth with a default route IPv6"),
    ("203.0.113.129", "bridge IPv4"),
    ("2001:db8:c::1", "bridge IPv6"),
    ("198.51.100.7", "lo IPv4"),
    ("2001:db8:7::7", "lo IPv6"),
    ("127.0.0.1", "127.0.0.1"),
    ("::1", "::1"),
    ("", LINK_LOCAL),
];
const LINK_LOCAL: &str = "link-local";

/// The position of an address in [`PLACES`]; `None` if the address is not in this list.
fn place(to: IpAddr) -> Option<usize> {
    let word = to.to_string();
    let is_place = |(address, words): &(&str, &str)| *address == word || (*words == LINK_LOCAL && is_link_local(to));
    PLACES.iter().position(is_place)
}

fn words(letter: char) -> &'static str {
    match letter {
        'L' => "process",
        'P' => "pod",
        'R' => "refused",
        'T' => "silence",
        'N' => "nowhere",
        other => unreachable!("{other} is no answer"),
    }
}
