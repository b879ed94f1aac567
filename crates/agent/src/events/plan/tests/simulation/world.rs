//! The agents, the server between them, and what goes wrong.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap},
    fmt,
};

use jiff::{SignedDuration, Timestamp};

use super::super::{finding, model::Server};
use crate::events::{Place, Plan, Reply, Request, Write, recorder::apart};
use portreeve_rules::{
    findings::{Finding, Severity},
    ledger::{Change, Clearance},
};

/// Times are milliseconds since the start.
pub(super) const SECOND: i64 = 1000;
pub(super) const MINUTE: i64 = 60 * SECOND;
pub(super) const HOUR: i64 = 60 * MINUTE;
/// How often it is looked at what the server has.
const SAMPLE: i64 = 10 * SECOND;

/// What goes wrong for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nobody answers.
    Down,
    /// What is written is done, and not answered.
    Deaf,
    /// Looks are answered, and nothing is written: its disk is full.
    Full,
    /// 403 to everything.
    Forbids,
    /// 429 to all but so many requests a second.
    Busy(u32),
    /// All agents start anew at once.
    Restarts,
}

enum What {
    /// The agent looks at its plan. Another number than its own is of a time that was given up.
    Wake(u64),
    Arrives(Write, u64),
    Answered(Write, Reply, u64),
    Raised,
    Cleared,
    Restarted,
    Vanished,
}

struct Agent {
    plan: Plan,
    place: Place,
    /// How wrong its clock is.
    clock: i64,
    is_hit: bool,
    is_busy: bool,
    wake: u64,
    /// How often it has started.
    life: u64,
}

/// A run.
pub(super) struct World {
    seed: u64,
    random: u64,
    now: i64,
    finding: Finding,
    agents: Vec<Agent>,
    server: Server,
    queue: BinaryHeap<Reverse<(i64, u64)>>,
    what: HashMap<u64, (usize, What)>,
    number: u64,
    faults: Vec<(Fault, i64, i64)>,
    /// The requests of each second: those that came to the server, and all.
    pub(super) seconds: BTreeMap<i64, u32>,
    attempts: BTreeMap<i64, u32>,
    numbers: BTreeMap<String, usize>,
    /// The nodes that have told, and those that have told their end.
    pub(super) told: BTreeSet<usize>,
    pub(super) ended: BTreeSet<usize>,
    first: Option<i64>,
    /// How many nodes are hit.
    hit: usize,
    /// The most nodes that told at a time.
    pub(super) most_tellers: usize,
    /// Ends that were written of nodes that are still hit.
    pub(super) untrue: usize,
    /// The most Events that the server kept at a time.
    pub(super) most_events: usize,
    /// For how long nodes were hit of which none told: now, and at most.
    silence: i64,
    pub(super) longest_silence: i64,
    /// When the last look was at both.
    sampled: i64,
}

impl World {
    pub(super) fn new(nodes: usize, seed: u64) -> Self {
        let mut world = Self {
            seed,
            random: seed,
            now: 0,
            finding: finding(1, Severity::Critical),
            agents: Vec::with_capacity(nodes),
            server: Server::that_forgets(),
            queue: BinaryHeap::new(),
            what: HashMap::new(),
            number: 0,
            faults: Vec::new(),
            seconds: BTreeMap::new(),
            attempts: BTreeMap::new(),
            numbers: BTreeMap::new(),
            told: BTreeSet::new(),
            ended: BTreeSet::new(),
            first: None,
            hit: 0,
            most_tellers: 0,
            untrue: 0,
            most_events: 0,
            silence: 0,
            longest_silence: 0,
            sampled: 0,
        };
        for number in 0..nodes {
            let node = format!("node-{seed}-{number}");
            world.numbers.insert(node.clone(), number);
            let place = Place { node, node_uid: None, kubernetes_uid: None, nodes: Some(nodes), agents: None };
            let clock = world.chance(10 * MINUTE) - 5 * MINUTE;
            let plan = Plan::default();
            world.agents.push(Agent { plan, place, clock, is_hit: false, is_busy: false, wake: 0, life: 0 });
        }
        world
    }

    /// Every second agent, or each of them, has not read how many Nodes there are.
    pub(super) fn leave_nodes_unread(&mut self, every: usize) {
        self.agents.iter_mut().step_by(every).for_each(|agent| agent.place.nodes = None);
    }

    pub(super) fn nodes(&self) -> usize {
        self.agents.len()
    }

