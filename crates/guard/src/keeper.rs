//! Keeps the wanted ports in the kernel's list. The guard calls [`Keeper::keep`] again and again.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{
    Bound, Class, GuardError, List, Place, Reason, Record, Store, Wanted,
    plan::Plan,
    record::{State, Unfinished},
};
use portreeve_facts::PortSet;

/// If another program removes ports of the guard, the guard adds these ports again, at most once in this time. Without
/// this limit, the two programs would fight.
pub const PUT_BACK_PAUSE: Duration = Duration::from_secs(60);
/// The shortest time from one removal to the next. A removal can lose an entry that another program just added.
pub const REMOVAL_PAUSE: Duration = Duration::from_secs(60);
/// The shortest time from one removal to the next, if the second removal makes space for a port that the node needs.
pub const EARLY_REMOVAL_PAUSE: Duration = Duration::from_secs(10);
/// A port that is no longer needed stays reserved for this time, because its pod or Service may come back.
pub const GRACE: Duration = Duration::from_secs(300);
/// The shortest time from one call of [`Store::renew`] to the next. The guard runs at least every 30 seconds.
pub const RENEWAL: Duration = Duration::from_secs(60);

/// The largest number of attempts to change the list. An attempt fails if another program writes at the same moment.
const ATTEMPTS: usize = 3;

/// Keeps ports reserved. The lock of the store allows only one process to have a keeper.
#[derive(Debug)]
pub struct Keeper<L, S> {
    list: L,
    store: S,
    place: Place,
    grace: Duration,
    /// `None` before the first run.
    record: Option<Record>,
    /// The last known class of each wanted port, and of each port that the guard added.
    classes: BTreeMap<u16, Class>,
    unwanted_since: BTreeMap<u16, Instant>,
    /// The ports of daemons and tunnels. A daemon or a tunnel that is absent now may come back, so these ports stay
    /// wanted.
    daemons: BTreeMap<u16, Reason>,
    /// Wanted ports that another program removed. The guard adds these ports again after a pause.
    held: PortSet,
    put_back: Option<Instant>,
    removed: Option<Instant>,
    renewed: Option<Instant>,
    /// Whether another program wrote the list since the record was last saved.
    was_written: bool,
}

/// What one run did, and the state after the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The list after the run.
    pub list: PortSet,
    /// The entries of the list that the guard added.
    pub ours: PortSet,
    /// The wanted ports that are in the list now, with their reasons.
    pub reserved: BTreeMap<u16, Reason>,
    /// Ports that this run added.
    pub added: PortSet,
    /// Ports that this run removed.
    pub removed: PortSet,
    /// Wanted ports that are not reserved, because the bound leaves no space for them.
    pub left_out: BTreeMap<u16, Reason>,
    /// Wanted ports that another program removed from the list since the last run.
    pub lost: PortSet,
    /// Wanted ports that should be in the list, but are not. Another program removed these ports just now, or the guard
    /// waits for [`PUT_BACK_PAUSE`] before it adds the ports again.
    pub missing: PortSet,
    /// Ports that the guard added, but that now count as ports of another program, because another program wrote the
    /// list.
    pub given_up: PortSet,
    /// The reason why the record could not be used. `None` if the record could be used. Without a usable record, all
    /// entries in the list count as entries of other programs.
    pub bad_record: Option<String>,
}

impl Kept {
    /// Joins this report with the report of a later run.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        Self {
            added: self.added.union(&later.added).intersection(&later.list),
            removed: self.removed.union(&later.removed).minus(&later.list),
            lost: self.lost.union(&later.lost),
            given_up: self.given_up.union(&later.given_up),
            bad_record: self.bad_record.or(later.bad_record),
            ..later
        }
    }
}

impl State {
    fn with(&self, ports: &PortSet) -> Self {
        Self { list: self.list.union(ports), ours: self.ours.union(ports) }
    }

    fn without(&self, ports: &PortSet) -> Self {
        Self { list: self.list.minus(ports), ours: self.ours.minus(ports) }
    }
}

fn is_over(since: Option<Instant>, pause: Duration, now: Instant) -> bool {
    since.is_none_or(|since| now.saturating_duration_since(since) >= pause)
}

impl<L: List, S: Store> Keeper<L, S> {
    /// Makes a keeper of `list`. `store` keeps the record. `place` is the boot and the network namespace of the list.
    pub fn new(list: L, store: S, place: Place) -> Self {
        Self {
            list,
            store,
            place,
            grace: GRACE,
            record: None,
            classes: BTreeMap::new(),
            unwanted_since: BTreeMap::new(),
            daemons: BTreeMap::new(),
            held: PortSet::default(),
            put_back: None,
            removed: None,
            renewed: None,
            was_written: false,
        }
    }

    /// A keeper for a process that runs only once. Ports that are no longer wanted are removed immediately, except
    /// ports of daemons.
    #[must_use]
    pub fn once(self) -> Self {
        Self { grace: Duration::ZERO, ..self }
    }

    /// Lets this keeper notice each write of another program, even if the write changes no port. A second call changes
    /// nothing.
    ///
    /// # Errors
    /// Fails if the list cannot be watched.
    pub fn watch(&mut self) -> Result<(), GuardError> {
        self.list.watch()
    }

