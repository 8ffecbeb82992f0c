"use strict";
// The pods of this host. What they send in a second is the difference between two answers.
const PODS_EVERY = 5000;
let pods = null, before = null;
// By podKey, what of policies holds for a pod; null while this host's agent does not say.
let podPolicies = null;

function podName(pod) { return pod.pod || pod.container || "–"; }

// An interface of a pod; one that was made anew counts from zero.
function podKey(pod) { return [pod.network, pod.container, pod.interface].join("\n"); }

function bytes(number) {
  const units = ["", " k", " M", " G", " T", " P"];
  let unit = 0;
  while (number >= 999.5 && unit + 1 < units.length) { number /= 1000; unit += 1; }
  return (unit === 0 ? Math.round(number) : number.toPrecision(3)) + units[unit] + "B";
}

// Bytes in a second, as text; a dash where one look does not have it.
function rate(pod, counter) {
  const last = before && before.passed.get(podKey(pod));
  if (!last || last[counter] === null || pod[counter] === null) return "–";
  const more = pod[counter] >= last[counter] ? pod[counter] - last[counter] : pod[counter];
  return bytes(more / (pods.at - before.at) * 1000) + "/s";
}

function podMatches(pod, wanted) {
  const ports = pod.host_ports.map((port) => port.host);
  return [podName(pod), pod.network, ...pod.addresses, ...ports].some((text) => text.toLowerCase().includes(wanted));
}

function podState(pod) {
  const held = ((status && status.policies && status.policies.quarantine) || []).some((one) => one.pod === pod.pod);
  if (held) return make("td", "in quarantine", "bad");
  return make("td", pod.state, pod.state === "attached" ? "good" : pod.state === "gone" ? "bad" : "");
}

// An agent knows the pods of its own network, and not yet those that came since it was asked.
function podPolicy(pod) {
  if (status && status.policies && !status.policies.on) return "off";
  const one = podPolicies && podPolicies.get(podKey(pod));
  if (!one) return "cannot be known";
  if (one.quarantine) return make("td", "none: in quarantine, " + one.quarantine, "bad");
  if (one.unknown) return make("td", one.unknown, "repair");
  if (!one.ingress || !one.egress) return "cannot be known";
  if (one.ingress.length + one.egress.length === 0) return "none";
  const td = make("td");
  td.append(make("div", "in: " + (one.ingress.join(", ") || "none")), make("div", "out: " + (one.egress.join(", ") || "none")));
  return td;
}

function takePolicies(found) {
  podPolicies = found && new Map(found.map((one) => [podKey(one), one]));
  if (pods) showPods();
}

function showPods() {
  const wanted = $("pods-filter").value.trim().toLowerCase();
  const all = pods.pods.filter((pod) => podMatches(pod, wanted));
  all.sort((a, b) => podName(a).localeCompare(podName(b)));
  const attached = pods.pods.filter((pod) => pod.state === "attached").length;
  $("pods-note").textContent = [pods.pods.length + (pods.pods.length === 1 ? " interface" : " interfaces") + " of pods, " + attached + " attached", ...pods.problems.map((it) => it.what + (it.fix ? "; " + it.fix : ""))].join(". ");
  $("pods-note").className = pods.problems.length ? "bad" : "faint";
  $("pods-box").hidden = pods.pods.length === 0;
  fill("pods", all.slice(0, SHOWN).map((pod) => row(
    podName(pod), list(pod.addresses), pod.network, list(pod.host_ports.map((port) => port.host + "/" + port.protocol)),
    rate(pod, "sent_bytes"), rate(pod, "received_bytes"), podPolicy(pod), podState(pod),
  )));
  $("pods-more").textContent = all.length > SHOWN ? all.length - SHOWN + " more" : "";
}

function takePods(found) {
  if (pods) {
    const passed = pods.pods.map((pod) => [podKey(pod), { sent_bytes: pod.sent_bytes, received_bytes: pod.received_bytes }]);
    before = { at: pods.at, passed: new Map(passed) };
  }
  pods = { at: performance.now(), ...found };
  showPods();
}

async function askPods() {
  try {
    const answer = await fetch("/v1/pods", { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    takePods(await answer.json());
  } catch (error) {
    $("pods-box").hidden = true;
    $("pods-note").className = "bad";
    $("pods-note").textContent = error.message.trim();
  }
  setTimeout(askPods, document.hidden ? 60000 : PODS_EVERY);
}

$("pods-filter").addEventListener("input", () => pods && showPods());
askPods();
