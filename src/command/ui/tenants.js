"use strict";
// Networks of tenants, groups, and who may reach what, as far as this host knows it.
const TENANTS_EVERY = 10000;
let tenants = null;

// Up to `limit` of the values, and how many more there are.
function some(values, limit) {
  return values.length === 0 ? "–" : values.slice(0, limit).join(", ") + (values.length > limit ? " … " + (values.length - limit) + " more" : "");
}

function blockText(block) {
  const all = block.used + block.free;
  return block.block + " (gateway " + block.gateway + "): " + block.used + " of " + (all > 1e6 ? all.toExponential(1) : all) + " used";
}

function networkRow(network) {
  const yes = (is) => is ? "yes" : "no";
  const blocks = make("td");
  blocks.append(...network.blocks.slice(0, FIRST).map((block) => make("div", blockText(block))));
  if (network.blocks.length > FIRST) blocks.append(make("div", network.blocks.length - FIRST + " more"));
  if (network.blocks.length === 0) blocks.textContent = "none";
  return row(network.name, list(network.subnets), blocks, yes(network.nat), yes(network.shared), yes(network.host_ports));
}

function groupRow(group) {
  const ways = group.denies.map((way) => way === "ingress" ? "in" : "out");
  const rest = ways.length ? make("td", "denied " + ways.join(" and "), "odd") : "allowed";
  return row(group.name, some(group.policies, FIRST), rest, some(group.pods, FIRST), group.elsewhere === null ? "not published" : group.elsewhere);
}

function pairRow(pair) {
  const part = (services) => services.length === 0 ? "–" : services.length === pair.allowed.length + pair.denied.length + pair.unknown.length ? "everything" : some(services, FIRST);
  const remarks = [];
  if (pair.unknown.length) remarks.push("not known here: " + part(pair.unknown));
  if (pair.elsewhere) remarks.push("a pod of another host is judged there, too");
  return row(pair.from, pair.to, part(pair.allowed), make("td", part(pair.denied), pair.denied.length ? "odd" : ""), remarks.join("; "));
}

function listTenants(what, all, matches, toRow) {
  const wanted = $(what + "-filter").value.trim().toLowerCase();
  const found = all.filter((one) => matches(one).some((text) => text.toLowerCase().includes(wanted)));
  $(what + "-box").hidden = all.length === 0;
  fill(what, found.slice(0, SHOWN).map(toRow));
  $(what + "-more").textContent = found.length > SHOWN ? "… " + (found.length - SHOWN) + " more" : "";
}

// Rules decide nothing of these pods.
function showQuarantined() {
  const all = tenants.quarantined.map((one) => one.pod + " (" + one.why + ")");
  $("quarantined").hidden = all.length === 0;
  $("quarantined").textContent = "In quarantine, only this node reaches them: " + some(all, FIRST);
  if (all.length) $("pairs-box").hidden = false;
}

function showTenants() {
  listTenants("networks", tenants.networks, (one) => [one.name, ...one.subnets], networkRow);
  listTenants("groups", tenants.groups, (one) => [one.name, ...one.policies, ...one.pods], groupRow);
  listTenants("pairs", tenants.pairs || [], (one) => [one.from, one.to, ...one.allowed, ...one.denied], pairRow);
  if (tenants.pairs === null) {
    $("pairs-box").hidden = false;
    $("pairs-more").textContent = "too many to show: humanz-agent policy test --from … --to … answers for one pair";
  }
  showQuarantined();
}

async function askTenants() {
  try {
    const answer = await fetch("/v1/tenants", { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    tenants = await answer.json();
    takePolicies(tenants.pods);
    showTenants();
  } catch (error) {
    // What was shown stays, but not what holds for a pod now.
    takePolicies(null);
    for (const what of ["networks", "groups", "pairs"]) $(what + "-more").textContent = "not known now: " + error.message.trim();
  }
  setTimeout(askTenants, document.hidden ? 60000 : TENANTS_EVERY);
}

for (const what of ["networks", "groups", "pairs"]) $(what + "-filter").addEventListener("input", () => tenants && showTenants());
askTenants();
