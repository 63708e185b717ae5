// SPDX-License-Identifier: Apache-2.0
// The page: hands a file to the tool, and shows what the tool says.
"use strict";

const byId = (id) => document.getElementById(id);

/** The module of the tool, unpacked once. */
const toolBytes = (async () => {
  const packed = Uint8Array.from(atob(byId("module").textContent.trim()), (c) => c.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(unpacked).arrayBuffer());
})();
const toolUrl = URL.createObjectURL(new Blob([byId("tool").textContent], {type: "text/javascript"}));

/** One worker that runs the tool. To cancel a run, the worker is ended. */
class tool {
  #worker = null;
  #next = 0;
  #waiting = new Map();

  async start() {
    const bytes = await toolBytes;
    if (this.#worker) return;
    this.#worker = new Worker(toolUrl);
    this.#worker.onmessage = ({data}) => {
      const run = this.#waiting.get(data.id);
      if (!run) return;
      if (data.progress !== undefined) return run.progress(data.progress);
      this.#waiting.delete(data.id);
      run.resolve(data.result);
    };
    this.#worker.onerror = (event) => this.#fail(event.message);
    this.#worker.postMessage({module: bytes});
  }
  /** Runs the tool. The files are copied to the worker. */
  async run(words, files, progress) {
    await this.start();
    return new Promise((resolve) => {
      const id = ++this.#next;
      this.#waiting.set(id, {resolve, progress});
      this.#worker.postMessage({id, words, files});
    });
  }
  stop() {
    this.#worker?.terminate();
    this.#worker = null;
    for (const {resolve} of this.#waiting.values()) resolve({code: 2, out: "", error: "cancelled", files: {}});
    this.#waiting.clear();
  }
  #fail(message) {
    for (const {resolve} of this.#waiting.values())
      resolve({code: 2, out: "", error: "tessera-replay: the worker stopped: " + message, files: {}});
    this.#waiting.clear();
    this.stop();
  }
}

// Numbers and words.

function bytesText(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit + 1 < units.length; ++unit) bytes /= 1024;
  const digits = unit === 0 || bytes >= 1000 ? 0 : bytes >= 100 ? 1 : 2;
  return bytes.toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits}) + "\u00a0" + units[unit];
}
function percentText(part) {
  const percent = 100 * part;
  return (Math.abs(percent) < 10 ? percent.toFixed(1) : percent.toFixed(0)) + "\u00a0%";
}
function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}
/** The message of the tool, without its name. */
const errorText = (error) => error.trim().replaceAll("tessera-replay: ", "");

/** The strings that PyTorch's users can set, each with the recipe that decides so. */
const pytorchSettings = [
  {conf: "", recipe: "pytorch", says: "PyTorch's defaults"},
  {conf: "expandable_segments:True", recipe: "pytorch_expandable"},
  {conf: "backend:cudaMallocAsync", recipe: "cuda_async"},
];
/** Those that only a replay under them can judge, after the first answers. */
const moreSettings = ["max_split_size_mb:128", "max_split_size_mb:512", "roundup_power2_divisions:8"];
/** Recipes that no setting of PyTorch selects. */
const otherRecipes = {
  torch_npu: "torch_npu's defaults",
  torch_npu_expandable: "torch_npu, expandable_segments:True",
  paddle_auto_growth: "Paddle, auto_growth",
  paddle_naive_best_fit: "Paddle, naive_best_fit",
  stitched: "tessera's stitched: moves unused pages to where they are needed",
  stitched_calmly: "stitched, with fewer calls of the driver",
  power_of_two: "a size class for each power of two",
  passthrough: "no cache",
};

// What the page shows.

let current = null;  // the file, what was asked about it and what the tool said
const worker = new tool();

