//! The commands in a document, and the output that the document shows below each command.

/// The commands after a prompt in the console blocks of a page, with their lines of output.
pub(crate) fn shown(page: &str) -> Vec<(&str, Vec<&str>)> {
    let mut commands: Vec<(&str, Vec<&str>)> = Vec::new();
    for block in page.split("```console\n").skip(1).filter_map(|rest| rest.split("\n```").next()) {
        for line in block.lines().skip_while(|line| !line.starts_with("$ ")) {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (Some(command), _) => commands.push((command, Vec::new())),
                (None, last) => last.into_iter().for_each(|(_, lines)| lines.push(line)),
            }
        }
    }
    commands
}

/// Whether a document may show these lines for an output. A line `...` stands for any number of lines.
pub(crate) fn has(output: &str, lines: &[&str]) -> bool {
    let parts: Vec<String> = lines.split(|line| *line == "...").map(|part| part.join("\n")).collect();
    let mut rest = output.trim_end();
    for (index, part) in parts.iter().enumerate() {
        let Some(at) = rest.find(part.as_str()) else { return false };
        if index == 0 && at > 0 {
            return false;
        }
        rest = &rest[at + part.len()..];
    }
    rest.is_empty() || lines.last() == Some(&"...")
}
