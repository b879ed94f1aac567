//! How many reviews there may be a second, and who gets them: a part is for readers who were let in lately, so that no
//! flood of strangers keeps them out; among strangers every address has its turn.
//!
//! Pure: the time is an argument.

use std::{
    collections::{VecDeque, hash_map::RandomState},
    hash::BuildHasher as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::{Duration, Instant},
};

use super::bucket::Bucket;

/// Reviews a second of tokens that were allowed lately.
const OF_KNOWN_TOKENS: f64 = 1.0;
/// Of other tokens, from addresses from which one was.
const OF_KNOWN_ADDRESSES: f64 = 1.0;
/// Of all the others.
const OF_STRANGERS: f64 = 2.0;
/// Of these, for one address.
const OF_ONE_STRANGER: f64 = 1.0;
/// How many seconds' reviews may come at once.
const BURST: Duration = Duration::from_secs(3);
/// What one review takes of a rate.
const ONE: f64 = 1.0;
/// How long a reader who was let in is known. A token lasts ten minutes; who asks by hand comes again within the hour.
const LATELY: Duration = Duration::from_secs(3600);
/// How many known addresses, and known tokens, are remembered. One more takes the place of the oldest.
const KNOWN: usize = 128;
/// How many addresses of strangers are told apart. One more takes the place of the one that was first.
const STRANGERS: usize = 64;
/// How many addresses may wait for their turn.
const WAITING: usize = 256;
/// Who does not ask again within this time waits no more.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether a reader was let in lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rank {
    /// Its token was.
    KnownToken,
    /// Another one from its address was.
    KnownAddress,
    /// Neither was.
    Stranger,
}

/// Two numbers in place of a token, which nobody else can compute.
type Mark = (u64, u64);

/// The rates of reviews.
pub(super) struct ReviewRates {
    of_known_tokens: Bucket,
    of_known_addresses: Bucket,
    of_strangers: Bucket,
    strangers: VecDeque<(IpAddr, Bucket)>,
    /// Strangers in the order of their turns, and when they asked last.
    waiting: VecDeque<(IpAddr, Instant)>,
    hashers: (RandomState, RandomState),
    tokens: VecDeque<(Mark, Instant)>,
    addresses: VecDeque<(IpAddr, Instant)>,
}

impl ReviewRates {
    pub(super) fn new(now: Instant) -> Self {
        let rate = |reviews| Bucket::new(reviews, BURST, now);
        Self {
            of_known_tokens: rate(OF_KNOWN_TOKENS),
            of_known_addresses: rate(OF_KNOWN_ADDRESSES),
            of_strangers: rate(OF_STRANGERS),
            strangers: VecDeque::new(),
            waiting: VecDeque::new(),
            hashers: Default::default(),
            tokens: VecDeque::new(),
            addresses: VecDeque::new(),
        }
    }

    /// Whether this reader was let in lately.
    pub(super) fn rank(&self, client: IpAddr, token: &str, now: Instant) -> Rank {
        let (by_token, by_address) = self.known(client, token, now);
        match (by_token, by_address) {
            (true, _) => Rank::KnownToken,
            (false, true) => Rank::KnownAddress,
            (false, false) => Rank::Stranger,
        }
    }

    /// Takes one review, if there is one for this reader.
    pub(super) fn take(&mut self, client: IpAddr, token: &str, now: Instant) -> bool {
        let (by_token, by_address) = self.known(client, token, now);
        let reserves = [(by_token, &mut self.of_known_tokens), (by_address, &mut self.of_known_addresses)];
        let reserve =
            reserves.into_iter().find_map(|(is_for_it, rate)| (is_for_it && is_there(rate, now)).then_some(rate));
        match reserve {
            Some(rate) => {
                rate.charge(ONE, now);
                true
            }
            None => self.take_turn(network(client), now),
        }
    }

    /// Remembers a reader who was let in.
    pub(super) fn allowed(&mut self, client: IpAddr, token: &str, now: Instant) {
        remember(&mut self.addresses, network(client), now);
        let mark = self.mark(token);
        remember(&mut self.tokens, mark, now);
    }

