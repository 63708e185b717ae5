// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace replay::page {

/// The script that makes the parts of a page.
inline constexpr const char* parts = R"js(
// The parts of the page.

/// Makes an element. Properties that begin with "on" are listeners; children are elements or text.
function make(tag, props = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
    else if (name === "text") e.textContent = value;
    else if (value !== false && value !== undefined) e.setAttribute(name, value === true ? "" : value);
  }
  e.append(...children);
  return e;
}
const swatch = color => make("i", {class: "box", style: "background:" + color});

/// A source line without the folders of its file.
const shortLine = line => line.replace(/^[^ ]*[\\/](?=[^\\/ ]+:\d)/, "");

/// A group of buttons of which one is pressed. `options` are [value, text].
function choice(label, options, value, changed) {
  const group = make("div", {class: "choice", role: "group", "aria-label": label}, make("span", {class: "label", text: label}));
  const buttons = options.map(([v, text]) => make("button", {type: "button", "data-value": v, text, onclick: () => { set(v); changed(v); }}));
  const set = v => { for (const b of buttons) b.setAttribute("aria-pressed", b.dataset.value === v); };
  set(value);
  group.append(make("div", {class: "pressed"}, ...buttons));
  group.set = set;
  return group;
}
function zoomButtons(label, zoom) {
  const button = (text, title, factor) => make("button", {type: "button", title, "aria-label": title, text, onclick: () => zoom(factor)});
  return make("div", {class: "pressed", role: "group", "aria-label": label}, button("+", "Zoom in", .5), button("\u2212", "Zoom out", 2), button("All", "Show all", 0));
}

/// How long a block lives, in words.
function lifetimeText(ui, run, slot) {
  const {all} = ui, from = all.program.birth[slot], to = run.freed[slot], end = run.end[slot];
  const start = from < all.start ? "live when the recording begins" : "allocated at event " + formatCount(from) + (all.times ? " (" + formatTime(all.times[from]) + ")" : "");
  const time = to !== NEVER && all.times ? " (" + formatTime(all.times[to]) + ", after " + formatTime(all.times[to] - all.times[from]) + ")" : "";
  const freed = to === NEVER ? "never freed" : "freed at event " + formatCount(to) + time;
  return start + ", " + freed + (end !== to ? end === NEVER ? ", pending until the end" : ", pending until event " + formatCount(end) : "");
}
/// The facts about a block, as [name, text].
function factsOf(ui, run, slot) {
  const {program: p} = ui.all, k = p.kinds[p.kind[slot]], place = run.place[slot], i = segmentOf(ui, run, slot);
  const facts = [["block", "id " + p.id(slot) + ", " + formatBytes(k.bytes) + " requested, " + formatBytes(run.bytes[place]) + " in the block"]];
  if (k.line) facts.push(["line", k.line]);
  if (k.label) facts.push(["tag", k.label]);
  facts.push(["stream", k.stream === String(k.handle) ? k.stream : k.stream + " (0x" + k.handle.toString(16) + ")"], ["lifetime", lifetimeText(ui, run, slot)]);
  const address = run.hex(run.address[place]);
  if (i < 0) facts.push(["address", address]);
  else {
    const s = run.segments, owner = run.owners[s.owner[i]];
    facts.push(["address", address + ", " + formatBytes(run.address[place] - s.address[i]) + " into a " + (owner.range ? "mapped chunk" : "segment") + " of " + formatBytes(s.bytes[i])
      + ", stream " + owner.stream + (owner.pool !== "0" ? ", private pool " + owner.pool : "")]);
  }
  return facts;
}
/// The segment or chunk in which a block begins, when it is allocated; -1 if it is unknown.
function segmentOf(ui, run, slot) {
  const s = run.segments, address = run.address[run.place[slot]], event = ui.all.program.birth[slot];
  for (let i = 0; i < s.count; ++i)
    if (s.from[i] <= event && event < s.to[i] && s.address[i] <= address && address < s.address[i] + s.bytes[i]) return i;
  return -1;
}
const shortBlock = (ui, slot) => {
  const {program: p} = ui.all, k = p.kinds[p.kind[slot]];
  return "id " + p.id(slot) + " (" + formatBytes(k.bytes) + ", since event " + formatCount(p.birth[slot]) + (k.line ? ", by " + k.line : "") + (k.label ? ", tag " + k.label : "") + ")";
};