    /// Adds missing ports. If a removal is due, also removes ports that are no longer wanted.
    ///
    /// # Errors
    /// Fails if a file cannot be read or written. The record and the list then have the state before or after one of
    /// the changes.
    pub fn keep(&mut self, wanted: &Wanted, bound: Bound, now: Instant) -> Result<Kept, GuardError> {
        let (mut state, last, mut kept) = self.see()?;
        let wanted = self.remembered(wanted, &state.ours, now);
        let mut plan = Plan::of(&wanted, bound, &state.list, &PortSet::default());
        kept.lost = last.intersection(&plan.add);
        let lost = kept.lost.union(&self.held.intersection(&plan.add));
        let is_held = !lost.is_empty() && !is_over(self.put_back, PUT_BACK_PAUSE, now);
        let remove = self.removable(&wanted, bound, &state, &plan, now);
        if !remove.is_empty() {
            let (after, is_written) = self.remove(state, &remove, &mut kept)?;
            state = after;
            if is_written {
                self.removed = Some(now);
            }
            plan = Plan::of(&wanted, bound, &state.list, &PortSet::default());
        }
        for _ in 0..ATTEMPTS {
            let add = if is_held { plan.add.minus(&lost) } else { plan.add.clone() };
            if add.is_empty() {
                break;
            }
            self.list.require_writable()?;
            let more = state.with(&add);
            self.save(&more, Some(state.clone()))?;
            let is_added = self.list.add(&state.list, &add)?;
            state = self.settle(if is_added { more } else { state }, is_added, &mut kept)?;
            // Another program may have written entries, and these entries also use space within the bound.
            plan = Plan::of(&wanted, bound, &state.list, &PortSet::default());
            if is_added {
                kept.added = add.intersection(&state.list);
                break;
            }
        }
        self.save(&state, None)?;
        if is_over(self.renewed, RENEWAL, now) {
            self.store.renew()?;
            self.renewed = Some(now);
        }
        if !is_held && !lost.is_empty() {
            self.put_back = Some(now);
        }
        self.held = if is_held { lost } else { PortSet::default() };
        let (reserved, missing): (BTreeMap<_, _>, BTreeMap<_, _>) =
            plan.reserved.into_iter().partition(|(number, _)| state.list.contains(*number));
        kept.missing = missing.into_keys().collect();
        (kept.reserved, kept.left_out) = (reserved, plan.left_out);
        (kept.list, kept.ours) = (state.list, state.ours);
        Ok(kept)
    }

    /// Returns the wanted ports, and the daemon ports that were wanted in earlier runs. For each other port of the
    /// guard, notes the time since which the port is unwanted.
    fn remembered(&mut self, wanted: &Wanted, ours: &PortSet, now: Instant) -> Wanted {
        let daemons = wanted.ports.iter().filter(|(_, reason)| reason.class == Class::Daemon);
        self.daemons.extend(daemons.map(|(number, reason)| (*number, reason.clone())));
        let mut wanted = wanted.clone();
        for (number, reason) in &self.daemons {
            wanted.ports.entry(*number).or_insert_with(|| reason.clone());
        }
        self.classes.extend(wanted.ports.iter().map(|(number, reason)| (*number, reason.class)));
        self.classes.retain(|number, _| wanted.ports.contains_key(number) || ours.contains(*number));
        self.unwanted_since.retain(|number, _| ours.contains(*number) && !wanted.ports.contains_key(number));
        for number in ours.iter().filter(|number| !wanted.ports.contains_key(number)) {
            self.unwanted_since.entry(number).or_insert(now);
        }
        wanted
    }

    /// The ports to remove in this run: ports that have been unwanted for long enough. If a needed port has no space,
    /// or if the list exceeds the bound, this run also removes other ports of the guard early, but as few as possible.
    fn removable(&self, wanted: &Wanted, bound: Bound, state: &State, plan: &Plan, now: Instant) -> PortSet {
        // A port stays if an input that may need the port was not read.
        let may_go = |number: &u16| !wanted.is_unread(self.classes.get(number).copied());
        let mut remove = PortSet::default();
        if is_over(self.removed, REMOVAL_PAUSE, now) {
            let due = self.unwanted_since.iter().filter(|(_, since)| is_over(Some(**since), self.grace, now));
            remove = due.map(|(number, _)| *number).filter(may_go).collect();
        }
        let in_range = |ports: &PortSet| ports.intersection(&bound.range.into());
        // After a run of the guard, the bound or the range may have become smaller, or another program may have added ports.
        let exceeds = in_range(&state.list.minus(&remove)).len() > bound.most();
        if (exceeds || !plan.left_out.is_empty()) && is_over(self.removed, EARLY_REMOVAL_PAUSE, now) {
            let spare: PortSet = state.ours.iter().filter(may_go).collect();
            let full = Plan::of(wanted, bound, &state.list, &spare);
            if exceeds || !full.add.minus(&plan.add).is_empty() {
                let after = in_range(&state.list.union(&full.add).minus(&remove)).len();
                let excess = after.saturating_sub(bound.most()) as usize;
                let mut early: Vec<u16> = in_range(&full.remove.minus(&remove)).iter().collect();
                // Ports that have been unwanted for the longest time are removed first. Wanted ports that are less
                // important than a needed port are removed last.
                let since = |number: &u16| self.unwanted_since.get(number).copied();
                early.sort_by_key(|number| (since(number).is_none(), since(number), *number));
                remove = remove.union(&early.into_iter().take(excess).collect());
            }
        }
        remove
    }

