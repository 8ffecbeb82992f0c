"use strict";
// This host over a day, as the agent has kept it: three steps and a row of changes. Where nothing is drawn, no agent ran.
const DAY = 86400, PAST_WIDTH = 760, PAST_SIDE = 150, PAST_ROW = 40;
const PAST_ROWS = [["problems", 0, "problems"], ["hosts not reached", 1, "lost"], ["pods", 3, ""]];

function pastTime(seconds) { return new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 16); }

// The day that ends with the newest sample, whatever the clock of this browser says. Of a time that the host's clock
// was wrong in, only what fits into the day is there.
function lastDay(found) {
  const end = found.spans.length ? found.spans[found.spans.length - 1][1] : 0;
  const spans = found.spans.filter(([from, until]) => until > end - DAY && until <= end);
  return { end, spans: spans.map(([from, until, counts]) => ({ from: Math.max(from, end - DAY), until, counts })) };
}

function pastRow([name, at, kind], place, day, x) {
  const most = Math.max(1, ...day.spans.map((span) => span.counts[at])), bottom = (place + 1) * PAST_ROW;
  const parts = [svgShape("text", { x: PAST_SIDE - 8, y: bottom - 4, "text-anchor": "end" }, name)];
  for (const span of day.spans) {
    const height = span.counts[at] / most * (PAST_ROW - 8), width = Math.max(1, x(span.until) - x(span.from));
    const box = { x: x(span.from), width, class: "past known", y: bottom - 1, height: 1 };
    parts.push(svgShape("rect", box));
    if (height === 0) continue;
    const step = svgShape("rect", { ...box, class: "past " + kind, y: bottom - height, height });
    step.append(svgShape("title", {}, pastTime(span.from) + " to " + pastTime(span.until) + ": " + span.counts[at] + " " + name));
    parts.push(step);
  }
  return parts;
}

function pastChanges(day, x) {
  const changes = [...earlier, ...((status && status.changes) || [])], top = PAST_ROWS.length * PAST_ROW + 10;
  const parts = [svgShape("text", { x: PAST_SIDE - 8, y: top + 14, "text-anchor": "end" }, "changes")];
  for (const change of changes) {
    const at = Date.parse(change.at) / 1000;
    if (!(at > day.end - DAY)) continue;
    const mark = svgShape("rect", { x: Math.min(x(at), PAST_WIDTH - 2), y: top, width: 2, height: 18, class: change.repair ? "past repair" : "past" });
    mark.append(svgShape("title", {}, pastTime(at) + ": " + change.what));
    parts.push(mark);
  }
  return parts;
}

function pastWords(day) {
  const most = (at) => Math.max(...day.spans.map((span) => span.counts[at]));
  const ran = day.spans.reduce((sum, span) => sum + span.until - span.from, 0);
  return "Until " + pastTime(day.end) + " UTC: at most " + most(0) + (most(0) === 1 ? " problem, " : " problems, ") + most(1) + (most(1) === 1 ? " host not reached, " : " hosts not reached, ") +
    most(3) + (most(3) === 1 ? " pod. An agent" : " pods. An agent") + " ran for " + (ran < 5400 ? Math.round(ran / 60) + " min" : (ran / 3600).toFixed(1) + " h") + "; what earlier ones saw is kept.";
}

function showHistory(found) {
  earlier = found.changes.map(([at, what, why, repair]) => ({ at: new Date(at * 1000).toISOString(), what, why, repair }));
  const day = lastDay(found), x = (at) => PAST_SIDE + (at - day.end + DAY) / DAY * (PAST_WIDTH - PAST_SIDE);
  $("history").toggleAttribute("hidden", day.spans.length === 0);
  $("history-note").textContent = day.spans.length ? pastWords(day) : "nothing has been seen yet";
  const axis = [18, 12, 6].map((hours) => svgShape("text", { x: x(day.end - hours * 3600), y: 174, "text-anchor": "middle" }, hours + " h ago"));
  $("history").replaceChildren(...PAST_ROWS.flatMap((one, place) => pastRow(one, place, day, x)), ...pastChanges(day, x), ...axis);
  if (status) changes(status);
}

async function askHistory() {
  let soon = 60000;
  try {
    const answer = await fetch("/v1/history", { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    const found = await answer.json();
    showHistory(found);
    if (found.spans.length === 0) soon = 2000;
  } catch (error) {
    $("history").toggleAttribute("hidden", true);
    $("history-note").textContent = error.message.trim();
    soon = 5000;
  }
  setTimeout(askHistory, soon);
}
askHistory();