    /// Whether the token is known, and whether the address is.
    fn known(&self, client: IpAddr, token: &str, now: Instant) -> (bool, bool) {
        let (mark, client) = (self.mark(token), network(client));
        let is_late = |at: &Instant| now.saturating_duration_since(*at) < LATELY;
        let by_token = self.tokens.iter().any(|(known, at)| *known == mark && is_late(at));
        (by_token, self.addresses.iter().any(|(known, at)| *known == client && is_late(at)))
    }

    /// A stranger's review: those who wait longer come first, as long as they ask again.
    fn take_turn(&mut self, client: IpAddr, now: Instant) -> bool {
        if !self.strangers.iter().any(|(known, _)| *known == client) {
            if self.strangers.len() == STRANGERS {
                self.strangers.pop_front();
            }
            self.strangers.push_back((client, Bucket::new(OF_ONE_STRANGER, BURST, now)));
        }
        let own = self.strangers.iter_mut().find(|(known, _)| *known == client).map(|(_, budget)| budget);
        let Some(own) = own.and_then(|own| is_there(own, now).then_some(own)) else { return false };
        self.waiting.retain(|(_, asked)| now.saturating_duration_since(*asked) < PATIENCE);
        let place = self.waiting.iter().position(|(waiting, _)| *waiting == client);
        let before = place.unwrap_or(self.waiting.len());
        let mut left = self.of_strangers.clone();
        let is_its_turn = (0..=before).all(|_| {
            let one = is_there(&mut left, now);
            left.charge(ONE, now);
            one
        });
        match (is_its_turn, place) {
            (true, place) => {
                place.and_then(|place| self.waiting.remove(place));
                own.charge(ONE, now);
                self.of_strangers.charge(ONE, now);
            }
            (false, Some(place)) => self.waiting[place].1 = now,
            (false, None) if self.waiting.len() < WAITING => self.waiting.push_back((client, now)),
            (false, None) => {}
        }
        is_its_turn
    }

    fn mark(&self, token: &str) -> Mark {
        (self.hashers.0.hash_one(token), self.hashers.1.hash_one(token))
    }
}

fn is_there(rate: &mut Bucket, now: Instant) -> bool {
    rate.wait(now).is_zero()
}

/// The newest is last.
fn remember<T: PartialEq>(known: &mut VecDeque<(T, Instant)>, one: T, now: Instant) {
    known.retain(|(other, _)| *other != one);
    if known.len() == KNOWN {
        known.pop_front();
    }
    known.push_back((one, now));
}