function showWork(text) {
  byId("work").classList.toggle("busy", text !== "");
  byId("work").firstElementChild.textContent = text;
}
function showError(name, error) {
  byId("answer").textContent = name + " cannot be read";
  const lead = element("p", {className: "error", textContent: errorText(error)});
  byId("lead").replaceChildren(lead);
  if (/memory ran out|no more memory/.test(error)) {
    byId("answer").textContent = name + " is too large for a browser";
    byId("lead").append(element("p", {textContent: "A page has at most 4\u00a0GiB of memory. The tool tessera-replay, which runs outside of a browser, has no such limit."}));
  }
  byId("results").hidden = true;
}

/** The runs of a compare, one for each device. */
const runsOf = (compared) => compared.filter((run) => run.recipes);
const rowOf = (run, recipe) => run.recipes.find((row) => row.recipe === recipe);
/** What the GPU did; undefined if the file does not say. */
const recordedRow = (run) => run.recorded;
const confOf = (run) => run.recorded?.conf ?? (run.settings?.conf_from === "recorded" ? run.settings.conf : "");

/** What the settings cost: peak reserved, and whether everything was served. */
function measured(run) {
  return pytorchSettings.map((setting) => ({...setting, row: rowOf(run, setting.recipe)})).filter((one) => one.row);
}
/** The recorded settings, replayed as all others are: without what was cached when the history begins. */
function replayedAsRecorded(run) {
  return measured(run).find((one) => one.conf === confOf(run)) ?? measured(run)[0];
}
function bestOf(run) {
  const all = measured(run);
  const fewest = Math.min(...all.map((one) => one.row.failures));
  return all
    .filter((one) => one.row.failures === fewest)
    .reduce((best, one) => (one.row.peak_reserved < best.row.peak_reserved ? one : best));
}
/** Whether the best setting serves more than the recorded one, or needs at least a hundredth less. */
function isWorthIt(run) {
  const best = bestOf(run), like = replayedAsRecorded(run);
  return best.conf !== like.conf && (best.row.failures < like.row.failures || best.row.peak_reserved <= 0.99 * like.row.peak_reserved);
}
const settingText = (conf) => (conf === "" ? "PyTorch's defaults" : conf);

function showAnswer(run) {
  const recorded = recordedRow(run);
  const like = replayedAsRecorded(run);
  const isRecorded = recorded !== undefined && current.capacity === "";  // else the question is about another GPU
  const of = isRecorded ? recorded : like.row;
  const best = bestOf(run);
  const live = bytesText(run.peak_live);
  const waste = of.peak_reserved - run.peak_live;
  const saved = like.row.peak_reserved - best.row.peak_reserved;
  const isBetter = isWorthIt(run);
  const answer = [], lead = [];
  if (of.failures > 0) {
    answer.push(`Memory ${isRecorded ? "ran" : "would run"} out: ${bytesText(of.peak_reserved)} reserved, for ${live} of tensors.`);
    if (isBetter && best.row.failures === 0) answer.push(`With ${settingText(best.conf)}, every request would be served.`);
    else if (best.row.failures > 0) answer.push("No setting of PyTorch would help.");
  } else {
    answer.push(`PyTorch ${isRecorded ? "reserved" : "would reserve"} ${bytesText(of.peak_reserved)} for ${live} of tensors.`);
    if (isBetter) answer.push(`With ${settingText(best.conf)}, it would need ${percentText(saved / like.row.peak_reserved)} less.`);
    else answer.push(waste < 0.03 * of.peak_reserved ? "Hardly anything is lost." : "No setting would need less.");
    if (!isBetter) lead.push("To need less, the program has to keep fewer tensors at a time: the picture below shows what is live at the peak.");
  }
  byId("answer").textContent = answer.join(" ");
  byId("lead").replaceChildren(...lead.map((text) => element("p", {textContent: text})));
}

function copyButton(text) {
  const button = element("button", {type: "button", textContent: "Copy", title: text});
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // A page from disk may have no clipboard.
      const area = element("textarea", {value: text});
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  };
  return button;
}
const environmentOf = (conf) => `export PYTORCH_CUDA_ALLOC_CONF=${conf}`;

