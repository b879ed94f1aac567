//! The answers of kube-proxy on loopback: its mode, its settings, its metrics, and the process that answers.

pub mod configz;
pub mod metrics;

use std::{net::SocketAddr, path::Path};

use self::{configz::settings, metrics::measures};
use super::{
    http::{self, Answer},
    process::fds_of,
    stopwatch::Stopwatch,
};
use portreeve_facts::{
    Family, Gap, Holder, Learned, Mode, Owner, Protocol, ProxyConfig, ProxyFacts, ProxyMetrics, Reading, Socket,
    Source, Why,
};

/// The greatest length of an answer, in bytes: `SHORT` for `/proxyMode` and `/configz`, `METRICS` for `/metrics`. A
/// busy kube-proxy has about 200 KiB of metrics.
const SHORT: usize = 64 * 1024;
const METRICS: usize = 1024 * 1024;
const MOST_PLACES: usize = 4;

/// The answers of kube-proxy, and the address at which it answered.
pub struct Answers {
    /// The address that answered with a mode. `None` without a mode: the listener may be another program.
    pub place: Option<SocketAddr>,
    pub(crate) mode: Reading<Learned<Mode>>,
    pub(crate) config: Reading<ProxyConfig>,
    pub(crate) metrics: Reading<ProxyMetrics>,
}

impl Answers {
    /// No answers. Each fact is unread for the reason `gap`, with the fact's own source.
    pub fn none(gap: &Gap) -> Self {
        let of = |source| Gap { source, ..gap.clone() };
        Self {
            place: None,
            mode: Reading::Gap(of(Source::ProxyMode)),
            config: Reading::Gap(of(Source::ProxyConfig)),
            metrics: Reading::Gap(of(Source::ProxyMetrics)),
        }
    }
}

/// The addresses at which kube-proxy may be queried, or the reason why there is none. On a node without kube-proxy, any
/// process can listen on kube-proxy's address, and the answers of the process would change findings. kube-proxy runs as
/// root. So an address is queried only if all its listeners belong to root. The kernel translates the uids of listeners
/// into the user namespace of the reader.
///
/// # Errors
/// A `Gap` of [`Source::ProxyMode`] if no process listens, if a listener does not belong to root, or if listeners were
/// not read.
pub fn believed(places: &[SocketAddr], listeners: &Reading<Vec<Socket>>) -> Result<Vec<SocketAddr>, Gap> {
    let listeners = listeners.get().map_err(|gap| Gap { source: Source::ProxyMode, ..gap })?;
    let (mut trusted, mut doubted) = of_root(places, listeners);
    if trusted.is_empty() && doubted.is_none() && places.iter().all(|place| place.ip().is_loopback()) {
        (trusted, doubted) = of_root(&elsewhere(places, listeners), listeners);
    }
    if !trusted.is_empty() {
        return Ok(trusted);
    }
    Err(doubted.unwrap_or_else(|| {
        let places = places.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        Gap::new(Source::ProxyMode, Why::Unreachable, format!("no process listens on {places}"))
    }))
}

/// The addresses whose listeners all belong to root, and the reason why another address is left out.
fn of_root(places: &[SocketAddr], listeners: &[Socket]) -> (Vec<SocketAddr>, Option<Gap>) {
    let (mut trusted, mut doubted) = (Vec::new(), None);
    for place in places {
        let holders: Vec<_> = listeners.iter().filter(|socket| serves(socket, *place)).collect();
        match holders.iter().find(|socket| !socket.is_of_root()) {
            Some(stranger) => doubted = doubted.or_else(|| Some(of_stranger(*place, stranger))),
            None if holders.is_empty() => {}
            None => trusted.push(*place),
        }
    }
    (trusted, doubted)
}