    /// Removes the guard's entries from the list, and deletes the record.
    ///
    /// # Errors
    /// Fails if a file cannot be read or written, as in [`Self::keep`].
    pub fn release(&mut self) -> Result<Kept, GuardError> {
        let (mut state, _, mut kept) = self.see()?;
        for _ in 0..ATTEMPTS {
            if state.ours.is_empty() {
                break;
            }
            let ours = state.ours.clone();
            (state, _) = self.remove(state, &ours, &mut kept)?;
        }
        kept.given_up = kept.given_up.union(&state.ours);
        self.store.clear()?;
        kept.list = state.list;
        Ok(kept)
    }

    /// If another program wrote the list since the last run, records that all entries belong to other programs. The
    /// next process cannot notice this write.
    ///
    /// # Errors
    /// Fails if a file cannot be read or written, as in [`Self::keep`].
    pub fn finish(&mut self) -> Result<(), GuardError> {
        self.was_written |= self.list.was_written();
        if self.was_written && self.record.is_some() {
            let (state, ..) = self.see()?;
            self.save(&state, None)?;
        }
        Ok(())
    }

    /// Returns the present state, the list at the end of the last run, and the report of this run so far. If no run
    /// happened since the boot, the list of the last run is empty.
    fn see(&mut self) -> Result<(State, PortSet, Kept), GuardError> {
        let mut kept = Kept::default();
        if self.store.hold()? {
            self.record = None;
        }
        if self.record.is_none() {
            let loaded = self.store.load(&self.place)?.transpose().unwrap_or_else(|why| {
                kept.bad_record = Some(why);
                None
            });
            self.record = loaded.filter(|it| it.boot_id == self.place.boot_id);
        }
        let list = self.list.read()?;
        self.was_written |= self.list.was_written();
        let Some(record) = self.record.clone() else {
            return Ok((State { list, ours: PortSet::default() }, PortSet::default(), kept));
        };
        for number in record.daemons.iter() {
            self.daemons.entry(number).or_insert_with(Reason::daemon_of_the_record);
        }
        let last = record.before.as_ref().map_or(&record.list, |before| &before.list).clone();
        let mut state = match record.unfinished(&list).filter(|_| !self.list.is_written_at_once(&record.list)) {
            Some(unfinished) => self.repair(&list, unfinished)?,
            None => State { ours: record.ours_in(&list, &self.place.boot_id), list },
        };
        if self.was_written {
            state.ours = PortSet::default();
        }
        kept.given_up = record.ours.intersection(&state.list).minus(&state.ours);
        Ok((state, last, kept))
    }

    fn repair(&mut self, list: &PortSet, unfinished: Unfinished) -> Result<State, GuardError> {
        let Unfinished { missing, ours } = unfinished;
        let whole = list.union(&missing);
        if missing.is_empty() || (self.list.add(list, &missing)? && self.list.read()? == whole) {
            return Ok(State { ours: ours.intersection(&whole), list: whole });
        }
        // Another program wrote the list just now.
        self.was_written = true;
        Ok(State { list: self.list.read()?, ours: PortSet::default() })
    }

    /// Removes these ports of the guard from the list. Returns the new state, and whether the list was written. The
    /// list is not written if another program wrote it just before.
    fn remove(&mut self, state: State, ports: &PortSet, kept: &mut Kept) -> Result<(State, bool), GuardError> {
        self.list.require_writable()?;
        let less = state.without(ports);
        self.save(&less, Some(state.clone()))?;
        let is_written = self.list.replace(&state.list, &less.list.minus(&less.ours), &less.ours)?;
        let after = self.settle(if is_written { less } else { state }, is_written, kept)?;
        if is_written {
            // Another program may have read the list before the removal, and may have written the old list again.
            kept.removed = kept.removed.union(&ports.minus(&after.list));
            kept.given_up = kept.given_up.union(&ports.intersection(&after.list));
        }
        Ok((after, is_written))
    }

    /// Reads the list after an attempt to write it. If the guard did not write the list, or if the list is not as
    /// expected, another program wrote it. Then all entries count as entries of other programs.
    fn settle(&mut self, expected: State, is_written: bool, kept: &mut Kept) -> Result<State, GuardError> {
        self.was_written |= !is_written;
        let list = self.list.read()?;
        self.was_written |= self.list.was_written();
        let state = if list == expected.list && !self.was_written {
            expected
        } else {
            kept.given_up = kept.given_up.union(&expected.ours.intersection(&list));
            State { list, ours: PortSet::default() }
        };
        self.save(&state, None)?;
        Ok(state)
    }

    /// Records the state. Just before the guard writes the list, `state` is the state after the write, and `before` the
    /// state before the write.
    fn save(&mut self, state: &State, before: Option<State>) -> Result<(), GuardError> {
        let State { list, ours } = state.clone();
        let daemons = self.daemons.keys().copied().collect();
        let Place { boot_id, netns } = self.place.clone();
        let record = Record { boot_id, netns, ours, list, daemons, before };
        if self.record.as_ref() != Some(&record) {
            self.store.save(&record)?;
            self.record = Some(record);
        }
        self.was_written = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, io, rc::Rc};

