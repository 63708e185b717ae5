# Opens a report in a real browser, 1280 and 400 pixels wide, uses it by keyboard and pointer, and reads what it shows then:
# in its elements and in the pixels of its pictures, which are compared with what the data say. Then does the same with
# pages whose script is wrong, and demands that each is found out.
#   cmake -D REPLAY=program -D BROWSER=chromium -D TRACES=examples/traces -D SCRATCH=folder [-D NIGHT=ON] -P browser.cmake
cmake_minimum_required(VERSION 3.24)
if(NOT BROWSER)
  message("SKIPPED: chromium is not there, so no report was opened")
  return()
endif()
set(out ${SCRATCH}/browser)
file(REMOVE_RECURSE ${out})
file(MAKE_DIRECTORY ${out})
set(trace ${TRACES}/gnn_sage_streams.csv)
execute_process(COMMAND ${REPLAY} draw ${trace} --out ${out}/report.html COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${REPLAY} compare ${trace} OUTPUT_VARIABLE compared COMMAND_ERROR_IS_FATAL ANY)

# Functions of all users of pages: they run in a copy of the page, behind its own script, and tell the page around it.
set(tools [==[
const told = [], tell = (name, value) => told.push(name + "=" + value);
const written = new Set(), {fillText} = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.fillText = function(text, ...more) { written.add(text); return fillText.call(this, text, ...more); };
const press = (box, key, more) => box.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true, ...more}));
const point = (canvas, kind, share, down, more) => {
  const at = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new PointerEvent(kind, {clientX: at.left + share * at.width, clientY: at.top + down * at.height,
                                               pointerType: "mouse", button: 0, bubbles: true, ...more}));
};
const click = (canvas, share, down) => { point(canvas, "pointerdown", share, down); point(canvas, "pointerup", share, down); };
Element.prototype.setPointerCapture = () => {};  // there is no such pointer
const by = id => document.getElementById(id);