/// Other addresses of this node, at which root listens on a port of `places`. `metricsBindAddress` of kube-proxy may be
/// one of the returned addresses.
fn elsewhere(places: &[SocketAddr], listeners: &[Socket]) -> Vec<SocketAddr> {
    let ports: Vec<u16> = places.iter().map(SocketAddr::port).collect();
    let listens = |socket: &&Socket| {
        socket.protocol == Protocol::Tcp && socket.is_of_root() && ports.contains(&socket.local_port)
    };
    let all = listeners.iter().filter(listens).filter(|socket| !socket.local.is_unspecified());
    all.map(|socket| SocketAddr::new(socket.local.to_canonical(), socket.local_port)).take(MOST_PLACES).collect()
}

fn of_stranger(place: SocketAddr, stranger: &Socket) -> Gap {
    let process = match &stranger.owner {
        Owner::Held(Holder { process: Reading::Seen(process), .. }) => format!(", process {}", process.command),
        _ => String::new(),
    };
    let detail = format!(
        "uid {} listens on {place}{process}: kube-proxy runs as root, so this port was not queried",
        stranger.uid
    );
    Gap::new(Source::ProxyMode, Why::Ambiguous, detail)
}

fn serves(socket: &Socket, place: SocketAddr) -> bool {
    socket.protocol == Protocol::Tcp
        && socket.local_port == place.port()
        && (socket.local.to_canonical() == place.ip()
            || socket.local.is_unspecified() && socket.serves(Family::of(place.ip())) != Some(false))
}

/// Requests `/proxyMode` from each address in turn. The first address that answers with a mode is queried for the other
/// facts. If no address answers with a mode, the first address with a listener is queried. The listener may be a proxy
/// that is too old to report its mode, or another program.
pub(crate) async fn read(places: &[SocketAddr], watch: &Stopwatch) -> Answers {
    let mut somebody = None;
    let mut refused = Vec::new();
    for place in places {
        let mode = watch
            .awaiting(Source::ProxyMode, http::get(Source::ProxyMode, *place, "/proxyMode", SHORT))
            .await
            .and_then(|answer| answer.success(Source::ProxyMode))
            .and_then(|answer| mode(&answer));
        match mode {
            Ok(mode) => {
                somebody = Some((*place, Ok(mode)));
                break;
            }
            Err(gap) if gap.why == Why::Unreachable => refused.push(gap.detail),
            Err(gap) => somebody = somebody.or(Some((*place, Err(gap)))),
        }
    }
    let Some((place, mode)) = somebody else {
        return Answers::none(&Gap::new(Source::ProxyMode, Why::Unreachable, refused.join("; ")));
    };
    let of = async |source, path, limit| {
        watch.awaiting(source, http::get(source, place, path, limit)).await?.success(source)
    };
    let (config, metrics) =
        tokio::join!(of(Source::ProxyConfig, "/configz", SHORT), of(Source::ProxyMetrics, "/metrics", METRICS));
    Answers {
        place: mode.is_ok().then_some(place),
        mode: mode.into(),
        config: config.and_then(|answer| settings(&answer)).into(),
        metrics: metrics.and_then(|answer| measures(&answer)).into(),
    }
}

/// The answers, with the process that gave them: the owner of the listener at `place`.
pub fn facts(answers: Answers, listeners: &Reading<Vec<Socket>>, proc: &Path) -> ProxyFacts {
    let Answers { place, mode, config, metrics } = answers;
    let (cgroup, process) = match holder(place, &mode, listeners) {
        Ok(Holder { cgroup, process }) => (cgroup, process.get().cloned()),
        Err(gap) => (Reading::Gap(gap.clone()), Err(gap)),
    };
    let process = process.map_err(|gap| Gap { source: Source::ProxyProcess, ..gap });
    let fds = process.as_ref().map_err(Gap::clone).and_then(|process| fds_of(proc, process.pid));
    let (process, fds) = (process.into(), fds.into());
    ProxyFacts { mode, config, metrics, cgroup, process, fds }
}

