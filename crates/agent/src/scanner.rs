//! The only thread that reads the node.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use tokio::sync::oneshot;

use portreeve_facts::{KernelFacts, NodeQuery, text};
use portreeve_kernel::{Took, thread_cpu_time};

#[derive(Debug)]
pub(super) struct Scanner {
    orders: Sender<Order>,
    busy: Busy,
}

/// The time at which the unfinished order was sent. `None` if the scanner is idle.
pub(super) type Busy = Arc<Mutex<Option<Instant>>>;

pub(super) trait ReadNode: FnMut(&NodeQuery) -> (KernelFacts, Took) + Send + 'static {}

impl<F: FnMut(&NodeQuery) -> (KernelFacts, Took) + Send + 'static> ReadNode for F {}

#[derive(Debug)]
pub(super) struct Scanned {
    /// The facts. If a reader panicked, the value is the message of the panic.
    pub(super) seen: Result<(KernelFacts, Took), String>,
    /// The processor time that the reading took.
    pub(super) cost: Duration,
}

struct Order {
    wanted: NodeQuery,
    reply: oneshot::Sender<Scanned>,
}

impl Scanner {
    pub(super) fn start(mut read: impl ReadNode) -> anyhow::Result<Self> {
        let (orders, ordered) = channel();
        let busy = Busy::default();
        let thread = thread::Builder::new().name("scanner".to_owned());
        thread.spawn(move || work(&mut read, &ordered)).context("starting the scanner")?;
        Ok(Self { orders, busy })
    }

    pub(super) fn busy(&self) -> Busy {
        Arc::clone(&self.busy)
    }

    pub(super) async fn scan(&self, wanted: NodeQuery) -> Scanned {
        let (reply, replied) = oneshot::channel();
        // The time is set before the order is sent, so that a thread that never begins counts as stuck.
        *self.busy.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        // The scanner's thread catches each panic of a reader, and ends only when this sender is dropped. So the thread
        // always receives the order.
        self.orders.send(Order { wanted, reply }).expect("the scanner waits for orders");
        let scanned = replied.await.expect("the scanner answers every order");
        // The time is cleared after the answer. If a thread stops before its answer, the time stays, and the thread
        // counts as stuck.
        *self.busy.lock().unwrap_or_else(PoisonError::into_inner) = None;
        scanned
    }
}

fn work(read: &mut impl ReadNode, orders: &Receiver<Order>) {
    for Order { wanted, reply } in orders {
        let spent = thread_cpu_time();
        let seen = catch_unwind(AssertUnwindSafe(|| read(&wanted))).map_err(|panic| panic_message(panic.as_ref()));
        let scanned = Scanned { seen, cost: thread_cpu_time().saturating_sub(spent) };
        // When the agent stops, it does not wait for the answer.
        drop(reply.send(scanned));
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let message = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text::clean(message.unwrap_or("no message"), 1024)
}
