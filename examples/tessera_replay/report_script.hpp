// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The script of a report. The page is complete without it: its numbers are in the markup.
namespace replay::report {

/// Formats, data and colors, and functions that all charts share.
inline constexpr const char* script_common = R"js(
"use strict";
const root = document.documentElement;
addEventListener("error", e => { root.dataset.status = "error: " + e.message; });
const element = id => document.getElementById(id);
const data = JSON.parse(element("data").textContent);
const bytes = n => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let unit = 0;
  for (; n >= 1024 && unit < 6; ++unit) n /= 1024;
  return (unit ? n.toFixed(2) : n) + " " + units[unit];
};
const tick = n => n === 0 ? "0" : bytes(n).replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " ");
const count = n => n.toLocaleString("en-US");
const clamp = (n, low, high) => Math.max(low, Math.min(high, n));

// Series are encoded as differences: minima from bucket to bucket, maxima from the minima.
for (const r of data.recipes) {
  for (const s of Object.values(r.series)) {
    let sum = 0;
    s.min = s[0].map(d => sum += d);
    s.max = s[1].map((d, i) => s.min[i] + d);
  }
}

let colors = {};
function readColors() {
  const style = getComputedStyle(root);
  const read = name => style.getPropertyValue("--" + name).trim();
  colors = {line: [...Array(8).keys()].map(i => read("c" + i))};
  for (const name of ["ground", "text", "quiet", "grid", "edge", "lives", "peaks", "live", "pending", "kept",
                      "stripe", "idle", "asleep", "cached", "focus", "accent"]) colors[name] = read(name);
}

const font = () => "12px " + getComputedStyle(document.body).fontFamily;
/// Clears a canvas and sizes it in device pixels.
function begin(canvas) {
  const scale = devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
  canvas.width = Math.round(w * scale);
  canvas.height = Math.round(h * scale);
  const c = canvas.getContext("2d");
  c.setTransform(scale, 0, 0, scale, 0, 0);
  c.font = font();
  return [c, w, h];
}
const sharp = n => Math.round(n) + .5;

const charts = [];
let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; for (const draw of charts) draw(); });
}

// While the wheel scrolls the page, a chart under the pointer does not zoom.
let scrolledAt = -1e9;
addEventListener("scroll", () => { scrolledAt = performance.now(); }, {passive: true});

/// Makes a chart zoom by wheel and keys. `view` is the visible part of 0 to `whole`; `at()` is the fixed point.
function zoomable(box, view, whole, narrowest, at, changed) {
  const show = (from, to) => {
    const span = clamp(to - from, Math.min(narrowest, whole), whole);
    view.from = clamp(from, 0, whole - span);
    view.to = view.from + span;
    changed();
  };
  const zoom = (factor, place = at()) => {
    const middle = place < view.from || place > view.to ? (view.from + view.to) / 2 : place;
    show(middle - (middle - view.from) * factor, middle + (view.to - middle) * factor);
  };
  const reveal = place => {
    if (place < view.from) show(place, place + view.to - view.from);
    if (place > view.to) show(place - view.to + view.from, place);
  };
  box.addEventListener("keydown", e => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const span = view.to - view.from;
    const act = {"+": () => zoom(.5), "=": () => zoom(.5), "-": () => zoom(2), "0": () => show(0, whole),
                 PageUp: () => show(view.from - span / 2, view.to - span / 2),
                 PageDown: () => show(view.from + span / 2, view.to + span / 2)}[e.key];
    if (act) { act(); e.preventDefault(); }
  });
  for (const b of document.querySelectorAll('[aria-controls="' + box.id + '"]')) {
    b.addEventListener("click", () => b.dataset.zoom === "0" ? show(0, whole) : zoom(Number(b.dataset.zoom)));
  }
  return {show, zoom, reveal, wheel: (e, place) => {
    const out = e.deltaY > 0;
    if (performance.now() - scrolledAt < 300 || e.deltaY === 0 || (out && view.to - view.from >= whole)) return;
    e.preventDefault();
    zoom(out ? 1.25 : .8, place);
  }};
}
)js";

inline constexpr const char* script_time = R"js(
const time = {from: 0, to: data.events};
const lines = element("lines"), timeBox = element("time");
const width = data.recipes[0].width, buckets = data.recipes[0].series.reserved.min.length;
const gutter = 58;
let cursor = data.recipes[0].moment, dragFrom = null, dragTo = null;
let highest = data.peak;
for (const r of data.recipes) r.series.reserved.max.forEach((n, i) => {
  highest = Math.max(highest, n + (r.series.asleep ? r.series.asleep.max[i] : 0));
});
highest *= 1.05;
let step = 1;
while (highest / step >= 5) step *= 2;