    use super::*;
    use crate::plan::tests::{ports, wanted};
    use proptest::prelude::*;

    #[derive(Debug, Default)]
    struct Node {
        list: PortSet,
        stored: Option<Record>,
        others: PortSet,
        /// Each event, with the number of the guard's call before which the event happens.
        events: Vec<(usize, Event)>,
        calls: usize,
        /// The test accepts this number of entries above the bound. The list can exceed the bound if another program
        /// writes during the guard's write.
        beyond: u32,
        /// Whether another guard had the lock since the last run.
        was_lost: bool,
        /// Whether the guard notices each write of another program.
        is_watched: bool,
        /// Whether another program wrote the list, and the guard has not noticed it yet.
        was_written: bool,
        renewals: u32,
        /// Whether the list is short enough for the guard to write it in one part.
        is_short: bool,
    }

    #[derive(Clone, Debug)]
    enum Event {
        /// Another program reads the list, and writes it with more entries.
        Adds(PortSet),
        /// Another program writes a list, without reading the old one.
        Writes(PortSet),
        Kill,
    }

    impl Node {
        /// Runs the events that are due before this call of the guard. An error means that the guard was killed.
        fn call(&mut self) -> Result<(), GuardError> {
            self.calls += 1;
            let (due, later): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.events).into_iter().partition(|(at, _)| *at <= self.calls);
            self.events = later;
            let mut killed = false;
            for (_, event) in due {
                match event {
                    Event::Adds(ports) => self.another_writes(&self.list.union(&ports)),
                    Event::Writes(ports) => self.another_writes(&ports),
                    Event::Kill => killed = true,
                }
            }
            let end = || GuardError::Read { path: "killed".into(), error: io::ErrorKind::Interrupted.into() };
            if killed { Err(end()) } else { Ok(()) }
        }

        /// Another program writes a list, and may need every entry in it. Without a watch, the guard cannot notice this
        /// write if the record expects exactly the same list.
        fn another_writes(&mut self, list: &PortSet) {
            if self.is_watched {
                (self.list, self.others, self.was_written) = (list.clone(), list.clone(), true);
                return;
            }
            let is_expected = self
                .stored
                .as_ref()
                .is_some_and(|it| it.list == *list || it.unfinished(list).is_some_and(|it| !it.ours.is_empty()));
            if self.list != *list && !is_expected {
                // The new list may equal the list before the guard's write. If the guard is killed now, the next run
                // assumes that the guard's entries in this list still belong to the guard.
                let before = self.stored.as_ref().and_then(|it| it.before.as_ref()).filter(|it| it.list == *list);
                let ours = before.map(|it| it.ours.clone()).unwrap_or_default();
                (self.list, self.others) = (list.clone(), list.minus(&ours));
                // If the guard is killed now, the next run completes this list.
                let unfinished = self.stored.as_ref().and_then(|it| it.unfinished(list));
                self.beyond += unfinished.map_or(0, |it| it.missing.len());
            }
        }

