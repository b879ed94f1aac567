//! The HTTP answers of `portreeve agent`. The agent answers a scrape, whatever other clients do.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::{
    agent::{Agent, PLACE, ask, connect_to_socket, exchange, exchange_at_socket, exchange_with, wait_for, web},
    stage::Stage,
};

/// A number of descriptors: more than an agent ever needs, and far fewer than the number of clients.
const FEW: f64 = 100.0;

#[track_caller]
fn value(name: &str) -> f64 {
    let text = wait_for("/metrics", |_| true);
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
}

#[track_caller]
fn begun(head: &str) -> TcpStream {
    let mut stream = TcpStream::connect(PLACE).expect("the agent accepts");
    // Ignores errors, because the agent may have closed the connection.
    stream.write_all(head.as_bytes()).ok();
    stream
}

fn is_over(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    match stream.read(&mut [0; 64]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// Fault (node): a thousand clients never end their request, or never read the answer
/// Does: closes the oldest connections; answers scrapes, with few open descriptors
/// Right again: always
/// Lost: slow clients
#[test]
fn a_thousand_unfinished_requests_do_not_block_a_scrape_and_are_closed() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("the hard limit");
    let stage = web();
    let _agent = Agent::start(&stage, &[]);
    wait_for("/readyz", |_| true);
    let mut clients: Vec<_> = (0..1000).map(|_| begun("GET /metrics HTTP/1.1\r\nHost: n1\r\nX-Slow: ")).collect();
    assert!(value("process_open_fds") < FEW);
    let over = clients.iter_mut().map(is_over).filter(|over| *over).count();
    assert!(over >= 900, "{over} of {} connections are closed", clients.len());
    assert!(over < clients.len(), "the last connections are still open");
    // Clients that do not read their answer must not block a scrape either.
    let silent: Vec<_> = (0..1000).map(|_| begun("GET /metrics HTTP/1.1\r\nHost: n1\r\n\r\n")).collect();
    assert!(value("process_open_fds") < FEW);
    drop((clients, silent));
}

/// Fault (node): a request never ends
/// Does: answers 431, or closes the connection
/// Right again: at once
/// Lost: this request
#[test]
fn an_endless_request_is_cut_off() {
    let stage = web();
    let _agent = Agent::start(&stage, &[]);
    wait_for("/readyz", |_| true);
    let mut client = begun(&format!("GET / HTTP/1.1\r\nHost: n1\r\nX-Long: {}", "x".repeat(1 << 20)));
    client.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    let mut answer = Vec::new();
    // If the agent closes the connection with unread bytes, the client gets a reset.
    let ended = client.read_to_end(&mut answer);
    assert!(ended.as_ref().map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true), "{ended:?}");
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&answer));
    wait_for("/livez", |_| true);
}

#[test]
fn methods_and_paths_are_answered_by_the_rules_of_http() {
    let stage = web();
    let _agent = Agent::start(&stage, &[]);
    wait_for("/readyz", |_| true);
    let status = |method: &str, path: &str| exchange(method, path, "").expect("an answer");
    let (head, body) = status("HEAD", "/metrics");
    assert!(head.contains(" 200 ") && body.is_empty(), "{head}{body}");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let (head, _) = status(method, "/metrics");
        assert!(head.contains(" 405 ") && head.contains("allow: GET,HEAD"), "{method}: {head}");
    }
    for path in ["/metric", "/metrics/", "/findings/1", "/../etc/passwd", "/favicon.ico"] {
        assert_eq!(ask(path, "").map(|(status, _)| status), Some(404), "{path}");
    }
    assert_eq!(ask("/metrics?name=x", "").map(|(status, _)| status), Some(200));
    let nonsense = begun("\r\n\u{1}\u{2}nonsense\r\n\r\n");
    drop(nonsense);
    wait_for("/livez", |_| true);
}

