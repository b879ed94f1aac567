//! What packets showed behind Cilium: `tests/lab/cilium` asks them anew, and `UPDATE=1` records them there.

use std::{collections::BTreeSet, fs};

use super::recording::{Recording, path, read};

/// Every recorded configuration by its name.
fn recordings() -> Vec<(String, Recording)> {
    let folder = path("cilium/world").parent().expect("a folder").to_owned();
    let names = fs::read_dir(folder).expect("recordings").map(|it| it.expect("an entry").path());
    let mut names: Vec<String> = names
        .map(|it| it.file_stem().expect("a name").to_string_lossy().into_owned())
        .filter(|it| it != "world")
        .collect();
    names.sort();
    names.into_iter().map(|it| (it.clone(), read(&format!("cilium/{it}")))).collect()
}

/// The letters of the cells from a place to some addresses, for Services of a shape.
fn letters(recording: &Recording, from: &str, to: &[&str], shape: &str) -> BTreeSet<char> {
    let rows = recording.listeners.iter().filter(|row| row.shape == shape);
    let cells = rows.flat_map(|row| recording.every_cell(row));
    cells.filter(|(place, at, _)| *place == from && to.contains(&at.to_string().as_str())).map(|it| it.2).collect()
}

#[test]
fn every_question_has_an_answer() {
    for (name, recording) in recordings() {
        assert!(recording.listeners.iter().all(|row| row.answers.len() == recording.questions.len()), "{name}");
        assert!(!recording.settings.is_empty(), "{name} tells what Cilium was told");
    }
}

#[test]
fn by_default_the_primary_addresses_are_taken_and_those_of_other_devices_are_not() {
    let recordings = recordings();
    let default = &recordings.iter().find(|(name, _)| name == "default").expect("a recording").1;
    let (primary, other) = (["192.0.2.1", "2001:db8::1"], ["10.244.0.1", "fd00:244::1"]);
    assert_eq!(letters(default, "remote", &primary, "ready"), ['P'].into());
    assert_eq!(letters(default, "remote", &primary, "empty"), ['R'].into());
    assert_eq!(letters(default, "remote", &other, "ready"), ['L'].into());
    assert_eq!(letters(default, "node", &primary, "empty"), ['N'].into());
}
