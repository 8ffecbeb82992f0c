"use strict";
// Who connects to what: a table, and a drawing of it; the table has everything that the drawing has.
const FLOWS_SHOWN = 100, FLOWS_DRAWN = 24, FLOW_LINE = 22, FLOW_WIDTH = 760, FLOW_SIDE = 250;

function shortName(text) { return text.length > 34 ? text.slice(0, 33) + "…" : text; }

// One line for each pair of ends, the busiest ones; dashed where something is denied.
function flowPairs(flows) {
  const found = new Map();
  for (const flow of flows) {
    const key = flow.from + "\n" + flow.to;
    const pair = found.get(key) || { from: flow.from, to: flow.to, count: 0, denied: false };
    pair.count += flow.count;
    pair.denied = pair.denied || flow.verdict === "denied";
    found.set(key, pair);
  }
  const all = [...found.values()];
  all.sort((a, b) => b.denied - a.denied || b.count - a.count);
  return all.slice(0, FLOWS_DRAWN);
}

function drawFlows(flows) {
  const drawn = flowPairs(flows);
  const left = [...new Set(drawn.map((pair) => pair.from))], right = [...new Set(drawn.map((pair) => pair.to))];
  const height = Math.max(left.length, right.length, 1) * FLOW_LINE + 8;
  const drawing = $("flows-drawing"), parts = [];
  drawing.setAttribute("viewBox", "0 0 " + FLOW_WIDTH + " " + height);
  const y = (list, name) => list.indexOf(name) * FLOW_LINE + 16;
  for (const pair of drawn) {
    const line = svgShape("line", { x1: FLOW_SIDE, x2: FLOW_WIDTH - FLOW_SIDE, y1: y(left, pair.from) - 4, y2: y(right, pair.to) - 4, class: pair.denied ? "flow denied" : "flow" });
    line.append(svgShape("title", {}, pair.from + " → " + pair.to + ": " + pair.count + (pair.denied ? ", some denied" : "")));
    parts.push(line);
  }
  for (const name of left) parts.push(svgShape("text", { x: FLOW_SIDE - 6, y: y(left, name), "text-anchor": "end" }, shortName(name)));
  for (const name of right) parts.push(svgShape("text", { x: FLOW_WIDTH - FLOW_SIDE + 6, y: y(right, name) }, shortName(name)));
  drawing.replaceChildren(...parts);
}

function flowPolicies(flow) {
  const policies = [...new Set([flow.egress_policy, flow.ingress_policy].filter((one) => one))];
  return policies.length ? policies.join(", ") : [...new Set([flow.egress, flow.ingress].filter((one) => one))].join(", ");
}

function showFlows(found) {
  const flows = found.flows;
  const denied = flows.filter((flow) => flow.verdict === "denied").length;
  const notes = [flows.length + (flows.length === 1 ? " flow, " : " flows, ") + denied + " denied.", ...found.notes];
  $("flows-note").textContent = notes.join(" ");
  $("flows-box").hidden = flows.length === 0;
  drawFlows(flows);
  fill("flows", flows.slice(0, FLOWS_SHOWN).map((flow) => row(
    flow.from, flow.to, [flow.port, flow.protocol].filter((one) => one !== null).join(" "),
    make("td", flow.verdict, flow.verdict === "allowed" ? "good" : "bad"), flowPolicies(flow), flow.count, flow.last.replace("T", " ").slice(0, 19),
  )));
  $("flows-more").textContent = flows.length > FLOWS_SHOWN ? flows.length - FLOWS_SHOWN + " more: humanz-agent flows" : "";
}

async function askFlows() {
  try {
    const answer = await fetch("/v1/flows", { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    showFlows(await answer.json());
  } catch (error) {
    $("flows-box").hidden = true;
    $("flows-note").textContent = error.message.trim();
  }
  setTimeout(askFlows, 5000);
}
askFlows();
