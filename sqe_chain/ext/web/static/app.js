// The page. All text of others goes through textContent: nothing of it is ever read as HTML.
const main = document.getElementById("main");
const connection = document.getElementById("connection");
const state = { flows: [], events: [], rates: new Map() };
let source, tracing;

const el = (name, attributes = {}, ...children) => {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
};
const svg = (name, attributes = {}, ...children) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};
const keyText = (key) => (key === null ? "" : typeof key === "string" ? key : `0x${key.hex}`);
const enc = encodeURIComponent;
// JSON whose invisible characters are escaped: marks of direction would rearrange what follows them.
const json = (value, indent) => JSON.stringify(value, null, indent)
  .replace(/[\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
const keyPath = (key) => keyText(key).split("/").map(enc).join("/");
const time = (ms) => (ms === null || ms === undefined || ms < 0 ? "" : new Date(ms).toISOString().replace("T", " ").slice(0, 23));
const number = (value) => (value === null || value === undefined ? "" : value.toLocaleString("en"));

async function get(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  const body = await answer.json().catch(() => ({ text: answer.statusText }));
  if (!answer.ok) throw new Error(body.text || answer.statusText);
  return body;
}

const table = (caption, columns, rows, empty = "None.") =>
  rows.length === 0
    ? el("p", { class: "dim" }, empty)
    : el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
        el("table", {},
          el("thead", {}, el("tr", {}, ...columns.map((column) => el("th", { scope: "col" }, column)))),
          el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell) => el("td", {}, cell ?? "")))))));

