# Opens a report in a real browser, 1280 and 400 pixels wide, uses it by keyboard and pointer, and reads what it shows then.
#   cmake -D REPLAY=program -D BROWSER=chromium -D TRACES=examples/traces -D SCRATCH=folder -P browser.cmake
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

# What uses the page: it runs in a copy, behind the page's own script, and tells the page around it.
set(user [==[
<script>{
const told = [], tell = (name, value) => told.push(name + "=" + value);
const press = (box, key, more) => box.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true, ...more}));
const point = (canvas, kind, share, down, more) => {
  const at = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new PointerEvent(kind, {clientX: at.left + share * at.width, clientY: at.top + down * at.height,
                                               pointerType: "mouse", bubbles: true, ...more}));
};
Element.prototype.setPointerCapture = () => {};  // there is no such pointer
const now = () => Number(timeBox.getAttribute("aria-valuenow")), span = () => Math.round(time.to - time.from);
const painted = (canvas, color) => {
  const c = canvas.getContext("2d"), probe = document.createElement("canvas").getContext("2d");
  probe.fillStyle = color; probe.fillRect(0, 0, 1, 1);
  const want = probe.getImageData(0, 0, 1, 1).data, all = c.getImageData(0, 0, canvas.width, canvas.height).data;
  let count = 0;
  for (let i = 0; i < all.length; i += 4) count += all[i] === want[0] && all[i + 1] === want[1] && all[i + 2] === want[2];
  return count > 50;
};
function use() {
  tell("status", root.dataset.status);
  tell("overflow", Math.max(0, root.scrollWidth - innerWidth));
  tell("headline", document.querySelector("h1").textContent);
  for (const row of element("compare").tBodies[0].rows) {
    tell("row", [...row.cells].slice(0, -1).map(c => c.textContent.replace(/,/g, "")).join(" "));
  }
  tell("lines", painted(lines, colors.lives) && data.recipes.every((r, i) => painted(lines, colors.line[i])));
  tell("panels", data.recipes.every((r, i) => painted(element("panel" + i), colors.cached)));
  tell("maps", data.recipes.every((r, i) => painted(element("map" + i).firstElementChild, colors.kept)));
  tell("focusable", [...document.querySelectorAll("button,.chart")].every(e => e.tabIndex === 0
    && (e.textContent || e.getAttribute("aria-label"))));
  tell("sums", data.recipes.every(r => r.map.cells.reduce((sum, c) => sum + c.bytes, 0)
    === r.series.reserved.max.reduce((a, b) => Math.max(a, b))));

  // Time: the cursor by keys and pointer, the readout, zoom by keys, buttons, wheel and dragging.
  const high = root.scrollHeight;
  tell("page_stays", !press(timeBox, "Home") && press(timeBox, "x") && press(timeBox, "End", {ctrlKey: true}));
  tell("home", now() + " " + element("where").textContent);
  press(timeBox, "ArrowRight");
  tell("right", now() > 0 && now() < data.events / 100);
  press(timeBox, "End");
  tell("end", now() + " " + timeBox.getAttribute("aria-valuetext"));
  point(lines, "pointermove", .5, .5);
  tell("pointed", Math.abs(now() / data.events - .5) < .1);
  tell("readout", [...element("readout").tBodies[0].rows].every(r => /\d/.test(r.cells[1].textContent + r.cells[2].textContent)));
  press(timeBox, "+");
  tell("zoomed", span() + " " + (time.from < now() && now() < time.to));
  press(timeBox, "PageDown");
  tell("paged", span() + " " + (time.to > .8 * data.events));
  for (let i = 0; i < 30; ++i) press(timeBox, "+");
  tell("deepest", span() + " of steps of " + width);
  press(timeBox, "ArrowLeft", {shiftKey: true});
  tell("followed", now() >= time.from && now() <= time.to);
  press(timeBox, "0");
  tell("whole", span());
  document.querySelector('[aria-controls="time"]').click();
  tell("button", span());
  press(timeBox, "0");
  lines.dispatchEvent(new WheelEvent("wheel", {deltaY: -100, clientX: 200, bubbles: true, cancelable: true}));
  tell("wheel", span() < data.events);
  const let_go = new WheelEvent("wheel", {deltaY: 100, bubbles: true, cancelable: true});
  press(timeBox, "0");
  lines.dispatchEvent(let_go);
  tell("page_scrolls", !let_go.defaultPrevented);
  point(lines, "pointerdown", .4, .5, {button: 0});
  point(lines, "pointermove", .5, .5);
  point(lines, "pointerup", .5, .5);
  tell("dragged", span() > data.events / 20 && span() < data.events / 4);
  lines.dispatchEvent(new MouseEvent("dblclick", {bubbles: true}));
  tell("double_click", span());

  // The maps: each cell is told without moving what is below it; keys, pointer and zoom.
  const kinds = new Set();
  let moved = false, all = true;
  data.recipes.forEach((r, number) => {
    const box = element("map" + number), detail = element("detail" + number), cells = r.map.cells.length;
    press(box, "Home");
    if (number === 0) tell("first_cell", detail.textContent);
    for (let i = 1; i <= cells; ++i) {
      kinds.add(detail.textContent.replace(/^(free, non-releasable|free|id|\d).*/, "$1"));
      moved = moved || root.scrollHeight !== high || detail.scrollHeight > detail.clientHeight;
      all = all && box.getAttribute("aria-valuenow") === String(i);
      press(box, "ArrowRight");
    }
  });
  tell("kinds", [...kinds].sort().join(" "));
  tell("moved", moved);
  tell("cells", all);
  // The text of the largest non-releasable block names the live block that keeps it.
  const map = data.recipes[0].map, largest = map.cells.reduce((best, c, i) =>
    c.is === "f" && c.bytes > (best < 0 ? 0 : map.cells[best].bytes) ? i : best, -1);
  tell("kept_by", window.tell(data.recipes[0], largest));
  const box = element("map0"), canvas = box.firstElementChild, cells = data.recipes[0].map.cells;
  point(canvas, "pointermove", .01, .01);
  tell("cell_pointed", Number(box.getAttribute("aria-valuenow")) < cells.length / 2);
  const before = canvas.toDataURL(), draw_all = () => charts.forEach(draw => draw());
  press(box, "+");
  draw_all();
  tell("map_zoomed", canvas.toDataURL() !== before);
  tell("map_shown", /^Shown: [^ ]+ .iB\u20131.10 GiB of 2.20 GiB$/.test(element("shown0").textContent));
  press(box, "0");
  element("theme").click();
  draw_all();
  tell("dark", getComputedStyle(document.body).backgroundColor + " " + painted(lines, colors.line[0]));
  tell("status_at_end", root.dataset.status);
  parent.postMessage(innerWidth + "\n" + told.join("\n"), "*");
}
addEventListener("load", () => {
  try { use(); } catch (e) { parent.postMessage(innerWidth + "\n" + told.join("\n") + "\nthrown=" + e.stack, "*"); }
});
}</script>
</body>]==])
file(READ ${out}/report.html page)
string(REPLACE "</body>" "${user}" page "${page}")
file(WRITE ${out}/used.html "${page}")
# Programs of one event: one that nothing can be given to, and one of ids and sizes that JavaScript's numbers do not hold.
set(user_of_little [==[
<script>addEventListener("load", () => {
  const press = (box, key) => box.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
  for (const box of document.querySelectorAll(".chart")) for (const key of ["+", "-", "End", "ArrowLeft", "PageUp", "0"]) press(box, key);
  parent.postMessage(document.title + "\n" + root.dataset.status + ", " + element("where").textContent + "; "
    + [...document.querySelectorAll(".detail")].map(d => d.textContent), "*");
});</script>
</body>]==])
foreach(little IN ITEMS "full 1000" "large 18446744073709551615")
  separate_arguments(little)
  list(GET little 0 name)
  list(GET little 1 capacity)
  file(WRITE ${out}/${name}.csv "op,id,bytes,stream,t_us\na,18446744073709551615,1000000000000000,0,0\n")
  execute_process(COMMAND ${REPLAY} draw ${out}/${name}.csv --recipe passthrough --capacity ${capacity} --out ${out}/${name}.html
                  COMMAND_ERROR_IS_FATAL ANY)
  file(READ ${out}/${name}.html page)
  string(REPLACE "</body>" "${user_of_little}" page "${page}")
  file(WRITE ${out}/${name}.html "${page}")
