// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A report's maps of segments and blocks, its colors, and its start.
namespace replay::report {

inline constexpr const char* script_map = R"js(
const rowHeight = 18, pitch = 28;

/// The used cells next to a cell, before and behind it in its segment; null where there is none, or it is one of several.
function pinning(m, i) {
  const near = step => {
    for (let k = i + step; k >= 0 && k < m.cells.length && m.cells[k].segment === m.cells[i].segment; k += step) {
      if (m.cells[k].is === "l" || m.cells[k].is === "p") return m.cells[k];
      if (m.cells[k].is === "m") return null;
    }
    return null;
  };
  return [near(-1), near(1)];
}

/// What the page says of a cell of a map.
function tell(r, i) {
  const m = r.map, cell = m.cells[i], s = m.segments[cell.segment];
  const place = (s.range ? "mapped run of " : "segment of ") + bytes(s.bytes) + " (" + (cell.segment + 1) + " of " + m.segments.length
    + ", stream " + s.stream + ", pool " + s.pool + ")";
  if (cell.is === "l" || cell.is === "p") {
    return "id " + cell.id + (cell.is === "l" ? ", live" : ", freed but a stream still uses it") + ": " + bytes(cell.requested)
      + " requested, block of " + bytes(cell.bytes) + ", stream " + cell.stream + ", allocated at event " + count(cell.event)
      + (cell.at ? " by " + cell.at : "") + "; " + place;
  }
  if (cell.is === "m") {
    return count(cell.blocks) + " small blocks in a row, " + bytes(cell.bytes) + ": " + bytes(cell.live) + " live, "
      + bytes(cell.pinned) + " free but pinned";
  }
  if (cell.is === "i") return "free, " + bytes(cell.bytes) + ", could go back to the device; " + place;
  const [before, behind] = pinning(m, i);
  const named = (c, side) => c ? ["id " + c.id + " " + side + " it (" + bytes(c.requested) + ", since event " + count(c.event) + (c.at ? ", by " + c.at : "") + ")"] : [];
  const who = [...named(before, "before"), ...named(behind, "behind")];
  return "free but pinned, " + bytes(cell.bytes) + (who.length ? ", by " + who.join(" and ") : "") + "; " + count(s.live)
    + (s.live === 1 ? " live block holds " : " live blocks hold ") + bytes(s.pinned) + " free in this " + place;
}

function readMap(m) {
  let start = 0, used = 0, many = 0, segment = 0, left = m.segments[0][0];
  m.segments = m.segments.map(([cells, size, stream, pool, range, live, pinned]) =>
    ({cells, bytes: size, stream, pool, range, live, pinned, start: 0, end: 0}));
  m.cells = [...m.kinds].map((is, i) => {
    while (left === 0) left = m.segments[++segment].cells;
    const cell = {is, segment, start, bytes: m.bytes[i]};
    if (left === m.segments[segment].cells) m.segments[segment].start = start;
    --left;
    start += cell.bytes;
    m.segments[segment].end = start;
    if (is === "l" || is === "p") {
      if (m.at) cell.at = m.lines[m.at[used]];
      [cell.id, cell.event, cell.requested, cell.stream] = m.used.slice(4 * used, 4 * ++used);
    }
    if (is === "m") [cell.blocks, cell.live, cell.pinned] = m.many.slice(3 * many, 3 * ++many);
    return cell;
  });
  m.total = start;
}

function stripes(c) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const t = tile.getContext("2d");
  t.fillStyle = colors.pinned;
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
    const look = {l: colors.live, p: colors.pending, f: pattern, i: colors.idle};
    const seen = cell => cell.start + cell.bytes > view.from && cell.start < view.to;
    // What is used comes last and at least a pixel wide, so that small blocks which pin are seen.
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
            c.fillStyle = cell.pinned ? pattern : colors.idle;
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
        c.fillStyle = colors.quiet;
        if (wide > 3) c.fillRect(x, y + rowHeight + 2, wide - (ends ? 3 : 0), 2);
      });
    }
    c.lineWidth = 2;
    const frame = (cell, color) => spans(cell.start, cell.start + cell.bytes, w, (x, y, wide) => {
      c.strokeStyle = color;
      c.strokeRect(clamp(x, 1, w - 5), y + 1, Math.max(3, Math.min(wide, w - x - 1) - 1), rowHeight - 2);
    });
    if (m.cells[chosen].is === "f") for (const cell of pinning(m, chosen)) if (cell) frame(cell, colors.accent);
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
  /// The cell under the pointer, or a used one so close that it is meant.
  const meant = e => {
    const place = placeAt(e), i = cellAt(place), slack = 3 * (view.to - view.from) / rows() / canvas.clientWidth;
    const close = k => k >= 0 && k < m.cells.length && "lpm".includes(m.cells[k].is)
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
// What does not scroll needs no stop of the tab key.
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