function rowElement({name, peak, failures, isBest, copied, fit}, run, most) {
  const share = (bytes) => `width:${(100 * bytes) / most}%`;
  const live = Math.min(run.peak_live, peak);
  const first = element("td", {}, element("span", {textContent: name, className: isBest ? "best" : ""}));
  if (copied) first.append(copyButton(environmentOf(copied)));
  if (failures) first.append(element("div", {className: "bad", textContent: `runs out of memory: ${failures} ${failures === 1 ? "request fails" : "requests fail"}`}));
  const track = element("div", {className: "track"}, element("i"), element("b"));
  track.children[0].style = share(live);
  track.children[1].style = share(peak - live);
  return element("tr", {},
    first,
    element("td", {className: "bar"}, track),
    element("td", {textContent: peak ? bytesText(peak) : ""}),
    element("td", {textContent: peak && run.peak_live && !failures ? "+" + percentText((peak - run.peak_live) / run.peak_live) : ""}),
    element("td", {textContent: fit ? bytesText(fit) : fit === null ? "\u2013" : ""}));
}
function tableElement(rows, run, most) {
  const head = ["", "", "peak reserved", "above tensors", "runs with"].map((text, i) => element("th", {textContent: text, className: i === 1 ? "bar" : ""}));
  return element("div", {className: "scroll"}, element("table", {},
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...rows.map((row) => rowElement(row, run, most)))));
}

function showSettings(run) {
  const recorded = recordedRow(run);
  const best = bestOf(run);
  const fits = current.fits;
  const rows = [];
  if (recorded)
    rows.push({name: "recorded: " + (confOf(run) || "PyTorch's defaults") + (recorded.cached_at_start ? `, with ${bytesText(recorded.cached_at_start)} cached when the history begins` : ""),
      peak: recorded.peak_reserved, failures: recorded.failures});
  for (const one of measured(run))
    rows.push({name: settingText(one.conf), peak: one.row.peak_reserved, failures: one.row.failures, isBest: isWorthIt(run) && one.conf === best.conf,
      copied: one.conf, fit: fits[one.conf]});
  for (const [conf, fit] of Object.entries(fits))
    if (fit !== null && !pytorchSettings.some((one) => one.conf === conf)) rows.push({name: conf, peak: 0, failures: 0, copied: conf, fit});
  const others = run.recipes
    .filter((row) => otherRecipes[row.recipe])
    .map((row) => ({name: otherRecipes[row.recipe], peak: row.peak_reserved, failures: row.failures}));
  const most = Math.max(...rows.map((row) => row.peak));
  const section = byId("settings");
  const wasOpen = section.querySelector("details")?.open ?? false;
  const parts = [
    element("h2", {textContent: "What each setting would have needed"}),
    element("p", {className: "quiet"}, element("span", {className: "key", style: "background:var(--live);margin-left:0"}), "tensors at their peak",
      element("span", {className: "key", style: "background:var(--more)"}), "reserved beyond. \u201cRuns with\u201d is the least GPU memory with which the program completes."),
  ];
  if (best.conf !== "" && isWorthIt(run))
    parts.push(element("div", {className: "copy"}, element("pre", {id: "string", textContent: environmentOf(best.conf)}), copyButton(environmentOf(best.conf))));
  parts.push(tableElement(rows, run, most));
  if (others.length > 0) {
    const details = element("details", {open: wasOpen}, element("summary", {textContent: "Other allocators, which no setting of PyTorch selects"}),
      tableElement(others, run, Math.max(most, ...others.map((row) => row.peak))));
    parts.push(details);
  }
  section.replaceChildren(...parts);
}

