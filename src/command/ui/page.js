"use strict";
// Everything on the page is put there as text: names and reasons come from other hosts.
const $ = (id) => document.getElementById(id);
const SHOWN = 200, FIRST = 10;
let status = null, earlier = [];

// A part of a drawing.
function svgShape(tag, values, text) {
  const node = document.createElementNS($("map").namespaceURI, tag);
  for (const [name, value] of Object.entries(values)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function make(tag, text, name) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = text;
  if (name) node.className = name;
  return node;
}

function fill(id, nodes) { $(id).replaceChildren(...nodes); }

function row(...cells) {
  const tr = make("tr");
  for (const cell of cells) tr.append(cell instanceof Node ? cell : make("td", cell));
  return tr;
}

function list(values) { return (values || []).join(", ") || "–"; }

function ago(seconds) {
  if (seconds === null || seconds === undefined) return "never";
  if (seconds < 90) return Math.round(seconds) + " s ago";
  if (seconds < 5400) return Math.round(seconds / 60) + " min ago";
  return Math.round(seconds / 3600) + " h ago";
}

function policies(p) {
  if (!p || !p.on) return p ? "off" : "–";
  if (p.unjudged) return "pods are not judged, every packet passes: none have been read yet";
  if (!p.known) return "none have been read yet";
  const parts = [p.policies + (p.policies === 1 ? " policy" : " policies"), p.rules + (p.rules === 1 ? " rule" : " rules"), p.pods + (p.pods === 1 ? " pod" : " pods"), ...(p.quarantine.length ? [p.quarantine.length + " in quarantine: " + list(p.quarantine.map((one) => one.pod + " (" + one.why + ")"))] : [])];
  const from = p.sources.map((one) => one.source + (one.healthy ? "" : " (not followed now)") + (one.read ? ", read " + one.read : ""));
  return parts.join(", ") + "; from " + list(from);
}

function host(s) {
  const lease = s.lease || {}, etcd = s.etcd;
  const facts = [
    ["addresses", list(s.node.addresses)],
    ["pod subnets", list(lease.subnets)],
    ["they come from", lease.source || "–"],
    ["way to others", s.backend || "–"],
    ["MTU of pods", s.node.pod_mtu || "–"],
    ["etcd", etcd === null ? "not used" : etcd.connected ? etcd.connected + ", heard " + ago(etcd.last_contact_seconds) : "no answer, heard " + ago(etcd.last_contact_seconds)],
    ["firewall", s.firewall === null ? "–" : s.firewall.ok ? "lets pods through" : "in the way"],
    ["policies", policies(s.policies)],
    ["agent", s.node.version + ", since " + s.node.started],
  ];
  fill("host", facts.flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
}

function addresses(s) {
  fill("addresses", (s.addresses || []).map((use) => {
    const box = make("div"), meter = make("meter");
    const all = use.used + use.free;
    meter.max = all;
    meter.value = use.used;
    meter.high = all * 0.9;
    meter.optimum = 0;
    box.append(make("div", use.family + ": " + use.used + " used, " + (use.free > 1e6 ? use.free.toExponential(1) : use.free) + " free"), meter);
    return box;
  }));
}

// The subnets of a host that are not reached well: those without a way, or all if each has one.
function lost(peer) {
  const without = peer.subnets.filter((subnet, at) => !(peer.via || [])[at]);
  return without.length > 0 || peer.reachable ? without : peer.subnets;
}

// One square for each subnet of each host: its family's way.
function matrix(s) {
  const peers = s.peers || [];
  const squares = peers.flatMap((peer) => {
    const bad = lost(peer);
    return peer.subnets.map((subnet, at) => {
      const way = (peer.via || [])[at];
      const kind = bad.includes(subnet) ? "none" : ["tunnel", "encrypted"].includes((peer.paths || [])[at]) ? "tunnel" : "direct";
      const square = make("span", null, "square " + kind + (peer.alive ? "" : " silent"));
      const details = [way || "no way", ...(peer.fault ? [peer.fault] : []), ...(peer.alive ? [] : ["its agent is silent"])];
      square.title = peer.name + " " + subnet + ": " + details.join("; ");
      return square;
    });
  });
  const bad = peers.filter((peer) => lost(peer).length > 0).length;
  const silent = peers.filter((peer) => !peer.alive).length;
  $("matrix-note").textContent = s.peers === null ? "not known yet" : peers.length === 0 ? "there are no other hosts" :
    peers.length + (peers.length === 1 ? " host, " : " hosts, ") + bad + " not reached well, " + silent + " with a silent agent. " +
    "Green: direct, blue: tunnel or encrypted, red: no way or lost packets, pale: silent.";
  fill("matrix", squares);
}

function peers(s) {
  const wanted = $("filter").value.trim().toLowerCase();
  const all = (s.peers || []).filter((peer) => [peer.name, ...peer.addresses, ...peer.subnets].some((text) => text.toLowerCase().includes(wanted)));
  all.sort((a, b) => a.reachable - b.reachable || a.alive - b.alive || a.name.localeCompare(b.name));
  fill("peers", all.slice(0, SHOWN).map((peer) => row(
    peer.name, list(peer.addresses), list(peer.subnets),
    peer.reachable ? list([...new Set(peer.via), ...(peer.probe?.seconds == null ? ["not asked"] : [])]) : make("td", peer.fault, "bad"),
    make("td", peer.alive ? "runs" : "silent", peer.alive ? "good" : "bad"),
  )));
  $("more").textContent = all.length > SHOWN ? all.length - SHOWN + " more" : "";
}

// A link that shows the row of a host or a pod below.
function link({ host, pod }) {
  const name = host || pod;
  if (!name) return null;
  const [box, filter] = host ? ["hosts-box", "filter"] : ["pods-section", "pods-filter"];
  const node = make("a", host ? "show host" : "show pod");
  node.href = "#" + box;
  node.addEventListener("click", () => { $(filter).value = name; $(filter).dispatchEvent(new Event("input")); });
  return node;
}

// A browser that gives no page the clipboard gets the text selected.
function copyButton(text) {
  const button = make("button", "copy", "copy");
  button.title = "copy: " + text;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
      button.textContent = "selected";
    }
  });
  return button;
}

