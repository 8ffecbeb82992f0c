"use strict";
// Reachability between hosts, by the reports of all. Up to GRID hosts are shown one
// by one, of more those with faults.
const GRID = 40;

function label(fault) {
  if (fault.bytes) return "≥" + fault.bytes;
  return fault.family ? "no " + fault.family : "silent";
}

function millis(seconds) {
  const ms = seconds * 1000;
  if (ms < 0.095) return "<0.1";
  return ms < 9.95 ? ms.toFixed(1) : ms < 9950 ? Math.round(ms) : Math.round(ms / 1000) + " s";
}

function times(m) { return m.rows.flatMap((row) => Object.values(row.seconds)).sort((a, b) => a - b); }

// What `row` says of `to`: text, class, and all of it.
function cell(row, to, slow) {
  if (row.host === to) return ["", "self", ""];
  const fault = row.faults.find((fault) => fault.host === to);
  const took = Object.hasOwn(row.seconds, to) ? row.seconds[to] : undefined;
  if (fault) return [label(fault), fault.bytes ? "odd" : "lost", fault.what];
  if (took === undefined) return ["–", "unknown", row.more_faults ? "not reported" : "not asked yet"];
  return [millis(took), took > slow ? "odd" : "well", (took * 1000).toFixed(3) + " ms"];
}

// Hosts that most do not reach have a problem themselves, not the others.
function ill(m) { return new Set(m.unreached.filter((other) => other.most).map((other) => other.host)); }

// A report has faults of other hosts than those.
function strange(report, down) {
  return report.more_faults > 0 || report.faults.some((fault) => !down.has(fault.host));
}

function heading(m, hosts) {
  const names = hosts.map((host) => {
    const th = make("th"), named = m.unreached.find((other) => other.host === host);
    th.append(make("span", host, named && named.most ? "bad" : ""));
    th.title = named ? named.by + " of " + named.of + " do not reach it well" : host;
    return th;
  });
  return row(make("th", "from ↓ to →", "corner"), ...names);
}

function line(m, hosts, host, slow, down) {
  const report = m.rows.find((row) => row.host === host);
  const name = make("th", host, "name" + (report && strange(report, down) ? " bad" : ""));
  name.scope = "row";
  if (!report) {
    const why = make("td", "no report: " + m.untold.find((other) => other.host === host).why, "none");
    why.colSpan = hosts.length;
    return row(name, why);
  }
  name.title = "reported at " + report.at + (host === m.host ? " (this host: now)" : "");
  return row(name, ...hosts.map((to) => {
    const [text, kind, title] = cell(report, to, slow);
    const td = make("td", text, kind);
    td.title = host === to ? host : host + " → " + to + ": " + title;
    return td;
  }));
}

function grid(m) {
  const names = [...m.rows, ...m.untold].map((row) => row.host);
  names.sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
  const down = ill(m), all = times(m), slow = Math.max(0.001, 10 * (all[Math.floor(all.length / 2)] || 0));
  const table = make("table", null, "grid" + (names.length > 12 ? " small" : ""));
  table.append(heading(m, names), ...names.map((host) => line(m, names, host, slow, down)));
  const legend = "Row: asking host; column: asked host; milliseconds. Green: answers; yellow: ten times as slow as most, or " +
    "packets of so many bytes are lost; red: silent.";
  return [make("p", legend, "faint"), table];
}

function listed(title, heads, rows, count) {
  if (count === 0) return [];
  const table = make("table");
  table.append(row(...heads.map((text) => make("th", text))), ...rows.slice(0, SHOWN));
  const more = count > SHOWN ? [make("p", count - SHOWN + " more", "faint")] : [];
  return [make("h3", title), table, ...more];
}

// The faulty rows and columns of many hosts.
function digest(m) {
  const down = ill(m), ones = m.rows.filter((report) => strange(report, down));
  ones.sort((a, b) => a.answer / a.asked - b.answer / b.asked);
  const took = (seconds) => seconds === null ? "–" : millis(seconds);
  const named = (row) => row.faults.slice(0, 5).map((fault) => fault.host + " " + label(fault)).join(", ");
  const more = (row) => Math.max(0, row.faults.length - 5) + row.more_faults;
  const faulty = ones.slice(0, SHOWN).map((report) => row(
    report.host, make("td", report.answer + " of " + report.asked, "bad"), took(report.median_seconds), report.at.replace("T", " ").slice(0, 19),
    named(report) + (more(report) ? " and " + more(report) + " more" : ""),
  ));
  const lost = m.unreached.slice(0, SHOWN).map((other) => row(other.host, make("td", other.by + " of " + other.of, "bad")));
  const silent = m.untold.slice(0, SHOWN).map((other) => row(other.host, other.why));
  return [
    ...listed("Hosts that others do not reach", ["host", "not reached well by"], lost, m.unreached.length),
    ...listed("Hosts that do not reach what most reach", ["host", "answer", "ms", "reported at", "not reached well"], faulty, ones.length),
    ...listed("Hosts without a report", ["host", "why"], silent, m.untold.length),
  ];
}

function reach(m) {
  const down = ill(m), ones = m.rows.filter((report) => strange(report, down)).length;
  const few = m.hosts <= GRID, well = down.size + ones === 0;
  $("reach-note").textContent = m.hosts < 2 ? "there are no other hosts" :
    m.rows.length + " of " + m.hosts + " hosts report: " + (well ? "no faults" :
      down.size + " not reached by most, " + ones + " with other faults");
  $("reach-note").className = well ? "faint" : "bad";
  drawMap(m);
  fill("reach", m.hosts < 2 ? [] : few ? grid(m) : digest(m));
  fill("reach-remarks", m.remarks.map((remark) => make("li", remark)));
}

// A network was shown.
let isShown = false;

// How long until the next question: the answer is read from etcd, some 400 bytes for each host.
let pause = 5000;

async function askReach() {
  try {
    const answer = await fetch("/v1/matrix", { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    const m = await answer.json();
    pause = m.hosts > GRID ? 60000 : 5000;
    reach(m);
    isShown = true;
  } catch (error) {
    if (!isShown) $("reach-note").textContent = "";
    fill("reach-remarks", [make("li", "not known now: " + error.message)]);
  }
  setTimeout(askReach, document.hidden ? 60000 : pause);
}

askReach();
