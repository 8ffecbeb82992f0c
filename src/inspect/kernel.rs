//! Handles to the kernel of this host: sockets in the network namespace of the thread that opened them.

use anyhow::Context;

use crate::inspect::identity;
use crate::netlink::rtnl::Rtnl;
use crate::nft::Nft;
use crate::nft::base_chains::BaseChains;
use crate::settings::Settings;
use crate::settings::exit::Exit;

/// Handles to the kernel.
pub struct Kernel {
    pub rtnl: Rtnl,
    /// Our own tables.
    pub nft: Nft,
    /// The base chains of other programs.
    pub forward: BaseChains,
    /// Identifies this machine; the bridge's MAC is derived from it.
    pub machine_id: String,
}

impl Kernel {
    /// Opens the sockets in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel has no rtnetlink or nftables for this user.
    pub fn open(settings: &Settings) -> Result<Kernel, Exit> {
        let machine_id = identity::machine_id(&settings.state_dir)?;
        let open = || Ok((Rtnl::open()?, Nft::open()?, BaseChains::open()?));
        let opened: Result<_, crate::netlink::NetlinkError> = open();
        let (rtnl, nft, forward) = opened.context(
            "open rtnetlink and nftables sockets (without nftables pods are neither masqueraded nor \
             let through firewalls; try: modprobe nf_tables)",
        )?;
        Ok(Kernel { rtnl, nft, forward, machine_id })
    }
}
