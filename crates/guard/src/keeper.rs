//! Makes the kernel's list have what is wanted, one run after the other.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{Bound, GuardError, List, Reason, Record, Store, Wanted, plan::Plan, record::Before};
use portreeve_facts::PortSet;

/// The shortest time from one put-back to the next: the guard does not fight with another program.
pub const PUT_BACK_PAUSE: Duration = Duration::from_secs(60);
/// The shortest time from one removal to the next, unless ports do not fit otherwise. A removal replaces the whole list.
pub const REMOVAL_PAUSE: Duration = Duration::from_secs(60);

/// How often the guard tries to add, if another program writes in the same moment.
const ATTEMPTS: usize = 3;

/// Keeps the reservation. One process has it, by the lock of its store.
#[derive(Debug)]
pub struct Keeper<L, S> {
    list: L,
    store: S,
    boot_id: String,
    /// The record as it is in the store; nothing before the first run.
    record: Option<Record>,
    /// Wanted ports that another program took out, and that wait until they are put back.
    held: PortSet,
    /// When ports were put back.
    put_back: Option<Instant>,
    /// When ports were removed.
    removed: Option<Instant>,
}

/// The result of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The list after the run.
    pub list: PortSet,
    /// Our part of it.
    pub ours: PortSet,
    /// The wanted ports that are in the list now, with their reasons.
    pub reserved: BTreeMap<u16, Reason>,
    /// Ports that this run added.
    pub added: PortSet,
    /// Ports that this run removed.
    pub removed: PortSet,
    /// Wanted ports that do not fit.
    pub left_out: BTreeMap<u16, Reason>,
    /// Wanted ports that another program took out of the list since the last run.
    pub lost: PortSet,
    /// Wanted ports that are not in the list now: another program took them out again and again, or just now.
    pub missing: PortSet,
    /// Our entries that count as entries of another program from now on, because another program wrote the list.
    pub given_up: PortSet,
    /// Why the record could not be used. All present entries then count as entries of other programs.
    pub bad_record: Option<String>,
}

/// What the list and the record show together.
struct Seen {
    state: State,
    /// The list after the last run of this boot.
    last: PortSet,
    given_up: PortSet,
    bad_record: Option<String>,
}

/// A list, and our part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    list: PortSet,
    ours: PortSet,
}

impl State {
    fn with(&self, ports: &PortSet) -> Self {
        Self { list: self.list.union(ports), ours: self.ours.union(ports) }
    }

    fn without(&self, ports: &PortSet) -> Self {
        Self { list: self.list.minus(ports), ours: self.ours.minus(ports) }
    }
}

impl<L: List, S: Store> Keeper<L, S> {
    /// Over a list and a store, for the boot with this id.
    pub fn new(list: L, store: S, boot_id: String) -> Self {
        Self { list, store, boot_id, record: None, held: PortSet::default(), put_back: None, removed: None }
    }

