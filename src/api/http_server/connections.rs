//! The connections of one listener: how many there may be, and which one ends when there are more.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::task::AbortHandle;

/// Connections at once that may be ended for a new one.
const ORDINARY: usize = 64;

/// Connections at once that follow a stream.
const FOLLOWERS: usize = 16;

/// The tasks of all connections that may be ended, the oldest one in front.
#[derive(Default)]
pub struct Connections {
    ordinary: RefCell<BTreeMap<u64, Option<AbortHandle>>>,
    followers: Cell<usize>,
    last: Cell<u64>,
}

/// One client, while it is served.
pub struct ClientConnection {
    connections: Rc<Connections>,
    number: u64,
    follows: Cell<bool>,
}

impl Connections {
    /// A new client is there; where there are too many, the one that has been there longest goes.
    pub fn open(connections: &Rc<Connections>) -> ClientConnection {
        let number = connections.last.get() + 1;
        connections.last.set(number);
        let mut ordinary = connections.ordinary.borrow_mut();
        let oldest = if ordinary.len() < ORDINARY { None } else { ordinary.pop_first() };
        ordinary.insert(number, None);
        drop(ordinary);
        if let Some(task) = oldest.and_then(|(_, task)| task) {
            task.abort();
        }
        ClientConnection { connections: Rc::clone(connections), number, follows: Cell::new(false) }
    }

    /// `task` serves the connection `number`.
    pub fn served_by(&self, number: u64, task: AbortHandle) {
        if let Some(served) = self.ordinary.borrow_mut().get_mut(&number) {
            *served = Some(task);
        }
    }
}

impl ClientConnection {
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Stays as long as the client likes, whoever else comes. `false`: too many do already.
    pub fn follow(&self) -> bool {
        let followers = self.connections.followers.get();
        if followers >= FOLLOWERS || self.follows.replace(true) {
            return false;
        }
        self.connections.followers.set(followers + 1);
        self.connections.ordinary.borrow_mut().remove(&self.number);
        true
    }
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        self.connections.ordinary.borrow_mut().remove(&self.number);
        if self.follows.get() {
            self.connections.followers.set(self.connections.followers.get() - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordinary(connections: &Connections) -> Vec<u64> {
        connections.ordinary.borrow().keys().copied().collect()
    }

    #[test]
    fn the_oldest_client_goes_for_a_new_one() {
        let connections = Rc::new(Connections::default());
        let all: Vec<ClientConnection> =
            (0..ORDINARY).map(|_| Connections::open(&connections)).collect();
        let newest = Connections::open(&connections);
        assert_eq!(ordinary(&connections).len(), ORDINARY);
        assert!(
            !ordinary(&connections).contains(&all[0].number())
                && ordinary(&connections).contains(&newest.number())
        );
        drop(all);
        assert_eq!(ordinary(&connections), [newest.number()]);
    }

    #[test]
    fn a_follower_stays_and_followers_are_limited() {
        let connections = Rc::new(Connections::default());
        let followers: Vec<ClientConnection> =
            (0..FOLLOWERS).map(|_| Connections::open(&connections)).collect();
        assert!(followers.iter().all(ClientConnection::follow));
        assert!(!Connections::open(&connections).follow());
        assert!(ordinary(&connections).is_empty());
        drop(followers);
        assert!(Connections::open(&connections).follow());
    }
}
