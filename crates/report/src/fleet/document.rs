//! Writes the result of many nodes as a document, or as the names of the objects with findings.

use std::{
    collections::HashSet,
    io::{self, Write},
    slice,
};

use super::{incident::Incident, view::Fleet};
use crate::{findings_document::FindingsDocument, indented_json::write_indented_json};
use portreeve_rules::findings::Subject;

impl Fleet {
    fn document(&self) -> FindingsDocument<'_> {
        FindingsDocument {
            agent_namespace: Some(&self.agent_namespace),
            partial: self.partial,
            ..FindingsDocument::new(self.result(), &self.incidents, self.hidden, &self.nodes)
        }
    }

    /// Writes the document as indented JSON and a line end.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        write_indented_json(&self.document(), out)
    }

    /// Writes the document as YAML.
    pub fn write_yaml(&self, out: &mut dyn Write) -> io::Result<()> {
        self.document().write_yaml(out)
    }

    /// Writes the subjects of findings in kubectl's form, `service/web`. Each subject is written once, the worst first.
    pub fn write_names(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut written: HashSet<&Subject> = HashSet::new();
        for Incident { problem, subjects, .. } in &self.incidents {
            let all = if subjects.is_empty() { slice::from_ref(&problem.subject) } else { subjects };
            for subject in all {
                if written.insert(subject) {
                    writeln!(out, "{}/{}", subject.kind.name().to_lowercase(), subject.name)?;
                }
            }
        }
        Ok(())
    }
}