    pub(super) fn now(&self) -> i64 {
        self.now
    }

    /// A number from 0 to `most`: splitmix64.
    pub(super) fn chance(&mut self, most: i64) -> i64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) % (most.unsigned_abs() + 1)) as i64
    }

    pub(super) fn raise(&mut self, at: i64, node: usize) {
        self.push(at, node, What::Raised);
    }

    pub(super) fn clear(&mut self, at: i64, node: usize) {
        self.push(at, node, What::Cleared);
    }

    /// The node is repaired and restarts, or is removed: what its agent knew is lost, and it is not hit any more.
    pub(super) fn vanish(&mut self, at: i64, node: usize) {
        self.push(at, node, What::Vanished);
    }

    /// All agents that hold a voice, by what the server has.
    pub(super) fn holders(&self) -> Vec<usize> {
        let marks = self.server.openings().filter_map(|(_, kept)| kept.mark.as_ref());
        marks.filter(|mark| !mark.over).map(|mark| self.numbers[&mark.node]).collect()
    }

    pub(super) fn fault(&mut self, fault: Fault, from: i64, until: i64) {
        self.faults.push((fault, from, until));
        if fault == Fault::Restarts {
            (0..self.nodes()).for_each(|node| self.push(from, node, What::Restarted));
        }
    }

    pub(super) fn run_until(&mut self, end: i64) {
        while let Some(Reverse((at, number))) = self.queue.peek().copied()
            && at <= end
        {
            self.queue.pop();
            while self.sampled + SAMPLE <= at {
                self.sampled += SAMPLE;
                self.sample();
            }
            self.now = at;
            if let Some((node, what)) = self.what.remove(&number) {
                self.happen(node, what);
            }
        }
        self.now = end;
        self.server.expire(moment(end));
    }

    fn sample(&mut self) {
        self.server.expire(moment(self.sampled));
        self.most_events = self.most_events.max(self.server.events.len());
        let is_silent = self.hit > 0 && !self.telling().iter().any(|node| self.agents[*node].is_hit);
        self.silence = if is_silent { self.silence + SAMPLE } else { 0 };
        self.longest_silence = self.longest_silence.max(self.silence);
    }

    /// The requests of the busiest second.
    pub(super) fn busiest(&self) -> u32 {
        self.seconds.values().copied().max().unwrap_or(0)
    }

    /// The most attempts in a second, of those that nobody answers too.
    pub(super) fn most_attempts(&self) -> u32 {
        self.attempts.values().copied().max().unwrap_or(0)
    }

    pub(super) fn requests(&self) -> u32 {
        self.seconds.values().sum()
    }

    /// When the first Event was there.
    pub(super) fn first_told(&self) -> i64 {
        self.first.unwrap_or(i64::MAX)
    }

    /// How many nodes there are of which an Event says that they are affected.
    pub(super) fn tellers(&self) -> usize {
        self.telling().len()
    }

    /// These nodes. An end that is older than its Event was told again is none.
    fn telling(&self) -> BTreeSet<usize> {
        let tells = self.server.openings().filter(|(name, kept)| match &kept.mark {
            Some(mark) => !mark.over && Some(&mark.node) == kept.node.as_ref(),
            None => {
                let end = self.server.events.get(&format!("{name}.resolved"));
                end.is_none_or(|end| end.touched < kept.touched)
            }
        });
        tells.filter_map(|(_, kept)| self.numbers.get(kept.node.as_ref()?).copied()).collect()
    }

    pub(super) fn openings(&self) -> usize {
        self.server.openings().count()
    }

    fn push(&mut self, at: i64, node: usize, what: What) {
        self.number += 1;
        self.queue.push(Reverse((at, self.number)));
        self.what.insert(self.number, (node, what));
    }

    fn happen(&mut self, node: usize, what: What) {
        let local = moment(self.now + self.agents[node].clock);
        match what {
            What::Raised => {
                self.hit += usize::from(!std::mem::replace(&mut self.agents[node].is_hit, true));
                let change = Change::Raised(self.finding.clone());
                self.offer(node, local, &change);
            }
            What::Cleared => {
                self.hit -= usize::from(std::mem::replace(&mut self.agents[node].is_hit, false));
                let change = Change::Cleared(self.finding.clone(), Clearance::Repaired);
                self.offer(node, local, &change);
            }
            What::Restarted => {
                let agent = &mut self.agents[node];
                (agent.plan, agent.is_busy, agent.life) = (Plan::default(), false, agent.life + 1);
                if agent.is_hit {
                    // It has to see it in two looks.
                    let at = self.now + self.chance(15 * SECOND);
                    self.push(at, node, What::Raised);
                }
            }
            What::Vanished => {
                let agent = &mut self.agents[node];
                self.hit -= usize::from(std::mem::replace(&mut agent.is_hit, false));
                (agent.plan, agent.is_busy, agent.life) = (Plan::default(), false, agent.life + 1);
            }
            What::Wake(wake) if wake == self.agents[node].wake => self.work(node, local),
            What::Wake(_) => {}
            What::Arrives(write, life) => {
                let reply = self.serve(node, &write);
                let at = self.now + self.chance(10);
                self.push(at, node, What::Answered(write, reply, life));
            }
            What::Answered(write, reply, life) if life == self.agents[node].life => {
                let chance = self.chance(1000) as f64 / 1000.0;
                let pause = match &reply {
                    Reply::Unavailable(wanted) => apart(*wanted, chance).as_millis() as i64,
                    _ => 0,
                };
                let agent = &mut self.agents[node];
                agent.plan.answer(local, &write, reply);
                (agent.is_busy, agent.wake) = (false, agent.wake + 1);
                let wake = agent.wake;
                self.push(self.now + pause, node, What::Wake(wake));
            }
            What::Answered(..) => {}
        }
    }

    fn offer(&mut self, node: usize, local: Timestamp, change: &Change) {
        let agent = &mut self.agents[node];
        agent.plan.offer(local, change, &agent.place);
        if !agent.is_busy {
            self.work(node, local);
        }
    }

    /// What the recorder's loop does.
    fn work(&mut self, node: usize, local: Timestamp) {
        let agent = &mut self.agents[node];
        agent.wake += 1;
        if let Some(write) = agent.plan.next(local) {
            agent.is_busy = true;
            let life = agent.life;
            let at = self.now + 1 + self.chance(10);
            return self.push(at, node, What::Arrives(write, life));
        }
        if let Some(due) = agent.plan.due(local) {
            let wake = agent.wake;
            let wait = due.duration_since(local).as_millis().max(10) as i64;
            self.push(self.now + wait, node, What::Wake(wake));
        }
    }

    fn serve(&mut self, node: usize, write: &Write) -> Reply {
        let now = self.now;
        let fault = self.faults.iter().find(|(_, from, until)| (*from..*until).contains(&now)).map(|it| it.0);
        *self.attempts.entry(now / SECOND).or_default() += 1;
        if fault == Some(Fault::Down) {
            return Reply::Unavailable(None);
        }
        let second = self.seconds.entry(now / SECOND).or_default();
        *second += 1;
        match fault {
            Some(Fault::Busy(most)) if *second > most => {
                return Reply::Unavailable(Some(SignedDuration::from_secs(1)));
            }
            Some(Fault::Forbids) => return Reply::Forbidden,
            Some(Fault::Full) if !write.request.is_read() => return Reply::Unavailable(None),
            Some(Fault::Busy(_) | Fault::Deaf | Fault::Down | Fault::Full | Fault::Restarts) | None => {}
        }
        let reply = self.server.reply(moment(now), write);
        if reply == Reply::Written {
            self.note(node, write);
        }
        let is_lost = fault == Some(Fault::Deaf) && !write.request.is_read();
        if is_lost { Reply::Unavailable(None) } else { reply }
    }

    /// Looks at what was written.
    fn note(&mut self, node: usize, write: &Write) {
        if write.name.ends_with(".resolved") {
            self.untrue += usize::from(self.agents[node].is_hit);
            self.ended.insert(node);
        } else if matches!(write.request, Request::Create(_)) {
            self.first.get_or_insert(self.now);
            self.told.insert(node);
        }
        self.most_tellers = self.most_tellers.max(self.tellers());
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nodes, seed, now) = (self.nodes(), self.seed, self.now as f64 / 1000.0);
        writeln!(f, "{nodes} nodes, seed {seed}, at {now} s, {} requests so far", self.requests())?;
        for (name, kept) in self.server.events.iter().take(20) {
            writeln!(f, "  {name}: {:?} {:?} {:?}", kept.node, kept.mark, kept.series)?;
        }
        Ok(())
    }
}

fn moment(at: i64) -> Timestamp {
    Timestamp::from_millisecond(1_700_000_000_000 + at).expect("a time")
}
