//! Where that is written which helm rendered: the templates of charts at or below a folder, and the line of each field.

mod charts;
mod lines;
mod masked;

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use self::{charts::Charts, lines::TemplateText};
use super::input::{Accepted, Input};
use portreeve_facts::{Claim, FileName, Written};

/// The longest template in which a line is looked for, in bytes: once for each field that is told.
const LONGEST: u64 = 64 << 10;

/// The most templates whose files are looked for, and the most fields whose lines are.
const MOST_TEMPLATES: usize = 1_000;
const MOST_FIELDS: usize = 500;

/// Files of templates, each the only one that can be it.
#[derive(Debug)]
pub struct ChartFiles {
    by_template: BTreeMap<Arc<str>, ChartFile>,
    /// Of how many fields lines are still looked for.
    left: Cell<usize>,
}

/// A file, and its text where that can be read.
#[derive(Debug)]
struct ChartFile {
    name: FileName,
    text: Option<TemplateText>,
}

impl ChartFiles {
    /// Looks for templates, as helm names them. Nothing leads out of `root`, and paths begin there.
    ///
    /// # Errors
    /// When not everything could be looked at: nobody knows then which file is the only one.
    pub fn below(root: &Path, templates: BTreeSet<Arc<str>>) -> Result<Self, String> {
        let charts = Charts::below(root)?;
        let by_template = templates.into_iter().take(MOST_TEMPLATES).filter_map(|template| {
            let path = charts.only_file(root, &template)?;
            let read = Input::File(root.join(&path)).read(Accepted::RegularFiles, LONGEST);
            let text = read.ok().and_then(|bytes| str::from_utf8(&bytes).ok().map(TemplateText::new));
            Some((template, ChartFile { name: name(path), text }))
        });
        Ok(Self { by_template: by_template.collect(), left: MOST_FIELDS.into() })
    }

    /// Where a template is written, and in it the field, where one is meant and one line alone can write it.
    pub fn written(&self, template: &str, claim: Option<&Claim>) -> Option<Written> {
        let ChartFile { name, text } = self.by_template.get(template)?;
        let line = text.as_ref().zip(claim).and_then(|(text, claim)| {
            self.left.set(self.left.get().checked_sub(1)?);
            text.line_of(&claim.path, claim.what.port().map(|(number, _)| number), claim.place.column)
        });
        Some(Written { file: name.clone(), line })
    }
}

fn name(path: PathBuf) -> FileName {
    FileName::new(Input::File(path.clone()).to_string(), path)
}
