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
const counts = new Intl.NumberFormat("en-US"), formatCount = n => counts.format(n);
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
  const colors = {line: [], pixel: {}, groups: [], groupPixels: [], linePixels: [], sizes: []};
  const read = name => style.getPropertyValue("--" + name).trim();
  for (let i = 0; i < 8; ++i) colors.line.push(read("c" + i));
  for (let i = 0; i < 10; ++i) colors.groups.push(read("g" + i));
  for (let i = 0; i < 6; ++i) colors.sizes.push(read("s" + i));
  for (const name of ["ground", "text", "quiet", "grid", "edge", "lives", "peaks", "live", "pending", "kept", "stripe", "idle",
                      "asleep", "cached", "focus", "accent", "other"]) {
    colors[name] = read(name);
    colors.pixel[name] = pixel(colors[name]);
  }
  colors.groupPixels = colors.groups.map(pixel);
  colors.linePixels = colors.line.map(pixel);
  colors.pixelOf = pixel;
  return colors;
}
/// A pixel color between two: `share` of the first.
function mixed(a, b, share) {
  const part = shift => Math.round((a >>> shift & 255) * share + (b >>> shift & 255) * (1 - share)) << shift;
  return (255 << 24 | part(16) | part(8) | part(0)) >>> 0;
}

let font = "";
/// Clears a canvas and sizes it in device pixels.
function begin(canvas) {
  const scale = devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
  const [wide, high] = [Math.round(w * scale), Math.round(h * scale)];
  if (canvas.width !== wide || canvas.height !== high) { canvas.width = wide; canvas.height = high; }
  const c = canvas.getContext("2d");
  c.setTransform(scale, 0, 0, scale, 0, 0);
  c.clearRect(0, 0, w, h);
  c.font = font ||= "12px " + getComputedStyle(document.body).fontFamily;
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
  const group = new Uint32Array(program.kinds.length);  // the position in the list
  list.forEach((g, i) => { for (const k of g.kinds) group[k] = i; });
  const dimmed = Uint8Array.from(program.kinds, (k, i) => matches && !matches(k, i) ? 1 : 0);
  return {list, of, group, dimmed, byKind: bright.map((p, i) => dimmed[i] ? mixed(p, colors.pixel.ground, .16) : p),
          bySlot: of ? null : colors.groups.map(c => colors.pixelOf(c))};
}

/// Round numbers that divide a span into at most `most` parts.
function stepOf(span, most, binary) {
  let step = 1;
  if (binary) { while (span / step > most) step *= 2; return step; }
  for (let i = 0; span / step > most; ++i) step = i % 3 === 2 ? step / 2 * 5 : step * 2;
  return step;
}
const gutter = 84, below = 24, topGap = 8, rightGap = 10;

/// Draws the axes of a chart over time. Returns the places of its plot.
function axes(ui, canvas, low, high, upName) {
  const p = begin(canvas), {c, w, h} = p, {colors, view} = ui;
  p.left = gutter;
  p.wide = Math.max(1, w - gutter - rightGap);
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
  c.save();
  c.translate(8, p.top + p.high / 2);
  c.rotate(-Math.PI / 2);
  c.textAlign = "center";
  c.fillText(upName + " \u2192", 0, 0);
  c.restore();
  return p;
}

