//! The answers on healthCheckNodePorts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::Deserialize;
use tokio::task::JoinSet;

use super::http::{self, Answer};
use portreeve_facts::{Family, Gap, HealthCheckAnswer, Interfaces, Source, Why, text};

/// The greatest length of an answer that is read, in bytes. A health check answers with a few fields.
const LONGEST: usize = 64 * 1024;

/// Connects to at most 64 ports at the same time. For each port, tries one address after another until a process
/// accepts the connection.
pub async fn read(ports: &[u16], addresses: &[IpAddr]) -> Vec<HealthCheckAnswer> {
    let mut requests = JoinSet::new();
    for port in ports.iter().copied().take(HealthCheckAnswer::MOST) {
        let addresses = addresses.to_vec();
        requests.spawn(async move { HealthCheckAnswer { port, service: request(port, &addresses).await.into() } });
    }
    let mut answers = requests.join_all().await;
    answers.sort_by_key(|answer| answer.port);
    answers
}

/// The addresses on which a proxy of this host may listen. The two loopback addresses come first. After the loopback
/// addresses, the list has the first address of each family that other hosts could use. A proxy with nodePortAddresses
/// may not listen on loopback.
pub fn addresses(interfaces: Option<&Interfaces>) -> Vec<IpAddr> {
    let own = |family| {
        let mut addresses = interfaces.into_iter().flat_map(|interfaces| &interfaces.addresses);
        addresses
            .find(|address| Family::of(address.ip) == family && !address.is_ipvs() && is_global(address.ip))
            .map(|address| address.ip)
    };
    let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    loopback.into_iter().chain(Family::BOTH.into_iter().filter_map(own)).collect()
}

fn is_global(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local() && !ip.is_unspecified(),
    }
}

async fn request(port: u16, addresses: &[IpAddr]) -> Result<Option<String>, Gap> {
    let mut refused = Vec::new();
    for address in addresses {
        let get = || http::get(Source::HealthChecks, SocketAddr::new(*address, port), "/", LONGEST);
        match get().await {
            Ok(answer) => return Ok(service(&answer)),
            Err(gap) if gap.why == Why::TooMuch => return Ok(None),
            // If a process still listens, the process does not speak HTTP, so it is not a health check. If no process
            // listens, the proxy may have ended before its answer.
            Err(gap) if gap.why == Why::Malformed => {
                return match get().await {
                    Ok(answer) => Ok(service(&answer)),
                    Err(again) if again.why == Why::Unreachable => {
                        let detail = format!("{}; after this, no process listened", gap.detail);
                        Err(Gap::new(Source::HealthChecks, Why::Torn, detail))
                    }
                    Err(again) if matches!(again.why, Why::Malformed | Why::TooMuch) => Ok(None),
                    Err(again) => Err(again),
                };
            }
            Err(gap) if gap.why == Why::Unreachable => refused.push(gap.detail),
            Err(gap) => return Err(gap),
        }
    }
    Err(Gap::new(Source::HealthChecks, Why::Unreachable, refused.join("; ")))
}

/// The Service in a proxy's answer. The status of the answer is 200 if the node has endpoints, or else 503
/// (pkg/proxy/healthcheck/service_health.go).
pub fn service(answer: &Answer) -> Option<String> {
    #[derive(Deserialize)]
    struct Status {
        service: Name,
    }
    #[derive(Deserialize)]
    struct Name {
        namespace: String,
        name: String,
    }
    let Status { service: Name { namespace, name } } = serde_json::from_str(&answer.body).ok()?;
    Some(format!("{}/{}", text::clean(&namespace, text::NAME), text::clean(&name, text::NAME)))
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::*;
    use portreeve_facts::Address;

    fn said(body: &str) -> Option<String> {
        service(&Answer { place: String::new(), status: StatusCode::SERVICE_UNAVAILABLE, body: body.to_owned() })
    }

    #[test]
    fn a_proxy_names_its_service_and_others_name_none() {
        // The body that service_health.go of Kubernetes 1.36 writes.
        let body = r#"{
	"service": {
		"namespace": "default",
		"name": "web"
	},
	"localEndpoints": 0,
	"serviceProxyHealthy": true
}"#;
        assert_eq!(said(body).as_deref(), Some("default/web"));
        assert_eq!(said("ok"), None);
        assert_eq!(said(r#"{"service":"web"}"#), None);
        assert_eq!(said("{\"service\":{\"namespace\":\"a\\u001b[2J\",\"name\":\"b\\n\"}}").as_deref(), Some("a[2J/b"));
    }

    #[test]
    fn only_addresses_that_a_proxy_of_this_host_may_use_are_queried() {
        let address = |ip: &str, link: &str| Address { ip: ip.parse().unwrap(), prefix: 24, link: link.into() };
        let interfaces = Interfaces {
            addresses: vec![
                address("127.0.0.1", "lo"),
                address("10.96.0.1", "kube-ipvs0"),
                address("169.254.1.1", "eth1"),
                address("192.0.2.1", "eth0"),
                address("192.0.2.2", "eth0"),
                address("fe80::1", "eth0"),
                address("2001:db8::1", "eth0"),
            ],
            ..Interfaces::default()
        };
        let want: [IpAddr; 4] = ["127.0.0.1", "::1", "192.0.2.1", "2001:db8::1"].map(|ip| ip.parse().unwrap());
        assert_eq!(addresses(Some(&interfaces)), want);
        assert_eq!(addresses(None).len(), 2);
    }
}