function problem(found) {
  const item = make("li", found.what), subject = link(found);
  if (found.since) item.append(make("span", " since " + found.since.replace("T", " ").slice(0, 19), "since"));
  if (subject) item.append(" ", subject);
  if (found.fix) {
    const fix = make("span", "→ ", "fix");
    fix.append(make("span", found.fix), copyButton(found.fix));
    item.append(fix);
  }
  return item;
}

// What the keyboard is on there: a link or button, and of which problem.
function heldProblem() {
  const at = document.activeElement, item = at.closest("#problems-box li");
  return item && { what: item.firstChild.textContent, tag: at.tagName };
}

function keep({ what, tag }) {
  const item = [...document.querySelectorAll("#problems-box li")].find((one) => one.firstChild.textContent === what);
  const same = item && item.querySelector(tag);
  if (same) same.focus({ preventScroll: true });
}

let shownProblems = null;

// Drawn anew when they change alone, so that what was selected stays.
function problems(s) {
  const now = JSON.stringify(s.problems);
  if (now === shownProblems) return;
  shownProblems = now;
  const all = s.problems || [], rest = all.slice(FIRST, SHOWN), held = heldProblem();
  $("problems-box").hidden = all.length === 0;
  fill("problems", all.slice(0, FIRST).map(problem));
  $("problems-more").hidden = rest.length === 0;
  $("problems-more").querySelector("summary").textContent = all.length - FIRST + " more";
  fill("problems-rest", rest.map(problem));
  if (held) keep(held);
}

function changes(s) {
  const newest = [...earlier, ...s.changes].slice(-100).reverse();
  fill("changes", newest.map((change) => row(change.at.replace("T", " ").slice(0, 19), make("td", change.what, change.repair ? "repair" : ""), change.why + (change.repair ? " (repaired)" : ""))));
}

function loops(s) {
  fill("loops", s.loops.map((loop) => {
    const hangs = loop.seconds_since_beat > loop.limit;
    return make("span", loop.name + " " + (hangs ? "hangs" : "turns") + "  ", hangs ? "bad" : "good");
  }));
}

function show() {
  const s = status;
  $("name").textContent = s.node.name;
  document.title = s.node.name + " – humanz";
  const count = (s.problems || []).length;
  const well = s.ready && count === 0;
  $("state").textContent = !s.ready ? "not ready: no pod can start" : well ? "this host is well" : count + (count === 1 ? " problem" : " problems");
  $("state").className = well ? "good" : "bad";
  for (const part of [host, addresses, matrix, peers, problems, changes, loops]) part(s);
}

// What the keyboard is on stays in sight when something above it grows, unless somebody scrolled away.
let held = null;

function inSight(element) {
  const box = element.getBoundingClientRect();
  return box.bottom > 0 && box.top < innerHeight;
}

function hold() {
  const at = document.activeElement;
  held = at !== document.body && inSight(at) ? at : null;
}

addEventListener("scroll", hold);
addEventListener("focusin", () => requestAnimationFrame(hold));
new ResizeObserver(() => {
  if (held && held === document.activeElement && !inSight(held)) held.scrollIntoView({ block: "nearest" });
  hold();
}).observe(document.body);

async function ask() {
  try {
    const answer = await fetch("/v1/status", { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    status = await answer.json();
    show();
  } catch (error) {
    $("state").textContent = "the agent does not answer: " + error.message.trim() + (status ? ". What is shown is what it said last." : "");
    $("state").className = "bad";
  }
  setTimeout(ask, document.hidden ? 15000 : 2000);
}

$("filter").addEventListener("input", () => status && peers(status));
ask();