const bucketOf = event => clamp(Math.floor(event / width), 0, buckets - 1);
const eventTick = span => {
  let s = 1;
  for (let i = 0; span / s >= 6; ++i) s = i % 3 == 2 ? s / 2 * 5 : s * 2;
  return s;
};

function plot(canvas, right, bottom) {
  const [c, w, h] = begin(canvas);
  const x = e => gutter + (w - gutter - right) * (e - time.from) / (time.to - time.from);
  const y = n => 8 + (h - bottom - 8) * (1 - n / highest);
  c.lineWidth = 1;
  c.textBaseline = "middle";
  c.textAlign = "right";
  for (let n = 0, every = h < 200 ? 2 : 1, i = 0; n <= highest; n += step, ++i) {
    if (i % every) continue;
    c.strokeStyle = colors.grid;
    c.beginPath(); c.moveTo(gutter, sharp(y(n))); c.lineTo(w - right, sharp(y(n))); c.stroke();
    c.fillStyle = colors.quiet;
    c.fillText(tick(n), gutter - 8, y(n));
  }
  c.textAlign = "center";
  const apart = eventTick((time.to - time.from) * Math.max(1, 620 / (w - gutter - right)));
  for (let e = Math.ceil(time.from / apart) * apart; e <= time.to; e += apart) {
    c.fillText(count(e), clamp(x(e), gutter, w - right - 12), h - bottom + 14);
  }
  c.save();
  c.beginPath(); c.rect(gutter, 0, w - gutter - right, h); c.clip();
  return {c, w, h, x, y, base: y(0), first: bucketOf(time.from), last: bucketOf(time.to - 1e-9)};
}

/// Fills each bucket between two heights.
function fill(p, color, low, high) {
  p.c.fillStyle = color;
  p.c.beginPath();
  for (let i = p.first; i <= p.last; ++i) {
    const from = Math.round(p.x(i * width)), to = Math.round(p.x(Math.min(data.events, (i + 1) * width)));
    const top = Math.round(p.y(high(i))), foot = Math.round(p.y(low(i)));
    if (to > from && foot > top) p.c.rect(from, top, to - from, foot - top);
  }
  p.c.fill();
}
/// Draws a line through the minimum and maximum of each bucket.
function trace(p, color, s, thick) {
  p.c.strokeStyle = color;
  p.c.lineWidth = thick;
  p.c.lineJoin = "round";
  p.c.beginPath();
  let at = p.y(s.min[p.first]);
  for (let i = p.first; i <= p.last; ++i) {
    const from = p.x(i * width), to = p.x(Math.min(data.events, (i + 1) * width));
    const low = p.y(s.min[i]), high = p.y(s.max[i]);
    const order = Math.abs(low - at) < Math.abs(high - at) ? [low, high] : [high, low];
    for (const n of order) p.c.lineTo(from, n);
    p.c.lineTo(to, at = order[1]);
  }
  p.c.stroke();
}
function upright(p, event, color, dash) {
  p.c.save();
  p.c.strokeStyle = color;
  p.c.lineWidth = 1;
  p.c.setLineDash(dash);
  p.c.beginPath(); p.c.moveTo(sharp(p.x(event)), 4); p.c.lineTo(sharp(p.x(event)), p.base); p.c.stroke();
  p.c.restore();
}
function bound(p) {
  p.c.save();
  p.c.strokeStyle = colors.text;
  p.c.lineWidth = 1;
  p.c.setLineDash([5, 4]);
  p.c.beginPath(); p.c.moveTo(gutter, sharp(p.y(data.peak))); p.c.lineTo(p.w, sharp(p.y(data.peak))); p.c.stroke();
  p.c.restore();
}