function showFacts(run) {
  const recorded = recordedRow(run);
  const facts = [["tensors at their peak", bytesText(run.peak_live)]];
  if (recorded) facts.push(["reserved at its peak", bytesText(recorded.peak_reserved)]);
  if (recorded && recorded.peak_reserved > 0)
    facts.push(["fragmentation", percentText((recorded.peak_reserved - run.peak_live) / recorded.peak_reserved) + " of what was reserved held no tensor at the peak"]);
  if (recorded) {
    facts.push(["recorded settings", confOf(run) || "PyTorch's defaults"]);
    if (recorded.agrees !== null)
      facts.push(["replay", recorded.agrees ? "makes every decision that the recorded run made" : "decides otherwise than the recorded run at some point, so its numbers are estimates"]);
  }
  if (run.settings) facts.push(["GPU memory", `${bytesText(run.settings.capacity)} (${run.settings.capacity_from})` +
    (run.settings.memory_limit ? `, of which a memory fraction allowed about ${bytesText(run.settings.memory_limit)}` : "")]);
  if (run.not_as_recorded) facts.push(["replay", "the recorded run is not reproduced: " + run.not_as_recorded]);
  facts.push(["operations", run.operations.toLocaleString("en")]);
  const list = element("dl");
  for (const [name, value] of facts) list.append(element("dt", {textContent: name}), element("dd", {textContent: value}));
  byId("facts").replaceChildren(element("h2", {textContent: "What was recorded"}), list);
}

function showWhy(oom) {
  const ranOut = oom.code === 1;
  byId("why").replaceChildren(
    element("h2", {textContent: ranOut ? "Why memory ran out" : "Did memory run out?"}),
    element("pre", {textContent: oom.code === 2 ? errorText(oom.error) : oom.out.trim()}));
}

function showPicture(drawn) {
  const html = Object.values(drawn.files ?? {})[0];
  const parts = [element("h2", {textContent: "Memory over time"})];
  if (html === undefined) {
    parts.push(element("p", {className: "error", textContent: errorText(drawn.error)}));
  } else {
    const frame = element("iframe", {title: "Memory over time", srcdoc: html});
    frame.onload = () => {
      const inside = frame.contentDocument?.documentElement;
      if (!inside) return;
      const fitHeight = () => (frame.style.height = inside.scrollHeight + 2 + "px");
      fitHeight();
      new ResizeObserver(fitHeight).observe(inside.querySelector("main") ?? inside);
    };
    const save = element("a", {textContent: "Save this picture as a page", download: current.name.replace(/\.[^.]*$/, "") + ".html",
      href: URL.createObjectURL(new Blob([html], {type: "text/html"}))});
    parts.push(element("p", {}, save), frame);
  }
  byId("picture").replaceChildren(...parts);
}

function showSearch(state, found) {
  const parts = [element("h2", {textContent: "Search for a better recipe"}),
    element("p", {className: "quiet", textContent: "For programs in C++: combines tessera's policies, and prints the recipe with the least peak reserved. This takes from seconds to minutes."})];
  if (state === "ready") {
    const button = element("button", {type: "button", id: "tune", textContent: "Search"});
    button.onclick = () => startTune();
    parts.push(button);
  }
  if (found) parts.push(element("pre", {textContent: (found.out + "\n" + errorText(found.error)).trim()}));
  byId("search").replaceChildren(...parts);
}

function showOptions() {
  const runs = runsOf(current.compared);
  const sizes = ["", "8GiB", "12GiB", "16GiB", "24GiB", "32GiB", "40GiB", "48GiB", "80GiB", "141GiB"];
  const size = element("select", {id: "capacity"}, ...sizes.map((value) => element("option", {value, textContent: value || "as recorded, else 80GiB", selected: value === current.capacity})));
  size.onchange = () => open(current.bytes, current.name, {capacity: size.value, device: current.device});
  const parts = [element("label", {}, "GPU memory: ", size)];
  if (runs.length > 1) {
    const device = element("select", {id: "device"}, ...runs.map((run, i) => element("option", {value: i, textContent: run.device ?? run.trace, selected: i === current.device})));
    device.onchange = () => open(current.bytes, current.name, {capacity: current.capacity, device: Number(device.value)});
    parts.push(element("label", {}, "Device: ", device));
  }
  byId("lead").append(element("div", {className: "row"}, ...parts));
}

// What the page asks the tool.