const facts = (pairs) => el("dl", { class: "facts" }, ...pairs.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
const fill = (node, ...content) => node.replaceChildren(...content.filter((one) => one !== null));
const show = (title, ...content) => {
  document.title = `${title} - sqe-chain`;
  fill(main, el("h1", {}, title), ...content);
};
const failed = (error) => fill(main, el("h1", {}, "Not available"), el("p", { class: "bad", role: "alert" }, error.message));

const status = (flow) =>
  flow.unreadable ? el("span", { class: "bad" }, flow.unreadable)
  : flow.claimed_by === null ? el("span", { class: "dim" }, "stopped")
  : flow.alive === false ? el("span", { class: "bad" }, "no heartbeat")
  : el("span", { class: "good" }, "running");

// ------------------------------------------------------------------ the map of services

function layers(flows) {
  const column = new Map(), before = new Map();
  const link = (from, to) => before.set(to, [...(before.get(to) || []), from]);
  for (const flow of flows) {
    for (const topic of flow.reads) link(`t ${topic}`, `f ${flow.name}`);
    for (const topic of flow.writes) link(`f ${flow.name}`, `t ${topic}`);
  }
  const nodes = new Set([...before.keys(), ...[...before.values()].flat(), ...flows.map((flow) => `f ${flow.name}`)]);
  const depth = (node, seen) => {
    if (column.has(node)) return column.get(node);
    if (seen.has(node)) return 0;
    const from = (before.get(node) || []).map((parent) => depth(parent, new Set([...seen, node])) + 1);
    column.set(node, Math.max(0, ...from));
    return column.get(node);
  };
  for (const node of nodes) depth(node, new Set());
  return { column, before };
}

// The path of a line around all boxes: one that passes a column takes a row of it where no box is; one that leads back goes below all.
function line(from, to, column, place, rows) {
  const [x, y] = place.get(from), [u, v] = place.get(to), begin = [x + 180, y + 24], end = [u, v + 24];
  if (column.get(to) <= column.get(from))
    return { back: true, d: (below) => `M${begin} H${x + 195} V${below - 8} H${u - 15} V${v + 24} H${u}` };
  const curve = ([a, b], [c, d]) => `C${a + 25} ${b} ${c - 25} ${d} ${c} ${d}`;
  let d = `M${begin}`, at = begin;
  for (let passed = column.get(from) + 1; passed < column.get(to); passed++) {
    const row = rows.get(passed) || 0;
    rows.set(passed, row + 1);
    const entered = [20 + passed * 230, 44 + row * 74];
    d += curve(at, entered);
    at = [entered[0] + 180, entered[1]];
    d += `H${at[0]}`;
  }
  return { back: false, d: d + curve(at, end) };
}

function map(flows) {
  const { column, before } = layers(flows), rows = new Map(), place = new Map();
  for (const [node, at] of [...column].sort()) {
    const row = rows.get(at) || 0;
    rows.set(at, row + 1);
    place.set(node, [20 + at * 230, 20 + row * 74]);
  }
  const lines = [...before].flatMap(([to, parents]) => parents.map((from) => line(from, to, column, place, rows)));
  const deepest = 30 + 74 * Math.max(1, ...rows.values());
  const width = 220 + 230 * Math.max(0, ...column.values()), height = deepest + 12 * lines.filter((one) => one.back).length;
  const drawing = svg("svg", { class: "map", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Flows and the topics between them" });
  let below = deepest;
  for (const one of lines) drawing.append(svg("path", { d: one.back ? one.d(below += 12) : one.d }));
  for (const [node, [x, y]] of place) {
    const name = node.slice(2), flow = node[0] === "f" ? flows.find((one) => one.name === name) : null;
    const group = svg("g", { class: flow ? "flow" : "topic", transform: `translate(${x} ${y})` });
    group.append(svg("rect", { width: 180, height: 50, rx: flow ? 8 : 25 }));
    const title = svg("text", { x: 12, y: 21 });
    title.textContent = name.length > 23 ? `${name.slice(0, 22)}…` : name;
    const detail = svg("text", { x: 12, y: 39, class: "small" });
    detail.textContent = flow ? `plan ${flow.plan ?? "-"}, lag ${number(flow.lag ?? 0)}, ${number(state.rates.get(name) ?? 0)}/s` : "topic";
    const full = svg("title");
    full.textContent = name;
    group.append(full, title, detail);
    if (flow) {
      const anchor = svg("a", { href: `#/flow/${enc(name)}` });
      anchor.append(group);
      drawing.append(anchor);
    } else drawing.append(group);
  }
  return drawing;
}

function drawFlows() {
  const flows = state.flows;
  return ["Flows",
    flows.length ? map(flows) : el("p", {}, "No flow was found in the given store, and none was named."),
    el("h2", {}, "All flows"),
    table("All flows", ["flow", "status", "plan", "sealed (UTC)", "lag", "reads", "writes"],
      flows.map((flow) => [el("a", { href: `#/flow/${enc(flow.name)}` }, flow.name), status(flow), flow.plan ?? "", time(flow.sealed_ms),
        number(flow.lag), flow.reads.join(", "), flow.writes.join(", ")])),
    state.events.length ? el("h2", {}, "Newest events of this service") : null,
    state.events.length ? table("Newest events", ["event", "details"], state.events.slice(-12).reverse().map((event) => {
      const { event: name, ...rest } = event;
      return [name, el("span", { class: "mono" }, json(rest).slice(0, 300))];
    })) : null];
}

// ------------------------------------------------------------------ one flow

const STEPS = ["process", "seal", "publish", "persist", "commit"];

// Records per second over the plans that the store keeps: those of all plans but the oldest, by the time since that one.
function throughput(plans) {
  if (plans.length < 2) return "";
  const records = plans.slice(0, -1).reduce((sum, plan) => sum + plan.records, 0), ms = plans[0].clock_ms - plans.at(-1).clock_ms;
  return ms > 0 ? `${number(Math.round(1000 * records / ms))} records/s` : "";
}

function timeline(batches) {
  if (!batches.length) return el("p", { class: "dim" }, "Times of steps are known beside the service: run it with --web.");
  const shown = batches.slice(-20), most = Math.max(1, ...shown.map((batch) => STEPS.reduce((sum, step) => sum + (batch.steps[step] ?? 0), 0)));
  const rows = [...shown].reverse().map((batch) => {
    const bar = el("span", { class: "timeline", "aria-hidden": "true" });
    for (const step of STEPS) {
      const part = el("span", { class: `step-${step}`, title: `${step}: ${batch.steps[step] ?? 0} ms` });
      part.style.width = `${100 * (batch.steps[step] ?? 0) / most}%`;
      bar.append(part);
    }
    return [batch.number ?? "", time(batch.ended_ms).slice(11), bar, ...STEPS.map((step) => number(batch.steps[step])), number(batch.records), number(batch.replays), number(batch.outputs)];
  });
  return el("div", {}, el("p", { class: "dim" }, "Milliseconds of each step."),
    table("Batches by step", ["plan", "committed (UTC)", "timeline", ...STEPS.map((step) => el("span", { class: `key step-${step}` }, step)), "records", "replays", "outputs"], rows));
}

function revisions(known) {
  return el("ul", { id: "revisions" }, ...known.map((one) => el("li", { class: one.newer ? "warn" : "" },
    `${one.output}: revision ${one.follows} counts${one.newer ? `, revision ${one.newer} is ignored until sqe-chain rebuild` : ""}`)));
}

function eventTime(found) {
  if (!found || !found.waiting) return el("p", { class: "dim" }, "Nothing waits for event time.");
  return facts([["records that wait", number(found.waiting)], ["taken up to (UTC)", time(found.taken_to_ms)],
    ["waits for", found.holder ?? "unknown: name the flow on the command line"], ["known there up to (UTC)", found.holder ? time(found.known_to_ms) || "nothing yet" : ""]]);
}

const lastError = (error) => error
  ? el("p", { id: "last-error" }, el("strong", { class: "bad" }, error.error), ` ${time(error.at_ms)} UTC, `,
      error.record ? el("a", { href: `#/record/${enc(error.record)}` }, error.record) : "the service", `: ${error.text} `,
      el("a", { href: `#/runbook/${enc(error.entry)}` }, `Runbook: ${error.entry}`))
  : el("p", { class: "dim" }, "None is known.");

// New code beside the flow, and what it has found out about outputs; sqe-chain shadow report also compares states.
const shadow = (beside) => el("div", { id: "shadow" },
  facts([["name", beside.name], ["follows", beside.alive === null ? "no, or unknown yet" : beside.alive ? "yes" : "its heartbeat has stopped"], ["records behind the flow", number(beside.records_behind)],
    ["plans to compare", beside.plans_left === null ? "not begun" : number(beside.plans_left)], ["outputs equal", number(beside.equal)], ["different", number(beside.different)],
    ["missing", number(beside.missing)], ["only in the new code", number(beside.added)], ["gaps", number(beside.gaps)]]),
  beside.examples.length ? el("p", { class: "bad" }, `The first: ${beside.examples.join("; ")}`) : null,
  beside.modules.length ? el("p", { class: "dim" }, `Its code: ${beside.modules.slice(0, 20).join(", ")}`) : null);

async function drawFlow(name) {
  const flow = await get(`/api/flows/${enc(name)}`);
  const all = [...new Set(flow.inputs.map((input) => input.topic))], topics = all.slice(0, 20);
  const replays = await Promise.all(topics.map((topic) => get(`/api/topics/${enc(topic)}/replays`).then((found) => ({ ...found, replays: found.replays.map((one) => ({ topic, ...one })) }), () => ({ replays: [], unread: null }))));
  if (topics.length < all.length) replays.push({ replays: [], unread: null });
  const plans = [...flow.plans].reverse(), most = Math.max(1, ...plans.map((plan) => plan.records));
  return [`Flow ${name}`,
    facts([["status", status(flow)], ["last plan", flow.plan ?? "-"], ["sealed (UTC)", time(flow.sealed_ms)], ["lag", number(flow.lag)], ["claims so far", number(flow.claims)],
      ["open plan", flow.open_plan === null ? "none" : number(flow.open_plan)], ["throughput", throughput(flow.plans)]]),
    flow.away ? el("p", { class: "bad", role: "alert" }, `${flow.away} Positions and lag are unknown.`) : null,
    el("h2", {}, "Last error"), lastError(flow.last_error),
    el("h2", {}, "Event time"), eventTime(flow.event_time),
    ...(flow.revisions.length ? [el("h2", {}, "Revisions upstream"), revisions(flow.revisions)] : []),
    ...(flow.shadow ? [el("h2", {}, "Shadow"), shadow(flow.shadow)] : []),
    el("h2", {}, "Batches by step"), timeline(flow.batches),
    el("h2", {}, "Batches"),
    el("div", { class: "bars", role: "img", "aria-label": `Records of the last ${plans.length} batches` },
      ...plans.map((plan) => { const bar = el("span", { title: `plan ${plan.number}: ${plan.records} records` }); bar.style.height = `${Math.max(2, 100 * plan.records / most)}%`; return bar; })),
    table("Batches", ["plan", "clock (UTC)", "records", "skipped", "features"], flow.plans.slice(0, 10).map((plan) => [plan.number, time(plan.clock_ms), number(plan.records), number(plan.skipped), plan.sections.join(", ")])),
    el("h2", {}, "Inputs"),
    table("Inputs", ["partition", "position", "log", "lag", "newest (UTC)"], flow.inputs.slice(0, 200).map((input) => [`${input.topic}[${input.partition}]`, number(input.position), input.end === null ? "" : `${number(input.begin)} to ${number(input.end)}`, number(input.lag), time(input.newest_ms)])),
    el("h2", {}, "Replays, by the writer that published them again"),
    table("Replays", ["topic", "published again by", "records", "newest record (UTC)", "first"], replays.flatMap((found) => found.replays).map((one) => [one.topic, one.writer, number(one.records), time(one.newest_ms), el("a", { href: `#/record/${enc(one.first)}` }, one.first)]), replaysUnknown(replays) ?? "No writer has repeated itself."),
    replays.some((found) => found.replays.length) && replaysUnknown(replays) ? el("p", { class: "dim" }, replaysUnknown(replays)) : null,
    el("h2", {}, "Stages"),
    table("Stages", ["stage", "kind", "type", "cells", "at the last plan", "written in part", "lost"], flow.cells.map((cell) => [el("a", { href: `#/stage/${enc(name)}/${enc(cell.stage)}` }, cell.stage), cell.kind, cell.type, number(cell.cells), number(cell.at_plan), number(cell.open), cell.lost ? el("span", { class: "bad" }, number(cell.lost)) : "0"])),
    el("h2", {}, "Skipped, by reason"),
    flow.skipped === null ? el("p", { class: "dim" }, "Unknown here: this flow seals no plans. Its dead-letter records are those that it has skipped.")
      : table("Skipped", ["error", "records"], flow.skipped.map((skip) => [skip.error, number(skip.count)]), `None in the plans that the store keeps (${number(flow.plans.length)}).`),
    flow.loaded ? el("p", {}, el("a", { href: `#/dead-letters/${enc(name)}` }, "Dead-letter records")) : null];
}

// What cannot be known of replays, because not all of the topics was read; null: all of it was.
function replaysUnknown(found) {
  if (found.some((one) => one.unread === null)) return "Not all topics were read, so nobody knows whether a writer has repeated itself there.";
  const unread = found.reduce((sum, one) => sum + one.unread, 0);
  return unread ? `${number(unread)} records were not read, or are deleted. What repeats one of those is not found; among the others none more repeats itself.` : null;
}

// ------------------------------------------------------------------ stages and keys

async function drawStage(flow, stage, query) {
  const list = el("div"), prefix = el("input", { id: "prefix", value: query.get("prefix") ?? "" });
  const load = async (after) => {
    const path = `/flows/${enc(flow)}/stages/${enc(stage)}/keys?limit=50&prefix=${enc(prefix.value)}${after ? `&after=${enc(after)}` : ""}`;
    const page = await get(path);
    fill(list, 
      table("Keys", ["key"], page.keys.map((key) => [el("a", { href: `#/key/${enc(flow)}/${enc(stage)}/${enc(keyText(key))}` }, keyText(key))]), "No key begins so."),
      page.longer ? el("p", { class: "dim" }, `${number(page.longer)} keys are too long for this page; sqe-chain state shows them.`) : "",
      page.next ? el("button", { type: "button", onclick: () => load(page.next) }, "More keys") : "");
  };
  await load();
  return [`Stage ${stage} of ${flow}`,
    el("form", { onsubmit: (event) => { event.preventDefault(); load(); } }, el("label", { for: "prefix" }, "Keys that begin with", prefix), el("button", {}, "Search")), list];
}

async function drawKey(flow, stage, key) {
  const found = await get(`/flows/${enc(flow)}/stages/${enc(stage)}/keys/${keyPath(key)}`);
  const result = el("div", { "aria-live": "polite" });
  const button = el("button", { type: "button", onclick: () => traceKey(flow, stage, key, button, result) }, "Trace");
  return [`Key ${keyText(found.key)}`,
    facts([["flow", flow], ["stage", stage], ["plan", number(found.plan)], ["sealed (UTC)", time(found.sealed_ms)]]),
    el("h2", {}, "State"),
    ...found.states.map((one) => el("div", {}, one.window ? el("p", {}, `${time(one.window[0])} to ${time(one.window[1])}, ${one.final ? "final" : "open"}`) : null, el("pre", { tabindex: "0" }, json(one.state, 2)))),
    el("p", {}, button, " Reads the topics again and shows which records made this state."), result];
}

// Each event of a stream of server-sent events. EventSource hides why a stream is refused.
async function* eventsOf(path, signal) {
  const answer = await fetch(path, { signal });
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).text || answer.statusText);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const [name, data] = part.split("\ndata: ");
      yield { name: name.replace("event: ", ""), value: JSON.parse(data) };
    }
  }
}