/// The width of the labels beside the lines, if there is room for them.
function labelWidth() {
  if (lines.clientWidth <= 640) return 6;
  const c = lines.getContext("2d");
  c.font = font();
  return Math.min(280, Math.max(...["peak live", ...data.recipes.map(r => r.name)].map(n => c.measureText(n).width)) + 22);
}
/// Draws the labels beside the lines' ends, without overlap.
function names(p, right) {
  const all = data.recipes.map((r, i) => ({y: p.y(r.series.reserved.max[p.last]), text: r.name, color: colors.line[i]}));
  all.push({y: p.y(data.peak), text: "peak live", color: colors.quiet});
  all.sort((a, b) => a.y - b.y);
  all.forEach((l, i) => { l.at = i ? Math.max(l.y, all[i - 1].at + 17) : l.y; });
  let limit = p.base - 4;
  for (const l of all.slice().reverse()) { l.at = Math.min(l.at, limit); limit = l.at - 17; }
  p.c.textAlign = "left";
  for (const l of all) {
    p.c.strokeStyle = p.c.fillStyle = l.color;
    p.c.lineWidth = 1;
    p.c.beginPath(); p.c.moveTo(p.w - right, l.y); p.c.lineTo(p.w - right + 12, l.at); p.c.stroke();
    p.c.fillText(l.text, p.w - right + 17, l.at, right - 18);
  }
}

function drawLines() {
  const right = labelWidth(), p = plot(lines, right, 24), alive = data.recipes[0].series.requested;
  fill(p, colors.peaks, () => 0, i => alive.max[i]);
  fill(p, colors.lives, () => 0, i => alive.min[i]);
  bound(p);
  data.recipes.forEach((r, i) => trace(p, colors.line[i], r.series.reserved, 2));
  data.recipes.forEach((r, i) => {
    p.c.fillStyle = colors.line[i];
    p.c.strokeStyle = colors.ground;
    p.c.lineWidth = 2;
    p.c.beginPath();
    p.c.arc(p.x(r.moment + .5), p.y(r.series.reserved.max[bucketOf(r.moment)]), 5, 0, 7);
    p.c.fill(); p.c.stroke();
  });
  upright(p, cursor + .5, colors.text, []);
  if (dragFrom !== null) {
    p.c.globalAlpha = .18;
    p.c.fillStyle = colors.focus;
    p.c.fillRect(p.x(dragFrom), 0, p.x(dragTo) - p.x(dragFrom), p.base);
    p.c.globalAlpha = 1;
  }
  p.c.restore();
  if (right > 100) names(p, right);
}

function drawPanel(r, i, canvas) {
  const p = plot(canvas, 6, 22), s = r.series;
  // Memory that sleeps is not reserved; it is drawn above the rest.
  const least = k => s.asleep ? Math.max(0, s.live.min[k] - s.asleep.max[k]) : s.live.min[k];
  const most = k => s.asleep ? Math.max(0, s.live.max[k] - s.asleep.min[k]) : s.live.max[k];
  if (s.asleep) fill(p, colors.asleep, k => s.reserved.max[k], k => s.reserved.max[k] + s.asleep.max[k]);
  fill(p, colors.cached, () => 0, k => s.reserved.max[k]);
  if (s.pending) fill(p, colors.pending, () => 0, k => Math.min(s.reserved.max[k], most(k) + s.pending.max[k]));
  p.c.globalAlpha = .55;
  fill(p, colors.live, () => 0, most);
  p.c.globalAlpha = 1;
  fill(p, colors.live, () => 0, least);
  bound(p);
  trace(p, colors.line[i], s.reserved, 2);
  upright(p, r.moment + .5, colors.kept, [3, 3]);
  upright(p, cursor + .5, colors.text, []);
  p.c.restore();
}

function tellCursor() {
  const i = bucketOf(cursor), from = i * width, to = Math.min(data.events, from + width) - 1;
  const say = s => s ? s.max[i] : 0;
  element("where").textContent = (from === to ? "After event " + count(from) : "Maximum after events " + count(from) + "\u2013" + count(to))
    + " of " + count(data.events) + "; shown: " + count(Math.round(time.from)) + "\u2013" + count(Math.round(time.to))
    + (width > 1 ? ", each step spans " + count(width) + " events, from minimum to maximum" : ", event by event");
  const said = [];
  data.recipes.forEach((r, k) => {
    const cells = element("readout").tBodies[0].rows[k].cells;
    ["reserved", "live", "pending", "cached", "asleep"].forEach(name => {
      const cell = [...cells].find(c => c.dataset.series === name);
      if (cell) cell.textContent = bytes(say(r.series[name]));
    });
    said.push(r.name + " reserves " + bytes(say(r.series.reserved)));
  });
  element("asked").textContent = bytes(say(data.recipes[0].series.requested));
  timeBox.setAttribute("aria-valuenow", cursor);
  timeBox.setAttribute("aria-valuetext", "event " + count(cursor) + ": " + said.join(", ") + ", live as requested "
    + element("asked").textContent);
}
function moveCursor(event) {
  cursor = clamp(Math.round(event), 0, data.events - 1);
  timeZoom.reveal(cursor);
  tellCursor();
  redraw();
}
const timeZoom = zoomable(timeBox, time, data.events, Math.max(16, 8 * width), () => cursor, () => { tellCursor(); redraw(); });