/// Who has one address of IPv6 has those of its /64. Any process on the node has all of 127.0.0.0/8.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(address) if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    /// A flood from three addresses, a thousand tokens each in every second of so many. Between them, `reader` may ask.
    fn flood(
        rates: &mut ReviewRates,
        begun: Instant,
        seconds: u32,
        mut reader: impl FnMut(&mut ReviewRates, Instant),
    ) -> usize {
        let mut reviews = 0;
        for tick in 0..100 * seconds {
            let now = begun + tick * Duration::from_millis(10);
            let junk = (0..10).flat_map(|_| 1..=3);
            reviews += junk.filter(|number| rates.take(client(*number), &format!("{number}.{tick}"), now)).count();
            reader(rates, now);
        }
        reviews
    }

    #[test]
    fn a_flood_gets_a_few_reviews_a_second_and_one_client_leaves_some_to_others() {
        let begun = Instant::now();
        let mut rates = ReviewRates::new(begun);
        let of_one = (0..1000).filter(|_| rates.take(client(1), "junk", begun)).count();
        assert!((1..=4).contains(&of_one), "{of_one}");
        assert!(rates.take(client(2), "junk", begun), "another client's turn");
        let of_three = flood(&mut rates, begun, 60, |_, _| {});
        assert!((110..=130).contains(&of_three), "{of_three}");
        let later = begun + Duration::from_secs(60);
        let many = (0..60 * 256).filter(|number: &u64| {
            let [.., address] = number.to_be_bytes();
            rates.take(client(address), "junk", later + Duration::from_secs(number / 256))
        });
        let many = many.count();
        assert!((100..=130).contains(&many), "{many}");
        assert!(rates.strangers.len() <= STRANGERS && rates.waiting.len() <= WAITING);
    }

    #[test]
    fn a_reader_who_was_let_in_lately_always_gets_through_a_flood() {
        let begun = Instant::now();
        let mut rates = ReviewRates::new(begun);
        rates.allowed(client(9), "good", begun);
        let (mut asked, mut refused) = (0, 0);
        flood(&mut rates, begun, 120, |rates, now| {
            // Every five seconds with two new tokens, as a person with two nodes; and a program with the same token elsewhere.
            if (now - begun).as_millis().is_multiple_of(5000) {
                let good = [(9, "new"), (9, "newer"), (8, "good")]
                    .map(|(number, token)| rates.take(client(number), token, now));
                asked += good.len();
                refused += good.iter().filter(|good| !**good).count();
            }
        });
        assert_eq!((asked, refused), (72, 0));
    }

    #[test]
    fn a_flood_from_the_address_of_a_known_reader_leaves_room_for_the_known_token() {
        let begun = Instant::now();
        let mut rates = ReviewRates::new(begun);
        rates.allowed(client(1), "good", begun);
        let mut refused = 0;
        flood(&mut rates, begun, 60, |rates, now| {
            if (now - begun).as_millis().is_multiple_of(2000) {
                refused += usize::from(!rates.take(client(1), "good", now));
            }
        });
        assert_eq!(refused, 0);
    }

    #[test]
    fn a_new_reader_gets_through_a_flood_soon() {
        let begun = Instant::now();
        let mut rates = ReviewRates::new(begun);
        let first = begun + Duration::from_secs(20);
        let mut let_in = None;
        flood(&mut rates, begun, 40, |rates, now| {
            // It comes again after a second, as it is told.
            if now >= first && (now - first).as_millis().is_multiple_of(1000) && let_in.is_none() {
                let_in = rates.take(client(9), "new", now).then_some(now - first);
            }
        });
        assert!(let_in.is_some_and(|took| took <= Duration::from_secs(3)), "{let_in:?}");
    }

    #[test]
    fn a_process_on_the_node_that_asks_from_all_of_loopback_keeps_no_new_reader_out() {
        let begun = Instant::now();
        let mut rates = ReviewRates::new(begun);
        let mut let_in = None;
        for tick in 0..6000_u32 {
            let now = begun + tick * Duration::from_millis(10);
            let [.., high, low] = tick.to_be_bytes();
            rates.take(IpAddr::from([127, 0, high % 2, low]), "junk", now);
            if tick >= 2000 && tick.is_multiple_of(100) && let_in.is_none() {
                let_in = rates.take(client(9), "new", now).then_some(now - begun);
            }
        }
        assert!(let_in.is_some_and(|at| at <= Duration::from_secs(23)), "{let_in:?}");
    }

    #[test]
    fn a_known_reader_is_forgotten_after_a_while_and_known_ones_are_few() {
        let begun = Instant::now();
        let mut rates = ReviewRates::new(begun);
        rates.allowed(client(1), "good", begun);
        let rank = |rates: &ReviewRates, number, token, after| rates.rank(client(number), token, begun + after);
        assert_eq!(rank(&rates, 1, "new", Duration::ZERO), Rank::KnownAddress);
        assert_eq!(rank(&rates, 2, "good", Duration::ZERO), Rank::KnownToken);
        assert_eq!(rank(&rates, 2, "new", Duration::ZERO), Rank::Stranger);
        assert_eq!(rank(&rates, 1, "good", LATELY), Rank::Stranger);
        (0..=255).for_each(|number| rates.allowed(client(number), &number.to_string(), begun));
        assert_eq!((rates.addresses.len(), rates.tokens.len()), (KNOWN, KNOWN));
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one_client() {
        let of = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_eq!(of("::ffff:192.0.2.1"), client(1));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("127.0.0.1"), of("127.9.8.7"));
    }
}
