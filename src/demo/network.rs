//! The network of a stage, of the network namespace this thread is in.

use std::net::IpAddr;

use anyhow::Context;
use nix::net::if_::if_nametoindex;
use rtnetlink::{Handle, LinkBridge, LinkDummy, LinkUnspec, LinkVeth, new_connection};

use super::incident::{NODE_IP, PEER_IP};

/// The node's uplink, and the far end of its wire.
const UPLINK: (&str, &str) = ("eth0", "wire");
/// A locally administered address that no link has: a frame to it is dropped at the far end of the wire.
const NOBODY: [u8; 6] = [0x02, 0, 0, 0, 0, 0x0c];
const LOOPBACK: u32 = 1;
const IPVS_LINK: &str = "kube-ipvs0";

/// Brings up loopback and an uplink with the node's address and a silent peer, and binds addresses to kube-ipvs0.
pub(super) fn build(ipvs_addresses: &[IpAddr]) -> anyhow::Result<()> {
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

/// A dummy link as kube-proxy makes it, or a bridge where the kernel has no dummy links. It stays down.
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