async function traceKey(flow, stage, key, button, result) {
  button.disabled = true;
  const bar = el("progress", { max: "1", value: "0", "aria-label": "Records read" });
  fill(result, bar);
  tracing?.abort();
  const mine = tracing = new AbortController();
  const fail = (text) => fill(result, el("p", { class: "bad", role: "alert" }, text));
  try {
    let ended = false;
    for await (const { name, value } of eventsOf(`/api/flows/${enc(flow)}/stages/${enc(stage)}/trace/${keyPath(key)}`, mine.signal)) {
      if (name === "progress") { bar.max = value.of || 1; bar.value = value.read; continue; }
      ended = true;
      if (name === "failed") fail(value.text);
      else showTrace(value, result);
    }
    if (!ended) fail("The trace was interrupted.");
  } catch (error) { if (!mine.signal.aborted) fail(error.message); }
  button.disabled = false;
}

function showTrace(trace, result) {
  fill(result, 
    el("p", { id: "verdict", class: trace.equal ? "good" : "bad" }, trace.verdict),
    table("Records", ["record", "root", "event time (UTC)", "counted", "state after it"], trace.records.map((record) => [el("a", { href: `#/record/${enc(record.record)}` }, record.record), record.root, time(record.timestamp_ms), record.refused ?? "yes", el("span", { class: "mono" }, record.state === null ? "" : json(record.state))])),
    trace.earlier ? el("p", { class: "dim" }, `${number(trace.earlier)} earlier records are not shown; sqe-chain trace lists all.`) : "",
    el("h2", {}, "Ignored as replays"),
    table("Replays", ["record", "repeats"], trace.replays.slice(0, 200).map((replay) => [replay.record, replay.original])));
}