        /// Writes a list in parts, as the guard writes the kernel's list. An `Event` can happen between two parts.
        fn write(&mut self, replaces: bool, parts: &[PortSet]) -> Result<(), GuardError> {
            let mut replaces = replaces;
            let mut expected = None;
            // Whether another program wrote during this write. If another program wrote, the record does not expect the
            // lists of later parts.
            let mut interrupted = false;
            for part in parts.iter().filter(|part| !part.is_empty()) {
                if expected.is_some() {
                    self.call()?;
                }
                interrupted |= expected.is_some_and(|expected| expected != self.list);
                if interrupted {
                    self.beyond += part.len();
                }
                self.list = if replaces { part.clone() } else { self.list.union(part) };
                replaces = false;
                expected = Some(self.list.clone());
            }
            if replaces {
                self.list = PortSet::default();
            }
            Ok(())
        }
    }

    type Shared = Rc<RefCell<Node>>;

    #[derive(Clone, Debug)]
    struct FakeList(Shared);
    #[derive(Clone, Debug)]
    struct FakeStore(Shared);

    impl List for FakeList {
        fn read(&mut self) -> Result<PortSet, GuardError> {
            self.0.borrow_mut().call()?;
            Ok(self.0.borrow().list.clone())
        }

        fn require_writable(&mut self) -> Result<(), GuardError> {
            self.0.borrow_mut().call()
        }

        fn is_written_at_once(&self, _: &PortSet) -> bool {
            self.0.borrow().is_short
        }

        fn watch(&mut self) -> Result<(), GuardError> {
            self.0.borrow_mut().is_watched = true;
            Ok(())
        }

        fn was_written(&mut self) -> bool {
            std::mem::take(&mut self.0.borrow_mut().was_written)
        }

        fn add(&mut self, expected: &PortSet, ports: &PortSet) -> Result<bool, GuardError> {
            let mut node = self.0.borrow_mut();
            node.call()?;
            let is_expected = node.list == *expected && !std::mem::take(&mut node.was_written);
            if is_expected {
                let parts = if node.is_short { vec![ports.clone()] } else { halves(ports).to_vec() };
                node.write(false, &parts)?;
            }
            Ok(is_expected)
        }

        fn replace(&mut self, expected: &PortSet, first: &PortSet, then: &PortSet) -> Result<bool, GuardError> {
            let mut node = self.0.borrow_mut();
            node.call()?;
            let is_expected = node.list == *expected && !std::mem::take(&mut node.was_written);
            if is_expected {
                let parts = match node.is_short {
                    true => vec![first.union(then)],
                    false => [halves(first), halves(then)].concat(),
                };
                node.write(true, &parts)?;
            }
            Ok(is_expected)
        }
    }

    fn halves(ports: &PortSet) -> [PortSet; 2] {
        let (first, second): (Vec<_>, Vec<_>) = ports.iter().enumerate().partition(|(index, _)| index % 2 == 0);
        [first, second].map(|half| half.into_iter().map(|(_, number)| number).collect())
    }

    impl Store for FakeStore {
        fn hold(&mut self) -> Result<bool, GuardError> {
            Ok(std::mem::take(&mut self.0.borrow_mut().was_lost))
        }

        fn renew(&mut self) -> Result<(), GuardError> {
            self.0.borrow_mut().renewals += 1;
            Ok(())
        }

        fn load(&mut self, _: &Place) -> Result<Option<Result<Record, String>>, GuardError> {
            let mut node = self.0.borrow_mut();
            node.call()?;
            let stored = node.stored.clone();
            // Another program wrote exactly the list that a killed guard would have left. The list does not show which
            // program wrote it.
            if let Some(unfinished) = stored.as_ref().and_then(|it| it.unfinished(&node.list)) {
                node.others = node.others.minus(&unfinished.ours);
                node.beyond += unfinished.missing.len();
            } else if let Some(Record { ours, list, before: Some(_), .. }) = &stored
                && *list == node.list
            {
                node.others = node.others.minus(ours);
            }
            Ok(stored.map(Ok))
        }

        fn save(&mut self, record: &Record) -> Result<(), GuardError> {
            let mut node = self.0.borrow_mut();
            node.call()?;
            node.stored = Some(record.clone());
            Ok(())
        }

        fn clear(&mut self) -> Result<(), GuardError> {
            let mut node = self.0.borrow_mut();
            node.call()?;
            node.stored = None;
            Ok(())
        }
    }

    fn keeper(node: &Shared) -> Keeper<FakeList, FakeStore> {
        Keeper::new(FakeList(node.clone()), FakeStore(node.clone()), Place { boot_id: "boot".to_owned(), netns: 7 })
    }

    /// At most four of these twelve ports may be reserved.
    const TIGHT: Bound = Bound { range: portreeve_facts::PortRange { first: 1000, last: 1011 }, leave: 8 };
    const BOUND: Bound = Bound { range: portreeve_facts::PortRange { first: 1000, last: 1099 }, leave: 10 };

    fn node(list: &str) -> Shared {
        Rc::new(RefCell::new(Node { list: ports(list), others: ports(list), ..Node::default() }))
    }

    #[test]
    fn ours_come_and_go_and_the_entries_of_others_stay() {
        let (node, start) = (node("7,1001"), Instant::now());
        let mut keeper = keeper(&node);
        let kept = keeper.keep(&wanted("1001-1003", "1009"), BOUND, start).expect("kept");
        assert_eq!((kept.added, kept.ours), (ports("1002-1003,1009"), ports("1002-1003,1009")));
        assert_eq!(node.borrow().list, ports("7,1001-1003,1009"));
        let mut after = |node_ports: &str, seconds| {
            let now = start + Duration::from_secs(seconds);
            keeper.keep(&wanted(node_ports, ""), BOUND, now).expect("kept").removed
        };
        assert_eq!(after("1002", 0), ports(""), "a Service may come back");
        assert_eq!(after("1002", 299), ports(""));
        assert_eq!(after("1002", 300), ports("1003"), "the daemon may start again");
        assert_eq!(after("1003", 301), ports(""));
        assert_eq!(after("", 302), ports(""));
        assert_eq!(after("", 601), ports("1002"));
        assert_eq!(after("", 602), ports(""), "from one removal to the next is a minute");
        assert_eq!(after("", 661), ports("1003"));
        assert_eq!(node.borrow().list, ports("7,1001,1009"));
    }

    #[test]
    fn a_guard_that_starts_again_keeps_the_ports_of_daemons_and_one_run_removes_others_at_once() {
        let (node, start) = (node(""), Instant::now());
        keeper(&node).keep(&wanted("1002", "1009"), BOUND, start).expect("kept");
        let kept = keeper(&node).once().keep(&wanted("", ""), BOUND, start).expect("kept");
        assert_eq!((kept.removed, kept.list), (ports("1002"), ports("1009")));
        keeper(&node).release().expect("released");
        assert_eq!(node.borrow().list, ports(""));
    }

    #[test]
    fn as_few_ports_as_make_room_are_removed_early_and_every_ten_seconds_at_most() {
        let (node, start) = (node(""), Instant::now());
        let tight = Bound { range: "1000-1009".parse().expect("a range"), leave: 5 };
        let mut keeper = keeper(&node);
        let mut after = |node_ports: &str, seconds| {
            let now = start + Duration::from_secs(seconds);
            let kept = keeper.keep(&wanted(node_ports, ""), tight, now).expect("kept");
            (kept.removed, kept.added, kept.left_out.len())
        };
        assert_eq!(after("1000-1004", 0), (ports(""), ports("1000-1004"), 0));
        assert_eq!(after("1003-1005", 1), (ports("1000"), ports("1005"), 0));
        assert_eq!(after("1003-1006", 2), (ports(""), ports(""), 1));
        assert_eq!(after("1003-1006", 11), (ports("1001"), ports("1006"), 0));
        assert_eq!(after("1000-1009", 31), (ports(""), ports(""), 5), "what is needed and reserved stays");
    }

    #[test]
    fn a_bound_that_becomes_smaller_removes_as_many_ports_as_exceed_the_bound() {
        let (node, start) = (node("1009"), Instant::now());
        let mut keeper = keeper(&node);
        let mut after = |leave, seconds| {
            let tight = Bound { range: "1000-1009".parse().expect("a range"), leave };
            let kept =
                keeper.keep(&wanted("1000-1002", "1003"), tight, start + Duration::from_secs(seconds)).expect("kept");
            (kept.removed, kept.added, kept.left_out.into_keys().collect::<PortSet>())
        };
        assert_eq!(after(5, 0), (ports(""), ports("1000-1003"), ports("")));
        assert_eq!(
            after(7, 60),
            (ports("1002-1003"), ports(""), ports("1002-1003")),
            "1009 belongs to another program"
        );
        assert_eq!(after(7, 120), (ports(""), ports(""), ports("1002-1003")));
        assert_eq!(after(6, 180), (ports(""), ports("1002"), ports("1003")));
        assert_eq!(node.borrow().list, ports("1000-1002,1009"));
    }

    #[test]
    fn only_ports_of_the_kind_that_was_not_read_stay() {
        let (node, start) = (node(""), Instant::now());
        let mut keeper = keeper(&node);
        keeper.keep(&wanted("1002", ""), BOUND, start).expect("kept");
        let mut none = wanted("", "");
        none.unread.push(portreeve_facts::Gap::new(portreeve_facts::Source::Pods, portreeve_facts::Why::Malformed, ""));
        for seconds in [1, 301] {
            keeper.keep(&none, BOUND, start + Duration::from_secs(seconds)).expect("kept");
        }
        assert_eq!(node.borrow().list, ports(""), "all Services were read");
    }

    #[test]
    fn unread_input_removes_nothing() {
        let (node, start) = (node(""), Instant::now());
        let mut keeper = keeper(&node);
        keeper.keep(&wanted("1002", ""), BOUND, start).expect("kept");
        let mut unread = wanted("1003", "");
        unread.unread.push(portreeve_facts::Gap::new(
            portreeve_facts::Source::Services,
            portreeve_facts::Why::Unreachable,
            "",
        ));
        keeper.keep(&unread, BOUND, start).expect("kept");
        let kept = keeper.keep(&unread, BOUND, start + GRACE).expect("kept");
        assert_eq!(kept.list, ports("1002-1003"));
    }

    #[test]
    fn an_entry_that_another_program_writes_too_is_given_up_and_stays() {
        let (node, start) = (node(""), Instant::now());
        let mut keeper = keeper(&node);
        keeper.keep(&wanted("1002-1003", ""), BOUND, start).expect("kept");
        node.borrow_mut().another_writes(&ports("7,1002"));
        let kept = keeper.keep(&wanted("1002-1003", ""), BOUND, start).expect("kept");
        assert_eq!((kept.given_up, kept.lost, kept.added), (ports("1002"), ports("1003"), ports("1003")));
        let kept = keeper.release().expect("released");
        assert_eq!((kept.removed, kept.list), (ports("1003"), ports("7,1002")));
    }

    #[test]
    fn a_port_that_another_program_adds_too_stays_if_the_guard_notices_the_write() {
        let (node, start) = (node(""), Instant::now());
        let mut first = keeper(&node);
        first.watch().expect("watched");
        let another_adds = || {
            let mut node = node.borrow_mut();
            let list = node.list.clone();
            node.another_writes(&list);
        };
        first.keep(&wanted("1002", ""), BOUND, start).expect("kept");
        another_adds();
        // The run fails after the guard has noticed the write, and before the guard records it.
        let call = node.borrow().calls + 2;
        node.borrow_mut().events.push((call, Event::Kill));
        assert!(first.keep(&wanted("1002-1003", ""), BOUND, start).is_err());
        let kept = first.keep(&wanted("1002-1003", ""), BOUND, start).expect("kept");
        assert_eq!((kept.given_up, kept.ours), (ports("1002"), ports("1003")));
        another_adds();
        first.finish().expect("recorded");
        let kept = keeper(&node).release().expect("released");
        assert_eq!((kept.removed, kept.list), (ports(""), ports("1002-1003")));
    }

    #[test]
    fn a_list_that_is_overwritten_again_and_again_is_put_back_once_a_minute() {
        let (node, start) = (node("7"), Instant::now());
        let mut keeper = keeper(&node);
        let all = wanted("1002", "");
        let mut after = |second: u64| {
            node.borrow_mut().another_writes(&ports("7"));
            let kept = keeper.keep(&all, BOUND, start + Duration::from_secs(second)).expect("kept");
            (kept.added.len(), kept.lost.len(), kept.missing.len())
        };
        assert_eq!(after(0), (1, 0, 0));
        assert_eq!(after(1), (1, 1, 0), "at once the first time");
        assert_eq!(after(2), (0, 1, 1), "the second time within a minute it waits");
        assert_eq!(after(30), (0, 0, 1), "it was lost once");
        assert_eq!(after(61), (1, 0, 0));
        let kept = keeper.keep(&wanted("1002,1005", ""), BOUND, start + Duration::from_secs(62)).expect("kept");
        assert_eq!(kept.added, ports("1005"));
    }

    #[test]
    fn a_new_port_is_added_while_a_lost_one_waits() {
        let (node, start) = (node("7"), Instant::now());
        let mut keeper = keeper(&node);
        for _ in 0..2 {
            keeper.keep(&wanted("1002", ""), BOUND, start).expect("kept");
            node.borrow_mut().another_writes(&ports("7"));
        }
        let kept = keeper.keep(&wanted("1002,1005", ""), BOUND, start).expect("kept");
        assert_eq!((kept.added, kept.missing), (ports("1005"), ports("1002")));
    }

    #[test]
    fn a_record_of_another_boot_and_a_bad_one_make_everything_an_entry_of_others() {
        let stale = Record { boot_id: "old".to_owned(), ours: ports("1002"), list: ports("1002"), ..Record::default() };
        let node = node("1002");
        node.borrow_mut().stored = Some(stale);
        let kept = keeper(&node).keep(&wanted("", ""), BOUND, Instant::now()).expect("kept");
        assert_eq!((kept.list, kept.removed), (ports("1002"), ports("")));
        assert_eq!(node.borrow().stored.as_ref().map(|it| it.boot_id.clone()), Some("boot".to_owned()));
    }

    #[test]
    fn nothing_is_written_where_nothing_changes() {
        let (node, start) = (node("7"), Instant::now());
        let mut keeper = keeper(&node);
        keeper.keep(&wanted("1002", ""), BOUND, start).expect("kept");
        let calls = node.borrow().calls;
        keeper.keep(&wanted("1002", ""), BOUND, start).expect("kept");
        assert_eq!(node.borrow().calls, calls + 1, "one read of the list");
    }

    #[test]
    fn a_successful_run_is_noted_once_a_minute_and_a_failed_one_is_not() {
        let (node, start) = (node("7"), Instant::now());
        let mut keeper = keeper(&node);
        let mut after = |seconds: u64| {
            let kept = keeper.keep(&wanted("1002", ""), BOUND, start + Duration::from_secs(seconds));
            (kept.is_ok(), node.borrow().renewals)
        };
        assert_eq!((after(0), after(59), after(60)), ((true, 1), (true, 1), (true, 2)));
        node.borrow_mut().events.push((0, Event::Kill));
        assert_eq!((after(200), after(201)), ((false, 2), (true, 3)));
    }

    #[test]
    fn the_record_is_read_again_if_another_guard_may_have_written_it() {
        let (node, start) = (node("7"), Instant::now());
        let mut first = keeper(&node);
        first.keep(&wanted("1002", ""), BOUND, start).expect("kept");
        keeper(&node).keep(&wanted("1002,1005", ""), BOUND, start).expect("kept");
        node.borrow_mut().was_lost = true;
        let kept = first.keep(&wanted("1002", ""), BOUND, start).expect("kept");
        assert_eq!((kept.given_up, kept.ours), (ports(""), ports("1002,1005")));
    }

    fn some_ports() -> impl Strategy<Value = PortSet> {
        proptest::collection::btree_set(1000..1012u16, 0..6).prop_map(|all| all.into_iter().collect())
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![some_ports().prop_map(Event::Adds), some_ports().prop_map(Event::Writes), Just(Event::Kill)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Before each access of the guard to the list or the record, another program may write the list, or the guard
        /// may be killed. The test leaves out one case: another program writes after the guard compares the list, and
        /// before the guard writes. The kernel cannot compare and write in one step, so the guard can lose an entry in
        /// this case.
        #[test]
        fn no_interleaving_loses_an_entry_of_another_program_and_the_wanted_ports_are_reserved_in_the_end(
            at_first in some_ports(),
            events in proptest::collection::vec((0..80usize, event()), 0..12),
            runs in proptest::collection::vec((some_ports(), 0..400u64, any::<bool>()), 1..12),
            last in some_ports(),
            at_release in proptest::collection::vec((1..20usize, event()), 0..4),
            is_short in any::<bool>(),
        ) {
            let node: Shared = Rc::default();
            {
                let mut node = node.borrow_mut();
                node.is_short = is_short;
                (node.list, node.others, node.events) = (at_first.clone(), at_first, events);
            }
            let check = |step: &str| {
                let node = node.borrow();
                let gone = node.others.minus(&node.list);
                prop_assert!(gone.is_empty(), "{step}: {gone} of others are gone: {node:?}");
                let in_range = |ports: &PortSet| ports.intersection(&TIGHT.range.into()).len();
                let most = TIGHT.most().max(in_range(&node.others)) + node.beyond;
                prop_assert!(in_range(&node.list) <= most, "{step}: more than {most}: {node:?}");
                Ok(())
            };
            let mut now = Instant::now();
            let mut guard = keeper(&node);
            for (ports, seconds, is_unread) in runs {
                now += Duration::from_secs(seconds);
                let mut all = wanted(&ports.to_string(), "");
                if is_unread {
                    all.unread.push(portreeve_facts::Gap::new(
                        portreeve_facts::Source::Services, portreeve_facts::Why::Torn, "",
                    ));
                }
                let before = node.borrow().list.clone();
                let quiet = node.borrow().events.is_empty();
                match guard.keep(&all, TIGHT, now) {
                    Ok(kept) => {
                        prop_assert!(!is_unread || !quiet || before.minus(&kept.list).is_empty(), "unread input shrank it");
                    }
                    // The next run repairs a write that was interrupted.
                    Err(_) => {
                        guard = keeper(&node);
                        continue;
                    }
                }
                check("keep")?;
            }
            node.borrow_mut().events.clear();
            now += PUT_BACK_PAUSE + REMOVAL_PAUSE;
            // The first run may only repair the list, and may count entries of the guard as entries of other programs.
            if guard.keep(&wanted(&last.to_string(), ""), TIGHT, now).is_err() {
                guard = keeper(&node);
            }
            now += PUT_BACK_PAUSE + REMOVAL_PAUSE;
            let kept = guard.keep(&wanted(&last.to_string(), ""), TIGHT, now).expect("nothing interferes");
            check("the last run")?;
            let left_out = kept.left_out.keys().copied().collect();
            prop_assert!(last.minus(&kept.list).minus(&left_out).is_empty(), "{last} is reserved: {kept:?}");
            prop_assert!(kept.missing.is_empty());
            let others = node.borrow().others.clone();
            prop_assert!(kept.ours.intersection(&others).is_empty() , "{kept:?}, others {others}");
            {
                let mut node = node.borrow_mut();
                let calls = node.calls;
                node.events = at_release.into_iter().map(|(at, event)| (calls + at, event)).collect();
            }
            if let Ok(released) = guard.release() {
                let back = kept.ours.intersection(&released.list);
                prop_assert!(back.minus(&released.given_up).is_empty(), "{back} is said to be removed: {released:?}");
                prop_assert!(released.removed.intersection(&released.list).is_empty(), "{released:?}");
            } else {
                node.borrow_mut().events.clear();
                keeper(&node).release().expect("nothing interferes");
            }
            check("release")?;
        }

        /// Before each access of a running guard to the list or the record, another program may write any list, also
        /// the present list. All entries of this list then belong to the other program, and no entry gets lost.
        #[test]
        fn no_interleaving_with_a_running_guard_loses_an_entry_that_another_program_adds_too(
            at_first in some_ports(),
            events in proptest::collection::vec((0..80usize, prop_oneof![
                some_ports().prop_map(Event::Adds), some_ports().prop_map(Event::Writes),
            ]), 0..12),
            runs in proptest::collection::vec((some_ports(), 0..400u64), 1..12),
        ) {
            let node: Shared = Rc::default();
            {
                let mut node = node.borrow_mut();
                node.is_short = true;
                (node.list, node.others, node.events) = (at_first.clone(), at_first, events);
            }
            let mut now = Instant::now();
            let mut guard = keeper(&node);
            guard.watch().expect("watched");
            let check = |ours: &PortSet| {
                let node = node.borrow();
                let gone = node.others.minus(&node.list);
                prop_assert!(gone.is_empty(), "{gone} of others are gone: {node:?}");
                let both = ours.intersection(&node.others);
                prop_assert!(both.is_empty() || node.was_written, "{both} of others are ours: {node:?}");
                Ok(())
            };
            for (ports, seconds) in runs {
                now += Duration::from_secs(seconds);
                let kept = guard.keep(&wanted(&ports.to_string(), ""), TIGHT, now).expect("nobody kills it");
                check(&kept.ours)?;
            }
            guard.finish().expect("nobody kills it");
            guard.release().expect("nobody kills it");
            check(&PortSet::default())?;
        }

        /// If no other program writes, a release restores the list to the state before the first run. A kill of the
        /// guard at any moment does not change this result.
        #[test]
        fn a_release_leaves_the_list_as_it_was(
            at_first in some_ports(),
            kills in proptest::collection::vec(0..60usize, 0..8),
            runs in proptest::collection::vec((some_ports(), 0..100u64), 1..10),
        ) {
            let node: Shared = Rc::default();
            {
                let mut node = node.borrow_mut();
                node.events = kills.into_iter().map(|at| (at, Event::Kill)).collect();
                (node.list, node.others) = (at_first.clone(), at_first.clone());
            }
            let mut now = Instant::now();
            let mut guard = keeper(&node);
            for (ports, seconds) in runs {
                now += Duration::from_secs(seconds);
                if guard.keep(&wanted(&ports.to_string(), ""), BOUND, now).is_err() {
                    guard = keeper(&node);
                }
            }
            node.borrow_mut().events.clear();
            guard.release().expect("nothing interferes");
            prop_assert_eq!(&node.borrow().list, &at_first);
            prop_assert_eq!(&node.borrow().stored, &None);
        }
    }
}
