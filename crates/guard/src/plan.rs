//! Decides which entries the guard adds and removes.

use std::collections::BTreeMap;

use super::{Reason, Wanted};
use portreeve_facts::{PortRange, PortSet};

/// The limit for reservations: a number of ports must stay free for outgoing connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// `net.ipv4.ip_local_port_range`. The kernel chooses the ports of outgoing connections from this range.
    pub range: PortRange,
    /// The smallest number of ports in the range that must stay free. At least half of the range always stays free.
    pub leave: u32,
}

impl Bound {
    /// The default of `leave`.
    pub const LEAVE: u32 = 4096;

    /// The largest number of reserved ports in the range. Ports of all programs count.
    pub fn most(self) -> u32 {
        let size = self.range.size();
        size.saturating_sub(self.leave.max(size.div_ceil(2)))
    }
}

/// The next change to the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The wanted ports that are not in the list.
    pub add: PortSet,
    /// The guard's ports to remove: they are no longer wanted, or they exceed the bound.
    pub remove: PortSet,
    /// Wanted ports for which the bound leaves no space.
    pub left_out: BTreeMap<u16, Reason>,
    /// The wanted ports that are in the list after this change, with their reasons.
    pub reserved: BTreeMap<u16, Reason>,
}

impl Plan {
    /// The change that a run would make now if every removal was due.
    pub fn preview(wanted: &Wanted, bound: Bound, list: &PortSet, ours: &PortSet) -> Self {
        let removable = if wanted.unread.is_empty() { ours.clone() } else { PortSet::default() };
        Self::of(wanted, bound, list, &removable)
    }

    /// The change for these wanted ports. `list` is the kernel's list. `removable` contains the ports of the guard that
    /// may be removed.
    pub(super) fn of(wanted: &Wanted, bound: Bound, list: &PortSet, removable: &PortSet) -> Self {
        let range = PortSet::from(bound.range);
        let fixed = list.minus(removable);
        let mut room = bound.most().saturating_sub(fixed.intersection(&range).len());
        let mut in_range: Vec<_> = wanted.ports.iter().filter(|(number, _)| bound.range.contains(**number)).collect();
        // Within a class, ports that are already in the list come first, so that they stay reserved.
        in_range.sort_by_key(|(number, reason)| (reason.class, !list.contains(**number), **number));
        let (mut reserved, mut left_out) = (BTreeMap::new(), BTreeMap::new());
        for (number, reason) in in_range {
            let has_room = fixed.contains(*number) || room > 0;
            if has_room && !fixed.contains(*number) {
                room -= 1;
            }
            if has_room { &mut reserved } else { &mut left_out }.insert(*number, reason.clone());
        }
        let kept: PortSet = reserved.keys().copied().collect();
        let remove = removable.minus(&kept);
        Self { add: kept.minus(list), remove, left_out, reserved }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::Class;
    use proptest::prelude::*;

    pub(crate) fn ports(text: &str) -> PortSet {
        text.parse().expect("ports")
    }

    pub(crate) fn wanted(node_ports: &str, daemons: &str) -> Wanted {
        let reason = |class| Reason { class, whose: "default/web".to_owned() };
        let of = |text: &str, class| ports(text).iter().map(|it| (it, reason(class))).collect::<Vec<_>>();
        let all = of(daemons, Class::Daemon).into_iter().chain(of(node_ports, Class::NodePort));
        Wanted { ports: all.collect(), unread: Vec::new() }
    }

    fn bound(range: &str, leave: u32) -> Bound {
        Bound { range: range.parse().expect("a range"), leave }
    }

    #[test]
    fn half_of_the_range_stays_and_more_if_that_is_asked_for() {
        assert_eq!(bound("1024-65535", 4096).most(), 32256);
        assert_eq!(bound("32768-60999", 4096).most(), 14116);
        assert_eq!(bound("32768-36863", 4096).most(), 0);
        assert_eq!(bound("30000-39999", 9000).most(), 1000);
        assert_eq!(bound("30000-30000", 0).most(), 0);
        assert_eq!(bound("1-6000", Bound::LEAVE).most(), 6000 - 4096, "so many stay by default");
    }

    #[test]
    fn ports_outside_the_range_need_no_reservation_and_others_entries_stay() {
        let plan = Plan::of(&wanted("30080,40080", ""), bound("32768-60999", 4096), &ports("2703"), &ports(""));
        assert_eq!((plan.add, plan.remove), (ports("40080"), ports("")));
    }

    #[test]
    fn ours_leave_when_they_are_no_longer_wanted_and_all_was_read() {
        let of = |may_remove| {
            let (list, ours) = (ports("2703,40080-40082"), ports(if may_remove { "40080-40081" } else { "" }));
            Plan::of(&wanted("40080", ""), bound("32768-60999", 4096), &list, &ours)
        };
        assert_eq!(of(true).remove, ports("40081"), "40082 is of another program");
        assert_eq!(of(false).remove, ports(""));
    }

    #[test]
    fn node_ports_come_first_and_what_does_not_fit_is_named() {
        let of = |list: &str, ours: &str| {
            Plan::of(&wanted("40005-40009", "40000-40004"), bound("40000-40015", 8), &ports(list), &ports(ours))
        };
        let plan = of("", "");
        assert_eq!(plan.add, ports("40000-40002,40005-40009"));
        assert_eq!(plan.left_out.keys().copied().collect::<Vec<_>>(), [40003, 40004]);
        let plan = of("40003-40004", "40003-40004");
        assert_eq!((plan.add, plan.remove), (ports("40000,40005-40009"), ports("")), "what is reserved stays");
        let plan = of("40000-40004", "40000-40004");
        assert_eq!((plan.add, plan.remove), (ports("40005-40009"), ports("40003-40004")), "NodePorts win");
        let plan = of("40010-40015", "");
        assert_eq!(plan.add, ports("40005-40006"), "entries of other programs are included");
    }

    proptest! {
        #[test]
        fn never_more_than_the_bound_and_never_an_entry_of_another_program(
            all in proptest::collection::btree_map(1..60u16, 0..5usize, 0..60),
            list in proptest::collection::btree_set(1..60u16, 0..60),
            mine in proptest::collection::btree_set(1..60u16, 0..60),
            leave in 0..40u32,
            may_remove: bool,
        ) {
            let reason = |class: usize| Reason { class: Class::ALL[class], whose: String::new() };
            let all = all.into_iter().map(|(number, class)| (number, reason(class)));
            let wanted = Wanted { ports: all.collect(), unread: Vec::new() };
            let list: PortSet = list.into_iter().collect();
            let ours = list.intersection(&mine.into_iter().collect());
            let (bound, none) = (bound("10-49", leave), PortSet::default());
            let plan = Plan::of(&wanted, bound, &list, if may_remove { &ours } else { &none });
            let after = list.union(&plan.add).minus(&plan.remove);
            let in_range = |set: &PortSet| set.intersection(&bound.range.into()).len();
            let others = list.minus(&ours);
            prop_assert_eq!(others.minus(&after), PortSet::default());
            let fixed = if may_remove { &others } else { &list };
            prop_assert!(in_range(&after) <= bound.most().max(in_range(fixed)));
            prop_assert!(may_remove || plan.remove.is_empty());
            let named: PortSet = plan.reserved.keys().chain(plan.left_out.keys()).copied().collect();
            let numbers: PortSet = wanted.ports.keys().copied().collect();
            prop_assert_eq!(named, numbers.intersection(&bound.range.into()));
            let reserved: PortSet = plan.reserved.keys().copied().collect();
            prop_assert_eq!(reserved.minus(&after), PortSet::default());
        }
    }
}
