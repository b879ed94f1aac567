//! Everything that is known, and what follows from it. Pure: news and the time go in, facts and scopes come out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::time::Instant;

use super::{News, Resource, Standing, row::Row, scope::Scope};
use crate::{
    cluster::gathered::Gathered,
    facts::{ClusterFacts, Gap, Reading, Source, Why},
};

/// Objects by resource.
#[derive(Debug)]
pub(super) struct Index {
    origin: String,
    said: Option<String>,
    hostname: String,
    /// The names of the Services about whose endpoints somebody asks.
    endpoints_of: Arc<BTreeSet<String>>,
    tables: BTreeMap<Resource, Table>,
}

/// The objects of one resource.
#[derive(Debug, Default)]
struct Table {
    rows: BTreeMap<String, Row>,
    /// What was read as a whole; `None` until anything was.
    scope: Option<Scope>,
    standing: Standing,
}

impl Index {
    /// Nothing is known yet but what was said of this node, and whose endpoints somebody asks about.
    pub(super) fn new(said: Option<String>, hostname: String, endpoints_of: Arc<BTreeSet<String>>) -> Self {
        let tables = Resource::ALL.into_iter().map(|resource| (resource, Table::default())).collect();
        Self { origin: "the API server".to_owned(), said, hostname, endpoints_of, tables }
    }

    /// Takes news in. Says whether facts may have changed.
    pub(super) fn take(&mut self, resource: Resource, news: News, at: Instant) -> bool {
        let Some(table) = self.tables.get_mut(&resource) else { return false };
        match news {
            News::Reached(origin) => {
                let changed = self.origin != origin;
                self.origin = origin;
                changed
            }
            News::Failed(error) => {
                let Standing { errors, trouble, .. } = &mut table.standing;
                *errors.entry(error.code()).or_default() += 1;
                let gap = error.gap(resource.source());
                let changed = table.scope.is_none() && trouble.as_ref() != Some(&gap);
                *trouble = Some(gap);
                changed
            }
            News::Wanted(names) => {
                let changed = self.endpoints_of != names;
                self.endpoints_of = names;
                changed
            }
            News::Confirmed => table.confirm(at),
            News::Replaced(scope, rows) => {
                let rows = rows.rows.into_iter().filter_map(|(title, row)| Some((title, row?))).collect();
                let changed = table.scope.as_ref() != Some(&scope) || table.rows != rows;
                (table.scope, table.rows) = (Some(scope), rows);
                table.confirm(at);
                changed
            }
            News::Applied(rows) => {
                table.confirm(at);
                rows.rows.into_iter().fold(false, |changed, (title, row)| table.put(title, row) || changed)
            }
            News::Deleted(title) => {
                table.confirm(at);
                table.put(title, None)
            }
        }
    }

    /// The facts, made as those of files and LISTs are.
    pub(super) fn facts(&self) -> ClusterFacts {
        let mut all = Gathered::default();
        let node = self.node();
        for (resource, table) in &self.tables {
            let source = resource.source();
            match (resource, &node) {
                (Resource::Pods, None) if self.tables[&Resource::Nodes].scope.is_some() => {
                    let detail = format!("no Node is called {}; say which one this is with --node", self.hostname);
                    all.lack(Gap::new(source, Why::NotAsked, detail));
                    continue;
                }
                _ => {}
            }
            let asked = self.wanted(*resource);
            match (&table.scope, &asked) {
                (Some(scope), Some(asked)) if !scope.covers(asked) => {
                    let absent = || Gap::new(source, Why::NotYet, format!("{} are being read", resource.name()));
                    all.lack(table.standing.trouble.clone().unwrap_or_else(absent));
                }
                (None, _) => all.lack(table.absence(*resource)),
                _ => {}
            }
            table.rows.values().for_each(|row| row.add_to(&mut all));
        }
        let settings = &self.tables[&Resource::Settings];
        let mut facts = all.finish(self.origin.clone(), true, node);
        if let Some(Scope::Names(names)) = &self.tables[&Resource::EndpointSlices].scope {
            facts.endpoints_of = Some(Arc::clone(names));
        }
        if settings.scope.is_none() {
            // Nobody was asked yet: to assume the default would be to invent an answer.
            let Gap { why, detail, .. } = settings.absence(Resource::Settings);
            facts.node_port_range = Reading::Gap(Gap::new(Source::NodePortRange, why, detail));
        }
        facts
    }

    /// How well each resource is known.
    pub(super) fn standings(&self) -> BTreeMap<Resource, Standing> {
        self.tables.iter().map(|(resource, table)| (*resource, table.standing.clone())).collect()
    }

    /// What is wrong with a resource now.
    pub(super) fn trouble(&self, resource: Resource) -> Option<&Gap> {
        self.tables[&resource].standing.trouble.as_ref()
    }

    /// What has to be asked for, as far as it follows from what is known; `None` where it does not follow yet.
    pub(super) fn wanted(&self, resource: Resource) -> Option<Scope> {
        match resource {
            Resource::Services => Some(Scope::Served),
            Resource::Nodes | Resource::Settings => Some(Scope::All),
            Resource::Pods => self.node().map(Scope::Node),
            Resource::EndpointSlices => Some(Scope::Names(Arc::clone(&self.endpoints_of))),
        }
    }

    /// Whether no EndpointSlices are on their way that somebody wants.
    pub(super) fn is_settled(&self) -> bool {
        let slices = &self.tables[&Resource::EndpointSlices];
        let covered = |wanted| slices.scope.as_ref().is_some_and(|scope| scope.covers(&wanted));
        slices.standing.trouble.is_some() || self.wanted(Resource::EndpointSlices).is_none_or(covered)
    }

    /// This node's name, where a person or the downward API said it.
    pub(super) fn said(&self) -> Option<&str> {
        self.said.as_deref()
    }

    fn node(&self) -> Option<String> {
        if self.said.is_some() {
            return self.said.clone();
        }
        let mut nodes = Gathered::default();
        self.tables[&Resource::Nodes].rows.values().for_each(|row| row.add_to(&mut nodes));
        nodes.node_name(None, &self.hostname)
    }
}

impl Table {
    /// The server has just confirmed what is known. Nothing changes by that.
    fn confirm(&mut self, at: Instant) -> bool {
        self.standing.confirmed = Some(at);
        self.standing.trouble = None;
        false
    }

    /// An object as it is now. Says whether it was another before.
    fn put(&mut self, title: String, row: Option<Row>) -> bool {
        let within = |row: &Row| self.scope.as_ref().is_none_or(|scope| scope.holds(row));
        let Some(row) = row.filter(within) else { return self.rows.remove(&title).is_some() };
        let same = self.rows.get(&title) == Some(&row);
        if !same {
            self.rows.insert(title, row);
        }
        !same
    }

    /// Why nothing is known.
    fn absence(&self, resource: Resource) -> Gap {
        let yet = || Gap::new(resource.source(), Why::NotYet, format!("{} were not read yet", resource.name()));
        self.standing.trouble.clone().unwrap_or_else(yet)
    }
}

#[cfg(test)]
mod tests;