timeBox.addEventListener("keydown", e => {
  const one = Math.max(width, Math.round((time.to - time.from) / 400)) * (e.shiftKey ? 10 : 1);
  const to = {ArrowLeft: cursor - one, ArrowRight: cursor + one, ArrowDown: cursor - one, ArrowUp: cursor + one,
              Home: 0, End: data.events}[e.key];
  if (to === undefined || e.ctrlKey || e.metaKey || e.altKey) return;
  e.preventDefault();
  moveCursor(to);
});

function follow(canvas, right) {
  const eventAt = e => {
    const box = canvas.getBoundingClientRect();
    const share = (e.clientX - box.left - gutter) / (box.width - gutter - right());
    return clamp(time.from + share * (time.to - time.from), time.from, time.to);
  };
  canvas.addEventListener("pointerdown", e => {
    if (e.button === 0 && e.pointerType !== "touch") { dragFrom = dragTo = eventAt(e); canvas.setPointerCapture(e.pointerId); }
    moveCursor(Math.floor(eventAt(e)));
  });
  canvas.addEventListener("pointermove", e => {
    if (dragFrom !== null) dragTo = eventAt(e);
    moveCursor(Math.floor(eventAt(e)));
  });
  canvas.addEventListener("pointerup", () => {
    const [from, to] = [Math.min(dragFrom, dragTo), Math.max(dragFrom, dragTo)];
    const wide = dragFrom !== null && to - from > (time.to - time.from) / 100;
    dragFrom = dragTo = null;
    wide ? timeZoom.show(from, to) : redraw();
  });
  canvas.addEventListener("pointercancel", () => { dragFrom = dragTo = null; redraw(); });
  canvas.addEventListener("dblclick", () => timeZoom.show(0, data.events));
  canvas.addEventListener("wheel", e => timeZoom.wheel(e, eventAt(e)), {passive: false});
}
follow(lines, labelWidth);
charts.push(drawLines);
data.recipes.forEach((r, i) => {
  const canvas = element("panel" + i);
  follow(canvas, () => 6);
  charts.push(() => drawPanel(r, i, canvas));
});
)js";

inline constexpr const char* script_map = R"js(
const rowHeight = 18, pitch = 28;

/// The used neighbours of a cell in its segment, before and after it; null if there is none, or it is a merged cell.
function keepers(m, i) {
  const near = step => {
    for (let k = i + step; k >= 0 && k < m.cells.length && m.cells[k].segment === m.cells[i].segment; k += step) {
      if (m.cells[k].is === "l" || m.cells[k].is === "p") return m.cells[k];
      if (m.cells[k].is === "m") return null;
    }
    return null;
  };
  return [near(-1), near(1)];
}

/// The description of a cell.
function tell(r, i) {
  const m = r.map, cell = m.cells[i], s = m.segments[cell.segment];
  const place = (s.range ? "mapped run of " : "segment of ") + bytes(s.bytes) + " (" + (cell.segment + 1) + " of " + m.segments.length
    + ", stream " + s.stream + ", pool " + s.pool + (s.privatePool ? " of private pool " + s.privatePool : "") + ")";
  if (cell.is === "s" && !cell.requested) return "asleep, " + bytes(cell.bytes) + "; " + place;
  const states = {l: ", live", p: ", freed but a stream still uses it", s: ", asleep"};
  if (states[cell.is]) {
    return "id " + cell.id + states[cell.is] + ": " + bytes(cell.requested)
      + " requested, block of " + bytes(cell.bytes) + ", stream " + cell.stream + ", allocated at event " + count(cell.event)
      + (cell.at ? " by " + cell.at : "") + "; " + place;
  }
  if (cell.is === "m") {
    return count(cell.blocks) + " small blocks in a row, " + bytes(cell.bytes) + ": " + bytes(cell.live) + " live, "
      + bytes(cell.kept) + " free, non-releasable";
  }
  if (cell.is === "i") return "free, " + bytes(cell.bytes) + ", releasable; " + place;
  const [before, after] = keepers(m, i);
  const named = (c, side) => c ? ["id " + c.id + " " + side + " it (" + bytes(c.requested) + ", since event " + count(c.event) + (c.at ? ", by " + c.at : "") + ")"] : [];
  const list = [...named(before, "before"), ...named(after, "after")];
  return "free, non-releasable, " + bytes(cell.bytes) + (list.length ? ", kept by " + list.join(" and ") : "") + "; " + count(s.live)
    + (s.live === 1 ? " live block keeps " : " live blocks keep ") + bytes(s.kept) + " free in this " + place;
}