/** Runs the tool over the current file; undefined if another file has taken its place. */
async function ask(words, what) {
  const asked = current;
  showWork(what);
  const name = asked.path;
  const result = await worker.run([words[0], name, ...words.slice(1), ...asked.options], {[name]: asked.bytes},
    (line) => asked === current && showWork(what + ": " + line));
  if (asked !== current) return undefined;
  asked.results[words.join(" ")] = result;
  return result;
}
function parsed(result) {
  try {
    return JSON.parse(result.out);
  } catch {
    return undefined;
  }
}

/**
 * Opens a file and answers all questions about it.
 * @param {Uint8Array} bytes
 * @returns what the tool printed, by command; undefined if another file took its place
 */
async function open(bytes, name, {capacity = "", device = 0} = {}) {
  worker.stop();
  const mine = {bytes, name, path: name.startsWith("-") ? "./" + name : name, capacity, device, fits: {}, results: {},
    options: capacity ? ["--capacity", capacity] : []};
  current = mine;
  byId("start").hidden = true;
  byId("drop").classList.add("small");
  document.querySelector("#drop .name").textContent = `${name}, ${bytesText(bytes.length)}`;
  byId("results").hidden = true;
  byId("lead").replaceChildren();
  byId("answer").textContent = "Reading " + name;
  for (const id of ["settings", "why", "facts", "picture", "search"]) byId(id).replaceChildren();

  const begin = performance.now();
  const compared = await ask(["compare", "--json"], "Replaying with each setting");
  if (!compared) return undefined;
  const list = parsed(compared);
  const runs = list ? runsOf(list) : [];
  if (runs.length === 0) {
    showError(name, compared.error || "the tool printed nothing");
    showWork("");
    return mine.results;
  }
  mine.compared = list;
  const run = runs[Math.min(device, runs.length - 1)];
  const number = runs.length > 1 ? ["--device", String(run.device)] : [];
  mine.options.push(...number);
  showAnswer(run);
  showOptions();
  showSettings(run);
  showFacts(run);
  byId("results").hidden = false;
  mine.answeredAfter = performance.now() - begin;

  const oom = await ask(["explain-oom"], "Looking for a request that fails");
  if (!oom) return undefined;
  showWhy(oom);
  const drawn = await ask(["draw", "--out", "report.html"], "Drawing memory over time");
  if (!drawn) return undefined;
  showPicture(drawn);
  const confs = [...new Set([confOf(run), ...pytorchSettings.map((one) => one.conf), ...moreSettings])];
  for (const conf of confs) {
    const fit = await ask(["fit", "--recipe", "pytorch", ...(conf ? ["--conf", conf] : []), "--json"], `Finding the least GPU memory with ${settingText(conf)}`);
    if (!fit) return undefined;
    mine.fits[conf] = parsed(fit)?.capacity ?? null;
    showSettings(run);
  }
  showSearch("ready");
  showWork("");
  mine.doneAfter = performance.now() - begin;
  return mine.results;
}

async function startTune() {
  showSearch("busy");
  const found = await ask(["tune"], "Searching for a recipe");
  if (found) {
    showSearch("done", found);
    showWork("");
  }
}

function cancel() {
  worker.stop();
  if (!current) return;
  const before = current;
  current = {...before};  // answers of the ended run do not come
  showWork("");
  byId("work").firstElementChild.textContent = "Cancelled. Drop a file to begin again.";
  if (!before.compared) byId("answer").textContent = before.name + " was not read to its end";
  else showSearch("ready");
}

async function openFile(file) {
  try {
    await open(new Uint8Array(await file.arrayBuffer()), file.name);
  } catch (error) {
    showError(file.name, error.name === "NotReadableError" ? "the browser gives no more memory to this page: " + error.message : String(error));
    showWork("");
  }
}

byId("file").onchange = (event) => {
  const file = event.target.files[0];
  event.target.value = "";
  if (file) openFile(file);
};
byId("cancel").onclick = cancel;
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("over");
});
document.addEventListener("dragleave", () => document.body.classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("over");
  const file = event.dataTransfer.files[0];
  if (file) openFile(file);
});

/** For scripts and tests: the same as a drop of a file, the button Cancel, and what is known about the current file. */
window.playground = {open, cancel, tune: startTune, get current() { return current; }};
worker.start();
