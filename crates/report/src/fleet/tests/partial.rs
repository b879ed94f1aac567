//! A fleet of which not every agent was asked.

use super::*;

fn stopped(answers: Vec<AgentAnswer>, left_out: &[&str], why: Stopped) -> Fleet {
    let mut gathering = Gathering::new("portreeve", Wanted { document: true, ..Wanted::default() });
    answers.into_iter().for_each(|answer| gathering.take(answer, now()));
    left_out.iter().for_each(|node| gathering.leave_out(node, &format!("portreeve-{node}"), why));
    gathering.finish(Some(why))
}

#[test]
fn what_is_there_is_told_as_partial_and_never_as_well() {
    let nothing = stopped(vec![reporting("n1", &[])], &["n2", "n3", "n4", "n5"], Stopped::Interrupted);
    assert_eq!((nothing.result(), nothing.is_whole()), (CheckResult::NotChecked, false));
    let table = text(|out| write_fleet_table(&nothing, &style(), out));
    let head = "partial: 1 of 5 agents was asked; you stopped it\nno port conflicts in what could be asked; 1 agent asked, 4 could not be asked\n";
    assert!(table.starts_with(head), "{table}");
    assert!(table.contains("  4 of 5 agents: n2, n3, n4 and 1 more\n"), "{table}");
    let something = stopped(vec![reporting("n1", &[listener("critical")])], &["n2"], Stopped::TimeLimit);
    assert_eq!((something.result(), something.is_whole()), (CheckResult::Findings, false));
    assert_eq!(
        something.partial_words().as_deref(),
        Some("partial: 1 of 2 agents was asked; the time for all of them was over")
    );
}

#[test]
fn the_document_says_how_much_it_is_of_the_whole() {
    let fleet = stopped(vec![reporting("n1", &[]), without_answer("n2")], &["n3"], Stopped::Interrupted);
    let document: Value = serde_json::from_str(&text(|out| fleet.write_json(out))).expect("JSON");
    assert_eq!(document["partial"], json!({"listed": 3, "asked": 2, "why": "interrupted"}));
    assert_eq!(document["nodes"].as_array().map(Vec::len), Some(3), "one entry for each agent");
    assert_eq!(document["nodes"][2]["unknown"][0]["why"], "not-asked");
    jsonschema::validate(&fleet_schema().to_value(), &document).unwrap_or_else(|error| panic!("{error}"));
    let whole: Value = serde_json::from_str(&text(|out| super::fleet(vec![]).write_json(out))).expect("JSON");
    assert_eq!(whole.get("partial"), None);
}
