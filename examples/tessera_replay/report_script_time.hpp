// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A report's lines over time, and below them what each recipe's memory is made of.
namespace replay::report {

inline constexpr const char* script_time = R"js(
const time = {from: 0, to: data.events};
const lines = element("lines"), timeBox = element("time");
const width = data.recipes[0].width, buckets = data.recipes[0].series.reserved.least.length;
const gutter = 58;
let cursor = data.recipes[0].moment, dragFrom = null, dragTo = null;
let most = data.peak;
for (const r of data.recipes) for (const n of r.series.reserved.most) most = Math.max(most, n);
most *= 1.05;
let step = 1;
while (most / step >= 5) step *= 2;

const bucketOf = event => clamp(Math.floor(event / width), 0, buckets - 1);
const eventTick = span => {
  let s = 1;
  for (let i = 0; span / s >= 6; ++i) s = i % 3 == 2 ? s / 2 * 5 : s * 2;
  return s;
};

function plot(canvas, right, bottom) {
  const [c, w, h] = begin(canvas);
  const x = e => gutter + (w - gutter - right) * (e - time.from) / (time.to - time.from);
  const y = n => 8 + (h - bottom - 8) * (1 - n / most);
  c.lineWidth = 1;
  c.textBaseline = "middle";
  c.textAlign = "right";
  for (let n = 0, every = h < 200 ? 2 : 1, i = 0; n <= most; n += step, ++i) {
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

/// Fills between two heights of each bucket.
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
/// A line that visits the least and the most of each bucket.
function trace(p, color, s, thick) {
  p.c.strokeStyle = color;
  p.c.lineWidth = thick;
  p.c.lineJoin = "round";
  p.c.beginPath();
  let at = p.y(s.least[p.first]);
  for (let i = p.first; i <= p.last; ++i) {
    const from = p.x(i * width), to = p.x(Math.min(data.events, (i + 1) * width));
    const low = p.y(s.least[i]), high = p.y(s.most[i]);
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

/// What the names beside the lines need, where there is room for them.
function labelWidth() {
  if (lines.clientWidth <= 640) return 6;
  const c = lines.getContext("2d");
  c.font = font();
  return Math.min(280, Math.max(...["what lives at most", ...data.recipes.map(r => r.name)].map(n => c.measureText(n).width)) + 22);
}
/// Names beside the lines' ends, moved apart where they would overlap.
function names(p, right) {
  const all = data.recipes.map((r, i) => ({y: p.y(r.series.reserved.most[p.last]), text: r.name, color: colors.line[i]}));
  all.push({y: p.y(data.peak), text: "what lives at most", color: colors.quiet});
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
  fill(p, colors.peaks, () => 0, i => alive.most[i]);
  fill(p, colors.lives, () => 0, i => alive.least[i]);
  bound(p);
  data.recipes.forEach((r, i) => trace(p, colors.line[i], r.series.reserved, 2));
  data.recipes.forEach((r, i) => {
    p.c.fillStyle = colors.line[i];
    p.c.strokeStyle = colors.ground;
    p.c.lineWidth = 2;
    p.c.beginPath();
    p.c.arc(p.x(r.moment + .5), p.y(r.series.reserved.most[bucketOf(r.moment)]), 5, 0, 7);
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
  fill(p, colors.cached, () => 0, k => s.reserved.most[k]);
  if (s.pending) fill(p, colors.pending, () => 0, k => Math.min(s.reserved.most[k], s.live.most[k] + s.pending.most[k]));
  p.c.globalAlpha = .55;
  fill(p, colors.live, () => 0, k => s.live.most[k]);
  p.c.globalAlpha = 1;
  fill(p, colors.live, () => 0, k => s.live.least[k]);
  bound(p);
  trace(p, colors.line[i], s.reserved, 2);
  upright(p, r.moment + .5, colors.pinned, [3, 3]);
  upright(p, cursor + .5, colors.text, []);
  p.c.restore();
}

function tellCursor() {
  const i = bucketOf(cursor), from = i * width, to = Math.min(data.events, from + width) - 1;
  const say = s => s ? s.most[i] : 0;
  element("where").textContent = (from === to ? "After event " + count(from) : "The most after events " + count(from) + "\u2013" + count(to))
    + " of " + count(data.events) + "; shown: " + count(Math.round(time.from)) + "\u2013" + count(Math.round(time.to))
    + (width > 1 ? ", each step spans " + count(width) + " events, from their least to their most" : ", event by event");
  const said = [];
  data.recipes.forEach((r, k) => {
    const cells = element("readout").tBodies[0].rows[k].cells;
    ["reserved", "live", "pending", "cached"].forEach(name => {
      const cell = [...cells].find(c => c.dataset.series === name);
      if (cell) cell.textContent = bytes(say(r.series[name]));
    });
    said.push(r.name + " reserves " + bytes(say(r.series.reserved)));
  });
  element("asked").textContent = bytes(say(data.recipes[0].series.requested));
  timeBox.setAttribute("aria-valuenow", cursor);
  timeBox.setAttribute("aria-valuetext", "event " + count(cursor) + ": " + said.join(", ") + ", what lives as requested "
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

}  // namespace replay::report