/// The description of a cell of a map.
function cellText(ui, run, map, i) {
  const cell = map.cells[i], s = cell.segment, {program: p} = ui.all;
  const place = (s.owner.range ? "mapped run of " : "segment of ") + formatBytes(s.bytes) + " (" + (map.segments.indexOf(s) + 1) + " of " + map.segments.length
    + ", stream " + s.owner.stream + (s.owner.pool !== "0" ? ", private pool " + s.owner.pool : "") + ")";
  if (cell.slot >= 0) {
    const k = p.kinds[p.kind[cell.slot]];
    return "id " + p.id(cell.slot) + ["", ", freed but a stream still uses it", "", "", ", asleep"][cell.is] + ": " + formatBytes(k.bytes)
      + " requested, block of " + formatBytes(cell.bytes) + ", stream " + k.stream + ", " + lifetimeText(ui, run, cell.slot)
      + (k.line ? ", by " + k.line : "") + (k.label ? ", tag " + k.label : "") + "; " + place;
  }
  if (cell.is === ASLEEP) return "asleep, " + formatBytes(cell.bytes) + "; " + place;
  if (cell.is === IDLE) return "free, releasable, " + formatBytes(cell.bytes) + "; " + place;
  const names = keepers(map, i).map(k => shortBlock(ui, map.cells[k].slot) + (k < i ? " before it" : " after it"));
  return "free, non-releasable, " + formatBytes(cell.bytes) + (names.length ? ", kept by " + names.join(" and ") : "") + "; "
    + plural(s.blocks, "block keeps ", "blocks keep ") + formatBytes(s.kept) + " free in this " + place;
}

/// The summary of a map.
function mapText(ui, run, map) {
  const {sums} = map;
  return formatBytes(sums.reserved) + " in " + plural(map.segments.filter(s => !s.asleep).length, "segment", "segments") + ": " + formatBytes(sums.live)
    + " live in " + plural(sums.blocks, "block", "blocks") + ", " + (sums.pending ? formatBytes(sums.pending) + " pending, " : "")
    + formatBytes(sums.kept) + " free but non-releasable, " + formatBytes(sums.idle) + " releasable" + (sums.asleep ? "; " + formatBytes(sums.asleep) + " asleep" : "");
}

/// What keeps memory from release in a map: the segments with the most non-releasable bytes, and the source lines of the
/// blocks in them. A segment's bytes count for each line that has a block in it.
function keepingTables(ui, run, map, choose) {
  const {program: p} = ui.all, segments = map.segments.filter(s => s.kept).sort((a, b) => b.kept - a.kept);
  if (!segments.length) return [make("p", {class: "hint", text: "Nothing keeps free memory from release."})];
  const block = cell => make("button", {type: "button", class: "link", text: "id " + p.id(cell.slot), title: shortBlock(ui, cell.slot), onclick: () => choose(cell.slot)});
  const lineOf = cell => { const k = p.kinds[p.kind[cell.slot]]; return k.line || (k.label ? "tag " + k.label : ""); };
  const used = s => map.cells.slice(s.first, s.last).filter(c => c.is <= PENDING);
  const rows = segments.slice(0, 6).map(s => {
    const cells = used(s), names = [];
    for (const cell of cells.slice(0, 2)) names.push(names.length ? ", " : "", block(cell), lineOf(cell) ? make("span", {title: lineOf(cell), text: " " + shortLine(lineOf(cell))}) : "");
    if (cells.length > 2) names.push(" and " + formatCount(cells.length - 2) + " more");
    return make("tr", {}, make("td", {text: formatBytes(s.kept)}), make("td", {text: (s.owner.range ? "run, " : "") + formatBytes(s.bytes) + (s.owner.pool !== "0" ? ", pool " + s.owner.pool : "")}),
      make("td", {}, ...names));
  });
  const table = (caption, head, body) => make("table", {class: "keep"}, make("caption", {text: caption}),
    make("thead", {}, make("tr", {}, ...head.map(text => make("th", {scope: "col", text})))), make("tbody", {}, ...body));
  const found = [table("What keeps free memory from release", ["free", "segment", "kept by"], rows)];
  const byLine = new Map();
  for (const s of segments) {
    const lines = new Map();
    for (const cell of used(s)) lines.set(lineOf(cell), (lines.get(lineOf(cell)) || 0) + 1);
    for (const [line, n] of lines) {
      if (!line) continue;
      const sum = byLine.get(line) || {free: 0, blocks: 0};
      sum.free += s.kept;
      sum.blocks += n;
      byLine.set(line, sum);
    }
  }
  if (byLine.size) {
    const lines = [...byLine].sort((a, b) => b[1].free - a[1].free).slice(0, 6);
    found.push(table("By source line", ["free", "blocks", "line"], lines.map(([line, sum]) => make("tr", {}, make("td", {text: formatBytes(sum.free)}),
      make("td", {text: formatCount(sum.blocks)}), make("td", {}, make("button", {type: "button", class: "link", title: line, text: shortLine(line), onclick: () => ui.search(line)}))))));
  }
  return found;
}
)js";

}  // namespace replay::page
