//! A watch of which events do not arrive: a real etcd, behind a connection that loses them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use humanz::lease::blocks::BlockNetwork;
use humanz::lease::blocks::known_store::KnownStore;
use humanz::lease::blocks::session::{BlockInputs, WantedBlocks};
use humanz::lease::records::Roots;
use humanz::net::subnet::Pool;
use humanz::sources::{BlocksStart, BlocksUpdate, blocks};

use crate::host::settings;
use crate::support::etcd::{EtcdServer, isolated};
use crate::support::wait::patience;

const PROXY: &str = "127.0.0.1:2399";

/// Answers of etcd's that are held back on one stream of HTTP/2, the one that watches the blocks.
#[derive(Default)]
struct Withheld {
    /// The stream, below the number of its connection; 0 before there is one.
    stream: AtomicU64,
    /// How many were held back.
    events: AtomicUsize,
}

/// One frame of HTTP/2, or the greeting before all others.
fn frame(from: &mut TcpStream, greeting: &[u8]) -> io::Result<Vec<u8>> {
    let mut head = vec![0; greeting.len().max(9)];
    from.read_exact(&mut head[..9])?;
    let size = if head[..9] == greeting[..greeting.len().min(9)] {
        greeting.len() - 9
    } else {
        head.truncate(9);
        u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize
    };
    head.resize(9 + size, 0);
    from.read_exact(&mut head[9..])?;
    Ok(head)
}

/// The stream of a frame with data that does not end it, below the number of its connection.
fn open_stream(connection: u32, frame: &[u8]) -> Option<u64> {
    let id = u32::from_be_bytes(frame[5..9].try_into().ok()?);
    (frame[3] == 0 && frame[4] & 1 == 0).then_some(u64::from(connection) << 32 | u64::from(id))
}

/// The frame has a `WatchRequest` of gRPC for a new watch of the blocks: a message (tag 1) that begins with a key (tag 1).
fn watches(frame: &[u8]) -> bool {
    let has_tags = [14, 16].iter().all(|at| frame.get(*at) == Some(&0x0a));
    has_tags && frame.windows(8).any(|it| it == b"-blocks/")
}

/// Passes on everything but what etcd says to the first watch of blocks after it was created.
fn pass_on(client: TcpStream, connection: u32, withheld: &Arc<Withheld>) -> io::Result<()> {
    let server = TcpStream::connect("127.0.0.1:2379")?;
    let (mut down, mut up) = (server.try_clone()?, client.try_clone()?);
    let seen = Arc::clone(withheld);
    thread::spawn(move || -> io::Result<()> {
        let mut created = false;
        loop {
            let frame = frame(&mut down, b"")?;
            let stream = open_stream(connection, &frame);
            if stream.is_some_and(|id| id == seen.stream.load(Ordering::SeqCst)) {
                if created {
                    seen.events.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                created = true;
            }
            up.write_all(&frame)?;
        }
    });
    let (mut from, mut to) = (client, server);
    let mut greeting: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    loop {
        let frame = frame(&mut from, greeting)?;
        let stream = open_stream(connection, &frame);
        if let Some(id) = stream.filter(|_| greeting.is_empty() && watches(&frame)) {
            // The first one stays.
            let _other =
                withheld.stream.compare_exchange(0, id, Ordering::SeqCst, Ordering::SeqCst);
        }
        greeting = b"";
        to.write_all(&frame)?;
    }
}

/// Wants one block, of the only pool there is.
fn inputs() -> BlockInputs {
    let addresses = "10.40.0.0/16".parse().unwrap();
    let pool = Pool::new(addresses, 10).unwrap();
    let network = BlockNetwork { name: "front".into(), revision: None };
    BlockInputs {
        store: Some(KnownStore { record: 0, record_created: 0, settings: 0, id: "one".into() }),
        pools: vec![addresses],
        are_read: true,
        names: vec![(addresses, "front".into())],
        wanted: vec![WantedBlocks { network, addresses, pool, count: 1 }],
        pin_ranges: Vec::new(),
        pins: BTreeMap::new(),
        released: BTreeSet::new(),
    }
}

fn start(state_dir: &tempfile::TempDir) -> BlocksStart {
    let root = |name: &str| name.to_owned();
    BlocksStart {
        etcd: settings(&[format!("http://{PROXY}")]),
        roots: Roots { hosts: root("/h"), counter: root("/c"), humanz: root("/z") },
        host: "h1".parse().unwrap(),
        state_dir: state_dir.path().to_owned(),
        inputs: BlockInputs::default(),
    }
}

#[test]
fn a_block_that_the_watch_does_not_show_is_read() {
    isolated(|| {
        let _etcd = EtcdServer::start();
        let withheld = Arc::new(Withheld::default());
        let (listener, shared) = (TcpListener::bind(PROXY).unwrap(), Arc::clone(&withheld));
        thread::spawn(move || {
            for (client, connection) in listener.incoming().zip(1..) {
                let shared = Arc::clone(&shared);
                thread::spawn(move || pass_on(client.unwrap(), connection, &shared));
            }
        });
        let (folder, (send, updates)) = (tempfile::tempdir().unwrap(), mpsc::channel());
        let blocks = blocks(start(&folder), move |update| drop(send.send(update))).unwrap();
        let next = || -> BlocksUpdate {
            updates.recv_timeout(Duration::from_secs(30) * patience()).unwrap()
        };
        while !next().is_read {}
        while withheld.stream.load(Ordering::SeqCst) == 0 {
            thread::sleep(Duration::from_millis(5));
        }
        let asked_at = Instant::now();
        blocks.set(inputs());
        while next().own.is_empty() {}
        assert!(withheld.events.load(Ordering::SeqCst) > 0, "nothing was held back");
        // A plugin waits for nine seconds.
        let limit = Duration::from_secs(8) * patience();
        assert!(asked_at.elapsed() < limit, "{:?}", asked_at.elapsed());
    });
}