function readMap(m) {
  let start = 0, used = 0, many = 0, segment = 0, left = m.segments[0][0];
  m.segments = m.segments.map(([cells, size, stream, pool, range, live, kept, privatePool]) =>
    ({cells, bytes: size, stream, pool, range, live, kept, privatePool, start: 0, end: 0}));
  m.cells = [...m.kinds].map((is, i) => {
    while (left === 0) left = m.segments[++segment].cells;
    const cell = {is, segment, start, bytes: m.bytes[i]};
    if (left === m.segments[segment].cells) m.segments[segment].start = start;
    --left;
    start += cell.bytes;
    m.segments[segment].end = start;
    if ("lps".includes(is)) {
      if (m.at) cell.at = m.lines[m.at[used]];
      [cell.id, cell.event, cell.requested, cell.stream] = m.used.slice(4 * used, 4 * ++used);
    }
    if (is === "m") [cell.blocks, cell.live, cell.kept] = m.many.slice(3 * many, 3 * ++many);
    return cell;
  });
  m.total = start;
}

function stripes(c) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const t = tile.getContext("2d");
  t.fillStyle = colors.kept;
  t.fillRect(0, 0, 6, 6);
  t.strokeStyle = colors.stripe;
  t.beginPath();
  for (const x of [-6, 0, 6]) { t.moveTo(x - 1, 7); t.lineTo(x + 7, -1); }
  t.stroke();
  return c.createPattern(tile, "repeat");
}

