//! Deliberately wrong protocols, made by the model around the correct decisions.

/// The flaw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing: humanz.
    None,
    /// A subnet belongs to its host only as long as that renews an etcd lease; after that the host
    /// gets another one, under running pods (flannel #520, #621, #205).
    OwnershipExpires,
    /// A subnet is written without checking its current owner (flannel #1343, #1182, #813).
    PlainPut,
    /// A loss of etcd's data is not noticed; each host writes itself again, and nobody the others
    /// (flannel #610).
    LossUnnoticed,
    /// A host is known by its address, and is another one when that changes (flannel #760, #408).
    AddressIsIdentity,
    /// A subnet that was reserved for good gets an expiry when its host starts again (flannel #1329).
    ReservationExpires,
    /// The number is put, then read, and the slot taken without looking who has it (the Python
    /// agent).
    PutThenGet,
    /// A store is marked as rebuilt without the hosts that were put back being there.
    MarksAnything,
    /// A new host does not wait, on an empty etcd, for those that lost their keys with it.
    NoGrace,
    /// The watch of a host rests for longer than a new host waits, whatever happens to its keys.
    RestsDeaf,
    /// An agent does not ask whether another one with its name and machine id lives.
    CopyUnnoticed,
    /// A host whose subnet an older snapshot of etcd gives to a removed host does not take it back.
    RolledBackUnnoticed,
    /// A host leaves a key of its own as somebody else wrote it.
    OverwrittenStays,
    /// The keys of a host that writes another one's subnet later count as the earlier ones.
    LaterWriteWins,
    /// Keys that one transaction made prove nothing once one of them was overwritten and put back.
    TransactionProvesNothing,
    /// A starting agent treats hosts that it has not read yet as removed.
    RemovesBeforeReading,
    /// Of two keys of one block the later one counts.
    LatestBlockCounts,
    /// A block is used once its key is written, before it is read which keys were created before.
    BlockUsedBeforeRead,
    /// A plugin does not look again whether its block is still open once it has an address.
    BlockLeftUnderPods,
    /// Blocks that etcd lost are free at once.
    BlocksNotRemembered,
    /// A block is taken of a network as the host knows it, whatever has become of that.
    NetworkNotCompared,
}

impl Flaw {
    /// The first schedule that detects it, where many before it do not: it is tried first, because the others take
    /// minutes of a processor. If the protocol has changed so that it does not detect the flaw, all are tried.
    pub fn seed(self) -> u64 {
        match self {
            Flaw::PlainPut => 50,
            Flaw::LossUnnoticed => 89,
            Flaw::ReservationExpires => 359,
            Flaw::MarksAnything => 76,
            Flaw::NoGrace => 2283,
            Flaw::RestsDeaf => 367,
            Flaw::RolledBackUnnoticed => 1852,
            Flaw::LaterWriteWins => 31,
            Flaw::TransactionProvesNothing => 31,
            Flaw::BlockLeftUnderPods => 69,
            Flaw::BlocksNotRemembered => 1787,
            _ => 0,
        }
    }
}
