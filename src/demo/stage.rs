//! A stage: its own network, mount, host name and cgroup namespaces, an incident, and `portreeve check` as the
//! observer. The stage gives the observer only a manifest. When the processes of the stage end, the kernel deletes the
//! namespaces.

use std::{
    env, fs,
    io::Write,
    net::IpAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, bail};
use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    net::if_::if_nametoindex,
    sched::{CloneFlags, unshare},
    sys::{prctl, signal::Signal},
    unistd::{getegid, geteuid, sethostname},
};
use rtnetlink::{Handle, LinkBridge, LinkDummy, LinkUnspec, LinkVeth, new_connection};

use super::{
    incident::{Incident, NODE, NODE_IP, PEER_IP, Scene, Steps},
    manifest,
    part::Player,
};

pub(super) fn run(incident: &Incident, steps: &Steps) -> anyhow::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL).context("asking to end with the parent")?;
    let private = enter().context("entering namespaces of its own")?;
    let Scene { objects, sysctls, ipvs_addresses, parts } = (incident.scene)(steps);

    for (name, value) in sysctls {
        let path = Path::new("/proc/sys/net/ipv4").join(name);
        fs::write(&path, value).with_context(|| format!("writing {value:?} to {}", path.display()))?;
    }
    build_network(&ipvs_addresses).context("building the network")?;
    let manifest = private.join("cluster.yaml");
    write_private(&manifest, &manifest::list(&objects)?).with_context(|| format!("writing {}", manifest.display()))?;
    let players = parts.iter().map(Player::start).collect::<anyhow::Result<Vec<_>>>()?;
    observe(&manifest)?;
    drop(players);
    Ok(())
}

fn observe(manifest: &Path) -> anyhow::Result<()> {
    let status = Command::new("/proc/self/exe")
        .args(["check", "-o", "json", "--services"])
        .arg(manifest)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .status()
        .context("starting portreeve check")?;
    match status.code() {
        Some(0..=2) => Ok(()),
        _ => bail!("portreeve check ended with {status}"),
    }
}

/// Enters new namespaces, and returns a private folder. Without root, the process becomes root of a user namespace.
fn enter() -> anyhow::Result<PathBuf> {
    let namespaces =
        CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWCGROUP;
    match unshare(namespaces) {
        Err(Errno::EPERM) => {
            let (uid, gid) = (geteuid(), getegid());
            unshare(namespaces | CloneFlags::CLONE_NEWUSER).context(NO_USER_NAMESPACES)?;
            for (file, text) in
                [("setgroups", "deny".to_owned()), ("uid_map", format!("0 {uid} 1")), ("gid_map", format!("0 {gid} 1"))]
            {
                fs::write(Path::new("/proc/self").join(file), text).context(NO_USER_NAMESPACES)?;
            }
        }
        result => result.context("unshare")?,
    }
    sethostname(NODE).context("setting the host name")?;
    let unchanged = None::<&str>;
    mount(unchanged, "/", unchanged, MsFlags::MS_REC | MsFlags::MS_PRIVATE, unchanged)
        .context("keeping mounts private")?;
    // All processes of the stage may be in one cgroup of the user. All sockets would then seem to belong to this
    // cgroup. The new mounts show this cgroup as the root cgroup, and no socket counts as a socket of the root cgroup.
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("reading /proc/self/mountinfo")?;
    for place in mounts.lines().filter_map(cgroup2_mount) {
        // The kernel does not mount a file system directly on itself, and `place` has cgroup2 already. So a tmpfs is
        // mounted first, and the new cgroup2 on the tmpfs.
        mount(Some("tmpfs"), place, Some("tmpfs"), MsFlags::empty(), unchanged)
            .and_then(|()| mount(Some("cgroup2"), place, Some("cgroup2"), MsFlags::empty(), unchanged))
            .with_context(|| format!("mounting cgroup2 on {place}"))?;
    }
    let private = env::temp_dir();
    let flags = MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | MsFlags::MS_NOSUID;
    mount(Some("tmpfs"), &private, Some("tmpfs"), flags, Some("mode=0700,size=4m"))
        .with_context(|| format!("mounting a private {}", private.display()))?;
    Ok(private)
}

const NO_USER_NAMESPACES: &str = "this user may not make namespaces here: allow unprivileged user namespaces \
                                  (user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns), or run as root";

fn cgroup2_mount(line: &str) -> Option<&str> {
    let (mount, filesystem) = line.split_once(" - ")?;
    filesystem.starts_with("cgroup2 ").then(|| mount.split(' ').nth(4))?
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}

/// The node's network link, and the other end of the link.
const UPLINK: (&str, &str) = ("eth0", "wire");
/// A locally administered MAC address that no link has. The far end of the link drops a frame to this address.
const NOBODY: [u8; 6] = [0x02, 0, 0, 0, 0, 0x0c];
const LOOPBACK: u32 = 1;
const IPVS_LINK: &str = "kube-ipvs0";

fn build_network(ipvs_addresses: &[IpAddr]) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (connection, netlink, _) = new_connection().context("opening a netlink socket")?;
        tokio::spawn(connection);
        up(&netlink, LOOPBACK).await.context("bringing up lo")?;
        uplink(&netlink).await.context("making eth0")?;
        if !ipvs_addresses.is_empty() {
            kube_ipvs(&netlink, ipvs_addresses).await.context("making kube-ipvs0")?;
        }
        Ok(())
    })
}

async fn uplink(netlink: &Handle) -> anyhow::Result<()> {
    netlink.link().add(LinkVeth::new(UPLINK.0, UPLINK.1).build()).execute().await?;
    let (near, far) = (if_nametoindex(UPLINK.0)?, if_nametoindex(UPLINK.1)?);
    up(netlink, far).await?;
    up(netlink, near).await?;
    netlink.address().add(near, NODE_IP.into(), 24).execute().await?;
    netlink.neighbours().add(near, PEER_IP.into()).link_layer_address(&NOBODY).execute().await?;
    Ok(())
}

/// Makes a dummy link, as kube-proxy does, or a bridge if the kernel has no dummy links. The link stays down.
async fn kube_ipvs(netlink: &Handle, addresses: &[IpAddr]) -> anyhow::Result<()> {
    if netlink.link().add(LinkDummy::new(IPVS_LINK).down().build()).execute().await.is_err() {
        netlink.link().add(LinkBridge::new(IPVS_LINK).down().build()).execute().await?;
    }
    let link = if_nametoindex(IPVS_LINK)?;
    for address in addresses {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        netlink.address().add(link, *address, bits).execute().await?;
    }
    Ok(())
}

async fn up(netlink: &Handle, link: u32) -> Result<(), rtnetlink::Error> {
    netlink.link().set(LinkUnspec::new_with_index(link).up().build()).execute().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_point_of_cgroup2_is_found_among_others() {
        // Linux 6.18, cat /proc/self/mountinfo
        assert_eq!(
            cgroup2_mount("41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"),
            Some("/sys/fs/cgroup/unified")
        );
        assert_eq!(
            cgroup2_mount("40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd"),
            None
        );
        assert_eq!(cgroup2_mount("nonsense"), None);
    }
}