    /// Adds what is missing, and removes what is no longer wanted when a removal is due.
    ///
    /// # Errors
    /// If a file cannot be read or written. The record and the list then have the state before or after one of the changes.
    pub fn keep(&mut self, wanted: &Wanted, bound: Bound, now: Instant) -> Result<Kept, GuardError> {
        let Seen { mut state, last, given_up, bad_record } = self.see()?;
        let mut kept = Kept { given_up, bad_record, ..Kept::default() };
        let is_over =
            |since: Option<Instant>, pause| since.is_none_or(|since| now.saturating_duration_since(since) >= pause);
        let mut plan = Plan::of(wanted, bound, &state.list, &state.ours, false);
        if wanted.unread.is_empty() && (is_over(self.removed, REMOVAL_PAUSE) || !plan.left_out.is_empty()) {
            plan = Plan::of(wanted, bound, &state.list, &state.ours, true);
        }
        kept.lost = last.intersection(&plan.add);
        let lost = kept.lost.union(&self.held.intersection(&plan.add));
        let is_held = !lost.is_empty() && !is_over(self.put_back, PUT_BACK_PAUSE);
        let add = if is_held { plan.add.minus(&lost) } else { plan.add.clone() };
        if !plan.remove.is_empty() {
            let less = state.without(&plan.remove);
            if let Some(after) = self.replace(&state, less, &mut kept)? {
                (state, self.removed) = (after, Some(now));
                kept.removed = plan.remove;
            } else {
                // Another program wrote just now: nothing is removed, and its list counts.
                state = self.settle(state, &mut kept)?;
            }
        }
        for _ in 0..ATTEMPTS {
            let add = add.minus(&state.list);
            if add.is_empty() {
                break;
            }
            self.list.require_writable()?;
            let more = state.with(&add);
            self.announce(&more, &state)?;
            if self.list.add(&state.list, &add)? {
                state = self.settle(more, &mut kept)?;
                kept.added = add.intersection(&state.list);
                break;
            }
            state = self.settle(state, &mut kept)?;
        }
        self.save(&state, None)?;
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

    /// Removes our entries, and the record.
    ///
    /// # Errors
    /// If a file cannot be read or written, as [`Self::keep`].
    pub fn release(&mut self) -> Result<Kept, GuardError> {
        let Seen { mut state, given_up, bad_record, .. } = self.see()?;
        let mut kept = Kept { given_up, bad_record, ..Kept::default() };
        if !state.ours.is_empty() {
            let removed = state.ours.clone();
            if let Some(after) = self.replace(&state, state.without(&removed), &mut kept)? {
                kept.removed = removed;
                state = after;
            } else {
                state = self.settle(state, &mut kept)?;
            }
        }
        self.store.clear()?;
        kept.list = state.list;
        Ok(kept)
    }

    fn see(&mut self) -> Result<Seen, GuardError> {
        let mut bad_record = None;
        if self.record.is_none() {
            self.record = match self.store.load()? {
                Some(Ok(record)) => Some(record).filter(|it| it.boot_id == self.boot_id),
                Some(Err(why)) => {
                    bad_record = Some(why);
                    None
                }
                None => None,
            };
        }
        let list = self.list.read()?;
        let Some(record) = &self.record else {
            let state = State { list, ours: PortSet::default() };
            return Ok(Seen { state, last: PortSet::default(), given_up: PortSet::default(), bad_record });
        };
        let ours = record.ours_in(&list, &self.boot_id);
        let given_up = record.ours.intersection(&list).minus(&ours);
        let last = record.before.as_ref().map_or(&record.list, |before| &before.list).clone();
        Ok(Seen { state: State { list, ours }, last, given_up, bad_record })
    }

    /// Replaces the list, if it still is the list of `state`. Returns the state after that.
    fn replace(&mut self, state: &State, new: State, kept: &mut Kept) -> Result<Option<State>, GuardError> {
        self.list.require_writable()?;
        self.announce(&new, state)?;
        match self.list.replace(&state.list, &new.list)? {
            true => self.settle(new, kept).map(Some),
            false => Ok(None),
        }
    }

    /// Records what the next write makes, before the write.
    fn announce(&mut self, after: &State, before: &State) -> Result<(), GuardError> {
        self.save(after, Some(Before { ours: before.ours.clone(), list: before.list.clone() }))
    }

    /// Reads the list again, and records its state. If it is not the expected list, another program wrote it.
    fn settle(&mut self, expected: State, kept: &mut Kept) -> Result<State, GuardError> {
        let list = self.list.read()?;
        let state = if list == expected.list {
            expected
        } else {
            kept.given_up = kept.given_up.union(&expected.ours.intersection(&list));
            State { list, ours: PortSet::default() }
        };
        self.save(&state, None)?;
        Ok(state)
    }

    fn save(&mut self, state: &State, before: Option<Before>) -> Result<(), GuardError> {
        let State { list, ours } = state.clone();
        let record = Record { boot_id: self.boot_id.clone(), ours, list, before };
        if self.record.as_ref() != Some(&record) {
            self.store.save(&record)?;
            self.record = Some(record);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, io, rc::Rc};

    use super::*;
    use crate::plan::tests::{ports, wanted};
    use proptest::prelude::*;

    /// A node: its list, the stored record, and what other programs do at which of the guard's calls.
    #[derive(Debug, Default)]
    struct Node {
        list: PortSet,
        stored: Option<Record>,
        /// The entries of other programs.
        others: PortSet,
        /// Calls of the guard until each event.
        events: Vec<(usize, Event)>,
        calls: usize,
    }

    #[derive(Clone, Debug)]
    enum Event {
        /// Another program adds to the list that it reads.
        Adds(PortSet),
        /// Another program writes its own list.
        Writes(PortSet),
        /// The guard is killed.
        Kill,
    }

    impl Node {
        /// A call of the guard: events that are due come first. An error is the end of the guard.
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

        /// Each entry that a program writes may be one that it wants. Nothing shows a write after which the list is one
        /// that the record expects.
        fn another_writes(&mut self, list: &PortSet) {
            let is_expected = self.stored.as_ref().is_some_and(|record| {
                record.list == *list || record.before.as_ref().is_some_and(|before| before.list == *list)
            });
            if self.list != *list && !is_expected {
                (self.list, self.others) = (list.clone(), list.clone());
            }
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

        fn add(&mut self, expected: &PortSet, ports: &PortSet) -> Result<bool, GuardError> {
            let mut node = self.0.borrow_mut();
            node.call()?;
            let is_expected = node.list == *expected;
            if is_expected {
                node.list = node.list.union(ports);
            }
            Ok(is_expected)
        }

        fn replace(&mut self, expected: &PortSet, new: &PortSet) -> Result<bool, GuardError> {
            let mut node = self.0.borrow_mut();
            node.call()?;
            let is_expected = node.list == *expected;
            if is_expected {
                node.list = new.clone();
            }
            Ok(is_expected)
        }
    }

    impl Store for FakeStore {
        fn load(&mut self) -> Result<Option<Result<Record, String>>, GuardError> {
            let mut node = self.0.borrow_mut();
            node.call()?;
            let stored = node.stored.clone();
            // Another program added the very ports that a killed guard was about to add: nothing shows this.
            if let Some(Record { ours, list, before: Some(before), .. }) = &stored
                && *list == node.list
            {
                node.others = node.others.minus(&ours.minus(&before.ours));
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
        Keeper::new(FakeList(node.clone()), FakeStore(node.clone()), "boot".to_owned())
    }

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
        let kept = keeper.keep(&wanted("1002", ""), BOUND, start).expect("kept");
        assert_eq!(kept.removed, ports("1003,1009"), "the first removal is due at once");
        let kept = keeper.keep(&wanted("", ""), BOUND, start).expect("kept");
        assert_eq!(kept.removed, ports(""), "the second one is not");
        let kept = keeper.keep(&wanted("", ""), BOUND, start + REMOVAL_PAUSE).expect("kept");
        assert_eq!((kept.removed, kept.list), (ports("1002"), ports("7,1001")));
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
        let kept = keeper.keep(&unread, BOUND, start + REMOVAL_PAUSE).expect("kept");
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
        let stale = Record { boot_id: "old".to_owned(), ours: ports("1002"), list: ports("1002"), before: None };
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

    fn some_ports() -> impl Strategy<Value = PortSet> {
        proptest::collection::btree_set(1000..1012u16, 0..6).prop_map(|all| all.into_iter().collect())
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![some_ports().prop_map(Event::Adds), some_ports().prop_map(Event::Writes), Just(Event::Kill)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Other programs write, and the guard is killed, at any call of the guard. Between a read and the write
        /// that follows at once, no program writes: the kernel has no compare-and-swap.
        #[test]
        fn no_interleaving_loses_an_entry_of_another_program_and_the_wanted_ports_are_reserved_in_the_end(
            at_first in some_ports(),
            events in proptest::collection::vec((0..80usize, event()), 0..12),
            runs in proptest::collection::vec((some_ports(), 0..100u64, any::<bool>()), 1..12),
            last in some_ports(),
        ) {
            let node: Shared = Rc::default();
            {
                let mut node = node.borrow_mut();
                (node.list, node.others, node.events) = (at_first.clone(), at_first, events);
            }
            let check = |step: &str| {
                let node = node.borrow();
                let gone = node.others.minus(&node.list);
                prop_assert!(gone.is_empty(), "{step}: {gone} of others are gone: {node:?}");
                Ok(())
            };
            let mut now = Instant::now();
            let mut guard = keeper(&node);
            for (ports, seconds, is_unread) in runs {
                now += Duration::from_secs(seconds);
                let mut all = wanted(&ports.to_string(), "");
                if is_unread {
                    all.unread.push(portreeve_facts::Gap::new(
                        portreeve_facts::Source::Pods, portreeve_facts::Why::Torn, "",
                    ));
                }
                let before = node.borrow().list.clone();
                let quiet = node.borrow().events.is_empty();
                match guard.keep(&all, BOUND, now) {
                    Ok(kept) => {
                        prop_assert!(!is_unread || !quiet || before.minus(&kept.list).is_empty(), "unread input shrank it");
                    }
                    Err(_) => guard = keeper(&node),
                }
                check("keep")?;
            }
            node.borrow_mut().events.clear();
            now += PUT_BACK_PAUSE + REMOVAL_PAUSE;
            let kept = guard.keep(&wanted(&last.to_string(), ""), BOUND, now).expect("nothing interferes");
            check("the last run")?;
            prop_assert!(last.minus(&kept.list).is_empty(), "{last} is reserved: {kept:?}");
            prop_assert!(kept.missing.is_empty());
            let others = node.borrow().others.clone();
            prop_assert!(kept.ours.intersection(&others).is_empty() , "{kept:?}, others {others}");
            guard.release().expect("nothing interferes");
            check("release")?;
        }

        /// If no other program ever writes, a release leaves the list as it was, whenever the guard was killed.
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
