//! Throughput and latency between pods, compared with the same network made by hand, in one run.

mod hosts;
mod one_host;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::series::middle;
use crate::support::Cluster;
use crate::support::node::Place;
use crate::table::{Row, Table};
use crate::traffic::{self, ECHO, SINK, Servers};
use crate::workspace::Workspace;
use hosts::{Backend, ByHand, HOST_PORTS, Pair, Rules};

/// The difference between two runs of the same path on a busy machine.
const SAME: f64 = 0.95;
/// The target of encryption beside a WireGuard network made by hand.
const ENCRYPTED: f64 = 0.98;
/// Subjects take turns: other load of the machine affects all of them alike.
#[derive(Clone, Copy)]
struct Turns {
    each: Duration,
    count: usize,
}

const SHORT: Turns = Turns { each: Duration::from_millis(80), count: 51 };
/// For what is slow: a stream has left its start behind.
const LONG: Turns = Turns { each: Duration::from_secs(1), count: 11 };

/// One path through the network, made three times.
struct Way<'a> {
    what: &'static str,
    /// Bridge and routes, and no firewall that knows of connections.
    bare: Option<Path<'a>>,
    /// The same with masquerade to the outside and the reference plugin's host ports.
    reference: Path<'a>,
    humanz: Path<'a>,
    /// How many times that of the reference a stream shall be.
    stream: f64,
    /// How many times that of `bare`, if that is a target, too.
    stream_of_bare: Option<f64>,
    turns: Turns,
}

/// From a place to servers in another one.
struct Path<'a> {
    from: &'a dyn Place,
    sink: SocketAddr,
    echo: SocketAddr,
}