// What exists after an event, found by looking at everything.
const {all} = shown, {program: p} = all;
function existing(run, event) {
  const found = [];
  for (let s = 0; s < p.count; ++s) if (p.birth[s] <= event && event < run.end[s] && run.place[s]) found.push(s);
  return found;
}
const bytesOf = (run, s) => run.bytes[run.place[s]];
function sumOf(spans, event) {
  let sum = 0;
  for (let i = 0; i < spans.count; ++i) if (spans.from[i] <= event && event < spans.to[i]) sum += spans.bytes[i];
  return sum;
}
/// Whether a height is near the line of reserved bytes, which lies over the blocks.
function nearReserved(run, x, W) {
  const {view} = shown, place = n => view.from + (view.to - view.from) * n / W;
  let least = Infinity, greatest = 0;
  for (let e = shown.eventAt(place(x - 3)), last = shown.eventAt(place(x + 3)); e <= last; ++e) {
    least = Math.min(least, run.reserved[e]);
    greatest = Math.max(greatest, run.reserved[e]);
  }
  return (n, slack) => n > least - slack && n < greatest + slack;
}
/// Compares the pixels of a chart of blocks with what the data say. Returns how many are wrong, of how many.
function comparePixels(chart, columns, rows) {
  const {run} = chart, plot = chart.plot, c = chart.canvas.getContext("2d");
  const W = Math.round(plot.wide * plot.scale), H = Math.round(plot.high * plot.scale);
  const left = Math.round(plot.left * plot.scale), top = Math.round(plot.top * plot.scale);
  const image = new Uint32Array(c.getImageData(left, top, W, H).data.buffer), {tall, view, paint} = shown;
  let wrong = 0, seen = 0, blocks = 0;
  for (let k = 1; k < columns; ++k) {
    const x = Math.floor(W * k / columns), place = n => view.from + (view.to - view.from) * n / W;
    // The column shows the first event at which most bytes are active.
    let event = shown.eventAt(place(x)), most = -1;
    if (Math.abs(x - (plot.x(shown.middleOf(shown.moment)) - plot.left) * plot.scale) < 3) continue;
    for (let e = event, last = Math.max(e, shown.eventAt(place(x + 1) - 1e-9)); e <= last; ++e)
      if (run.active[e] > most) { most = run.active[e]; event = e; }
    const here = existing(run, event), spans = [...Array(run.segments.count).keys()];
    const underLine = nearReserved(run, x, W);
    for (let r = 1; r < rows; ++r) {
      const y = Math.floor(H * r / rows), n = tall.low + (tall.high - tall.low) * (1 - (y + .5) / H), slack = (tall.high - tall.low) / H;
      let sum = 0, slot = -1, edge = false;
      for (const s of here) {
        const low = shown.layout === "stacked" ? sum : run.heights[run.place[s]], high = low + bytesOf(run, s);
        sum += bytesOf(run, s);
        // What is small, or near an edge, is left to rounding.
        if (n > low - 2 * slack && n < low + 2 * slack || n > high - 2 * slack && n < high + 2 * slack) edge = true;
        if (low <= n && n < high) slot = s;
      }
      const reserved = sumOf(run.segments, event), near = (at, apart) => Math.abs(at - n) < apart;
      const segments = spans.filter(i => run.segments.from[i] <= event && event < run.segments.to[i]), low = i => run.segments.height[i];
      const covered = shown.layout === "stacked" ? n < reserved : segments.some(i => low(i) <= n && n < low(i) + run.segments.bytes[i]);
      if (edge || (shown.layout === "stacked" && underLine(n, 4 * slack))) continue;
      if (shown.layout === "address" && segments.some(i => near(low(i), 2 * slack) || near(low(i) + run.segments.bytes[i], 2 * slack))) continue;
      const want = slot < 0 ? (covered ? shown.colors.pixel.cached : shown.colors.pixel.ground)
        : event >= run.freed[slot] ? shown.colors.pixel.pending : paint.bySlot ? paint.bySlot[slot % 10] : paint.byKind[p.kind[slot]];
      ++seen;
      blocks += slot >= 0;
      wrong += image[y * W + x] !== want;
    }
  }
  return wrong === 0 && seen > 50 && blocks > 4 ? "" : wrong + " of " + seen + " (" + blocks + " in blocks)";
}
/// Compares the pixels that several blocks share with the mean of their colors, or, by address, demands that each block is
/// seen. Returns what is wrong.
function compareBands(chart, columns) {
  const {run} = chart, plot = chart.plot, c = chart.canvas.getContext("2d"), {tall, paint} = shown, k = p.kind;
  const W = Math.round(plot.wide * plot.scale), H = Math.round(plot.high * plot.scale), one = (tall.high - tall.low) / H;
  const image = new Uint32Array(c.getImageData(Math.round(plot.left * plot.scale), Math.round(plot.top * plot.scale), W, H).data.buffer);
  const parts = color => [color & 255, color >>> 8 & 255, color >>> 16 & 255], isPlain = pixel => Math.hypot(...parts(pixel).map((n, j) => n - parts(shown.colors.pixel.cached)[j])) < 15;
  let shared = 0, small = 0, wrong = 0;
  for (let i = 1; i < columns; ++i) {
    const x = Math.floor(W * i / columns), event = momentOf(shown, chart, x), here = existing(run, event), rows = Array.from({length: H}, () => ({n: 0, sum: [0, 0, 0], of: 0}));
    if (Math.abs(x - (plot.x(shown.middleOf(shown.moment)) - plot.left) * plot.scale) < 3) continue;
    let y = 0;
    for (const s of here) {
      const low = shown.layout === "stacked" ? y : run.heights[run.place[s]], high = low + bytesOf(run, s);
      y += bytesOf(run, s);
      const first = Math.max(0, Math.floor((low - tall.low) / one)), last = Math.min(H - 1, Math.floor((high - tall.low) / one));
      for (let row = first; row <= last; ++row) {
        const share = Math.max(0, Math.min(high, tall.low + (row + 1) * one) - Math.max(low, tall.low + row * one)) / one;
        if (share < 1e-9) continue;
        ++rows[row].n;
        rows[row].of += share;
        parts(event >= run.freed[s] ? shown.colors.pixel.pending : paint.byKind[k[s]]).forEach((n, j) => { rows[row].sum[j] += n * share; });
      }
    }
    const underLine = nearReserved(run, x, W);
    rows.forEach(({n, sum, of}, row) => {
      const pixel = image[(H - 1 - row) * W + x];
      if (shown.layout === "address") {
        if (n && of < .04) { ++small; wrong += isPlain(pixel); }
      } else if (n > 1 && of > .999 && !underLine((row + .5) * one + tall.low, 4 * one)) {
        ++shared;
        wrong += parts(pixel).some((part, j) => Math.abs(part - sum[j]) > 1.5);
      }
    });
  }
  const seen = shown.layout === "address" ? small : shared;
  return wrong === 0 && seen > 20 ? "" : wrong + " of " + seen;
}
class Enough {}
/// Compares the pictures and the numbers of the page with what the data say. Returns what is wrong, or only what it finds first.
function findFaults(first) {
  const faults = [], check = (name, fault) => {
    if (fault) faults.push(name + ": " + fault);
    if (fault && first) throw new Enough;
  };
  try { findAll(check); } catch (e) { if (!(e instanceof Enough)) throw e; }
  return faults;
}
function findAll(check) {
  const run = all.runs[0];
  shown.choose(run, -1);
  for (const [name, from, to, grouping] of [["all", 0, all.events, "size"], ["few", 14300, 14360, "block"], ["some", 9000, 11000, "stream"]]) {
    for (const layout of ["stacked", "address"]) {
      shown.setLayout(layout);
      shown.setGrouping(grouping);
      shown.setView(from, to);
      if (layout === "address") {
        // Where the largest block of the middle lies.
        const here = existing(run, (from + to) / 2), size = s => bytesOf(run, s), largest = here.reduce((a, b) => size(b) > size(a) ? b : a);
        const low = run.heights[run.place[largest]];
        shown.setTall(low - size(largest), low + 3 * size(largest));
      }
      shown.drawAll();
      for (const chart of shown.charts) if (shown.shown[chart.number] && (layout === "stacked" || chart.number === 0)) check(layout + " " + name + " " + chart.run.name, comparePixels(chart, name === "all" ? 12 : 24, 24));
    }
  }
  // The event of each column.
  shown.showAll();
  shown.drawAll();
  for (const {run, picture} of shown.charts.slice(0, 2)) {
    const wrong = picture.moments.findIndex((event, c) => {
      const first = Math.floor(all.events * c / picture.W), last = Math.max(first, Math.ceil(all.events * (c + 1) / picture.W - 1e-6) - 1);
      return event !== run.active.indexOf(Math.max(...run.active.subarray(first, last + 1)), first);
    });
    check("column of " + run.name, wrong >= 0 && wrong);
  }
  // Pixels that several blocks share.
  shown.setGrouping("size");
  for (const layout of ["stacked", "address"]) {
    shown.setLayout(layout);
    shown.showAll();
    shown.drawAll();
    check("bands " + layout, compareBands(shown.charts[0], 24));
  }
  // A view that moves a little at a time, and one that is drawn a little at a time.
  shown.setLayout("stacked");
  shown.setView(9000, 11000);
  shown.drawAll();
  for (const by of [700, -300, 1]) shown.setView(shown.view.from + by, shown.view.to + by);
  shown.drawAll();
  check("moved", comparePixels(shown.charts[0], 48, 24));
  shown.setView(9000, 29000);
  shown.drawAll();
  shown.setView(14000, 15000);
  for (let frame = 0; frame < 20; ++frame) drawBlocks(shown, shown.charts[0], 0);
  shown.drawAll();
  check("by and by", comparePixels(shown.charts[0], 48, 24));
  // From event to event, and over many.
  for (const one of all.runs) {
    const blocks = new Follower(all, one, 14300);
    for (const event of [...Array(60).keys()].map(i => 14301 + i).concat(15000, 19000, all.events - 1)) {
      blocks.go(event);
      check("blocks of " + one.name + " after " + event, String([...blocks.slots.subarray(0, blocks.count)]) !== String(existing(one, event)) && "differ");
    }
  }
  shown.setLayout("stacked");
  shown.showAll();
  for (const event of [0, 777, 10004, 30929, all.events - 1]) {
    shown.move(event);
    for (const map of shown.maps) {
      if (!shown.shown[map.number]) continue;
      const {cells, sums, total} = map.map, mine = existing(map.run, event);
      const name = "map of " + map.run.name + " after " + event + ", ";
      check(name + "blocks", String(cells.filter(c => c.slot >= 0).map(c => c.slot).sort((a, b) => a - b)) !== String(mine) && "differ");
      check(name + "bytes", total !== sumOf(map.run.segments, event) && total);
      check(name + "cells", cells.some((c, i) => i && c.start !== cells[i - 1].start + cells[i - 1].bytes) && "overlap");
      // A segment without blocks is releasable; a plain one with blocks is not.
      check(name + "kept", map.map.segments.some(s => s.kept && s.live === 0 && !s.owner.range) && "nothing keeps it");
      check(name + "idle", map.map.segments.some(s => !s.owner.range && s.live && cells.slice(s.first, s.last).some(c => c.is === IDLE)) && "a block keeps it");
      check(name + "sum", sums.reserved !== map.run.reserved[event] && sums.reserved);
    }
  }
}
]==])