endforeach()
file(WRITE ${out}/around.html [==[<!doctype html><body>
<script>addEventListener("message", e => {
  const said = document.createElement("pre");
  said.textContent = e.data + "\nDONE";
  document.body.append(said);
});</script>
<iframe src="used.html" style="width:1280px;height:800px;border:0"></iframe>
<iframe src="used.html" style="width:400px;height:800px;border:0"></iframe>
<iframe src="full.html"></iframe><iframe src="large.html"></iframe>]==])

execute_process(
  COMMAND ${BROWSER} --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
          --disable-component-update --disable-sync --user-data-dir=${out}/profile --window-size=1700,1000
          --virtual-time-budget=20000 --dump-dom file://${out}/around.html
  OUTPUT_VARIABLE dom ERROR_VARIABLE noise RESULT_VARIABLE code TIMEOUT 120)
file(REMOVE_RECURSE ${out}/profile)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "${BROWSER} ended with ${code}:\n${noise}")
endif()

string(ASCII 194 160 no_break_space)
string(REPLACE "${no_break_space}" " " dom "${dom}")
string(REPLACE "&nbsp;" " " dom "${dom}")
foreach(width IN ITEMS 1280 400)
  string(REGEX MATCH "<pre>${width}\n[^<]*DONE" told "${dom}")
  if(NOT told)
    message(FATAL_ERROR "nothing was told at ${width} pixels:\n${dom}")
  endif()
  function(expect words)
    string(FIND "${told}" "\n${words}\n" at)
    if(at EQUAL -1)
      message(SEND_ERROR "at ${width} pixels: expected '${words}' in:\n${told}")
    endif()
  endfunction()
  expect("status=drawn")
  expect("status_at_end=drawn")
  expect("overflow=0")
  expect("headline=pytorch reserves 2.59 × peak live, stitched 1.28 ×")
  foreach(part IN ITEMS lines panels maps focusable page_stays sums right pointed readout followed wheel page_scrolls dragged cells
                        cell_pointed map_zoomed map_shown)
    expect("${part}=true")
  endforeach()
  expect("home=0 Maximum after events 0–7 of 32,514; shown: 0–32,514, each step spans 8 events, from minimum to maximum")
  expect("end=32513 event 32,513: pytorch reserves 2.20 GiB, pytorch_expandable reserves 1.66 GiB, stitched reserves 1.09 GiB, live as requested 422.64 MiB")
  expect("zoomed=16257 true")
  expect("paged=16257 true")
  expect("deepest=64 of steps of 8")
  expect("whole=32514")
  expect("button=16257")
  expect("double_click=32514")
  expect("first_cell=id 0, live: 384.00 KiB requested, block of 384.00 KiB, stream 0, allocated at event 0; segment of 2.00 MiB (1 of 37, stream 0, pool 0)")
  expect("kept_by=free, non-releasable, 19.85 MiB, kept by id 14311 before it (40.15 MiB, since event 30,928); 1 live block keeps 19.85 MiB free in this segment of 60.00 MiB (14 of 37, stream 0, pool 1)")
  expect("kinds=free free, non-releasable id")
  expect("moved=false")
  expect("dark=rgb(20, 23, 28) true")

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
foreach(expected IN ITEMS "full: memory over time\ndrawn, After event 0 of 1; shown: 0–1, event by event; "
                          "large: memory over time\ndrawn, After event 0 of 1; shown: 0–1, event by event; id 18446744073709551615, live: 909.49 TiB requested, block of 909.49 TiB, stream 0, allocated at event 0; segment of 909.49 TiB (1 of 1, stream 0, pool 0)")
  string(FIND "${dom}" "<pre>${expected}\nDONE" at)
  if(at EQUAL -1)
    message(SEND_ERROR "expected '${expected}' in:\n${dom}")
  endif()
endforeach()
