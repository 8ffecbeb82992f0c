"use strict";
// What humanz-agent explain says of two ends.

function hop(one) {
  const kind = one.verdict === "ok" ? "good" : "bad";
  const seen = make("td", one.seen);
  if (one.fix) seen.append(make("span", "→ " + one.fix, "fix"));
  return row(make("td", one.verdict, kind), one.hop, one.place, seen);
}

function note(text, kind) {
  $("explain-note").textContent = text;
  $("explain-note").className = kind;
}

async function explain(event) {
  event.preventDefault();
  const words = ["from", "to", "port"].map((end) => $("explain-" + end).value.trim());
  note("looking …", "faint");
  $("explain-box").hidden = true;
  try {
    const answer = await fetch("/v1/explain", { cache: "no-store", headers: { "X-Humanz-Explain": words.filter(Boolean).join("\t") } });
    if (!answer.ok) throw new Error(await answer.text());
    const found = await answer.json();
    fill("explain-hops", found.hops.map(hop));
    $("explain-box").hidden = false;
    const ends = found.from.name + " → " + found.to.name + ": ";
    const odd = [...new Set(found.hops.filter((one) => one.verdict === "odd").map((one) => one.hop))];
    if (found.lost) note(ends + "lost at " + found.lost, "bad");
    else if (odd.length) note(ends + "nothing is lost as far as this host can see; odd: " + odd.join(", "), "faint");
    else note(ends + "nothing is wrong as far as this host can see", "good");
  } catch (error) {
    note(error.message.trim(), "bad");
  }
}

// The pods of this host are offered.
function offerPods() {
  fill("explain-pods", pods ? pods.pods.filter((pod) => pod.pod).slice(0, SHOWN).map((pod) => { const one = make("option"); one.value = pod.pod; return one; }) : []);
}

$("explain-form").addEventListener("submit", explain);
$("explain-form").addEventListener("focusin", offerPods);
