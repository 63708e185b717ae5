// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace replay::page {

/// The function show(data, element), which makes a page inside an element.
inline constexpr const char* show = R"js(
/// Shows the runs of `data` inside an element. Returns the state, with functions that change it.
function show(data, element) {
  "use strict";
  const all = readRuns(data), {program, runs} = all;
  const ui = {
    all, axis: "event", layout: "stacked", grouping: all.hasLines ? "line" : all.hasLabels ? "label" : "size", moment: runs[0].moment, found: "", marked: null,
    chosen: null, pointed: null, view: {from: 0, to: 1}, tall: {low: 0, high: 1}, highest: 1, charts: [], maps: [],
    pools: [...new Set(runs.flatMap(r => r.owners.map(o => o.pool)))].filter(p => p !== "0"),
    placeOf: event => ui.axis === "time" ? all.times[Math.min(event, all.events - 1)] : event,
    eventAt: place => clamp(ui.axis === "time" ? above(all.times, place) - 1 : Math.floor(place), all.first, all.events - 1),
    middleOf: event => ui.axis === "time" ? all.times[event] : event + .5,
    whole: () => {
      if (ui.axis !== "time") return [all.first, all.events];
      const low = all.times[all.first], high = all.times[all.events - 1];
      return [low, high > low ? high + (high - low) / all.events : low + 1];
    },
  };
  for (const r of runs) {
    ui.highest = Math.max(ui.highest, r.reserved[extremesIn(r.reserved, r.reservedPeaks, all.first, all.events - 1)[1]]);
    if (r.sleeping) r.reserved.forEach((n, i) => { ui.highest = Math.max(ui.highest, n + r.sleeping[i]); });
  }
  ui.highest = Math.max(ui.highest, all.peak);
  const top = () => 1.04 * (ui.layout === "stacked" ? ui.highest : Math.max(1, ...runs.filter((r, i) => shown[i]).map(r => r.height)));
  const shown = runs.map((r, i) => i < 2);

  // The frame of the page.
  const root = document.documentElement;
  const on = (target, name, call, options) => target.addEventListener(name, call, options);
  const lines = make("canvas", {class: "lines"}), range = make("canvas", {class: "range"});
  const timeBox = make("div", {class: "chart", tabindex: 0, role: "slider", "aria-label": "Event of the program", "aria-valuemin": all.first, "aria-valuemax": all.events - 1}, lines, range);
  const slider = make("input", {type: "range", min: all.first, max: all.events - 1, step: 1, "aria-label": "Event that the maps show", oninput: () => move(Number(slider.value))});
  const where = make("output", {class: "where"}), readout = make("tbody");
  const legend = make("div", {class: "legend"}), foundText = make("span", {class: "hint"}), tip = make("div", {class: "tip", hidden: true});
  const details = make("aside", {class: "chosen", hidden: true, "aria-label": "Chosen block"});
  const searchBox = make("input", {type: "search", placeholder: "Search line, stack or tag", "aria-label": "Search blocks by source line, call stack or tag", oninput: () => search(searchBox.value)});
  const blocks = make("div", {class: "runs"}), maps = make("div", {class: "maps"}), mapTitle = make("h2");
  const available = ["line", "label", "size", "stream", "block"].filter(g => (g !== "line" || all.hasLines) && (g !== "label" || all.hasLabels));
  const colorChoice = choice("Color by", available.map(g => [g, groupings[g].name]), ui.grouping, g => { ui.grouping = g; ui.marked = null; repaint(); });
  const layoutChoice = choice("Layout", [["stacked", "stacked"], ["address", "by address"]], ui.layout, l => ui.setLayout(l));
  const anyPending = runs.some(r => r.late), anyAsleep = runs.some(r => r.asleep);
  const columns = ["reserved", "live", ...(anyPending ? ["pending"] : []), "cached", "non-releasable", ...(anyAsleep ? ["asleep"] : [])];

  const controls = make("div", {class: "controls"},
    make("div", {class: "moment"}, slider, make("div", {class: "pressed", role: "group", "aria-label": "Move the moment"},
      make("button", {type: "button", text: "\u2039", title: "One event back", "aria-label": "One event back", onclick: () => move(ui.moment - 1)}),
      make("button", {type: "button", text: "\u203a", title: "One event on", "aria-label": "One event on", onclick: () => move(ui.moment + 1)}),
      make("button", {type: "button", text: runs[0].failures ? "Failure" : "Peak", title: "Where " + runs[0].name + (runs[0].failures ? " first fails" : " reserves most"), onclick: () => move(runs[0].moment)}))), where);
  const tools = make("div", {class: "tools"});
  const axisChoice = choice("Axis", [["event", "events"], ["time", "time"]], ui.axis, setAxis);
  if (all.times) tools.append(axisChoice);
  tools.append(zoomButtons("Zoom of time", f => f ? zoom(f) : showAll()));
  const runChoice = make("div", {class: "choice", role: "group", "aria-label": "Runs"}, make("span", {class: "label", text: "Runs"}));
  runs.forEach((r, i) => {
    const box = make("input", {type: "checkbox", onchange: () => { shown[i] = box.checked; showRuns(); }});
    box.checked = shown[i];
    if (runs.length > 1) runChoice.append(make("label", {class: "check"}, box, make("span", {class: "swatch", style: "background:var(--c" + i % 8 + ")"}), r.name));
  });

  element.replaceChildren(
    make("section", {"aria-labelledby": "time-title"},
      make("div", {class: "bar"}, make("h2", {id: "time-title", text: "Reserved memory"}), tools),
      make("p", {class: "hint", text: "Wheel or + \u2212 to zoom, drag to move, click or \u2190 \u2192 to set the moment. Shaded: live bytes, as requested; dashed: their peak. The dots mark " + (runs.some(r => r.failures) ? "first failures and peaks." : "peaks.")}),
      timeBox, controls,
      make("div", {class: "scroll"}, make("table", {id: "readout", class: "readout"}, make("thead", {}, make("tr", {}, make("th", {scope: "col", text: "at this moment"}),
        ...columns.map(text => make("th", {scope: "col", text})))), readout))),
    make("section", {"aria-labelledby": "blocks-title"},
      make("div", {class: "bar"}, make("h2", {id: "blocks-title", text: "Blocks over time"}),
        make("div", {class: "tools"}, layoutChoice, colorChoice, ...(runs.length > 1 ? [runChoice] : []))),
      make("div", {class: "find"}, searchBox, foundText), legend, blocks,
      make("p", {class: "hint", text: "Point to read a block, click to choose it, \u2191 \u2193 to go through the blocks of the moment. Shift and the wheel zoom the bytes; double-click shows a block\u2019s whole life, or all. A column that spans several events shows the one at which most bytes are live; a pixel that holds several blocks has the mean of their colors."})),
    make("section", {"aria-labelledby": "map-title"}, mapTitle,
      make("p", {class: "hint", text: "Addresses run from left to right and on in the next row; a line below joins the blocks of a segment. All maps have one scale. The neighbors that keep a non-releasable part are framed. Wheel or + \u2212 to zoom, drag to move, \u2190 \u2192 to read."}),
      make("p", {class: "key"}, ...[["var(--live)", "blocks, in their color"], ...(anyPending ? [["var(--pending)", "pending"]] : []),
        ["repeating-linear-gradient(135deg,var(--kept) 0 3px,var(--stripe) 3px 4px)", "free, non-releasable"], ["var(--idle)", "free, releasable"],
        ...(anyAsleep ? [["var(--asleep)", "asleep"]] : [])].map(([color, text]) => make("span", {}, swatch(color), text)),
        ...ui.pools.slice(0, 8).map((p, i) => make("span", {}, make("span", {class: "swatch", style: "background:var(--g" + (i + 3) % 10 + ")"}), "line below: private pool " + p)),
        ...(ui.pools.length > 8 ? [make("span", {text: "and " + (ui.pools.length - 8) + " more private pools"})] : [])),
      maps),
    details, tip);
  if (all.note) element.prepend(make("p", {class: "hint", text: "Note: " + all.note}));
  const asked = make("td"), cells = runs.map(() => Object.fromEntries(columns.map(name => [name, make("td")])));
  runs.forEach((r, i) => readout.append(make("tr", {}, make("th", {scope: "row"}, make("span", {class: "swatch", style: "background:var(--c" + i % 8 + ")"}), r.name), ...Object.values(cells[i]))));
  readout.append(make("tr", {}, make("th", {scope: "row", text: "live, as requested"}), make("td"), asked));

  runs.forEach((run, number) => {
    const canvas = make("canvas", {class: "blocks"}), box = make("div", {id: "blocks" + number, class: "chart", tabindex: 0, role: "application", "aria-label": "Blocks of " + run.name + " over time"}, canvas);
    const chart = {run, number, canvas, box, box2: make("figure", {}, make("figcaption", {}, make("span", {class: "swatch", style: "background:var(--c" + number % 8 + ")"}), make("b", {text: run.name}),
      " " + formatBytes(run.reserved[run.moment]) + (run.failures ? " reserved at its first failure" : " peak reserved")), box)};
    ui.charts.push(chart);
    blocks.append(chart.box2);
    followBlocks(chart);
    const map = makeMap(run, number);
    ui.maps.push(map);
    maps.append(map.article);
  });

  // Drawing, once a frame. What is out of sight waits; so do tables and sums over blocks while the moment moves.
  let waiting = false, told = -1, usedAt = -1e9, settles = 0;
  const atRest = () => performance.now() - usedAt > 90;
  const inSight = canvas => { const b = canvas.getBoundingClientRect(); return b.width > 0 && b.bottom > -50 && b.top < innerHeight + 50; };
  /// Draws until a time. Returns whether all is drawn.
  function drawAll(until = Infinity, everything = true) {
    const of = list => list.filter(one => shown[one.number] && (everything || inSight(one.canvas))), maps = of(ui.maps), charts = of(ui.charts);
    const rest = everything || atRest();
    if (everything || inSight(lines)) { drawLines(ui, lines); drawRange(ui, range); }
    for (const map of maps) map.draw();
    let done = true;
    charts.forEach((chart, i) => {
      const now = performance.now();
      done = drawBlocks(ui, chart, until === Infinity ? until : now + Math.max(0, until - now) / (charts.length - i)) && done;
    });
    // Elements change last, so that the page is laid out once.
    if (rest && told !== ui.moment) tellMoment();
    if (rest) for (const map of maps) map.tell();
    return done;
  }
  function drawSoon() {
    if (waiting) return;
    waiting = true;
    // What is not finished in a frame goes on in the next one. While the page is used, frames are short.
    requestAnimationFrame(() => {
      waiting = false;
      if (!drawAll(performance.now() + (atRest() ? 25 : 5), false)) drawSoon();
    });
  }
  function redraw() {
    usedAt = performance.now();
    clearTimeout(settles);
    settles = setTimeout(drawSoon, 100);
    drawSoon();
  }

  // The view.
  const narrowest = () => ui.axis === "time" ? Math.min(5, ui.whole()[1] - ui.whole()[0]) : Math.min(8, all.events - all.first);
  function setView(from, to) {
    const [low, high] = ui.whole(), old = ui.view.to - ui.view.from, wide = old / (ui.charts[0].picture?.W || 1);
    let span = clamp(to - from, narrowest(), high - low);
    // A view that moves does so by whole columns, so that they need not be drawn again.
    if (Math.abs(span - old) < old * 1e-9) {
      span = old;
      from = ui.view.from + Math.round((from - ui.view.from) / wide) * wide;
    }
    ui.view.from = clamp(from, low, high - span);
    ui.view.to = ui.view.from + span;
    redraw();
  }
  const showAll = () => { fitTall(); setView(...ui.whole()); };
  function zoom(factor, place = ui.middleOf(ui.moment)) {
    const {from, to} = ui.view, at = place < from || place > to ? (from + to) / 2 : place;
    setView(at - (at - from) * factor, at + (to - at) * factor);
  }
  const pan = by => setView(ui.view.from + by, ui.view.to + by);
  function setTall(low, high) {
    const most = top(), span = clamp(high - low, Math.min(4096, most), most);
    ui.tall.low = clamp(low, 0, most - span);
    ui.tall.high = ui.tall.low + span;
    redraw();
  }
  const fitTall = () => { ui.tall = {low: 0, high: top()}; };
  function setAxis(axis) {
    if (axis === ui.axis || (axis === "time" && !all.times)) return;
    const a = ui.eventAt(ui.view.from), b = ui.eventAt(ui.view.to), everything = ui.view.to - ui.view.from >= (ui.whole()[1] - ui.whole()[0]) * .999;
    ui.axis = axis;
    axisChoice.set(axis);
    everything ? setView(...ui.whole()) : setView(ui.placeOf(a), ui.placeOf(b));
  }

  // The moment.
  function move(event) {
    ui.moment = clamp(Math.round(event), all.first, all.events - 1);
    slider.value = ui.moment;
    const at = ui.middleOf(ui.moment), {from, to} = ui.view;
    if (at < from || at > to) setView(at - (to - from) * (at < from ? .1 : .9), at + (to - from) * (at < from ? .9 : .1));
    tell();
    redraw();
  }
  function tell() {
    const at = ui.moment, said = [];
    where.textContent = "event " + formatCount(at) + " of " + formatCount(all.events) + (all.times ? " \u00b7 " + formatTime(all.times[at], (all.times[all.events - 1] || 1) / 1e5) : "");
    mapTitle.textContent = "Memory map after event " + formatCount(at);
    runs.forEach((r, i) => {
      const reserved = r.reserved[at], sleeping = r.sleeping ? r.sleeping[at] : 0;
      const values = {reserved, live: r.live[at], pending: r.active[at] - r.live[at], cached: reserved + sleeping - r.active[at], asleep: sleeping};
      for (const [name, n] of Object.entries(values)) if (cells[i][name]) cells[i][name].textContent = formatBytes(Math.max(0, n));
      said.push(r.name + " reserves " + formatBytes(reserved));
    });
    asked.textContent = formatBytes(program.requested[at]);
    timeBox.setAttribute("aria-valuenow", at);
    timeBox.setAttribute("aria-valuetext", "event " + formatCount(at) + ": " + said.join(", ") + ", live as requested " + formatBytes(program.requested[at]));
    for (const cell of cells) cell["non-releasable"].textContent = "\u2026";
    told = -1;
  }
  /// Tells what needs the blocks of the moment: once a frame, since a slider moves more often.
  function tellMoment() {
    told = ui.moment;
    runs.forEach((r, i) => { cells[i]["non-releasable"].textContent = shown[i] ? formatBytes(ui.maps[i].map.sums.kept) : ""; });
    tellLegend();
  }

  // Colors, legend and search.
  const matchesSearch = k => !ui.found || [k.line, k.label, ...k.calls].some(t => t.toLowerCase().includes(ui.found));
  function repaint() {
    const {of} = groupings[ui.grouping];
    const matches = ui.found || ui.marked !== null ? k => matchesSearch(k) && (ui.marked === null || of(k) === ui.marked) : null;
    ui.paint = colorKinds(program, ui.grouping, ui.colors, matches);
    found = ui.found ? Uint8Array.from(program.kinds, matchesSearch) : null;
    foundInAll = found ? program.counts.reduce((sum, n, i) => sum + n * found[i], 0) : 0;
    showLegend();
    tellLegend();
    redraw();
  }
  // What is found, by kind. An entry of the legend shows the bytes of one group; the last one those of all others.
  let found = null, foundInAll = 0, entries = [];
  function showLegend() {
    const {list} = ui.paint, most = ui.grouping === "size" ? 6 : 10, rest = list.length - most;
    entries = list.slice(0, most + 1).map(() => make("span", {class: "hint"}));
    legend.replaceChildren(...list.slice(0, most).map((g, i) => make("button", {type: "button", class: "entry", "aria-pressed": ui.marked === g.key, title: g.key, onclick: () => { ui.marked = ui.marked === g.key ? null : g.key; repaint(); }},
        swatch(g.color), make("span", {class: "name", text: shortLine(g.key)}), entries[i])),
      ...(rest > 0 ? [make("span", {class: "entry"}, swatch(ui.colors.other), plural(rest, "other", "others") + " ", entries[most])] : []),
      make("span", {class: "entry"}, swatch("var(--cached)"), "cached: free, still reserved"),
      ...(anyPending ? [make("span", {class: "entry"}, swatch("var(--pending)"), "pending: freed, a stream still uses it")] : []),
      ...(anyAsleep ? [make("span", {class: "entry"}, swatch("var(--asleep)"), "asleep: the memory is back at the device")] : []));
  }
  function tellLegend() {
    const run = runs[Math.max(0, shown.indexOf(true))], {group} = ui.paint, bytes = new Float64Array(entries.length);
    let sum = 0, number = 0;
    for (const slot of aliveAt(all, run, ui.moment)) {
      const k = program.kind[slot], n = run.bytes[run.place[slot]];
      bytes[Math.min(group[k], entries.length - 1)] += n;
      if (found?.[k]) { sum += n; ++number; }
    }
    entries.forEach((entry, i) => { entry.textContent = formatBytes(bytes[i]); });
    foundText.textContent = found ? plural(number, "block matches", "blocks match") + " now, " + formatBytes(sum) + "; " + plural(foundInAll, "allocation", "allocations") + " in all" : "";
  }
  function search(text) {
    ui.found = text.trim().toLowerCase();
    if (searchBox.value !== text) searchBox.value = text;
    repaint();
  }
  ui.search = search;

  // The chosen block.
  function choose(run, slot) {
    ui.chosen = slot >= 0 ? {run, slot} : null;
    details.hidden = slot < 0;
    redraw();
    if (slot < 0) return;
    const k = program.kinds[program.kind[slot]];
    details.replaceChildren(
      make("div", {class: "bar"}, make("h3", {text: run.name}), make("div", {class: "pressed"},
        make("button", {type: "button", text: "Whole life", onclick: () => showLife(run, slot)}),
        make("button", {type: "button", text: "At its start", onclick: () => move(program.birth[slot])}),
        make("button", {type: "button", text: "\u00d7", title: "Close", "aria-label": "Close", onclick: () => choose(run, -1)}))),
      make("dl", {}, ...factsOf(ui, run, slot).flatMap(([name, text]) => [make("dt", {text: name}), make("dd", {text})])),
      ...(k.calls.length ? [make("ol", {class: "calls", tabindex: 0, "aria-label": "Call stack, innermost first"}, ...k.calls.map(text => make("li", {text})))] : []));
  }
  function showLife(run, slot) {
    const from = ui.placeOf(program.birth[slot]), to = run.end[slot] === NEVER ? ui.whole()[1] : ui.placeOf(run.end[slot]), more = (to - from) * .15;
    setView(from - more, to + more);
  }

  // Pointer, wheel and keys of charts over time. While the wheel scrolls the page, a chart under the pointer does not zoom.
  let scrolledAt = -1e9;
  on(window, "scroll", () => { scrolledAt = performance.now(); redraw(); }, {passive: true});
  function followTime(box, canvas, act) {
    const spot = e => { const b = canvas.getBoundingClientRect(); return {x: e.clientX - b.left, y: e.clientY - b.top, w: b.width - gutter - rightGap, h: b.height - topGap - below}; };
    const placeAt = s => clamp(ui.view.from + (ui.view.to - ui.view.from) * (s.x - gutter) / s.w, ui.view.from, ui.view.to);
    let pressed = null;
    on(canvas, "pointerdown", e => {
      if (e.button !== 0) return;
      pressed = {...spot(e), view: {...ui.view}, tall: {...ui.tall}, moved: false};
      canvas.setPointerCapture(e.pointerId);
    });
    on(canvas, "pointermove", e => {
      const s = spot(e);
      if (!pressed) { act.point?.(s, e); return; }
      if (!pressed.moved && Math.hypot(s.x - pressed.x, s.y - pressed.y) < 4) return;
      pressed.moved = true;
      const by = (pressed.x - s.x) / s.w * (pressed.view.to - pressed.view.from);
      setView(pressed.view.from + by, pressed.view.to + by);
      if (act.bytes) { const up = (s.y - pressed.y) / s.h * (pressed.tall.high - pressed.tall.low); setTall(pressed.tall.low + up, pressed.tall.high + up); }
    });
    on(canvas, "pointerup", e => {
      const click = pressed && !pressed.moved;
      pressed = null;
      if (!click) return;
      const s = spot(e);
      move(ui.eventAt(placeAt(s)));
      act.click?.(s);
    });
    on(canvas, "pointercancel", () => { pressed = null; });
    on(canvas, "pointerleave", () => act.leave?.());
    on(canvas, "dblclick", e => { if (!act.twice?.(spot(e))) showAll(); });
    on(canvas, "wheel", e => {
      const delta = e.deltaY || e.deltaX;
      const out = delta > 0, factor = Math.exp(clamp(delta, -120, 120) * .002), s = spot(e);
      if (e.shiftKey && act.bytes) {
        const {low, high} = ui.tall, n = low + (high - low) * (1 - (s.y - topGap) / s.h);
        e.preventDefault();
        setTall(n - (n - low) * factor, n + (high - n) * factor);
        return;
      }
      const [low, high] = ui.whole();
      if (performance.now() - scrolledAt < 300 || delta === 0 || (out && ui.view.to - ui.view.from >= high - low)) return;
      e.preventDefault();
      if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) pan(e.deltaX / s.w * (ui.view.to - ui.view.from)); else zoom(factor, placeAt(s));
    }, {passive: false});
    on(box, "keydown", e => {
      if (e.ctrlKey || e.metaKey || e.altKey) return;
      const span = ui.view.to - ui.view.from, one = Math.max(1, ui.eventAt(ui.view.from + span / 300) - ui.eventAt(ui.view.from)) * (e.shiftKey ? 10 : 1);
      const acts = {"+": () => zoom(.5), "=": () => zoom(.5), "-": () => zoom(2), "0": showAll, PageUp: () => pan(-span / 2), PageDown: () => pan(span / 2),
                    ArrowLeft: () => move(ui.moment - one), ArrowRight: () => move(ui.moment + one), Home: () => move(all.first), End: () => move(all.events - 1), ...act.keys};
      if (!acts[e.key]) return;
      e.preventDefault();
      acts[e.key]();
    });
  }
  followTime(timeBox, lines, {});
  {
    let held = false;
    const center = e => {
      const b = range.getBoundingClientRect(), [low, high] = ui.whole(), at = low + (high - low) * (e.clientX - b.left - gutter) / (b.width - gutter - rightGap), half = (ui.view.to - ui.view.from) / 2;
      setView(at - half, at + half);
    };
    on(range, "pointerdown", e => { held = true; range.setPointerCapture(e.pointerId); center(e); });
    on(range, "pointermove", e => { if (held) center(e); });
    for (const end of ["pointerup", "pointercancel"]) on(range, end, () => { held = false; });
  }
  function followBlocks(chart) {
    const {run, canvas, box} = chart;
    const point = (slot, e) => {
      const before = ui.pointed;
      ui.pointed = slot >= 0 ? {run, slot} : null;
      if (before?.slot !== ui.pointed?.slot || before?.run !== ui.pointed?.run) redraw();
      tip.hidden = slot < 0;
      if (slot < 0) return;
      tip.replaceChildren(make("dl", {}, ...factsOf(ui, run, slot).flatMap(([name, text]) => [make("dt", {text: name}), make("dd", {text})])));
      const x = e.clientX, y = e.clientY, b = tip.getBoundingClientRect();
      tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - b.width - 8)) + "px";
      tip.style.top = (y + 18 + b.height < innerHeight ? y + 18 : Math.max(4, y - b.height - 12)) + "px";
    };
    const step = by => {
      const alive = aliveAt(all, run, ui.moment), order = ui.layout === "stacked" ? alive : byAddress(run, alive);
      const at = ui.chosen?.run === run ? order.indexOf(ui.chosen.slot) : -1;
      if (order.length) choose(run, order[at < 0 ? (by > 0 ? 0 : order.length - 1) : clamp(at + by, 0, order.length - 1)]);
    };
    followTime(box, canvas, {
      bytes: true,
      point: (s, e) => { if (chart.plot) point(s.x < gutter ? -1 : blockAt(ui, chart, s.x, s.y).slot, e); },
      leave: () => point(-1),
      click: s => choose(run, blockAt(ui, chart, s.x, s.y).slot),
      twice: s => { const {slot} = blockAt(ui, chart, s.x, s.y); if (slot >= 0) showLife(run, slot); return slot >= 0; },
      keys: {ArrowUp: () => step(1), ArrowDown: () => step(-1), Escape: () => choose(run, -1)},
    });
  }

  /// Makes the memory map of a run at the moment, with its tables.
  function makeMap(run, number) {
    const canvas = make("canvas", {class: "map"}), detail = make("p", {class: "detail"}), text = make("p", {class: "note"}), zoomed = make("span", {class: "hint"}), tables = make("div", {class: "tables"});
    const box = make("div", {id: "map" + number, class: "chart", tabindex: 0, role: "slider", "aria-label": "Blocks of " + run.name, "aria-valuemin": 1}, canvas);
    const chart = {run, number, canvas, box, view: {from: 0, to: ui.highest}, at: 0};
    chart.rows = () => Math.max(1, Math.floor((canvas.clientHeight + pitch - rowHeight) / pitch));
    chart.draw = () => drawMap(ui, chart);
    /// The map of the moment, made when it is first needed.
    let made = null, toldOf = null;
    Object.defineProperty(chart, "map", {get: () => {
      if (made?.event === ui.moment) return made;
      made = mapAt(all, run, ui.moment);
      const {cells} = made, slot = chart.slot;
      chart.at = cells.findIndex(c => slot >= 0 && c.slot === slot);
      if (chart.at < 0) chart.at = cells.reduce((best, c, i) => c.is === KEPT && (cells[best].is !== KEPT || c.bytes > cells[best].bytes) ? i : best, 0);
      return made;
    }});
    chart.tell = () => {
      if (toldOf === chart.map) return;
      toldOf = chart.map;
      text.textContent = mapText(ui, run, chart.map);
      box.setAttribute("aria-valuemax", chart.map.cells.length);
      tables.replaceChildren(...keepingTables(ui, run, chart.map, s => choose(run, s)));
      pick(chart.at, false);
    };
    const pick = (i, byUser = true) => {
      const {cells} = chart.map;
      if (!cells.length) { detail.textContent = "Nothing is reserved."; return; }
      chart.at = clamp(i, 0, cells.length - 1);
      if (byUser) chart.slot = cells[chart.at].slot;
      detail.textContent = cellText(ui, run, chart.map, chart.at);
      box.setAttribute("aria-valuenow", chart.at + 1);
      box.setAttribute("aria-valuetext", detail.textContent);
    };
    chart.setView = (from, to) => {
      const span = clamp(to - from, Math.max(4096, ui.highest / 1e5), ui.highest);
      chart.view.from = clamp(from, 0, ui.highest - span);
      chart.view.to = chart.view.from + span;
      zoomed.textContent = span < ui.highest ? "Shown: " + formatBytes(Math.round(chart.view.from)) + "\u2013" + formatBytes(Math.round(chart.view.to)) : "";
      redraw();
    };
    const middle = () => chart.map.cells.length ? chart.map.cells[chart.at].start + chart.map.cells[chart.at].bytes / 2 : 0;
    const zoomMap = (f, place = middle()) => {
      if (!f) return chart.setView(0, ui.highest);
      const {from, to} = chart.view, at = place < from || place > to ? (from + to) / 2 : place;
      chart.setView(at - (at - from) * f, at + (to - at) * f);
    };
    const cellAt = place => {
      let low = 0, high = chart.map.cells.length - 1;
      while (low < high) {
        const half = (low + high + 1) >> 1;
        if (chart.map.cells[half].start <= place) low = half; else high = half - 1;
      }
      return low;
    };
    const placeAt = e => {
      const at = canvas.getBoundingClientRect(), row = clamp(Math.floor((e.clientY - at.top) / pitch), 0, chart.rows() - 1);
      return chart.view.from + (chart.view.to - chart.view.from) * (row + clamp((e.clientX - at.left) / at.width, 0, 1)) / chart.rows();
    };
    /// The cell under the pointer, or a used one close to it.
    const meant = e => {
      const {cells} = chart.map, place = placeAt(e), i = cellAt(place), slack = 3 * (chart.view.to - chart.view.from) / chart.rows() / canvas.clientWidth;
      const close = k => k >= 0 && k < cells.length && cells[k].slot >= 0 && place > cells[k].start - slack && place < cells[k].start + cells[k].bytes + slack;
      return !close(i) && close(i + 1) ? i + 1 : !close(i) && close(i - 1) ? i - 1 : i;
    };
    const go = i => {
      pick(i);
      const at = middle(), {from, to} = chart.view;
      if (at < from) chart.setView(at, at + to - from);
      if (at > to) chart.setView(at - to + from, at);
      redraw();
    };
    let pressed = null, moved = false;
    on(canvas, "pointerdown", e => { if (e.pointerType !== "touch") { pressed = placeAt(e); moved = false; canvas.setPointerCapture(e.pointerId); } pick(meant(e)); redraw(); });
    on(canvas, "pointermove", e => {
      if (pressed === null) { pick(meant(e), false); redraw(); return; }
      const by = pressed - placeAt(e);
      moved = moved || Math.abs(by) > (chart.view.to - chart.view.from) / canvas.clientWidth;
      chart.setView(chart.view.from + by, chart.view.to + by);
    });
    on(canvas, "pointerup", e => {
      if (pressed !== null && !moved) { const cell = chart.map.cells[meant(e)]; if (cell?.slot >= 0) choose(run, cell.slot); }
      pressed = null;
    });
    on(canvas, "pointercancel", () => { pressed = null; });
    on(canvas, "dblclick", () => zoomMap(0));
    on(canvas, "wheel", e => {
      const out = e.deltaY > 0;
      if (performance.now() - scrolledAt < 300 || e.deltaY === 0 || (out && chart.view.to - chart.view.from >= ui.highest)) return;
      e.preventDefault();
      zoomMap(out ? 1.25 : .8, placeAt(e));
    }, {passive: false});
    on(box, "keydown", e => {
      if (e.ctrlKey || e.metaKey || e.altKey || !chart.map.cells.length) return;
      const row = (chart.view.to - chart.view.from) / chart.rows(), span = chart.view.to - chart.view.from;
      const acts = {ArrowLeft: () => go(chart.at - 1), ArrowRight: () => go(chart.at + 1), ArrowUp: () => go(cellAt(Math.max(0, middle() - row))), ArrowDown: () => go(cellAt(middle() + row)),
                    Home: () => go(0), End: () => go(chart.map.cells.length - 1), "+": () => zoomMap(.5), "=": () => zoomMap(.5), "-": () => zoomMap(2), "0": () => zoomMap(0),
                    PageUp: () => chart.setView(chart.view.from - span / 2, chart.view.to - span / 2), PageDown: () => chart.setView(chart.view.from + span / 2, chart.view.to + span / 2),
                    Enter: () => { const {slot} = chart.map.cells[chart.at]; if (slot >= 0) choose(run, slot); }};
      if (!acts[e.key]) return;
      e.preventDefault();
      acts[e.key]();
    });
    chart.article = make("article", {}, make("div", {class: "bar"}, make("h3", {}, make("span", {class: "swatch", style: "background:var(--c" + number % 8 + ")"}), run.name), make("div", {class: "tools"}, zoomed, zoomButtons("Zoom of the map of " + run.name, f => zoomMap(f)))),
      text, make("div", {class: "mapped"}, make("div", {}, box, detail), tables));
    return chart;
  }
  function showRuns() {
    runs.forEach((r, i) => { ui.charts[i].box2.hidden = ui.maps[i].article.hidden = !shown[i]; });
    fitTall();
    tell();
    redraw();
  }

  // Light and dark.
  const dark = matchMedia("(prefers-color-scheme: dark)"), themeButton = document.getElementById("theme");
  function setTheme(named) {
    if (named) root.dataset.theme = named;
    const isDark = (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
    if (themeButton) {
      themeButton.textContent = isDark ? "Light" : "Dark";
      themeButton.setAttribute("aria-label", isDark ? "Switch to light colors" : "Switch to dark colors");
    }
    ui.colors = readColors(element);
    repaint();
  }
  if (themeButton) on(themeButton, "click", () => setTheme(themeButton.textContent === "Dark" ? "dark" : "light"));
  on(dark, "change", () => setTheme());
  on(window, "resize", redraw);
  if (typeof ResizeObserver !== "undefined") new ResizeObserver(redraw).observe(element);

  fitTall();
  ui.view = {from: ui.whole()[0], to: ui.whole()[1]};
  slider.value = ui.moment;
  setTheme();
  showRuns();
  drawAll();
  Object.assign(ui, {setView, setTall, setAxis, showAll, zoom, move, choose, drawAll, repaint, setTheme, shown,
                     setLayout: l => { ui.layout = l; layoutChoice.set(l); fitTall(); redraw(); }, setGrouping: g => { ui.grouping = g; ui.marked = null; colorChoice.set(g); repaint(); }});
  return ui;
}
)js";

}  // namespace replay::page