/// The events of each column of a chart: from `first` to `last`. Made once for a view and a width. If the last view only
/// moved by whole columns, `moved` is by how many, and `before` has the sums of its columns.
function columnsOf(ui, wide) {
  const {from, to} = ui.view, view = [ui.axis, from, to].join();
  if (ui.columnsView !== view) {
    ui.columnsView = view;
    ui.columnsBefore = ui.columns;
    ui.columns = new Map();
  }
  let made = ui.columns.get(wide);
  if (made) return made;
  const old = ui.columnsBefore?.get(wide), one = (to - from) / wide, moved = old ? Math.round((from - old.from) / one) : 0;
  const isMoved = old && old.axis === ui.axis && Math.abs(old.to - old.from - to + from) < one * 1e-6 && Math.abs(from - old.from - moved * one) < one * 1e-3;
  const first = new Uint32Array(wide), last = new Uint32Array(wide);
  for (let c = 0; c < wide; ++c) {
    const at = c + moved;
    if (isMoved && at >= 0 && at < wide) { first[c] = old.first[at]; last[c] = old.last[at]; continue; }
    first[c] = ui.eventAt(from + (to - from) * c / wide);
    last[c] = Math.max(first[c], ui.eventAt(from + (to - from) * (c + 1) / wide - one * 1e-6));
  }
  made = {axis: ui.axis, from, to, first, last, moved, sums: new Map(), before: isMoved ? old.sums : null};
  ui.columns.set(wide, made);
  return made;
}
/// The least and the greatest sum of each column.
function sumsOf(of, levels, columns) {
  let made = columns.sums.get(of);
  if (made) return made;
  const {first, last, moved} = columns, wide = first.length, old = columns.before?.get(of), least = new Float64Array(wide), most = new Float64Array(wide);
  for (let i = 0; i < wide; ++i) {
    const at = i + moved;
    if (old && at >= 0 && at < wide) { least[i] = old.least[at]; most[i] = old.most[at]; continue; }
    const [a, b] = extremesIn(of, levels, first[i], last[i]);
    least[i] = of[a];
    most[i] = of[b];
  }
  made = {least, most};
  columns.sums.set(of, made);
  return made;
}

/// Fills a picture from its foot to a sum of each column.
function fillSum({pixels, W, H, rowOf}, sums, color) {
  for (let c = 0; c < W; ++c) for (let r = rowOf(sums[c]); r < H; ++r) pixels[r * W + c] = color;
}
/// Draws a line through the least and the greatest sum of each column. Calls set(position, color) for each pixel.
function traceSum({W, H, rowOf}, {least, most}, color, thick, set) {
  let low = rowOf(least[0]), high = rowOf(most[0]);  // of the column before
  for (let c = 0; c < W; ++c) {
    const bottom = rowOf(least[c]), top = rowOf(most[c]), up = thick >> 1;
    // Between two columns, the line goes straight up or down.
    const from = Math.max(0, Math.min(top, low) - up), to = Math.min(H, Math.max(bottom, high) - up + thick);
    for (let r = from; r < to; ++r) set(r * W + c, color);
    low = bottom;
    high = top;
  }
}
/// Draws on a canvas what `draw` draws, and keeps it: while `state` is the same, the kept picture is shown.
function keepPicture(canvas, state, draw) {
  const kept = canvas.kept ||= {picture: document.createElement("canvas")}, {picture} = kept, {c} = begin(canvas);
  if (kept.wide !== canvas.width || kept.high !== canvas.height || state.some((s, i) => s !== kept.state[i])) {
    kept.plot = draw();
    kept.state = state;
    kept.wide = picture.width = canvas.width;
    kept.high = picture.height = canvas.height;
    if (canvas.width && canvas.height) picture.getContext("2d").drawImage(canvas, 0, 0);
  } else if (kept.wide && kept.high) {
    c.save();
    c.setTransform(1, 0, 0, 1, 0, 0);
    c.drawImage(picture, 0, 0);
    c.restore();
  }
  return kept.plot;
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
  const {all, colors, view} = ui, {program} = all, highest = 1.02 * ui.highest;
  const p = keepPicture(canvas, [ui.axis, view.from, view.to, ui.highest, colors], () => {
    const p = axes(ui, canvas, 0, highest, "reserved, bytes"), W = Math.max(1, Math.round(p.wide * p.scale)), H = Math.max(1, Math.round(p.high * p.scale));
    const columns = columnsOf(ui, W), requested = sumsOf(program.requested, program.requestedPeaks, columns), image = new ImageData(W, H);
    const pixels = new Uint32Array(image.data.buffer), picture = {W, H, pixels, rowOf: n => Math.round(H - n * H / highest)};
    fillSum(picture, requested.most, colors.pixel.peaks);
    fillSum(picture, requested.least, colors.pixel.lives);
    all.runs.forEach((r, i) => traceSum(picture, sumsOf(r.reserved, r.reservedPeaks, columns), colors.linePixels[i % 8], Math.round(2 * p.scale), (at, color) => { pixels[at] = color; }));
    const sheet = canvas.kept.sheet ||= document.createElement("canvas");
    sheet.width = W;
    sheet.height = H;
    sheet.getContext("2d").putImageData(image, 0, 0);
    p.c.drawImage(sheet, p.left, p.top, W / p.scale, H / p.scale);
    p.c.save();
    p.c.beginPath(); p.c.rect(p.left, 0, p.wide, p.h); p.c.clip();
    p.c.setLineDash([5, 4]);
    p.c.strokeStyle = colors.text;
    p.c.beginPath(); p.c.moveTo(p.left, sharp(p.y(all.peak))); p.c.lineTo(p.left + p.wide, sharp(p.y(all.peak))); p.c.stroke();
    p.c.setLineDash([]);
    all.runs.forEach((r, i) => {
      p.c.fillStyle = colors.line[i % 8];
      p.c.strokeStyle = colors.ground;
      p.c.lineWidth = 2;
      p.c.beginPath();
      p.c.arc(p.x(ui.middleOf(r.moment)), p.y(r.reserved[r.moment]), 4.5, 0, 7);
      p.c.fill(); p.c.stroke();
    });
    p.c.restore();
    return p;
  });
  upright(p, p.x(ui.middleOf(ui.moment)), colors.text);
}