/// A figure of a path.
struct Figure {
    what: &'static str,
    unit: &'static str,
    /// Less is better.
    is_time: bool,
    take: fn(&Path<'_>, Duration) -> f64,
    /// The target.
    least: fn(&Way<'_>) -> f64,
    /// The target beside a network without rules.
    least_of_bare: fn(&Way<'_>) -> Option<f64>,
}

const FIGURES: [Figure; 3] = [
    Figure {
        what: "a stream",
        unit: "Gbit/s",
        is_time: false,
        take: |path, turn| traffic::stream(path.from, path.sink, turn),
        least: |way| way.stream,
        least_of_bare: |way| way.stream_of_bare,
    },
    Figure {
        what: "a round trip",
        unit: "µs",
        is_time: true,
        take: |path, turn| traffic::round_trip(path.from, path.echo, turn),
        least: |_| SAME,
        least_of_bare: |_| None,
    },
    Figure {
        what: "connections",
        unit: "/s",
        is_time: false,
        take: |path, turn| traffic::connections(path.from, path.echo, turn),
        least: |_| SAME,
        least_of_bare: |_| None,
    },
];

pub fn measure(_: &mut Workspace, table: &mut Table) {
    one_host::measure(table);
    by(Backend::Direct, table);
    by(Backend::Vxlan, table);
}

/// Pods of two hosts with WireGuard.
pub fn encrypted(table: &mut Table) {
    by(Backend::Wireguard, table);
}

/// All paths of one kind between hosts.
fn by(backend: Backend, table: &mut Table) {
    let cluster = Cluster::new(6);
    let [a, b, c, d, e, f] = &cluster.hosts[..] else { unreachable!("six hosts") };
    let humanz = Pair::of_humanz([a, b], backend);
    let rules = match backend {
        Backend::Wireguard => Rules::Flannel,
        Backend::Direct | Backend::Vxlan => Rules::Masquerade,
    };
    let reference = Pair::by_hand([c, d], ByHand { backend, rules });
    let bare = Pair::by_hand([e, f], ByHand { backend, rules: Rules::None });
    let pods = [&humanz, &reference, &bare].map(|pair| [&pair.near, &pair.far]).concat();
    let _servers: Vec<_> = pods.iter().map(|pod| Servers::start(*pod, pod.v4())).collect();
    let way = |what, path: fn(&Pair) -> Path<'_>| Way {
        what,
        bare: Some(path(&bare)),
        reference: path(&reference),
        humanz: path(&humanz),
        stream: SAME,
        stream_of_bare: None,
        turns: SHORT,
    };
    let near: fn(&Pair) -> Path<'_> = |pair| Path::new(&pair.from, pair.near.v4(), 0);
    let far: fn(&Pair) -> Path<'_> = |pair| Path::new(&pair.from, pair.far.v4(), 0);
    let port: fn(&Pair) -> Path<'_> =
        |pair| Path::new(pair.far.node(), pair.near.node().v4().into(), HOST_PORTS);
    match backend {
        Backend::Direct => {
            way("pods of one host", near).measure(table);
            way("pods of two hosts", far).measure(table);
            Way { bare: None, ..way("a host port", port) }.measure(table);
        }
        Backend::Vxlan => way("pods of two hosts, VXLAN", far).measure(table),
        Backend::Wireguard => {
            let what = "pods of two hosts, WireGuard";
            let stream_of_bare = Some(ENCRYPTED);
            let way = Way { stream: ENCRYPTED, stream_of_bare, turns: LONG, ..way(what, far) };
            way.measure(table);
        }
    }
}

impl<'a> Path<'a> {
    /// To the servers' ports, `above` which the host has those that lead to them.
    fn new(from: &'a dyn Place, to: IpAddr, above: u16) -> Self {
        let at = |port| SocketAddr::new(to, port + above);
        Self { from, sink: at(SINK), echo: at(ECHO) }
    }
}

impl Way<'_> {
    /// Every figure by turns, the order reversed each time.
    fn measure(&self, table: &mut Table) {
        let paths = [self.bare.as_ref(), Some(&self.reference), Some(&self.humanz)];
        for figure in &FIGURES {
            let mut taken = paths.map(|_| Vec::new());
            for turn in 0..self.turns.count {
                let mut order: Vec<_> = paths.iter().zip(&mut taken).collect();
                if turn % 2 == 1 {
                    order.reverse();
                }
                let there = order.into_iter().filter_map(|(path, values)| Some(((*path)?, values)));
                there.for_each(|(path, values)| values.push((figure.take)(path, self.turns.each)));
            }
            table.push(self.row(figure, &taken));
            self.row_of_bare(figure, &taken).into_iter().for_each(|row| table.push(row));
        }
    }

    fn row_of_bare(&self, figure: &Figure, [bare, _, humanz]: &[Vec<f64>; 3]) -> Option<Row> {
        let least = (figure.least_of_bare)(self)?;
        let times = figure.times(humanz, bare);
        Some(Row {
            what: format!("{}: {}, beside no rules", self.what, figure.what),
            floor: figure.format(bare),
            humanz: figure.format(humanz),
            target: format!("≥ {least} × by hand"),
            reached: format!("{times:.2} ×"),
            met: Some(times >= least),
            ..Row::default()
        })
    }

    fn row(&self, figure: &Figure, [bare, reference, humanz]: &[Vec<f64>; 3]) -> Row {
        let (times, least) = (figure.times(humanz, reference), (figure.least)(self));
        let of_bare = match self.bare {
            Some(_) => format!(" ({:.2} × bare)", figure.times(humanz, bare)),
            None => String::new(),
        };
        Row {
            what: format!("{}: {}", self.what, figure.what),
            reference: figure.format(reference),
            floor: self.bare.as_ref().map(|_| figure.format(bare)).unwrap_or_default(),
            humanz: figure.format(humanz),
            target: format!("not slower (≥ {least} ×)"),
            reached: format!("{times:.2} ×{of_bare}"),
            met: Some(times >= least),
        }
    }
}

impl Figure {
    /// How many times as good as `other`: the median over the turns, each of which saw the same
    /// machine.
    fn times(&self, own: &[f64], other: &[f64]) -> f64 {
        let ratio = |(own, other): (&f64, &f64)| {
            if self.is_time { other / own } else { own / other }
        };
        middle(own.iter().zip(other).map(ratio).collect())
    }

    fn format(&self, values: &[f64]) -> String {
        let value = middle(values.to_vec());
        let digits = if value < 1.0 { 3 } else { usize::from(value < 100.0) };
        format!("{value:.digits$} {}", self.unit)
    }
}