#[test]
fn without_an_api_server_findings_and_snapshots_are_read_at_the_socket_only() {
    let stage = web();
    let _agent = Agent::start(&stage, &[]);
    wait_for("/readyz", |_| true);
    for path in ["/findings", "/snapshot"] {
        let token = "Portreeve-Token: eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJub2JvZHkifQ.c2lnbmF0dXJlLXNpZ25hdHVyZQ\r\n";
        for headers in ["", token] {
            let (head, body) = exchange_with(PLACE, "GET", path, headers).expect("an answer");
            assert!(head.contains(" 403 ") && body.contains("--socket"), "{head}{body}");
        }
        let (head, body) = exchange_at_socket("GET", path, "").expect("an answer");
        assert!(head.contains(" 200 ") && body.contains("portreeve"), "{head}");
    }
}

/// A node whose cluster has many Services. Each Service has the fields that make a snapshot long.
fn crowded(services: u32) -> Stage {
    (0..services).fold(web(), |stage, number| {
        stage.document(&format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: service-{number}, namespace: team, uid: uid-{number}}}\n\
             spec: {{type: ClusterIP, clusterIP: 10.97.{}.{}, ports: [{{port: 80, name: http-{number}}}]}}",
            number / 250,
            number % 250
        ))
    })
}

#[test]
fn many_slow_readers_of_a_long_document_need_little_memory_and_block_no_scrape() {
    let stage = crowded(3000);
    let _agent = Agent::start(&stage, &[]);
    let long = wait_for("/snapshot", |text| text.contains("service-2999")).len();
    let before = value("process_resident_memory_bytes");
    assert!(long > 1_500_000, "{long} bytes");
    let readers: Vec<_> = (0..32)
        .map(|_| {
            let mut stream = connect_to_socket().expect("the agent accepts");
            stream.write_all(b"GET /snapshot HTTP/1.1\r\nHost: n1\r\n\r\n").expect("a request");
            stream
        })
        .collect();
    // The agent sends the document to a few readers, and status 503 to all other readers at once.
    let refused = readers.iter().filter(|reader| {
        let (mut head, mut reader) = ([0; 12], *reader);
        reader.read_exact(&mut head).is_ok() && head.ends_with(b"503")
    });
    assert!(refused.count() >= 20);
    // This loop takes longer than the time for which the agent keeps a document's text in memory.
    let during = (0..10).map(|_| {
        std::thread::sleep(Duration::from_millis(150));
        value("process_resident_memory_bytes")
    });
    let during = during.fold(0.0, f64::max);
    assert!(during < 1.5 * before, "{before} bytes without readers, {during} with 32");
    drop(readers);
    let (head, _) = exchange("GET", "/metrics", "").expect("an answer");
    assert!(head.contains(" 200 "), "{head}");
}

fn places() -> Vec<String> {
    let files = ["tcp", "tcp6", "udp", "udp6", "raw", "raw6"].map(|name| format!("/proc/thread-self/net/{name}"));
    let lines = files.iter().flat_map(|path| {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    });
    // The state `0A` is a listening socket, and the state `07` is a socket without a peer.
    let waiting =
        lines.filter(|line| line.split_whitespace().nth(3).is_some_and(|state| ["0A", "07"].contains(&state)));
    waiting.filter_map(|line| line.split_whitespace().nth(1).map(str::to_owned)).collect()
}

#[test]
fn an_agent_has_one_port_at_one_address_and_no_other() {
    let stage = web();
    assert_eq!(places(), [""; 0], "no process listens on a new node");
    let _agent = Agent::start(&stage, &[]);
    wait_for("/readyz", |_| true);
    wait_for("/metrics", |text| !text.contains("portreeve_scans_total 0.0") && text.contains("portreeve_scans_total "));
    // 127.0.0.1:29517, as `/proc/net/tcp` writes it.
    assert_eq!(places(), ["0100007F:734D"]);
    assert!(connect_to_socket().is_some(), "and its socket");
}