/// Draws the whole run, small, with the part that the charts show.
function drawRange(ui, canvas) {
  const {all, colors, view} = ui, wide = Math.max(1, canvas.clientWidth - gutter - rightGap), h = canvas.clientHeight, [low, high] = ui.whole();
  const run = all.runs[0], x = place => gutter + wide * (place - low) / (high - low), c = canvas.getContext("2d");
  keepPicture(canvas, [ui.axis, colors], () => {
    c.fillStyle = colors.lives;
    for (let i = 0; i < wide; ++i) {
      const a = ui.eventAt(low + (high - low) * i / wide), b = Math.max(a, ui.eventAt(low + (high - low) * (i + .999) / wide));
      const tall = (h - 2) * run.active[extremesIn(run.active, run.activePeaks, a, b)[1]] / all.peak;
      c.fillRect(gutter + i, h - tall, 1, tall);
    }
  });
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

// The picture of blocks over time.
//
// A chart keeps its picture, one of `W` columns and `H` rows. When the view changes, the next picture begins as what the
// last one shows of it, moved or stretched. Columns are then drawn for some milliseconds a frame, first every 64th,
// then those between, until all are exact. A column that was exact and only moved stays exact.

const coarsest = 64, NOTHING = 4294967295;

/// The colors of blocks in a picture.
function colorsOfBlocks(ui) {
  const {paint, colors} = ui, {kind} = ui.all.program;
  if (!paint.bySlot) return slot => paint.byKind[kind[slot]];
  return slot => paint.dimmed[kind[slot]] ? mixed(paint.bySlot[slot % 10], colors.pixel.ground, .16) : paint.bySlot[slot % 10];
}

/// The picture for what a chart shows now: that of the last frame if nothing changed.
function pictureOf(ui, chart, W, H) {
  const {view, tall, all} = ui, {run} = chart, old = chart.picture;
  // A chosen block of less than a pixel is drawn with one.
  const small = ui.chosen?.run === run && run.bytes[run.place[ui.chosen.slot]] * H < 2 * (tall.high - tall.low) ? ui.chosen.slot : -1;
  const want = {axis: ui.axis, layout: ui.layout, paint: ui.paint, small, W, H, from: view.from, to: view.to, low: tall.low, high: tall.high};
  if (old && Object.keys(want).every(k => old[k] === want[k])) return old;
  let made = chart.spare;
  if (!made || made.W !== W || made.H !== H)
    made = {pixels: new Uint32Array(W * H), slots: new Uint32Array(W * H), moments: new Uint32Array(W), state: new Uint8Array(W), rows: new Int32Array(H), column: new Uint32Array(H), owners: new Uint32Array(H),
            weight: new Float64Array(H), red: new Float64Array(H), green: new Float64Array(H), blue: new Float64Array(H), most: new Float64Array(H)};
  Object.assign(made, want, {step: coarsest, at: 0, blocks: null});
  made.moments.fill(NEVER);
  made.state.fill(BLANK);
  chart.spare = old || null;
  chart.picture = made;
  if (old && ["axis", "layout", "paint"].every(k => old[k] === want[k])) reuse(old, made, ui.colors.pixel.ground);
  else { made.pixels.fill(ui.colors.pixel.ground); made.slots.fill(NOTHING); }
  return made;
}
// What the pixels of a column are: none, those of a column near it, those of an earlier view, or its own.
const BLANK = 0, NEAR = 1, OLD = 2, EXACT = 3;

/// Begins a picture with what another shows of it.
function reuse(old, made, ground) {
  const {W, H} = made, wide = (made.to - made.from) / W, before = (old.to - old.from) / old.W;
  const sameRows = made.low === old.low && made.high === old.high && H === old.H;
  const shift = (made.from - old.from) / before, whole = Math.round(shift);
  const moved = Math.abs(wide - before) < before * 1e-9 && Math.abs(shift - whole) < 1e-3 && sameRows && made.small === old.small;
  // The columns from `first` to `last` are shown by the old picture.
  let first = 0, last = W;
  const source = new Int32Array(W);
  for (let c = 0; c < W; ++c) source[c] = moved ? c + whole : Math.floor((made.from + wide * (c + .5) - old.from) / before);
  while (first < W && source[first] < 0) ++first;
  while (last > first && source[last - 1] >= old.W) --last;
  for (let c = first; c < last; ++c) {
    const was = old.state[source[c]];
    made.state[c] = moved || was === BLANK ? was : OLD;
    if (moved) made.moments[c] = old.moments[source[c]];
  }
  const {pixels} = made;
  pixels.fill(ground);
  made.slots.fill(NOTHING);
  for (let r = 0; r < H; ++r) {
    const at = sameRows ? r : Math.floor((old.high - (made.high - (r + .5) * (made.high - made.low) / H)) / (old.high - old.low) * old.H);
    const row = made.rows[r] = at >= 0 && at < old.H ? at : -1, from = row * old.W, to = r * W;
    if (row < 0 || first >= last) continue;
    if (moved) {
      pixels.set(old.pixels.subarray(from + source[first], from + source[last - 1] + 1), to + first);
      made.slots.set(old.slots.subarray(from + source[first], from + source[last - 1] + 1), to + first);
    } else {
      const shown = old.pixels.subarray(from, from + old.W);
      for (let c = first; c < last; ++c) pixels[to + c] = shown[source[c]];
    }
  }
}

/// The event that a column of a picture shows: that at which most bytes are active, of the events in the column.
function momentOf(ui, chart, c) {
  const {picture, run} = chart, {moments, W} = picture;
  // A pointer may move after the view and before the next frame.
  const isOfView = picture.from === ui.view.from && picture.to === ui.view.to && picture.axis === ui.axis;
  if (isOfView && moments[c] !== NEVER) return moments[c];
  const {first, last} = columnsOf(ui, W), event = first[c] === last[c] ? first[c] : extremesIn(run.active, run.activePeaks, first[c], last[c])[1];
  if (isOfView) moments[c] = event;
  return event;
}

/// Draws columns until all are exact, or until a time. Returns whether all are exact.
function refine(ui, chart, until) {
  const picture = chart.picture, {W, H, state, pixels, slots, column, owners, rows} = picture, draw = ui.layout === "stacked" ? drawStack : drawAddresses;
  for (; picture.step; picture.step >>= 1, picture.at = picture.step, picture.blocks = null) {
    const {step} = picture;
    let drawn = NEVER;  // the event of which `column` is
    for (const stride = step === coarsest ? step : 2 * step; picture.at < W; picture.at += stride) {
      const at = picture.at;
      if (state[at] === EXACT) continue;
      if (performance.now() > until && drawn !== NEVER) return false;
      const event = momentOf(ui, chart, at);
      if (event !== drawn) {
        picture.blocks ||= new Follower(ui.all, chart.run, event, colorsOfBlocks(ui));
        picture.blocks.go(event);
        draw(ui, chart, event);
        drawn = event;
      }
      // The columns of the same event are the same.
      let end = at + 1;
      for (; end < W && state[end] !== EXACT && momentOf(ui, chart, end) === event; ++end) state[end] = EXACT;
      state[at] = EXACT;
      for (let r = 0, i = at; r < H; ++r, i += W) {
        for (let k = 0; k < end - at; ++k) { pixels[i + k] = column[r]; slots[i + k] = owners[r]; }
      }
      // Until the next ones are drawn, this one stands for them where an earlier view shows nothing.
      for (let c = end; c < at + step && c < W; ++c) {
        if (state[c] === EXACT) continue;
        const all = state[c] !== OLD;
        for (let r = 0, i = c; r < H; ++r, i += W) {
          if (!all && rows[r] >= 0) continue;
          pixels[i] = column[r];
          slots[i] = owners[r];
        }
        if (all) state[c] = NEAR;
      }
    }
  }
  return true;
}

const mixedPixel = (r, g, b) => (255 << 24 | b + .5 << 16 | g + .5 << 8 | r + .5) >>> 0;
/// A pixel of which `taken`, at most 1, has the color that is summed up, and the rest has another one.
function over(under, r, g, b, taken) {
  const rest = Math.max(0, 1 - taken);
  return mixedPixel(r + (under & 255) * rest, g + (under >>> 8 & 255) * rest, b + (under >>> 16 & 255) * rest);
}
/// The color of the upper edge of a block, a little nearer to the background.
const edgeOf = (color, ground) => mixed(color, ground, .75);

/// Draws the column of an event: the live blocks, the oldest at the bottom, and cached memory above. Each block has its
/// share of each pixel.
function drawStack(ui, chart, event) {
  const {run, picture} = chart, {H, low, high, column, owners, small, blocks} = picture, {ground, cached, asleep, pending, text} = ui.colors.pixel;
  const {sizes, slots, colors, count} = blocks, {freed} = run, late = !!run.late, k = H / (high - low);
  column.fill(ground);
  owners.fill(NOTHING);
  // `row` is the pixel that is not yet full, and what is summed up of it.
  let y = -low, edge = H + low * k, row = -1, red = 0, green = 0, blue = 0, taken = 0, most = 0, owner = NOTHING, marked = -1;
  const reserved = run.reserved[event] + (run.sleeping ? run.sleeping[event] : 0);
  for (let i = 0; i <= count; ++i) {
    const isBlock = i < count;
    y += isBlock ? sizes[i] : Math.max(0, reserved - y - low);
    const top = H - y * k, from = edge < H ? edge : H;
    edge = top;
    if (top >= H) continue;
    const slot = isBlock ? slots[i] : NOTHING, color = !isBlock ? cached : late && event >= freed[slot] ? pending : colors[i];
    if (slot === small) marked = Math.max(0, Math.floor(top));
    const first = Math.ceil(from) - 1;
    if (first !== row) {
      if (row >= 0 && taken > 0) { column[row] = over(ground, red, green, blue, taken); owners[row] = owner; }
      row = first;
      red = green = blue = taken = most = 0;
      owner = NOTHING;
    }
    let share = top >= first ? from - top : from - first;
    for (;;) {
      red += share * (color & 255);
      green += share * (color >>> 8 & 255);
      blue += share * (color >>> 16 & 255);
      taken += share;
      if (share > most) { most = share; owner = slot; }
      if (top >= row) break;
      // The block ends in a pixel above: this one is full, and so are those up to that one.
      column[row] = over(ground, red, green, blue, taken);
      owners[row] = owner;
      const last = Math.max(0, Math.ceil(top));
      if (row > last) {
        column.fill(color, last, row);
        owners.fill(slot, last, row);
        if (isBlock && row - last >= 3) column[last] = edgeOf(color, ground);
      }
      row = Math.ceil(top) - 1;
      red = green = blue = taken = most = 0;
      owner = NOTHING;
      share = row + 1 - top;
      if (row < 0 || share <= 0) break;
    }
    if (top <= 0) { row = -1; break; }
  }
  if (row >= 0 && taken > 0) { column[row] = over(ground, red, green, blue, taken); owners[row] = owner; }
  if (run.sleeping && run.sleeping[event]) column.fill(asleep, rowOf(picture, reserved), rowOf(picture, run.reserved[event]));
  if (marked >= 0) { column[marked] = text; owners[marked] = small; }
}
const rowOf = ({H, low, high}, n) => clamp(Math.round(H - (n - low) * H / (high - low)), 0, H);

/// Draws the column of an event: segments and blocks where they lie. Each block has its share of each pixel. All blocks in a
/// pixel together have at least `least` of it, so that they are seen.
function drawAddresses(ui, chart, event) {
  const {run, picture} = chart, {H, low, high, column, owners, small, blocks, weight, red, green, blue, most} = picture;
  const {ground, cached, asleep, pending, text, edge} = ui.colors.pixel, {segments: s, freed} = run, late = !!run.late, k = H / (high - low), least = .4;
  column.fill(ground);
  owners.fill(NOTHING);
  for (const sums of [weight, red, green, blue, most]) sums.fill(0);
  blocks.segments ||= {here: [], next: 0};
  const at = blocks.segments;
  if (at.here.some(i => s.to[i] <= event)) at.here = at.here.filter(i => s.to[i] > event);
  for (; at.next < s.count && s.from[run.byBegin[at.next]] <= event; ++at.next) if (s.to[run.byBegin[at.next]] > event) at.here.push(run.byBegin[at.next]);
  for (const i of at.here) {
    const foot = rowOf(picture, s.height[i]), top = rowOf(picture, s.height[i] + s.bytes[i]);
    column.fill(cached, top, foot);
    if (foot - top >= 6) column[top] = edge;
  }
  const {sizes, slots, colors, heights, count} = blocks;
  let marked = -1;
  const add = (row, share, color, slot) => {
    weight[row] += share;
    red[row] += share * (color & 255);
    green[row] += share * (color >>> 8 & 255);
    blue[row] += share * (color >>> 16 & 255);
    if (share > most[row]) { most[row] = share; owners[row] = slot; }
  };
  for (let i = 0; i < count; ++i) {
    const foot = Math.min(H, H - (heights[i] - low) * k), top = Math.max(0, H - (heights[i] + sizes[i] - low) * k);
    if (top >= H || foot <= 0) continue;
    const slot = slots[i], color = late && event >= freed[slot] ? pending : colors[i], first = Math.floor(top), last = Math.ceil(foot) - 1;
    if (slot === small) marked = first;
    if (first >= last) { add(first, foot - top, color, slot); continue; }
    add(first, first + 1 - top, color, slot);
    add(last, foot - last, color, slot);
    if (last - first < 2) continue;
    column.fill(color, first + 1, last);
    owners.fill(slot, first + 1, last);
    if (last - first >= 5) column[first + 1] = edgeOf(color, ground);
  }
  for (let r = 0; r < H; ++r) {
    if (weight[r] < 1e-7) continue;
    const share = clamp(weight[r], least, 1), scale = share / weight[r];
    column[r] = over(column[r], red[r] * scale, green[r] * scale, blue[r] * scale, share);
  }
  const z = run.asleep;
  for (let i = 0; z && i < z.count; ++i) {
    if (z.from[i] > event || event >= z.to[i]) continue;
    const y = run.heightOf(z.address[i]);
    column.fill(asleep, rowOf(picture, y + z.bytes[i]), rowOf(picture, y));
  }
  if (marked >= 0) { column[marked] = text; owners[marked] = small; }
}

/// Draws the blocks of a run over time. Each column shows the memory after the event at which most bytes are active, of
/// the events in the column. Draws until a time, and returns whether all is drawn.
function drawBlocks(ui, chart, until = Infinity) {
  const {all, colors, tall} = ui, {run, canvas} = chart, stacked = ui.layout === "stacked";
  const p = chart.plot = axes(ui, canvas, tall.low, tall.high, stacked ? "blocks and cache, bytes" : "address, bytes");
  const picture = pictureOf(ui, chart, Math.max(1, Math.round(p.wide * p.scale)), Math.max(1, Math.round(p.high * p.scale)));
  const done = refine(ui, chart, until), {slots, W, H} = picture;
  // The chosen block and the one under the pointer are marked in a copy.
  if (chart.shown?.width !== W || chart.shown.height !== H) chart.shown = new ImageData(W, H);
  const pixels = new Uint32Array(chart.shown.data.buffer);
  pixels.set(picture.pixels);
  const marks = [[ui.chosen, colors.pixel.text], [ui.pointed, colors.pixel.focus]].filter(([block]) => block?.run === run), set = (at, color) => { pixels[at] = color; };
  for (const [{slot}, color] of marks) for (let i = slots.indexOf(slot); i >= 0; i = slots.indexOf(slot, i + 1)) set(i, color);
  if (stacked) {
    const k = H / (tall.high - tall.low);
    traceSum({W, H, rowOf: n => Math.round(H - (n - tall.low) * k)}, sumsOf(run.reserved, run.reservedPeaks, columnsOf(ui, W)), colors.linePixels[chart.number % 8], Math.max(1, Math.round(1.5 * p.scale)), set);
  }
  p.c.putImageData(chart.shown, Math.round(p.left * p.scale), Math.round(p.top * p.scale));
  p.c.save();
  p.c.beginPath(); p.c.rect(p.left, p.top - 2, p.wide, p.high + 4); p.c.clip();
  if (all.start > 1 && ui.placeOf(all.first) >= ui.view.from) upright(p, p.x(ui.placeOf(all.first)) + 1, colors.quiet, [1, 3]);
  upright(p, p.x(ui.middleOf(ui.moment)), colors.text);
  p.c.restore();
  return done;
}

/// The block of a chart at a position in pixels of the page, and the event there. The slot is -1 if there is no block.
function blockAt(ui, chart, x, y) {
  const p = chart.plot, {run} = chart, {all, tall} = ui;
  const column = clamp(Math.floor((x - p.left) * p.scale), 0, chart.picture.W - 1), event = momentOf(ui, chart, column);
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

/// Draws a memory map in rows. All maps have the same scale: `ui.highest` bytes fill a map that is not zoomed.
function drawMap(ui, chart) {
  const {canvas, map, view} = chart, {colors, paint, all} = ui, {c, w, scale} = begin(canvas), rows = chart.rows(), {kind} = all.program;
  const W = Math.max(1, Math.round(w * scale)), total = rows * W, k = total / (view.to - view.from);
  const high = Math.max(1, canvas.height), {ground} = colors.pixel;
  let sheet = chart.sheet;
  if (!sheet || sheet.W !== W || sheet.high !== high || sheet.total !== total || sheet.paint !== paint) {
    const image = new ImageData(W, high), numbers = () => new Uint32Array(total);
    sheet = chart.sheet = {W, high, total, paint, image, pixels: new Uint32Array(image.data.buffer), sums: Array.from({length: 9}, () => new Float32Array(total)), plain: numbers(), striped: numbers(), below: numbers()};
    sheet.pixels.fill(ground);
  }
  const {pixels, plain, striped, below} = sheet;
  for (const sum of sheet.sums) sum.fill(0);
  // The rows end to end. Of each pixel: the share that blocks have, its color, the same of free memory, and the share of
  // free memory that is non-releasable.
  const [used, usedRed, usedGreen, usedBlue, free, freeRed, freeGreen, freeBlue, kept] = sheet.sums;
  const look = [0, colors.pixel.pending, colors.pixel.kept, colors.pixel.idle, colors.pixel.asleep], colorOf = colorsOfBlocks(ui);
  const ends = [];
  for (const cell of map.cells) {
    const a = Math.max(0, (cell.start - view.from) * k), b = Math.min(total, (cell.start + cell.bytes - view.from) * k), {slot} = cell;
    if (b <= a) continue;
    const color = cell.is === LIVE ? colorOf(slot) : look[cell.is], red = color & 255, green = color >>> 8 & 255, blue = color >>> 16 & 255;
    for (let x = Math.floor(a); x < b; ++x) {
      const share = Math.min(b, x + 1) - Math.max(a, x);
      if (slot >= 0) { used[x] += share; usedRed[x] += share * red; usedGreen[x] += share * green; usedBlue[x] += share * blue; continue; }
      free[x] += share;
      freeRed[x] += share * red;
      freeGreen[x] += share * green;
      freeBlue[x] += share * blue;
      if (cell.is === KEPT) kept[x] += share;
    }
    if (b - a > 4 * scale && b < total) ends.push(Math.floor(b) - 1);
  }
  const stripe = [16, 8, 0].map(shift => (colors.pixel.stripe >>> shift & 255) - (colors.pixel.kept >>> shift & 255));
  for (let x = 0; x < total; ++x) {
    // Blocks in a pixel have at least a part of it that is seen.
    const share = used[x] ? clamp(used[x], Math.min(.4, used[x] + free[x]), 1) : 0, rest = free[x] ? Math.min(free[x], 1 - share) : 0;
    const mine = share ? share / used[x] : 0, other = rest ? rest / free[x] : 0;
    const r = usedRed[x] * mine + freeRed[x] * other, g = usedGreen[x] * mine + freeGreen[x] * other, b = usedBlue[x] * mine + freeBlue[x] * other;
    plain[x] = share + rest > 0 ? over(ground, r, g, b, share + rest) : ground;
    const lines = kept[x] * other;
    striped[x] = lines ? over(ground, r + stripe[2] * lines, g + stripe[1] * lines, b + stripe[0] * lines, share + rest) : plain[x];
  }
  for (const x of ends) plain[x] = striped[x] = ground;
  below.fill(ground);
  for (const s of map.segments) {
    const a = Math.max(0, Math.round((s.start - view.from) * k)), b = Math.min(total, Math.round((s.start + s.bytes - view.from) * k) - Math.round(3 * scale));
    if (b > a) below.fill(s.owner.pool !== "0" ? colors.groupPixels[(ui.pools.indexOf(s.owner.pool) + 3) % 10] : colors.pixel.quiet, a, b);
  }
  const period = Math.max(2, Math.round(6 * scale)), at = n => Math.round(n * scale);
  for (let row = 0; row < rows; ++row) {
    const from = row * W;
    for (let y = at(row * pitch); y < at(row * pitch + rowHeight) && y < high; ++y) {
      pixels.set(plain.subarray(from, from + W), y * W);
      for (let x = period - 1 - y % period; x < W; x += period) pixels[y * W + x] = striped[from + x];
    }
    for (let y = at(row * pitch + rowHeight + 2); y < at(row * pitch + rowHeight + 4) && y < high; ++y) pixels.set(below.subarray(from, from + W), y * W);
  }
  c.putImageData(sheet.image, 0, 0);
  const spans = (from, to, call) => {
    const scale = rows * w / (view.to - view.from);
    const a = Math.max(0, (from - view.from) * scale), b = Math.min(rows * w, (to - view.from) * scale);
    if (b <= a) return;
    for (let row = Math.floor(a / w); row < rows && row * w < b; ++row) {
      const x = Math.round(Math.max(0, a - row * w)), until = Math.round(Math.min(w, b - row * w));
      call(x, row * pitch, until - x);
    }
  };
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