# What uses the page.
set(user [==[
function use() {
  const root = document.documentElement, lines = document.querySelector(".lines"), timeBox = lines.parentElement;
  const now = () => Number(timeBox.getAttribute("aria-valuenow")), span = () => Math.round(shown.view.to - shown.view.from);
  tell("status", root.dataset.status);
  tell("overflow", Math.max(0, root.scrollWidth - innerWidth));
  tell("headline", document.querySelector("h1").textContent);
  for (const row of by("compare").tBodies[0].rows) tell("row", [...row.cells].slice(0, -1).map(c => c.textContent.replace(/,/g, "")).join(" "));
  tell("focusable", [...document.querySelectorAll("button,.chart,input")].every(e => e.tabIndex === 0 && (e.textContent || e.getAttribute("aria-label") || e.labels?.length)));
  tell("faults", findFaults().join("; "));
  // The map at the peak has the numbers of the text, which the program computes by itself.
  shown.move(all.runs[0].moment);
  const {sums} = shown.maps[0].map;
  tell("at_peak", document.querySelector(".lead").textContent.includes(formatBytes(sums.kept).replace(" ", "\u00a0") + " of it is free but non-releasable, kept by "
    + shown.maps[0].map.cells.filter(c => c.is === LIVE && c.segment.kept).length + " live blocks"));
  tell("peaks", all.runs.every(r => formatBytes(r.reserved.reduce((a, b) => Math.max(a, b), 0)) === formatBytes(r.reserved[r.moment])));

  // Time: the moment by keys, pointer and slider; zoom by keys, buttons and wheel; moving by dragging.
  tell("page_stays", !press(timeBox, "Home") && press(timeBox, "x") && press(timeBox, "End", {ctrlKey: true}));
  tell("home", now() + " " + document.querySelector(".where").textContent);
  press(timeBox, "ArrowRight");
  tell("right", now() > 0 && now() < all.events / 100);
  press(timeBox, "End");
  tell("end", now() + " " + timeBox.getAttribute("aria-valuetext"));
  click(lines, lines.kept.plot.x(all.events / 2) / lines.clientWidth, .5);
  tell("clicked", Math.abs(now() / all.events - .5) < .01);
  const slider = document.querySelector("input[type=range]"), mapped = shown.maps[0].map.event;
  slider.value = 12345;
  slider.dispatchEvent(new Event("input"));
  tell("slider", now() + " " + (mapped !== 12345 && shown.maps[0].map.event === 12345 && shown.maps[1].map.event === 12345));
  tell("title", document.querySelector(".maps").parentElement.querySelector("h2").textContent);
  tell("readout", by("readout").tBodies[0].rows[0].cells[1].textContent === formatBytes(sumOf(all.runs[0].segments, 12345)));
  press(timeBox, "+");
  tell("zoomed", span() + " " + (shown.view.from < now() && now() < shown.view.to));
  press(timeBox, "PageDown");
  tell("paged", span());
  for (let i = 0; i < 30; ++i) press(timeBox, "+");
  tell("deepest", span());
  press(timeBox, "ArrowLeft", {shiftKey: true});
  tell("followed", now() >= shown.view.from && now() <= shown.view.to);
  press(timeBox, "0");
  tell("whole", span());
  document.querySelector('[aria-label="Zoom in"]').click();
  tell("button", span());
  press(timeBox, "0");
  lines.dispatchEvent(new WheelEvent("wheel", {deltaY: -100, clientX: 200, bubbles: true, cancelable: true}));
  tell("wheel", span() < all.events);
  press(timeBox, "0");
  const let_go = new WheelEvent("wheel", {deltaY: 100, bubbles: true, cancelable: true});
  lines.dispatchEvent(let_go);
  tell("page_scrolls", !let_go.defaultPrevented);
  shown.setView(10000, 14000);
  point(lines, "pointerdown", .6, .5);
  point(lines, "pointermove", .5, .5);
  point(lines, "pointerup", .5, .5);
  tell("dragged", span() === 4000 && shown.view.from > 10200 && shown.view.from < 10600);
  press(timeBox, "0");

  // Time as the axis: the same moment is at the share of time that has passed.
  document.querySelector('[data-value="time"]').click();
  const passed = all.times[12345] / all.times[all.events - 1];
  tell("time_axis", Math.abs((shown.middleOf(12345) - shown.view.from) / (shown.view.to - shown.view.from) - passed) < .001);
  shown.setGrouping("size");
  shown.setView(all.times[14300], all.times[14360]);
  shown.drawAll();
  tell("time_pixels", comparePixels(shown.charts[0], 24, 24) === "");
  shown.setAxis("event");
  for (const name of ["event", "time since the first event", "reserved, bytes", "blocks and cache, bytes", "address, bytes"]) tell("axis", name + " " + written.has(name + " \u2192"));

  // A click on a block chooses it, and tells about it.
  shown.showAll();
  shown.setView(14300, 14360);
  shown.drawAll();
  const chart = shown.charts[0], plot = chart.plot;
  const old = existing(chart.run, 14330)[3], low = existing(chart.run, 14330).slice(0, 3).reduce((n, s) => n + bytesOf(chart.run, s), 0);
  shown.setTall(low, low + 2 * bytesOf(chart.run, old));
  shown.drawAll();
  click(chart.canvas, (chart.plot.x(14330.5)) / chart.canvas.clientWidth, (chart.plot.y(low + bytesOf(chart.run, old) / 2)) / chart.canvas.clientHeight);
  tell("chosen", shown.chosen?.slot === old && document.querySelector(".chosen").textContent.includes("id " + p.id(old) + ","));
  press(chart.box, "ArrowUp");
  tell("next_block", shown.chosen?.slot === existing(chart.run, shown.moment)[4]);
  press(chart.box, "Escape");
  tell("none_chosen", shown.chosen === null && document.querySelector(".chosen").hidden);

  // The map: each cell is told without moving what is below it; keys, pointer and zoom.
  shown.move(30929);
  shown.drawAll();
  const high = root.scrollHeight, kinds = new Set(), box = by("map0"), detail = box.nextElementSibling, cells = shown.maps[0].map.cells;
  let moved = false, each = true;
  press(box, "Home");
  tell("first_cell", detail.textContent);
  for (let i = 1; i <= cells.length; ++i) {
    kinds.add(detail.textContent.replace(/^(free, non-releasable|free|id|\d).*/, "$1"));
    moved = moved || root.scrollHeight !== high;
    each = each && box.getAttribute("aria-valuenow") === String(i);
    press(box, "ArrowRight");
  }
  tell("kinds", [...kinds].sort().join(" "));
  tell("moved", moved);
  tell("cells", each);
  const largest = cells.reduce((best, c, i) => c.is === KEPT && (cells[best].is !== KEPT || c.bytes > cells[best].bytes) ? i : best, 0);
  tell("kept_by", cellText(shown, all.runs[0], shown.maps[0].map, largest));
  tell("table", document.querySelector(".keep tbody").rows[0].cells[0].textContent === formatBytes(Math.max(...shown.maps[0].map.segments.map(s => s.kept))));
  document.querySelector(".keep .link").click();
  tell("linked", shown.chosen !== null);
  const canvas = box.firstElementChild;
  point(canvas, "pointermove", .01, .01);
  tell("cell_pointed", Number(box.getAttribute("aria-valuenow")) < cells.length / 2);
  const before = canvas.toDataURL();
  press(box, "+");
  shown.drawAll();
  tell("map_zoomed", canvas.toDataURL() !== before);
  press(box, "0");
  // Pending blocks look like no group, no size and no line.
  const unlike = () => {
    const {pending} = shown.colors.pixel, {groupPixels, linePixels, sizes, pixelOf} = shown.colors;
    return Math.min(...[...groupPixels, ...linePixels, ...sizes.map(pixelOf)].map(one => Math.hypot(...[0, 8, 16].map(shift => (one >>> shift & 255) - (pending >>> shift & 255)))));
  };
  const unlikeInLight = unlike();
  const background = () => getComputedStyle(document.body).backgroundColor, light = background();
  by("theme").click();
  shown.drawAll();
  tell("dark", light + " " + background() + " " + (comparePixels(shown.charts[0], 12, 12).startsWith("0 ") || comparePixels(shown.charts[0], 24, 24) === ""));
  tell("pending_unlike", Math.min(unlikeInLight, unlike()) > 60);
  const name = document.querySelector(".entry .name");
  tell("unclipped", name.scrollHeight <= name.clientHeight);
  tell("status_at_end", root.dataset.status);
}
]==])
set(run_use [==[
addEventListener("load", () => {
  try { use(); } catch (e) { tell("thrown", e.stack); }
  parent.postMessage("WIDTH " + innerWidth + "\n" + told.join("\n"), "*");
});
]==])
set(run_faults [==[
addEventListener("load", () => {
  let faults;
  try { faults = findFaults(true); } catch (e) { faults = ["thrown " + e]; }
  parent.postMessage("MUTANT " + location.pathname.replace(/.*\//, "") + "\n" + (faults.length ? "found out: " + faults[0] : "not found out"), "*");
});
]==])
file(READ ${out}/report.html page)
function(write_page name page script)
  string(REPLACE "</body>" "<script>{${script}}</script>\n</body>" page "${page}")
  file(WRITE ${out}/${name}.html "${page}")
endfunction()
write_page(used "${page}" "${tools}${user}${run_use}")

# Pages whose script is wrong in one place: by day every third, as each takes a second to be drawn.
set(mutants "")
set(seen 0)
function(mutant name right wrong)
  math(EXPR number "${seen} + 1")
  set(seen ${number} PARENT_SCOPE)
  math(EXPR rest "${number} % 3")
  string(FIND "${page}" "${right}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "mutant ${name}: the page's script does not hold '${right}'")
  endif()
  if(rest AND NOT NIGHT)
    return()
  endif()
  string(REPLACE "${right}" "${wrong}" changed "${page}")
  write_page(mutant_${name} "${changed}" "${tools}${run_faults}")
  set(mutants ${mutants} mutant_${name} PARENT_SCOPE)
endfunction()
mutant(column "run.activePeaks, first[c], last[c])[1]" "run.activePeaks, first[c], last[c])[0]")
mutant(height "const top = H - y * k" "const top = H - y * k * .97")
mutant(order "y += isBlock ? sizes[i]" "y += isBlock ? sizes[count - 1 - i]")
mutant(color "pending : colors[i]" "pending : colors[(i + 1) % count]")
mutant(band "green += share * (color >>> 8 & 255)" "green = color >>> 8 & 255")
mutant(vanish "least = .4" "least = 0")
mutant(stretched "moved || was === BLANK ? was : OLD" "was")
mutant(moved "source[c] = moved ? c + whole" "source[c] = moved ? c - whole")
mutant(left_out "picture.step >>= 1, picture.at" "picture.step >>= 2, picture.at")
mutant(long_lives "if (end[slots[i]] > event && place[slots[i]]) this.add(slots[i])" "")
mutant(ended "if (end <= event) continue" "if (end < event) continue")
mutant(notes "for (const s of note.alive)" "for (const s of note.alive.slice(1))")
mutant(kept "whole ? IDLE : KEPT" "whole ? KEPT : IDLE")
mutant(peaks "if (of[y] > of[b]) b = y" "if (of[y] < of[b]) b = y")
mutant(address "heights[i] - low" "heights[0] - low")

# A page inside an element, of data by hand: source lines, call stacks, tags, a private pool, a pending block, and a start.
set(made [==[
const numbers = (...list) => btoa(list.map(n => {
  let text = "";
  for (; n > 127; n = Math.floor(n / 128)) text += String.fromCharCode(n % 128 | 128);
  return text + String.fromCharCode(n);
}).join(""));
const MiB = 1048576, page = document.createElement("div");
document.querySelector("main").replaceChildren(page);
const hand = show({
  title: "by hand", events: 10, start: 1, peak: 14 * MiB, times: numbers(0, 10, 10, 10, 10, 10, 10, 10, 10, 10),
  lines: ["", "/home/me/train.py:12 in forward", "/home/me/model.py:3 in backward"], frames: ["/home/me/train.py:12 in forward", "/home/me/model.py:3 in backward"],
  stacks: [[0], [1, 0], [2, 1, 0]], labels: {5: "weights"},
  blocks: {count: 3, births: numbers(0, 1, 1), lives: numbers(0, 3, 3), kind: numbers(0, 1, 2), kinds: [[8 * MiB, 0, 1, 0], [4 * MiB, 0, 2, 5], [2 * MiB, 3, 1, 0]]},
  runs: [{name: "one", is: "recorded", failures: 0, moment: 2, base: "4096",
    blocks: {places: 3, addresses: numbers(0, 32 * MiB, 4 * MiB), sizes: numbers(8 * MiB, 4 * MiB, 2 * MiB), place: numbers(1, 2, 3),
             late: 1, lateSlots: numbers(2), lateLives: numbers(3), lateEnds: numbers(5)},
    owners: [[0, 7, 0], [0, 0, 0]], uses: [[7, 0, 9]],
    segments: {count: 2, from: numbers(0, 2), lives: numbers(0, 0), addresses: numbers(0, 64 * MiB), sizes: numbers(20 * MiB, 20 * MiB), owner: numbers(0, 1)}}],
}, page);
const sums = event => { hand.move(event); const {live, pending, kept, idle} = hand.maps[0].map.sums; return [live, pending, kept, idle].map(n => n / MiB).join(" "); };
const said = ["MADE", "all " + sums(3), "freed " + sums(4), "pending " + sums(6), "after " + sums(8), "unused " + sums(9)];
said.push("facts " + factsOf(hand, hand.all.runs[0], 2).map(f => f.join(": ")).join(" | "));
said.push("start " + lifetimeText(hand, hand.all.runs[0], 0));
hand.drawAll();
said.push("legend " + [...page.querySelectorAll(".legend button")].map(b => b.textContent).join(" | "));
const bright = hand.paint.byKind.join(" "), box = page.querySelector("input[type=search]");
hand.move(2);
box.value = "WEIGHTS";
box.dispatchEvent(new Event("input"));
said.push("search " + page.querySelector(".find .hint").textContent + " | " + [...hand.paint.dimmed]);
box.value = "";
box.dispatchEvent(new Event("input"));
said.push("cleared " + (hand.paint.byKind.join(" ") === bright));
page.querySelector(".legend button").click();
said.push("marked " + [...hand.paint.dimmed]);
hand.choose(hand.all.runs[0], 1);
said.push("calls " + [...page.querySelectorAll(".calls li")].map(l => l.textContent).join(" | "));
said.push("keeps " + (hand.move(6), hand.drawAll(), [...page.querySelectorAll(".keep")].map(t => [...t.tBodies[0].rows].map(r => [...r.cells].map(c => c.textContent).join(", ")).join("; ")).join(" | ")));
said.push("pools " + page.querySelector("#map-title, .key").parentElement.querySelector(".key").textContent.includes("private pool 7"));
said.push("segment " + cellText(hand, hand.all.runs[0], hand.maps[0].map, 0));
hand.setAxis("time");
said.push("time " + hand.middleOf(3) + " " + hand.eventAt(35) + " " + hand.whole().join(" "));
parent.postMessage(said.join("\n"), "*");
]==])
write_page(made "${page}" "${made}")

# Programs of one event: one that nothing can be given to, and one of ids and sizes that JavaScript's numbers do not hold.
set(user_of_little [==[
addEventListener("load", () => {
  const press = (box, key) => box.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
  for (const box of document.querySelectorAll(".chart"))
    for (const key of ["+", "-", "End", "ArrowLeft", "ArrowUp", "PageUp", "0"]) press(box, key);
  shown.setLayout("address");
  shown.drawAll();
  parent.postMessage(document.title + "\n" + document.documentElement.dataset.status + ", " + document.querySelector(".where").textContent + "; "
    + [...document.querySelectorAll(".detail")].map(d => d.textContent), "*");
});
]==])
foreach(little IN ITEMS "full 1000" "large 18446744073709551615")
  separate_arguments(little)
  list(GET little 0 name)
  list(GET little 1 capacity)
  file(WRITE ${out}/${name}.csv "op,id,bytes,stream,t_us\na,18446744073709551615,1000000000000000,0,0\n")
  execute_process(COMMAND ${REPLAY} draw ${out}/${name}.csv --recipe passthrough --capacity ${capacity} --out ${out}/${name}.html
                  COMMAND_ERROR_IS_FATAL ANY)
  file(READ ${out}/${name}.html little_page)
  write_page(${name} "${little_page}" "${user_of_little}")
endforeach()
set(around [==[<!doctype html><body>
<script>addEventListener("message", e => {
  const said = document.createElement("pre");
  said.textContent = e.data + "\nDONE";
  document.body.append(said);
});</script>
<iframe src="used.html" style="width:1280px;height:800px;border:0"></iframe>
<iframe src="used.html" style="width:400px;height:800px;border:0"></iframe>
<iframe src="made.html" style="width:1000px;height:800px"></iframe>
<iframe src="full.html"></iframe><iframe src="large.html"></iframe>]==])
foreach(name IN LISTS mutants)
  string(APPEND around "<iframe src=\"${name}.html\" style=\"width:1000px;height:600px\"></iframe>")
endforeach()
file(WRITE ${out}/around.html "${around}")

execute_process(
  COMMAND ${BROWSER} --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
          --disable-component-update --disable-sync --user-data-dir=${out}/profile --window-size=1700,1000
          --virtual-time-budget=40000 --dump-dom file://${out}/around.html
  OUTPUT_VARIABLE dom ERROR_VARIABLE noise RESULT_VARIABLE code TIMEOUT 600)
file(REMOVE_RECURSE ${out}/profile)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "${BROWSER} ended with ${code}:\n${noise}")
endif()

string(ASCII 194 160 no_break_space)
string(REPLACE "${no_break_space}" " " dom "${dom}")
string(REPLACE "&nbsp;" " " dom "${dom}")
string(REPLACE "&gt;" ">" dom "${dom}")
function(expect_in told where words)
  string(FIND "${told}" "\n${words}\n" at)
  if(at EQUAL -1)
    message(SEND_ERROR "${where}: expected '${words}' in:\n${told}")
  endif()
endfunction()
foreach(width IN ITEMS 1280 400)
  string(REGEX MATCH "<pre>WIDTH ${width}\n[^<]*DONE" told "${dom}")
  if(NOT told)
    message(FATAL_ERROR "nothing was told at ${width} pixels:\n${dom}")
  endif()
  function(expect words)
    expect_in("${told}" "at ${width} pixels" "${words}")
  endfunction()
  expect("status=drawn")
  expect("status_at_end=drawn")
  expect("overflow=0")
  expect("headline=pytorch reserves 2.59 × peak live, stitched 1.28 ×")
  expect("faults=")
  foreach(part IN ITEMS focusable at_peak peaks page_stays right clicked readout followed wheel page_scrolls dragged time_axis
                        time_pixels chosen next_block none_chosen cells table linked cell_pointed map_zoomed pending_unlike unclipped)
    expect("${part}=true")
  endforeach()
  expect("home=0 event 0 of 32,514 · 0.0 ms")
  expect("end=32513 event 32,513: pytorch reserves 2.20 GiB, pytorch_expandable reserves 1.66 GiB, stitched reserves 1.09 GiB, live as requested 422.64 MiB")
  expect("slider=12345 true")
  expect("title=Memory map after event 12,345")
  expect("zoomed=16257 true")
  expect("paged=16257")
  expect("deepest=8")
  expect("whole=32514")
  expect("button=16257")
  expect("first_cell=id 0: 384.00 KiB requested, block of 384.00 KiB, stream 0, allocated at event 0 (0 µs), never freed; segment of 2.00 MiB (1 of 37, stream 0)")
  expect("kept_by=free, non-releasable, 19.85 MiB, kept by id 14311 (40.15 MiB, since event 30,928) before it; 1 block keeps 19.85 MiB free in this segment of 60.00 MiB (7 of 37, stream 0)")
  expect("kinds=free free, non-releasable id")
  expect("moved=false")
  foreach(axis IN ITEMS event "time since the first event" "reserved, bytes" "blocks and cache, bytes" "address, bytes")
    expect("axis=${axis} true")
  endforeach()
  expect("dark=rgb(255, 255, 255) rgb(20, 23, 28) true")

  # The table's rows are those of compare, but for the time.
  string(REGEX MATCHALL "\n  [a-z_()]+ +[0-9][^\n]*" rows "${compared}")
  list(LENGTH rows count)
  if(count LESS 10)
    message(FATAL_ERROR "compare shows ${count} recipes:\n${compared}")
  endif()
  foreach(row IN LISTS rows)
    string(STRIP "${row}" row)
    string(REGEX REPLACE " +" " " row "${row}")
    string(REGEX REPLACE " [0-9.]+$" "" row "${row}")
    expect("row=${row}")
  endforeach()
endforeach()

string(REGEX MATCH "<pre>MADE\n[^<]*DONE" told "${dom}")
foreach(words IN ITEMS
        "all 14 0 26 0" "freed 10 0 30 0" "pending 8 2 30 0" "after 8 0 12 20" "unused 8 0 12 20"
        "facts block: id 2, 2.00 MiB requested, 2.00 MiB in the block | line: /home/me/train.py:12 in forward | stream: 3 | lifetime: allocated at event 2 (20 µs), freed at event 5 (50 µs, after 30 µs), pending until event 7 | address: 0x2401000, 4.00 MiB into a segment of 20.00 MiB, stream 0"
        "start live when the recording begins, never freed"
        "legend train.py:12 in forward8.00 MiB | model.py:3 in backward0 B"
        "search 1 block matches now, 4.00 MiB, 1 allocation in all | 1,0,1"
        "cleared true" "marked 0,1,0"
        "calls /home/me/model.py:3 in backward | /home/me/train.py:12 in forward"
        "keeps 18.00 MiB, 20.00 MiB, id 2 train.py:12 in forward; 12.00 MiB, 20.00 MiB, pool 7, id 0 train.py:12 in forward | 30.00 MiB, 2, train.py:12 in forward"
        "pools true"
        "segment free, non-releasable, 4.00 MiB, kept by id 2 (2.00 MiB, since event 2, by /home/me/train.py:12 in forward) after it, 1 block keeps 18.00 MiB free in this segment of 20.00 MiB (1 of 2, stream 0)"
        "time 30 3 0 99")
  string(REPLACE ";" "," told_with_commas "${told}")
  string(REPLACE ";" "," words "${words}")
  expect_in("${told_with_commas}" "data by hand" "${words}")
endforeach()

foreach(name IN LISTS mutants)
  string(REGEX MATCH "<pre>MUTANT ${name}.html\n[^<]*DONE" told "${dom}")
  if(NOT told MATCHES "\nfound out: ")
    message(SEND_ERROR "${name}: ${told}")
  endif()
endforeach()
foreach(expected IN ITEMS "full: memory over time\ndrawn, event 0 of 1; Nothing is reserved."
                          "large: memory over time\ndrawn, event 0 of 1; id 18446744073709551615: 909.49 TiB requested, block of 909.49 TiB, stream 0, allocated at event 0, never freed; segment of 909.49 TiB (1 of 1, stream 0)")
  string(FIND "${dom}" "<pre>${expected}\nDONE" at)
  if(at EQUAL -1)
    message(SEND_ERROR "expected '${expected}' in:\n${dom}")
  endif()
endforeach()