fn holder(
    place: Option<SocketAddr>,
    mode: &Reading<Learned<Mode>>,
    listeners: &Reading<Vec<Socket>>,
) -> Result<Holder, Gap> {
    let gap = |why, detail: &str| Gap::new(Source::ProxyProcess, why, detail);
    let Some(place) = place else {
        let Gap { why, detail, .. } =
            mode.get().err().unwrap_or_else(|| gap(Why::NotRequested, "no address was queried"));
        return Err(gap(why, &detail));
    };
    let listeners = listeners.get().map_err(|listeners| gap(listeners.why, &listeners.detail))?;
    let listens = |socket: &&Socket| serves(socket, place);
    // The kernel prefers a listener on exactly this address to a listener on the wildcard address.
    let listener = listeners.iter().filter(listens).min_by_key(|socket| socket.local.is_unspecified());
    match listener.map(|listener| &listener.owner) {
        Some(Owner::Held(holder)) => Ok(holder.clone()),
        Some(_) => Err(gap(Why::NotRequested, &format!("the owner of the listener at {place} was not read"))),
        None => Err(gap(
            Why::Ambiguous,
            &format!("{place} answered, but the scan found no listener on this address and port"),
        )),
    }
}

/// The mode in kube-proxy's answer to `/proxyMode`.
///
/// # Errors
/// Returns a `Gap` if kube-proxy has no mode of this name.
pub fn mode(answer: &Answer) -> Result<Learned<Mode>, Gap> {
    let word = answer.body.trim();
    let value = Mode::KUBE_PROXY
        .into_iter()
        .find(|mode| mode.name() == word)
        .ok_or_else(|| answer.malformed(Source::ProxyMode, "iptables, ipvs or nftables"))?;
    Ok(Learned { value, place: answer.place.clone() })
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use hyper::StatusCode;

    use super::*;
    use portreeve_facts::{Process, State};

    fn answer(body: &str) -> Answer {
        Answer { place: "127.0.0.1:10249/proxyMode".to_owned(), status: StatusCode::OK, body: body.to_owned() }
    }

    #[test]
    fn a_mode_is_one_of_kube_proxy_s_own_words() {
        assert_eq!(mode(&answer("ipvs\n")).unwrap().value, Mode::Ipvs);
        for wrong in ["", "cilium", "<!DOCTYPE html><html>", "userspace", "iptables ipvs"] {
            assert_eq!(mode(&answer(wrong)).unwrap_err().why, Why::Malformed, "{wrong:?}");
        }
        let gap = mode(&answer("<html>\u{1b}[31m\u{202e}")).unwrap_err();
        let want = r#"127.0.0.1:10249/proxyMode answered "<html>[31m", wanted iptables, ipvs or nftables"#;
        assert_eq!(gap.detail, want);
    }

    fn listener(local: &str, local_port: u16, v6only: Option<bool>, pid: u32) -> Socket {
        let local: IpAddr = local.parse().unwrap();
        let gap = Gap::new(Source::Cgroups, Why::NotSupported, "");
        let process = Process { pid, command: "kube-proxy".to_owned(), command_line: None, started: 1 };
        Socket {
            protocol: Protocol::Tcp,
            state: State::Listen,
            family: Family::of(local),
            local,
            local_port,
            remote: Ipv4Addr::UNSPECIFIED.into(),
            remote_port: 0,
            v6only,
            uid: 0,
            inode: 1,
            cgroup: None,
            device: 0,
            retransmits: 0,
            owner: Owner::Held(Holder { cgroup: Reading::Gap(gap), process: Reading::Seen(process) }),
        }
    }

    #[test]
    fn the_listener_at_the_place_is_the_proxy_and_an_exact_address_comes_first() {
        let answers = || Answers {
            place: Some("127.0.0.1:10249".parse().unwrap()),
            ..Answers::none(&Gap::new(Source::ProxyMode, Why::Malformed, ""))
        };
        let pid = |listeners: &[Socket]| {
            let facts = facts(answers(), &Reading::Seen(listeners.to_vec()), Path::new("/nonexistent"));
            facts.process.seen().map(|process| process.pid)
        };
        let wildcard = listener("0.0.0.0", 10249, None, 2);
        assert_eq!(pid(&[wildcard.clone(), listener("127.0.0.1", 10249, None, 1)]), Some(1));
        assert_eq!(pid(&[listener("127.0.0.2", 10249, None, 1), wildcard]), Some(2));
        assert_eq!(pid(&[listener("::", 10249, Some(false), 3)]), Some(3));
        assert_eq!(pid(&[listener("::ffff:127.0.0.1", 10249, None, 4)]), Some(4));
        for other in [listener("::", 10249, Some(true), 3), listener("127.0.0.1", 10256, None, 1)] {
            assert_eq!(pid(&[other]), None);
        }
    }

    #[test]
    fn only_a_place_with_listeners_of_root_alone_is_queried() {
        let places = ["127.0.0.1:10249", "[::1]:10249"].map(|place| place.parse().unwrap());
        let asked = |listeners: &[Socket]| believed(&places, &Reading::Seen(listeners.to_vec()));
        let of = |uid, local: &str| Socket { uid, ..listener(local, 10249, None, 7) };
        assert_eq!(asked(&[of(0, "127.0.0.1")]), Ok(vec![places[0]]));
        assert_eq!(asked(&[of(0, "0.0.0.0"), of(65534, "192.0.2.1")]), Ok(vec![places[0]]));
        assert_eq!(asked(&[of(65534, "127.0.0.1"), of(0, "::1")]), Ok(vec![places[1]]));
        for doubtful in [&[of(65534, "127.0.0.1")][..], &[of(0, "0.0.0.0"), of(65534, "127.0.0.1")]] {
            let gap = asked(doubtful).expect_err("not the proxy");
            assert_eq!((gap.source, gap.why), (Source::ProxyMode, Why::Ambiguous));
            assert!(gap.detail.starts_with("uid 65534 listens on 127.0.0.1:10249"), "{}", gap.detail);
        }
        let elsewhere: SocketAddr = "192.0.2.1:10249".parse().unwrap();
        assert_eq!(asked(&[of(0, "192.0.2.1")]), Ok(vec![elsewhere]));
        assert_eq!(asked(&[of(0, "192.0.2.1"), of(0, "127.0.0.1")]), Ok(vec![places[0]]));
        assert_eq!(asked(&[of(65534, "192.0.2.1")]).expect_err("no proxy").why, Why::Unreachable);
        assert_eq!(asked(&[of(0, "192.0.2.1"), of(7, "192.0.2.1")]).expect_err("shared").why, Why::Ambiguous);
        let other = Socket { local_port: 10250, ..of(0, "192.0.2.1") };
        assert_eq!(asked(&[other]).expect_err("another port").why, Why::Unreachable);
        let told = believed(&["192.0.2.9:10249".parse().unwrap()], &Reading::Seen(vec![of(0, "192.0.2.1")]));
        assert_eq!(told.expect_err("the place was configured").why, Why::Unreachable);
        let unread = Reading::Gap(Gap::new(Source::Listeners, Why::Torn, ""));
        assert_eq!(believed(&places, &unread).expect_err("its owner is not known").source, Source::ProxyMode);
    }

    #[test]
    fn a_proxy_that_did_not_answer_has_no_process_for_the_same_reason() {
        let silent = Gap::new(Source::ProxyMode, Why::Unreachable, "connection refused");
        let facts = facts(Answers::none(&silent), &Reading::Seen(Vec::new()), Path::new("/proc"));
        for gap in [facts.process.gap(), facts.fds.gap(), facts.cgroup.gap()] {
            assert_eq!(gap, Some(&Gap { source: Source::ProxyProcess, ..silent.clone() }));
        }
    }
}
