// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a report does when it is looked at. The page reads well without: its numbers are in the markup.
namespace replay::report {

/// Formats, data, colors and what all charts share.
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

// Series come as differences: the least from bucket to bucket, and the most from the least.
for (const r of data.recipes) {
  for (const s of Object.values(r.series)) {
    let sum = 0;
    s.least = s[0].map(d => sum += d);
    s.most = s[1].map((d, i) => s.least[i] + d);
  }
}

let colors = {};
function readColors() {
  const style = getComputedStyle(root);
  const read = name => style.getPropertyValue("--" + name).trim();
  colors = {line: data.recipes.map((r, i) => read("c" + i % 8))};
  for (const name of ["ground", "text", "quiet", "grid", "edge", "lives", "peaks", "live", "pending", "pinned",
                      "stripe", "idle", "cached", "focus", "accent"]) colors[name] = read(name);
}

const font = () => "12px " + getComputedStyle(document.body).fontFamily;
/// A canvas in the pixels of the screen, emptied.
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

// A wheel that scrolls the page goes on scrolling it when a chart comes under the pointer.
let scrolledAt = -1e9;
addEventListener("scroll", () => { scrolledAt = performance.now(); }, {passive: true});

/// Lets a chart be zoomed by wheel and keys. `view` is what it shows of 0 to `whole`; `at()` is the place that stays.
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

}  // namespace replay::report