// ------------------------------------------------------------------ one record

async function drawRecord(text) {
  const input = el("input", { id: "record", value: text ?? "", placeholder: "orders[2]@417", size: 40 });
  const result = el("div", { "aria-live": "polite" });
  const look = async () => {
    const match = /^([a-zA-Z0-9._-]+)\[(\d+)\]@(\d+)$/.exec(input.value.trim());
    if (!match) { fill(result, el("p", { class: "bad", role: "alert" }, "Expected TOPIC[PARTITION]@OFFSET.")); return; }
    const [, topic, partition, offset] = match;
    try {
      const record = await get(`/api/records/${enc(topic)}/${partition}/${offset}`);
      const readers = state.flows.filter((flow) => flow.loaded && flow.reads.includes(topic));
      const fates = el("div");
      fill(result, 
        facts([["key", keyText(record.key)], ["time (UTC)", time(record.timestamp_ms)], ["bytes", number(record.bytes)]]),
        el("h2", {}, "Chain, root first"),
        record.unreadable ? el("p", { class: "warn" }, record.unreadable) : null,
        el("ol", { class: "chain" }, ...record.chain.map((link) => el("li", {}, el("a", { href: `#/record/${enc(`${link.topic}[${link.partition}]@${link.offset}`)}` }, `${link.topic}[${link.partition}]@${link.offset}`), ` by ${link.output} ${link.ordinal + 1}/${link.of}`)), el("li", {}, `${topic}[${partition}]@${offset}`)),
        record.value === undefined ? null : el("pre", { tabindex: "0" }, json(record.value)),
        el("h2", {}, "What became of it"),
        readers.length ? fates : el("p", { class: "dim" }, "No loaded flow reads this topic."));
      for (const flow of readers) {
        const fate = await get(`/api/flows/${enc(flow.name)}/why-not/${enc(topic)}/${partition}/${offset}`).catch((error) => ({ verdict: "unknown", reason: error.message }));
        fates.append(el("p", {}, el("strong", {}, `${flow.name}: `), el("span", { class: fate.verdict === "counted" ? "good" : "warn", "data-verdict": fate.verdict }, `${fate.verdict}. ${fate.reason}`)));
      }
    } catch (error) { fill(result, el("p", { class: "bad", role: "alert" }, error.message)); }
  };
  if (text) look();  // it shows its own errors
  return ["Record", el("form", { onsubmit: (event) => { event.preventDefault(); location.hash = `#/record/${enc(input.value.trim())}`; if (input.value.trim() === text) look(); } }, el("label", { for: "record" }, "Topic, partition and offset", input), el("button", {}, "Show")), result];
}

