"use strict";
// A map of the hosts: each on a ring, and a line for each pair of which a report is known. Of many hosts only the
// lines with faults are drawn, and only the hosts at their ends are labelled. The tables below it have the same.
const MAP_WIDTH = 760, MAP_HEIGHT = 520, MAP_MARGIN = 170;

// Where each host is: clockwise from the top, this host first.
function places(m) {
  const names = [...m.rows, ...m.untold].map((row) => row.host).filter((name) => name !== m.host);
  names.sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
  const all = [m.host, ...names];
  return new Map(all.map((name, at) => {
    const angle = 2 * Math.PI * at / all.length - Math.PI / 2;
    return [name, {
      x: MAP_WIDTH / 2 + (MAP_WIDTH / 2 - MAP_MARGIN) * Math.cos(angle),
      y: MAP_HEIGHT / 2 + (MAP_HEIGHT / 2 - 30) * Math.sin(angle),
    }];
  }));
}

// What two hosts say of each other: the worse class of both directions, and both in words.
function pairs(m, slow) {
  const found = new Map(), order = ["unknown", "well", "odd", "lost"];
  for (const report of m.rows) {
    const others = new Set([...Object.keys(report.seconds), ...report.faults.map((fault) => fault.host)]);
    for (const to of others) {
      const [, kind, title] = cell(report, to, slow), key = [report.host, to].sort().join("\n");
      const pair = found.get(key) || { from: report.host, to, kind: "unknown", words: [] };
      if (order.indexOf(kind) > order.indexOf(pair.kind)) pair.kind = kind;
      pair.words.push(report.host + " → " + to + ": " + title);
      found.set(key, pair);
    }
  }
  return [...found.values()];
}

// Hosts that this one reaches through a tunnel, and what that is.
function tunnelled() {
  const peers = (status && status.peers) || [];
  const tunnel = (peer) => (peer.paths || []).find((path) => path !== null && path !== "direct");
  return new Map(peers.filter(tunnel).map((peer) => [peer.name, tunnel(peer)]));
}

function mapLines(m, places, drawn) {
  const tunnels = tunnelled();
  return drawn.map((pair) => {
    const [from, to] = [places.get(pair.from), places.get(pair.to)];
    const other = pair.from === m.host ? pair.to : pair.to === m.host ? pair.from : null;
    const through = tunnels.get(other);
    const line = svgShape("line", { x1: from.x, y1: from.y, x2: to.x, y2: to.y, class: "way " + pair.kind + (through ? " tunnel" : "") });
    line.append(svgShape("title", {}, pair.words.join("; ") + (through ? through === "encrypted" ? "; encrypted" : "; through a tunnel" : "")));
    return line;
  });
}

function mapHosts(m, places, labelled) {
  const down = ill(m), silent = new Map(m.untold.map((other) => [other.host, other.why]));
  return [...places].flatMap(([name, at]) => {
    const kind = down.has(name) ? "lost" : silent.has(name) ? "unknown" : "well";
    const dot = svgShape("circle", { cx: at.x, cy: at.y, r: name === m.host ? 8 : labelled(name) ? 6 : 3, class: "host " + kind });
    const why = down.has(name) ? "most hosts do not reach it well" : silent.get(name) || "reports";
    dot.append(svgShape("title", {}, name + (name === m.host ? " (this host)" : "") + ": " + why));
    if (!labelled(name)) return [dot];
    const right = at.x > MAP_WIDTH / 2 + 1, middle = Math.abs(at.x - MAP_WIDTH / 2) <= 1;
    const label = svgShape("text", {
      x: at.x + (middle ? 0 : right ? 12 : -12), y: at.y + (middle ? (at.y < MAP_HEIGHT / 2 ? -12 : 22) : 4),
      "text-anchor": middle ? "middle" : right ? "start" : "end",
    }, name.length > 14 ? name.slice(0, 13) + "…" : name);
    return [dot, label];
  });
}

function drawMap(m) {
  $("map-box").hidden = m.hosts < 2;
  if (m.hosts < 2) return;
  const few = m.hosts <= GRID, all = times(m), slow = Math.max(0.001, 10 * (all[Math.floor(all.length / 2)] || 0));
  const at = places(m), known = pairs(m, slow).filter((pair) => at.has(pair.from) && at.has(pair.to));
  // Lines to a host that no other host reaches say nothing that its colour does not.
  const down = ill(m), faulty = known.filter((pair) => ["odd", "lost"].includes(pair.kind) && !down.has(pair.from) && !down.has(pair.to));
  const drawn = few ? known : faulty.slice(0, SHOWN), ends = new Set([m.host, ...down, ...drawn.flatMap((pair) => [pair.from, pair.to])]);
  drawn.sort((a, b) => ["unknown", "well", "odd", "lost"].indexOf(a.kind) - ["unknown", "well", "odd", "lost"].indexOf(b.kind));
  const labelled = (name) => few || (ends.has(name) && ends.size <= GRID);
  $("map").setAttribute("class", m.hosts <= 12 ? "sparse" : "");
  $("map").replaceChildren(...mapLines(m, at, drawn), ...mapHosts(m, at, labelled));
  $("map-legend").textContent = (few ? "Lines: which host reports on which. " : "Lines: faults alone, of " + m.hosts + " hosts. ") +
    "Green: answers; yellow: slow, or large packets are lost; red: silent; dashed: through this host's tunnel. Grey host: no report.";
}
