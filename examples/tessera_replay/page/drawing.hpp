// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace replay::page {

/// The script that draws the charts.
inline constexpr const char* drawing = R"js(
// Text, colors and canvases.

const formatBytes = n => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let unit = 0;
  for (; n >= 1024 && unit < 6; ++unit) n /= 1024;
  return (unit ? n.toFixed(2) : Math.round(n)) + " " + units[unit];
};
const byteTick = n => n === 0 ? "0" : formatBytes(n).replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " ");
const formatCount = n => n.toLocaleString("en-US");
const clamp = (n, low, high) => Math.max(low, Math.min(high, n));
const plural = (n, one, several) => formatCount(n) + " " + (n === 1 ? one : several);
/// Microseconds, with enough digits to tell times apart that differ by `step`.
const formatTime = (us, step = Math.max(1, us / 100)) => {
  const [unit, name] = us >= 1e6 || step >= 1e5 ? [1e6, "s"] : us >= 1e3 || step >= 1e2 ? [1e3, "ms"] : [1, "µs"];
  const digits = clamp(Math.ceil(-Math.log10(Math.max(step, 1e-9) / unit) - 1e-9), 0, 6);
  return (us / unit).toFixed(digits) + " " + name;
};

/// Reads the colors of the page's theme. Pixels have them as 32-bit numbers.
function readColors(element) {
  const style = getComputedStyle(element), probe = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const pixel = css => {
    probe.fillStyle = css;
    probe.fillRect(0, 0, 1, 1);
    const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
    return (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  };
  const colors = {line: [], pixel: {}, groups: [], sizes: []};
  const read = name => style.getPropertyValue("--" + name).trim();
  for (let i = 0; i < 8; ++i) colors.line.push(read("c" + i));
  for (let i = 0; i < 10; ++i) colors.groups.push(read("g" + i));
  for (let i = 0; i < 6; ++i) colors.sizes.push(read("s" + i));
  for (const name of ["ground", "text", "quiet", "grid", "edge", "lives", "peaks", "live", "pending", "kept", "stripe", "idle",
                      "asleep", "cached", "focus", "accent", "other"]) {
    colors[name] = read(name);
    colors.pixel[name] = pixel(colors[name]);
  }
  colors.pixelOf = pixel;
  return colors;
}
/// A pixel color between two: `share` of the first.
function mixed(a, b, share) {
  const part = shift => Math.round((a >>> shift & 255) * share + (b >>> shift & 255) * (1 - share)) << shift;
  return (255 << 24 | part(16) | part(8) | part(0)) >>> 0;
}

/// Clears a canvas and sizes it in device pixels.
function begin(canvas) {
  const scale = devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
  const [wide, high] = [Math.round(w * scale), Math.round(h * scale)];
  if (canvas.width !== wide || canvas.height !== high) { canvas.width = wide; canvas.height = high; }
  const c = canvas.getContext("2d");
  c.setTransform(scale, 0, 0, scale, 0, 0);
  c.clearRect(0, 0, w, h);
  c.font = "12px " + getComputedStyle(document.body).fontFamily;
  return {c, w, h, scale};
}
const sharp = n => Math.round(n) + .5;

// The groups of blocks that have one color.
const sizeLimits = [4096, 65536, 1048576, 16777216, 268435456, Infinity];
const sizeNames = ["up to 4 KiB", "up to 64 KiB", "up to 1 MiB", "up to 16 MiB", "up to 256 MiB", "above 256 MiB"];
const groupings = {
  line: {name: "source line", of: k => k.line || "(unknown line)"},
  label: {name: "tag", of: k => k.label || "(no tag)"},
  size: {name: "size", of: k => sizeNames[sizeLimits.findIndex(n => k.bytes <= n)]},
  stream: {name: "stream", of: k => "stream " + k.stream},
  block: {name: "block", of: null},
};

/// The colors of all kinds of allocations, by a grouping. Those that `matches` refuses are dimmed.
function colorKinds(program, grouping, colors, matches) {
  const groups = new Map(), {of} = groupings[grouping];
  if (of) {
    program.kinds.forEach((k, i) => {
      const key = of(k), g = groups.get(key) || {key, weight: 0, kinds: []};
      g.weight += program.weights[i];
      g.kinds.push(i);
      groups.set(key, g);
    });
  }
  const list = [...groups.values()].sort((a, b) => b.weight - a.weight);
  const bright = new Uint32Array(program.kinds.length);
  list.forEach((g, i) => {
    g.color = grouping === "size" ? colors.sizes[sizeNames.indexOf(g.key)] : i < colors.groups.length ? colors.groups[i] : colors.other;
    const pixel = colors.pixelOf(g.color);
    for (const k of g.kinds) bright[k] = pixel;
  });
  if (grouping === "size") list.sort((a, b) => sizeNames.indexOf(a.key) - sizeNames.indexOf(b.key));
  const dimmed = Uint8Array.from(program.kinds, (k, i) => matches && !matches(k, i) ? 1 : 0);
  return {list, of, dimmed, byKind: bright.map((p, i) => dimmed[i] ? mixed(p, colors.pixel.ground, .16) : p),
          bySlot: of ? null : colors.groups.map(c => colors.pixelOf(c))};
}

/// Round numbers that divide a span into at most `most` parts.
function stepOf(span, most, binary) {
  let step = 1;
  if (binary) { while (span / step > most) step *= 2; return step; }
  for (let i = 0; span / step > most; ++i) step = i % 3 === 2 ? step / 2 * 5 : step * 2;
  return step;
}
const gutter = 66, below = 24, topGap = 8, rightGap = 10;

/// Draws the axes of a chart over time. Returns the places of its plot.
function axes(ui, canvas, low, high, right = rightGap) {
  const p = begin(canvas), {c, w, h} = p, {colors, view} = ui;
  p.left = gutter;
  p.wide = Math.max(1, w - gutter - right);
  p.high = Math.max(1, h - below - topGap);
  p.top = topGap;
  p.x = place => p.left + p.wide * (place - view.from) / (view.to - view.from);
  p.y = n => p.top + p.high * (1 - (n - low) / (high - low));
  c.textBaseline = "middle";
  c.lineWidth = 1;
  c.textAlign = "right";
  const step = stepOf(high - low, h < 200 ? 3 : 5, true);
  c.beginPath();
  c.fillStyle = colors.quiet;
  for (let n = Math.ceil(low / step) * step; n <= high; n += step) {
    c.moveTo(p.left - 4, sharp(p.y(n)));
    c.lineTo(p.left + p.wide, sharp(p.y(n)));
    c.fillText(byteTick(n), p.left - 7, clamp(p.y(n), 6, h - below));
  }
  c.strokeStyle = colors.grid;
  c.stroke();
  c.textAlign = "center";
  const span = view.to - view.from, apart = stepOf(span, Math.max(2, p.wide / 110), false), foot = p.top + p.high;
  const name = ui.axis === "time" ? "time since the first event" : "event";
  const nameWide = c.measureText(name).width;
  for (let n = Math.ceil(view.from / apart) * apart; n <= view.to; n += apart) {
    const at = p.x(n);
    if (at > p.left + p.wide - nameWide - 46) continue;
    c.beginPath(); c.moveTo(sharp(at), foot); c.lineTo(sharp(at), foot + 4); c.strokeStyle = colors.edge; c.stroke();
    c.fillText(ui.axis === "time" ? formatTime(n, apart) : formatCount(n), Math.max(at, p.left), foot + 14);
  }
  c.textAlign = "right";
  c.fillText(name + " \u2192", p.left + p.wide, foot + 14);
  return p;
}

/// The events of each column of a chart: from `first` to `last`.
function columnsOf(ui, wide) {
  const first = new Uint32Array(wide), last = new Uint32Array(wide), {from, to} = ui.view, tiny = (to - from) / wide * 1e-6;
  for (let c = 0; c < wide; ++c) {
    first[c] = ui.eventAt(from + (to - from) * c / wide);
    last[c] = Math.max(first[c], ui.eventAt(from + (to - from) * (c + 1) / wide - tiny));
  }
  return {first, last};
}

/// Draws a line through the least and greatest sum of each column.
function traceSum(p, of, levels, columns, color, thick) {
  const {c} = p, wide = columns.first.length;
  c.strokeStyle = color;
  c.lineWidth = thick;
  c.lineJoin = "round";
  c.beginPath();
  let at = NaN;
  for (let i = 0; i < wide; ++i) {
    const [least, most] = columns.first[i] === columns.last[i] ? [columns.first[i], columns.first[i]]
      : extremesIn(of, levels, columns.first[i], columns.last[i]);
    const x = p.left + p.wide * i / wide, low = p.y(of[least]), high = p.y(of[most]);
    const order = Math.abs(low - at) < Math.abs(high - at) ? [low, high] : [high, low];
    if (order[0] !== at || order[1] !== at) {
      if (i) c.lineTo(x, at);
      c.lineTo(x, order[0]);
      if (order[1] !== order[0]) c.lineTo(x, order[1]);
      at = order[1];
    }
    if (i + 1 === wide) c.lineTo(p.left + p.wide, at);
  }
  c.stroke();
}
function fillSum(p, of, levels, columns, color, which) {
  const {c} = p, wide = columns.first.length, foot = p.y(0);
  c.fillStyle = color;
  c.beginPath();
  c.moveTo(p.left, foot);
  for (let i = 0; i < wide; ++i) {
    const y = p.y(of[extremesIn(of, levels, columns.first[i], columns.last[i])[which]]);
    c.lineTo(p.left + p.wide * i / wide, y);
    c.lineTo(p.left + p.wide * (i + 1) / wide, y);
  }
  c.lineTo(p.left + p.wide, foot);
  c.fill();
}
function upright(p, x, color, dash = []) {
  const {c} = p;
  if (x < p.left || x > p.left + p.wide) return;
  c.save();
  c.strokeStyle = color;
  c.lineWidth = 1;
  c.setLineDash(dash);
  c.beginPath(); c.moveTo(sharp(x), p.top); c.lineTo(sharp(x), p.top + p.high); c.stroke();
  c.restore();
}

/// Draws reserved memory of all runs, over requested bytes.
function drawLines(ui, canvas) {
  const {all, colors} = ui, {program} = all, p = axes(ui, canvas, 0, ui.highest);
  const columns = columnsOf(ui, Math.max(1, Math.floor(p.wide)));
  p.c.save();
  p.c.beginPath(); p.c.rect(p.left, 0, p.wide, p.h); p.c.clip();
  fillSum(p, program.requested, program.requestedPeaks, columns, colors.peaks, 1);
  fillSum(p, program.requested, program.requestedPeaks, columns, colors.lives, 0);
  p.c.setLineDash([5, 4]);
  p.c.strokeStyle = colors.text;
  p.c.beginPath(); p.c.moveTo(p.left, sharp(p.y(all.peak))); p.c.lineTo(p.left + p.wide, sharp(p.y(all.peak))); p.c.stroke();
  p.c.setLineDash([]);
  all.runs.forEach((r, i) => traceSum(p, r.reserved, r.reservedPeaks, columns, colors.line[i % 8], 2));
  all.runs.forEach((r, i) => {
    p.c.fillStyle = colors.line[i % 8];
    p.c.strokeStyle = colors.ground;
    p.c.lineWidth = 2;
    p.c.beginPath();
    p.c.arc(p.x(ui.middleOf(r.moment)), p.y(r.reserved[r.moment]), 4.5, 0, 7);
    p.c.fill(); p.c.stroke();
  });
  upright(p, p.x(ui.middleOf(ui.moment)), colors.text);
  p.c.restore();
}

/// Draws the whole run, small, with the part that the charts show.
function drawRange(ui, canvas) {
  const {c, w, h} = begin(canvas), {all, colors, view} = ui, wide = Math.max(1, w - gutter - rightGap), [low, high] = ui.whole();
  const run = all.runs[0], x = place => gutter + wide * (place - low) / (high - low);
  c.fillStyle = colors.lives;
  for (let i = 0; i < wide; ++i) {
    const a = ui.eventAt(low + (high - low) * i / wide), b = Math.max(a, ui.eventAt(low + (high - low) * (i + .999) / wide));
    const tall = (h - 2) * run.active[extremesIn(run.active, run.activePeaks, a, b)[1]] / all.peak;
    c.fillRect(gutter + i, h - tall, 1, tall);
  }
  const a = x(view.from), b = Math.max(a + 3, x(view.to));
  c.fillStyle = colors.ground;
  c.globalAlpha = .65;
  c.fillRect(gutter, 0, a - gutter, h);
  c.fillRect(b, 0, gutter + wide - b, h);
  c.globalAlpha = 1;
  c.strokeStyle = colors.focus;
  c.lineWidth = 1.5;
  c.strokeRect(a + .75, .75, Math.max(2, b - a - 1.5), h - 1.5);
  c.fillStyle = colors.text;
  c.fillRect(x(ui.middleOf(ui.moment)) - .5, 0, 1, h);
}

/// Draws the blocks of a run over time. Each column shows the memory after the event at which most bytes are active, of
/// the events in the column. Stacked: live blocks, the oldest at the bottom, and cached memory above. By address:
/// segments and blocks where they lie.
///
/// A block is drawn wherever it covers the middle of a pixel. By address, it has at least a pixel.
function drawBlocks(ui, chart, step) {
  const {all, colors, tall, paint} = ui, {run, canvas} = chart, p = axes(ui, canvas, tall.low, tall.high);
  const W = Math.max(1, Math.round(p.wide * p.scale)), H = Math.max(1, Math.round(p.high * p.scale));
  if (!chart.image || chart.image.width !== W || chart.image.height !== H) {
    chart.image = p.c.createImageData(W, H);
    chart.pixels = new Uint32Array(chart.image.data.buffer);
    chart.moments = new Uint32Array(W);
  }
  const {pixels, moments} = chart, {program} = all, {kind} = program, {freed, place, heights, segments: s} = run;
  const columns = columnsOf(ui, W), stacked = ui.layout === "stacked", k = H / (tall.high - tall.low), low = tall.low;
  for (let c = 0; c < W; c += step) {
    const a = columns.first[c], b = columns.last[Math.min(W, c + step) - 1];
    moments.fill(a === b ? a : extremesIn(run.active, run.activePeaks, a, b)[1], c, c + step);
  }
  const {ground, cached, asleep, pending, text, edge} = colors.pixel, chosen = ui.chosen?.run === run ? ui.chosen.slot : -1;
  const pointed = ui.pointed?.run === run ? ui.pointed.slot : -1;
  pixels.fill(ground);
  const rowAt = n => { const row = Math.round(H - (n - low) * k); return row < 0 ? 0 : row > H ? H : row; };
  const fill = (color, top, foot, left, right) => {
    if (right - left > 8) {
      for (let row = top; row < foot; ++row) pixels.fill(color, row * W + left, row * W + right);
    } else {
      for (let row = top * W; row < foot * W; row += W)
        for (let at = row + left; at < row + right; ++at) pixels[at] = color;
    }
  };
  // The upper edge of a block is a little nearer to the background.
  const half = (a, b) => ((a & 0xfefefefe) >>> 1) + ((b & 0xfefefefe) >>> 1);
  const fillBlock = (color, top, foot, left, right) => {
    if (foot - top < 4) return fill(color, top, foot, left, right);
    fill((half(color, half(color, ground)) | 0xff000000) >>> 0, top, top + 1, left, right);
    fill(color, top + 1, foot, left, right);
  };
  const colorOf = slot => slot === chosen ? text : slot === pointed ? colors.pixel.focus
    : paint.bySlot ? (paint.dimmed[kind[slot]] ? mixed(paint.bySlot[slot % 10], ground, .16) : paint.bySlot[slot % 10]) : paint.byKind[kind[slot]];

  const blocks = new Follower(all, run, moments[0]), late = !!run.late;
  let here = [], nextSpan = 0;  // by address: the segments that exist
  const spans = stacked ? [] : run.byBegin;
  for (let left = 0, right = 0; left < W; left = right) {
    const event = moments[left];
    while (right < W && moments[right] === event) ++right;
    blocks.go(event);
    if (stacked) {
      const {sizes, slots, count} = blocks;
      let y = 0, foot = rowAt(0);
      for (let i = 0; i < count; ++i) {
        y += sizes[i];
        const top = rowAt(y);
        if (foot === top) continue;
        fillBlock(late && event >= freed[slots[i]] && slots[i] !== chosen ? pending : colorOf(slots[i]), top, foot, left, right);
        foot = top;
        if (top === 0) break;
      }
      const reserved = run.reserved[event] + (run.sleeping ? run.sleeping[event] : 0);
      y = run.active[event];
      if (reserved > y) fill(cached, rowAt(reserved), rowAt(y), left, right);
      if (run.sleeping && run.sleeping[event]) fill(asleep, rowAt(reserved), rowAt(run.reserved[event]), left, right);
      continue;
    }
    if (here.some(i => s.to[i] <= event)) here = here.filter(i => s.to[i] > event);
    for (; nextSpan < spans.length && s.from[spans[nextSpan]] <= event; ++nextSpan) if (s.to[spans[nextSpan]] > event) here.push(spans[nextSpan]);
    for (const i of here) {
      const foot = rowAt(s.height[i]), top = rowAt(s.height[i] + s.bytes[i]);
      fill(cached, top, foot, left, right);
      if (foot - top >= 6) fill(edge, top, top + 1, left, right);
    }
    const {sizes, slots, count} = blocks;
    for (let i = 0; i < count; ++i) {
      const y = heights[place[slots[i]]];
      if (y > tall.high || y + sizes[i] < low) continue;
      const foot = rowAt(y), top = Math.min(rowAt(y + sizes[i]), Math.max(0, foot - 1));
      fillBlock(late && event >= freed[slots[i]] && slots[i] !== chosen ? pending : colorOf(slots[i]), top, foot, left, right);
    }
    if (run.asleep) {
      const z = run.asleep;
      for (let i = 0; i < z.count; ++i) {
        if (z.from[i] > event || event >= z.to[i]) continue;
        const y = run.heightOf(z.address[i]);
        fill(asleep, rowAt(y + z.bytes[i]), rowAt(y), left, right);
      }
    }
  }
  p.c.putImageData(chart.image, Math.round(p.left * p.scale), Math.round(p.top * p.scale));
  p.c.save();
  p.c.beginPath(); p.c.rect(p.left, p.top - 2, p.wide, p.high + 4); p.c.clip();
  if (stacked) traceSum(p, run.reserved, run.reservedPeaks, columnsOf(ui, Math.max(1, Math.floor(p.wide))), colors.line[chart.number % 8], 1.5);
  if (all.start > 1 && ui.placeOf(all.first) >= ui.view.from) upright(p, p.x(ui.placeOf(all.first)) + 1, colors.quiet, [1, 3]);
  upright(p, p.x(ui.middleOf(ui.moment)), colors.text);
  p.c.restore();
  chart.plot = p;
}

/// The block of a chart at a position in pixels of the page, and the event there. The slot is -1 if there is no block.
function blockAt(ui, chart, x, y) {
  const p = chart.plot, {run} = chart, {all, tall} = ui;
  const column = clamp(Math.floor((x - p.left) * p.scale), 0, chart.moments.length - 1), event = chart.moments[column];
  const n = tall.low + (tall.high - tall.low) * (1 - (y - p.top) / p.high), alive = aliveAt(all, run, event);
  const slack = (tall.high - tall.low) / p.high;
  let sum = 0, near = -1, apart = slack * 3;
  for (const slot of alive) {
    const low = ui.layout === "stacked" ? sum : run.heights[run.place[slot]], high = low + run.bytes[run.place[slot]];
    sum += run.bytes[run.place[slot]];
    if (low <= n && n < high) return {run, slot, event};
    const far = n < low ? low - n : n - high;
    if (ui.layout !== "stacked" && far < apart) { apart = far; near = slot; }
  }
  return {run, slot: near, event, height: n};
}

const rowHeight = 18, pitch = 28;

function stripes(c, colors) {
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

/// Draws a memory map in rows. All maps have the same scale: `ui.highest` bytes fill a map that is not zoomed.
function drawMap(ui, chart) {
  const {canvas, map, view} = chart, {colors, paint, all} = ui, {c, w} = begin(canvas), pattern = stripes(c, colors);
  const rows = chart.rows(), kind = all.program.kind;
  const look = [colors.live, colors.pending, pattern, colors.idle, colors.asleep];
  const css = pixel => "rgb(" + (pixel & 255) + "," + (pixel >>> 8 & 255) + "," + (pixel >>> 16 & 255) + ")";
  const spans = (from, to, call) => {
    const scale = rows * w / (view.to - view.from);
    const a = Math.max(0, (from - view.from) * scale), b = Math.min(rows * w, (to - view.from) * scale);
    if (b <= a) return;
    for (let row = Math.floor(a / w); row < rows && row * w < b; ++row) {
      const x = Math.round(Math.max(0, a - row * w)), until = Math.round(Math.min(w, b - row * w));
      call(x, row * pitch, until - x, b <= (row + 1) * w);
    }
  };
  // Used cells are drawn last and at least one pixel wide, so that small blocks stay visible.
  for (const last of [false, true]) {
    for (const cell of map.cells) {
      const used = cell.slot >= 0;
      if (used !== last || cell.start + cell.bytes <= view.from || cell.start >= view.to) continue;
      const slot = cell.slot;
      c.fillStyle = cell.is !== LIVE ? look[cell.is] : css(paint.bySlot ? paint.bySlot[slot % 10] : paint.byKind[kind[slot]]);
      spans(cell.start, cell.start + cell.bytes, (x, y, wide, done) => {
        c.fillRect(x, y, Math.max(used ? 1 : 0, wide - (done && wide > 4 ? 1 : 0)), rowHeight);
      });
    }
  }
  for (const s of map.segments) {
    c.fillStyle = s.owner.pool !== "0" ? colors.groups[(ui.pools.indexOf(s.owner.pool) + 3) % 10] : colors.quiet;
    spans(s.start, s.start + s.bytes, (x, y, wide, done) => { if (wide > 3) c.fillRect(x, y + rowHeight + 2, wide - (done ? 3 : 0), 2); });
  }
  c.lineWidth = 2;
  const frame = (cell, color) => spans(cell.start, cell.start + cell.bytes, (x, y, wide) => {
    c.strokeStyle = color;
    c.strokeRect(clamp(x, 1, w - 5), y + 1, Math.max(3, Math.min(wide, w - x - 1) - 1), rowHeight - 2);
  });
  if (map.cells.length) {
    if (map.cells[chart.at].is === KEPT) for (const i of keepers(map, chart.at)) frame(map.cells[i], colors.accent);
    frame(map.cells[chart.at], colors.text);
  }
}
)js";

}  // namespace replay::page