function makeMap(r, number) {
  if (!r.map.kinds) return;  // nothing was reserved
  const m = r.map, box = element("map" + number), canvas = box.firstElementChild, detail = element("detail" + number);
  readMap(m);
  const view = {from: 0, to: m.total};
  let chosen = m.cells.reduce((best, c, i) => c.is === "f" && (m.cells[best].is !== "f" || c.bytes > m.cells[best].bytes) ? i : best, 0);
  const rows = () => Math.max(1, Math.floor(canvas.clientHeight / pitch));
  const middle = () => m.cells[chosen].start + m.cells[chosen].bytes / 2;

  function spans(from, to, w, call) {
    const scale = rows() * w / (view.to - view.from);
    const a = Math.max(0, (from - view.from) * scale), b = Math.min(rows() * w, (to - view.from) * scale);
    if (b <= a) return;
    for (let row = Math.floor(a / w); row < rows() && row * w < b; ++row) {
      const x = Math.round(Math.max(0, a - row * w)), end = Math.round(Math.min(w, b - row * w));
      call(x, row * pitch, end - x, b <= (row + 1) * w);
    }
  }
  function draw() {
    const [c, w] = begin(canvas), pattern = stripes(c);
    const look = {l: colors.live, p: colors.pending, f: pattern, i: colors.idle, s: colors.asleep};
    const seen = cell => cell.start + cell.bytes > view.from && cell.start < view.to;
    // Used cells are drawn last and at least one pixel wide, so that small blocks stay visible.
    for (const last of [false, true]) {
      for (const cell of m.cells) {
        const used = cell.is !== "f" && cell.is !== "i";
        if (used !== last || !seen(cell)) continue;
        spans(cell.start, cell.start + cell.bytes, w, (x, y, wide, ends) => {
          const shown = Math.max(used ? 1 : 0, wide - (ends && wide > 4 ? 1 : 0));
          if (cell.is === "m") {
            const high = Math.round(rowHeight * cell.live / cell.bytes);
            c.fillStyle = colors.live;
            c.fillRect(x, y, shown, high);
            c.fillStyle = cell.kept ? pattern : colors.idle;
            c.fillRect(x, y + high, shown, rowHeight - high);
          } else {
            c.fillStyle = look[cell.is];
            c.fillRect(x, y, shown, rowHeight);
          }
        });
      }
    }
    for (const s of m.segments) {
      spans(s.start, s.end, w, (x, y, wide, ends) => {
        c.fillStyle = s.privatePool ? colors.line[(data.recipes.length + data.pools.indexOf(s.privatePool)) % 8] : colors.quiet;
        if (wide > 3) c.fillRect(x, y + rowHeight + 2, wide - (ends ? 3 : 0), 2);
      });
    }
    c.lineWidth = 2;
    const frame = (cell, color) => spans(cell.start, cell.start + cell.bytes, w, (x, y, wide) => {
      c.strokeStyle = color;
      c.strokeRect(clamp(x, 1, w - 5), y + 1, Math.max(3, Math.min(wide, w - x - 1) - 1), rowHeight - 2);
    });
    if (m.cells[chosen].is === "f") for (const cell of keepers(m, chosen)) if (cell) frame(cell, colors.accent);
    frame(m.cells[chosen], colors.text);
    element("shown" + number).textContent = view.to - view.from < m.total
      ? "Shown: " + bytes(Math.round(view.from)) + "\u2013" + bytes(Math.round(view.to)) + " of " + bytes(m.total) : "Shown: all of " + bytes(m.total);
  }
  function choose(i) {
    chosen = clamp(i, 0, m.cells.length - 1);
    detail.textContent = tell(r, chosen);
    box.setAttribute("aria-valuenow", chosen + 1);
    box.setAttribute("aria-valuetext", detail.textContent);
  }
  const cellAt = place => {
    let low = 0, high = m.cells.length - 1;
    while (low < high) {
      const half = (low + high + 1) >> 1;
      if (m.cells[half].start <= place) low = half; else high = half - 1;
    }
    return low;
  };
  const placeAt = e => {
    const at = canvas.getBoundingClientRect(), row = clamp(Math.floor((e.clientY - at.top) / pitch), 0, rows() - 1);
    return view.from + (view.to - view.from) * (row + clamp((e.clientX - at.left) / at.width, 0, 1)) / rows();
  };
  /// The cell under the pointer, or a used one close to it.
  const meant = e => {
    const place = placeAt(e), i = cellAt(place), slack = 3 * (view.to - view.from) / rows() / canvas.clientWidth;
    const close = k => k >= 0 && k < m.cells.length && "lpms".includes(m.cells[k].is)
      && place > m.cells[k].start - slack && place < m.cells[k].start + m.cells[k].bytes + slack;
    return !close(i) && close(i + 1) ? i + 1 : !close(i) && close(i - 1) ? i - 1 : i;
  };
  const zoom = zoomable(box, view, m.total, Math.max(4096, m.total / 100000), middle, redraw);
  const pick = i => { choose(i); zoom.reveal(middle()); redraw(); };
  box.addEventListener("keydown", e => {
    const line = (view.to - view.from) / rows();
    const to = {ArrowLeft: chosen - 1, ArrowRight: chosen + 1, ArrowUp: cellAt(Math.max(0, middle() - line)),
                ArrowDown: cellAt(middle() + line), Home: 0, End: m.cells.length - 1}[e.key];
    if (to === undefined || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    pick(to);
  });
  let pressed = null;
  canvas.addEventListener("pointerdown", e => {
    if (e.pointerType !== "touch") { pressed = placeAt(e); canvas.setPointerCapture(e.pointerId); }
    choose(meant(e)); redraw();
  });
  canvas.addEventListener("pointermove", e => {
    if (pressed === null) { choose(meant(e)); redraw(); return; }
    const by = pressed - placeAt(e);
    zoom.show(view.from + by, view.to + by);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { pressed = null; });
  canvas.addEventListener("dblclick", () => zoom.show(0, m.total));
  canvas.addEventListener("wheel", e => zoom.wheel(e, placeAt(e)), {passive: false});
  choose(chosen);
  charts.push(draw);
}
data.recipes.forEach(makeMap);

const dark = matchMedia("(prefers-color-scheme: dark)"), themeButton = element("theme");
function theme(named) {
  if (named) root.dataset.theme = named;
  const isDark = (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  themeButton.textContent = isDark ? "Light" : "Dark";
  themeButton.setAttribute("aria-label", isDark ? "Switch to light colors" : "Switch to dark colors");
  readColors();
  redraw();
}
themeButton.addEventListener("click", () => theme(themeButton.textContent === "Dark" ? "dark" : "light"));
dark.addEventListener("change", () => theme());
// Only scrolling tables are tab stops.
function setStops() {
  for (const s of document.querySelectorAll(".scroll")) s.tabIndex = s.scrollWidth > s.clientWidth ? 0 : -1;
}
addEventListener("resize", () => { setStops(); redraw(); });
setStops();
theme();
tellCursor();
for (const draw of charts) draw();
root.dataset.status = root.dataset.status || "drawn";
)js";

}  // namespace replay::report
