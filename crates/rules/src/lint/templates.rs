//! Where the templates are written from which something was rendered.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::Linted;
use crate::findings::PlacedFinding;
use portreeve_facts::{Claim, Place, Written};

/// What is told with its place.
#[derive(Debug)]
pub struct Told<'a> {
    /// What is wrong.
    pub findings: &'a mut [PlacedFinding],
    /// What could not be read.
    pub failures: &'a mut BTreeMap<String, Place>,
}

impl Told<'_> {
    /// The templates that are told, as helm names them.
    pub fn templates(&mut self) -> BTreeSet<Arc<str>> {
        let all = self.places().filter_map(|place| place.template.as_ref());
        all.filter(|it| it.name.path() == it.name.as_bytes()).map(|template| (&*template.name).into()).collect()
    }

    /// Notes where each is written, which `written` says of a template and a field of it, where that is known.
    pub fn mark(&mut self, linted: &Linted, written: impl Fn(&str, Option<&Claim>) -> Option<Written>) {
        let fields: HashMap<&Place, &Claim> = linted.fields().map(|claim| (&claim.place, claim)).collect();
        for place in self.places() {
            let claim = fields.get(place).copied();
            if let Some(template) = place.template.as_mut().filter(|it| it.name.path() == it.name.as_bytes()) {
                template.written = written(&template.name, claim);
            }
        }
    }

    fn places(&mut self) -> impl Iterator<Item = &mut Place> {
        let of_findings = self.findings.iter_mut().flat_map(|it| {
            let related = it.related.iter_mut().map(|(place, _)| place);
            [&mut it.place].into_iter().chain(related)
        });
        of_findings.chain(self.failures.values_mut())
    }
}
