//! The table "who may know whom" of `ARCHITECTURE.md`, which has to be the one that [`super::checks`] holds.

use super::checks::{Complaint, ROOMS};

const HEAD: &str = "| room | may know |";

/// Where the table of a document and [`ROOMS`] differ.
pub(super) fn complaints(document: &str) -> Vec<Complaint> {
    let Some(rows) = rows(document) else {
        return vec![format!("ARCHITECTURE.md: has no table `{HEAD}`")];
    };
    let mut complaints = Vec::new();
    for (room, known) in ROOMS {
        let mut wanted = known.to_vec();
        wanted.sort_unstable();
        match rows.iter().find(|(name, _)| *name == room) {
            None => complaints.push(format!("ARCHITECTURE.md: {room} has no row in `{HEAD}`")),
            Some((_, written)) if *written != wanted => {
                complaints.push(format!("ARCHITECTURE.md: {room} may know {wanted:?}, not {written:?}"));
            }
            Some(_) => {}
        }
    }
    let strangers = rows.iter().filter(|(name, _)| ROOMS.iter().all(|(room, _)| room != name));
    complaints.extend(strangers.map(|(name, _)| format!("ARCHITECTURE.md: {name} is no room")));
    complaints
}

/// Each room of the table and the rooms in the second column, sorted.
fn rows(document: &str) -> Option<Vec<(&str, Vec<&str>)>> {
    let mut lines = document.lines().skip_while(|line| *line != HEAD);
    lines.next()?;
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    let rows = rows.filter_map(|line| {
        let mut cells = line.trim_matches('|').split('|');
        let room = *names(cells.next()?).first()?;
        let mut known = names(cells.next()?);
        known.sort_unstable();
        Some((room, known))
    });
    Some(rows.collect())
}

/// The words between backticks.
fn names(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> String {
        let rows = ROOMS.map(|(room, known)| {
            let known: Vec<String> = known.iter().rev().map(|room| format!("`{room}`")).collect();
            format!("| `{room}` | {} |\n", known.join(", "))
        });
        format!("# Architecture\n\n{HEAD}\n|---|---|\n{}\nMore.\n", rows.concat())
    }

    #[test]
    fn a_table_that_is_gone_or_lacks_a_room_or_a_word_is_caught() {
        let document = document();
        assert_eq!(complaints(&document), Vec::<Complaint>::new());
        let gone = document.replace(HEAD, "| room |");
        assert_eq!(complaints(&gone), [format!("ARCHITECTURE.md: has no table `{HEAD}`")]);
        let lacks = document.replace("| `cluster` | `facts` |\n", "");
        assert_eq!(complaints(&lacks), [format!("ARCHITECTURE.md: cluster has no row in `{HEAD}`")]);
        let closed = document.replace("| `cluster` | `facts` |", "| `cluster` | nothing |");
        assert_eq!(complaints(&closed), ["ARCHITECTURE.md: cluster may know [\"facts\"], not []"]);
        let open = document.replace("| `cluster` | `facts` |", "| `cluster` | `facts`, `kernel` |");
        assert_eq!(complaints(&open), ["ARCHITECTURE.md: cluster may know [\"facts\"], not [\"facts\", \"kernel\"]"]);
        let attic = document.replace("| `cluster` |", "| `attic` | `facts` |\n| `cluster` |");
        assert_eq!(complaints(&attic), ["ARCHITECTURE.md: attic is no room"]);
    }
}