// ------------------------------------------------------------------ dead-letter records

async function drawDeadLetters(flow) {
  const found = await get(`/api/flows/${enc(flow)}/dead-letters?limit=100`);
  return [`Dead-letter records of ${flow}`,
    facts(Object.entries(found.reasons).map(([error, count]) => [error, number(count)])),
    found.unread ? el("p", { class: "dim" }, `${number(found.unread)} older records of this topic were not read, and are not in these numbers.`) : null,
    el("p", { class: "dim" }, "This page only shows. What was decided about these records, and what can be done with them: ", el("code", {}, "sqe-chain failed list MODULE:FLOW")),
    table("Dead-letter records", ["at", "time (UTC)", "key", "was read at", "error", "text"], found.records.reverse().map((one) => [one.at, time(one.timestamp_ms), keyText(one.key), one.record, one.error, one.text]))];
}

// ------------------------------------------------------------------ the runbook

async function drawRunbook(error) {
  const { text } = await get(`/api/runbook/${enc(error)}`);
  const plain = (part) => part.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").replace(/[`*]/g, "");
  return [`Runbook: ${error}`, ...text.split(/^```\w*$/m).flatMap((part, index) =>
    index % 2 ? [el("pre", { tabindex: "0" }, part.trim())] : part.split(/\n\s*\n/).filter((one) => one.trim()).map((one) => el("p", {}, plain(one).trim())))];
}

// ------------------------------------------------------------------ routes and live data

let asked = 0, shown = 0;

async function draw(hash) {
  const [path, query = ""] = hash.slice(2).split("?"), parts = path.split("/").map(decodeURIComponent);
  if (parts[0] === "flow") return drawFlow(parts[1]);
  if (parts[0] === "stage") return drawStage(parts[1], parts[2], new URLSearchParams(query));
  if (parts[0] === "key") return drawKey(parts[1], parts[2], parts.slice(3).join("/"));
  if (parts[0] === "record") return drawRecord(parts[1]);
  if (parts[0] === "runbook") return drawRunbook(parts[1]);
  if (parts[0] === "dead-letters") return drawDeadLetters(parts[1]);
  return drawFlows();
}

// Show the page that the address names. An answer for a page that was left, or older than what is shown, is dropped.
async function route(moved) {
  const hash = location.hash, mine = ++asked;
  const isOld = () => location.hash !== hash || mine < shown;
  tracing?.abort();
  try {
    const content = await draw(hash);
    if (isOld()) return;
    shown = mine;
    show(...content);
  } catch (error) {
    if (isOld()) return;
    shown = mine;
    failed(error);
  }
  if (moved) main.focus();
}

function listen() {
  source = new EventSource("/api/live");
  source.addEventListener("flows", (event) => {
    const found = JSON.parse(event.data), before = new Map(state.flows.map((flow) => [flow.name, flow]));
    connection.textContent = found.error ? found.error : `live, ${new Date().toISOString().slice(11, 19)} UTC`;
    if (!found.flows) return;
    for (const flow of found.flows) {
      const old = before.get(flow.name);
      if (old && flow.sealed_ms > old.sealed_ms) state.rates.set(flow.name, Math.round(1000 * Math.max(0, flow.read - old.read) / (flow.sealed_ms - old.sealed_ms)));
    }
    Object.assign(state, { flows: found.flows, events: found.events ?? [] });
    const name = location.hash.slice(2).split("/")[0];
    if (name === "" || name === "flow") route(false);
  });
  source.onerror = () => {
    connection.textContent = "not connected, trying again";
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);  // after an answer that is no stream browsers give up
  };
}

addEventListener("hashchange", () => route(true));
const begun = await get("/api/flows").catch((error) => ({ flows: [], error }));
Object.assign(state, begun);
await route(false);
listen();
