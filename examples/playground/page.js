// SPDX-License-Identifier: Apache-2.0
// The page: hands a file to the tool, and shows what the tool says.
"use strict";

const byId = (id) => document.getElementById(id);

/** The module of the tool, compiled once. Its workers share the code that the browser has optimized. */
const toolModule = (async () => {
  const packed = Uint8Array.from(atob(byId("module").textContent.trim()), (c) => c.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return WebAssembly.compile(await new Response(unpacked).arrayBuffer());
})();
const toolUrl = URL.createObjectURL(new Blob([byId("tool").textContent], {type: "text/javascript"}));

const cancelled = () => ({code: 2, out: "", error: "cancelled", files: {}});

/** One worker that runs the tool. To cancel a run, the worker is ended. */
class tool {
  #worker = null;
  #next = 0;
  #stops = 0;
  #waiting = new Map();

  async start() {
    const module = await toolModule;
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
    this.#worker.postMessage({module});
  }
  /** Runs the tool. The files are copied to the worker. */
  async run(words, files, progress) {
    const stops = this.#stops;
    await this.start();
    if (stops !== this.#stops) return cancelled();
    return new Promise((resolve) => {
      const id = ++this.#next;
      this.#waiting.set(id, {resolve, progress});
      this.#worker.postMessage({id, words, files});
    });
  }
  /** Ends what is running. */
  stop() {
    ++this.#stops;
    if (this.#waiting.size === 0) return;
    this.#worker?.terminate();
    this.#worker = null;
    for (const {resolve} of this.#waiting.values()) resolve(cancelled());
    this.#waiting.clear();
  }
  #fail(message) {
    for (const {resolve} of this.#waiting.values())
      resolve({code: 2, out: "", error: "tessera-replay: the worker stopped: " + message, files: {}});
    this.#waiting.clear();
    this.#worker?.terminate();
    this.#worker = null;
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

/** The strings that PyTorch's users can set, by the name that the tool gives to a replay under them. */
const pytorchSettings = {
  pytorch: "",
  pytorch_expandable: "expandable_segments:True",
  cuda_async: "backend:cudaMallocAsync",
};
/** Of these only the least GPU memory is searched, after the first answers. */
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
/** Says why a file has no answers, in the tool's words. */
function showError(name, error) {
  const isTooLarge = /memory ran out|no more memory/.test(error);
  byId("answer").textContent = name + (isTooLarge ? " is too large for a browser" : " cannot be read");
  byId("lead").replaceChildren(element("p", {className: "error", textContent: errorText(error)}));
  if (isTooLarge)
    byId("lead").append(element("p", {textContent: "A page has at most 4\u00a0GiB of memory. The tool tessera-replay, which runs outside of a browser, has no such limit."}));
  byId("results").hidden = true;
  byId("start").hidden = false;
}

/** The runs of a compare, one for each device. */
const runsOf = (compared) => compared.filter((run) => run.recipes);

/** The tool's name of the replay under the recorded settings; "pytorch" if the file does not say any. */
function recordedName({settings}) {
  if (settings.recipe_from !== "recorded" && settings.conf_from !== "recorded") return "pytorch";
  if (settings.conf === "") return settings.recipe;
  const isExpandable = settings.recipe === "pytorch" && settings.conf === "expandable_segments:True";
  return isExpandable ? "pytorch_expandable" : settings.recipe + ", recorded conf";
}
/** The replays under settings of PyTorch, each as {name, recipe, conf, row, isRecorded}. The recorded settings appear once. */
function measured(run) {
  const recorded = recordedName(run);
  const isKnown = run.settings.recipe_from === "recorded" || run.settings.conf_from === "recorded";
  const found = [];
  for (const row of run.recipes) {
    const isRecorded = row.recipe === recorded;
    if (!(row.recipe in pytorchSettings) && !(isRecorded && /^(pytorch|cuda_async)/.test(row.recipe))) continue;
    const conf = pytorchSettings[row.recipe] ?? run.settings.conf;
    const recipe = isRecorded && run.settings.recipe.startsWith("pytorch_2_14") ? run.settings.recipe : "pytorch";
    const name = settingText(conf) + (recipe === "pytorch" ? "" : ", PyTorch 2.14");
    found.push({name, recipe, conf, row, isRecorded: isRecorded && isKnown});
  }
  return found.filter((one) => one.isRecorded || !found.some((other) => other.isRecorded && other.name === one.name));
}
/** The recorded settings, replayed as all others are: without what was cached when the history begins. */
function replayedAsRecorded(run) {
  const recorded = recordedName(run);
  return measured(run).find((one) => one.row.recipe === recorded) ?? measured(run)[0];
}
/** Whether the recorded run began without a cache and did what the replay of its settings does, so that both are one row. */
function isRecordedReplayed(run) {
  const like = replayedAsRecorded(run);
  return run.recorded !== undefined && like.isRecorded && !run.recorded.cached_at_start &&
    like.row.peak_reserved === run.recorded.peak_reserved && like.row.failures === run.recorded.failures;
}
function bestOf(run) {
  const all = measured(run);
  const fewest = Math.min(...all.map((one) => one.row.failures));
  return all
    .filter((one) => one.row.failures === fewest)
    .reduce((best, one) => (one.row.peak_reserved < best.row.peak_reserved ? one : best));
}
/** Whether the best setting serves all that the recorded one does not, or needs at least a hundredth less. */
function isWorthIt(run) {
  const best = bestOf(run), like = replayedAsRecorded(run);
  return best.name !== like.name && best.row.failures === 0 && (like.row.failures > 0 || best.row.peak_reserved <= 0.99 * like.row.peak_reserved);
}
const settingText = (conf) => (conf === "" ? "PyTorch's defaults" : conf);

function showAnswer(run) {
  const like = replayedAsRecorded(run);
  const isRecorded = run.recorded !== undefined && current.capacity === "";  // else the question is about another GPU
  const of = isRecorded ? run.recorded : like.row;
  const best = bestOf(run);
  const live = bytesText(run.peak_live);
  const isBetter = isWorthIt(run);
  const answer = [], lead = [];
  if (of.failures > 0) {
    answer.push(`Memory ${isRecorded ? "ran" : "would run"} out: ${bytesText(of.peak_reserved)} reserved, for ${live} of tensors.`);
    if (best.row.failures > 0) answer.push("No setting compared below would have served every request.");
    else if (like.row.failures > 0) answer.push(`With ${best.name}, every request would be served.`);
    else lead.push("A replay of the same settings serves every request, because it begins without the cache that the recorded run had. So see below what kept memory in the recorded run.");
  } else {
    answer.push(`PyTorch ${isRecorded ? "reserved" : "would reserve"} ${bytesText(of.peak_reserved)} for ${live} of tensors.`);
    const saved = like.row.peak_reserved - best.row.peak_reserved;
    if (isBetter) answer.push(`With ${best.name}, it would need ${percentText(saved / like.row.peak_reserved)} less.`);
    else answer.push(of.peak_reserved - run.peak_live < 0.03 * of.peak_reserved ? "Hardly anything is lost." : "No setting compared below would need less.");
    if (!isBetter) lead.push("To need less, the program has to keep fewer tensors at a time: the picture below shows what is live at the peak.");
  }
  byId("answer").textContent = answer.join(" ");
  byId("lead").replaceChildren(...lead.map((text) => element("p", {textContent: text})));
  if (isBetter && best.conf !== "") byId("lead").append(Object.assign(copyElement(environmentOf(best.conf)), {id: "string"}));
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
/** Text for a shell. A file may say anything. */
const quoted = (text) => (/^[\w:.,=-]*$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
const environmentOf = (conf) => `export PYTORCH_CUDA_ALLOC_CONF=${quoted(conf)}`;

/** A string of settings with another setting added, or in the place of one with the same key. */
function confWith(conf, setting) {
  const parts = conf.split(/,(?![^[]*\])/).filter((part) => part !== "");
  const key = (part) => part.split(":")[0].trim();
  return [...parts.filter((part) => key(part) !== key(setting)), setting].join(",");
}
function copyElement(text) {
  return element("div", {className: "copy"}, element("pre", {textContent: text}), copyButton(text));
}

/**
 * A table.
 * @param {(string|Node)[]} heads
 * @param {(string|Node)[][]} rows
 */
function tableElement(heads, rows, className = "") {
  const cell = (name, content) => (content instanceof HTMLTableCellElement ? content : element(name, {}, content));
  return element("div", {className: "scroll"}, element("table", {className},
    element("thead", {}, element("tr", {}, ...heads.map((head) => cell("th", head)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((content) => cell("td", content)))))));
}
const mark = (text) => element("span", {className: "mark", textContent: text});

/** A row of the replays: a name, a bar of what tensors and the rest need, and numbers. */
function replayRow({name, peak, failures, isBest, copied, marked, fit}, run, most) {
  const share = (bytes) => `width:${(100 * bytes) / most}%`;
  const live = Math.min(run.peak_live, peak);
  const first = element("td", {}, element("span", {textContent: name, className: isBest ? "best" : ""}));
  if (marked) first.append(" ", mark(marked));
  if (copied) first.append(copyButton(environmentOf(copied)));
  if (failures) first.append(element("div", {className: "bad", textContent: `runs out of memory: ${failures.toLocaleString("en")} ${failures === 1 ? "request fails" : "requests fail"}`}));
  const track = element("div", {className: "track"}, element("i"), element("b"));
  track.children[0].style = share(live);
  track.children[1].style = share(peak - live);
  const cells = [first, element("td", {className: "bar"}, track), bytesText(peak),
    element("td", {className: "above", textContent: run.peak_live && !failures ? "+" + percentText((peak - run.peak_live) / run.peak_live) : ""})];
  return fit ? [...cells, fit] : cells;
}
const replayHeads = () => ["", element("th", {className: "bar"}), "peak reserved", element("th", {className: "above", textContent: "above tensors"})];

/** The cell of the least GPU memory under a setting. It is filled when the tool has found it. */
function fitCell(one) {
  const key = fitKey(one);
  const cell = (current.fitCells[key] ??= element("td"));
  const fit = current.fits[key];
  cell.textContent = fit ? bytesText(fit) : fit === null ? "\u2013" : "\u2026";
  return cell;
}
const fitKey = ({recipe, conf}) => recipe + ";" + conf;

function showSettings(run) {
  const {recorded} = run;
  const best = bestOf(run);
  const isOneRow = isRecordedReplayed(run);
  const rows = measured(run).map((one) => ({name: one.name, peak: one.row.peak_reserved, failures: one.row.failures,
    isBest: isWorthIt(run) && one.name === best.name, copied: one.conf, marked: one.isRecorded ? (isOneRow ? "as recorded" : "the recorded settings") : "",
    fit: fitCell(one)}));
  const others = run.recipes
    .filter((row) => otherRecipes[row.recipe])
    .map((row) => ({name: otherRecipes[row.recipe], peak: row.peak_reserved, failures: row.failures}));
  const most = Math.max(...rows.map((row) => row.peak), recorded?.peak_reserved ?? 0);
  const parts = [element("h2", {textContent: "What each setting would have needed"})];
  if (recorded && !isOneRow) {
    parts.push(element("h3", {textContent: "What the GPU did"}),
      tableElement(replayHeads(), [replayRow({name: settingText(recorded.conf), peak: recorded.peak_reserved, failures: recorded.failures,
        marked: recorded.cached_at_start ? `began with ${bytesText(recorded.cached_at_start)} cached` : ""}, run, most)], "did"),
      element("h3", {textContent: "Replays"}),
      element("p", {className: "quiet", textContent: recorded.cached_at_start
        ? "They all begin without a cache. Compare them with each other, and not with the recorded run, which began with its cache."
        : run.recorded.agrees ? "Where memory runs out, a replay need not go on as the recorded run did. So compare replays with each other."
        : "They do not repeat the recorded run exactly. So compare them with each other."}));
  }
  parts.push(
    element("p", {className: "quiet"}, element("span", {className: "key", style: "background:var(--live);margin-left:0"}), "tensors at their peak",
      element("span", {className: "key", style: "background:var(--more)"}), "reserved beyond. \u201cRuns with\u201d is the least GPU memory with which the program completes."),
    tableElement([...replayHeads(), "runs with"], rows.map((row) => replayRow(row, run, most)), "replays"));
  const more = moreSettings.map((conf) => ({name: conf, recipe: "pytorch", conf})).filter((one) => !measured(run).some((other) => other.conf === one.conf));
  parts.push(element("details", {}, element("summary", {textContent: "More settings of PyTorch, of which only the least GPU memory is searched"}),
    tableElement(["", "runs with"], more.map((one) => [element("td", {}, one.name, copyButton(environmentOf(one.conf))), fitCell(one)]))));
  if (others.length > 0)
    parts.push(element("details", {}, element("summary", {textContent: "Other allocators, which no setting of PyTorch selects"}),
      tableElement(replayHeads(), others.map((row) => replayRow(row, run, Math.max(most, ...others.map((other) => other.peak))))),
      element("p", {className: "quiet", textContent: run.left_out?.replace("set --capacity", "choose one above") ?? ""})));
  byId("settings").replaceChildren(...parts);
}

function factList(facts) {
  const list = element("dl");
  for (const [name, ...values] of facts) list.append(element("dt", {textContent: name}), element("dd", {}, ...values));
  return list;
}
/** Where a capacity is from, in words. */
const sourceText = (from) => ({default: "a guess, because the file does not say it", given: "chosen above",
  "deduced from the out-of-memory": "what was reserved and free when memory ran out"})[from] ?? from;

function showFacts(run) {
  const {recorded, settings} = run;
  const facts = [["tensors at their peak", bytesText(run.peak_live)]];
  if (recorded) {
    facts.push(["reserved at its peak", bytesText(recorded.peak_reserved)]);
    if (recorded.peak_reserved > 0)
      facts.push(["fragmentation", percentText(Math.max(0, recorded.peak_reserved - run.peak_live) / recorded.peak_reserved) + " of what was reserved is above the tensors\u2019 peak"]);
    facts.push(["settings", settingText(recorded.conf)]);
    if (recorded.cached_at_start) facts.push(["cached at the start", bytesText(recorded.cached_at_start)]);
  }
  facts.push(["GPU memory", `${bytesText(settings.capacity)} (${sourceText(settings.capacity_from)})` +
    (settings.memory_limit ? `, of which a memory fraction allowed about ${bytesText(settings.memory_limit)}` : "")]);
  if (run.not_as_recorded) facts.push(["replay", "does not reproduce the recorded run: " + run.not_as_recorded]);
  else if (recorded && recorded.agrees !== null)
    facts.push(["replay", recorded.agrees ? "makes every decision that the recorded run made" : "decides otherwise than the recorded run at some point, so its numbers are estimates"]);
  facts.push(["operations", run.operations.toLocaleString("en")]);
  byId("facts").replaceChildren(element("h2", {textContent: "What was recorded"}), factList(facts));
}

/** Names streams. Their handles are addresses, or in some traces small numbers. */
class streamNames {
  #names = new Map();

  /** An element with the name of a stream, such as "stream 1". Addresses are numbered in the order of their appearance. */
  element(handle) {
    const value = BigInt(handle);
    if (value === 0n) return element("span", {textContent: "the default stream", title: "handle 0"});
    if (!this.#names.has(value)) {
      const taken = [...this.#names.values()];
      let number = value;
      if (value >= 100_000n) for (number = 1n; taken.includes(number); ++number);
      this.#names.set(value, number);
    }
    return element("abbr", {textContent: "stream " + this.#names.get(value), title: "handle 0x" + value.toString(16)});
  }
  /** The text of the tool with names for streams, as nodes. */
  inText(text) {
    return text.split(/\bstream (0x[0-9a-f]+|\d+)\b/).map((part, i) => (i % 2 === 0 ? part : this.element(part)));
  }
}

/** What a hint of the tool says: the setting to copy if it has one, and its reason. */
function hintElement({text, setting}, conf) {
  const [, reason, change] = text.match(/^(.*): ([^:]*) \[[^\]]*\]$/) ?? [null, text, ""];
  const isSetting = /^[a-z_0-9]+:[^ ]+(,[a-z_0-9]+:[^ ]+)*$/.test(setting);
  const item = element("li", {}, reason[0].toUpperCase() + reason.slice(1) + ".");
  if (isSetting) {
    const parts = setting.split(/,(?![^[]*\])/);
    item.append(copyElement(environmentOf(parts.reduce(confWith, conf))));
  } else if (setting.startsWith("FLAGS_") && setting.includes("=")) {
    item.append(copyElement("export " + quoted(setting)));
  } else {
    item.append(" ", element("span", {className: "quiet", textContent: setting ? `Setting: ${setting}.` : change ? `No setting of PyTorch does this; tessera's ${change} does.` : ""}));
  }
  return item;
}

/** A sentence from the tool's words on why a free block did not serve a request. */
function reasonText(words) {
  if (words.startsWith("the work")) return `But ${words}.`;
  return /^(serves|would) /.test(words) ? `It ${words}.` : `It is ${words}.`;
}

/** A bar of what memory is used for, with a legend: [color, name, bytes]. */
function memoryBar(parts, total) {
  const bar = element("div", {className: "track wide"}), legend = element("p", {className: "quiet legend"});
  for (const [color, name, bytes] of parts.filter((part) => part[2] > 0)) {
    bar.append(element("i", {style: `width:${(100 * bytes) / total}%;background:var(${color})`, title: `${name}: ${bytesText(bytes)}`}));
    legend.append(element("span", {}, element("span", {className: "key", style: `background:var(${color})`}), `${name} ${bytesText(bytes)}`));
  }
  return [bar, legend];
}

/** A source line in short: the file with its folder. Stacks of C++ only, such as those of the backward pass, have no line. */
function originText(line) {
  if (line === "") return "a line that was not recorded";
  const [, place, label] = line.match(/^(.*?)((?:^|, )labelled '.*')?$/s);
  if (place !== "" && !/:\d+( in |$)/.test(place)) return "C++ code, without a line of Python" + (label ?? "");
  return place.replace(/^[^ ]*[\\/](?=[^\\/ ]+[\\/][^\\/ ]+:\d)/, "") + (label ?? "");
}
/** The blocks that keep a segment, in the tool's words, by source line. */
function keepersText(blocks) {
  const items = [...blocks.matchAll(/\bid \d+ \((\d+) bytes, event \d+, (.*?)\)(?=, id \d| and \d+ more|, \d+ pending|$)/g)];
  if (items.length === 0) return blocks.replace(/\b(\d+) bytes\b/g, (all, bytes) => bytesText(Number(bytes)));
  const lines = new Map();
  for (const [, bytes, line] of items) {
    const of = lines.get(originText(line)) ?? {blocks: 0, bytes: 0};
    lines.set(originText(line), {blocks: of.blocks + 1, bytes: of.bytes + Number(bytes)});
  }
  const rest = blocks.match(/( and \d+ more)?(, \d+ pending)?$/)[0];
  return [...lines].map(([line, of]) => `${line}: ${of.blocks} ${of.blocks === 1 ? "block" : "blocks"} of ${bytesText(of.bytes)}`).join(", ") + rest;
}
/** The node of the autograd graph that a call stack runs, such as "AddmmBackward0". */
const backwardIn = (stack) => stack.map((frame) => frame.match(/torch::autograd::generated::(\w+Backward\d*)::apply/)?.[1]).find(Boolean);

/** Shows why a request failed, from the JSON of explain-oom. */
function showFailure(found) {
  const streams = new streamNames();
  const {settings} = found;
  const isRecorded = found.failed_when_recorded && current.capacity === "";
  const by = found.limit < settings.capacity ? "A memory fraction allowed" : "The GPU has";
  const room = Math.max(0, found.limit - found.reserved);
  const parts = [element("h2", {textContent: isRecorded ? "Why memory ran out" : "Why memory would run out"})];

  const request = element("p", {id: "request"}, "A request of ", element("b", {textContent: bytesText(found.bytes)}), " on ", streams.element(found.stream),
    ` ${isRecorded ? "failed" : "fails"} at event ${found.event.toLocaleString("en")} of ${found.events.toLocaleString("en")}`);
  const backward = backwardIn(found.stack);
  if (backward) request.append(", in the backward pass (", element("code", {textContent: backward}), ")");
  else if (found.line) request.append(", made by ", element("code", {textContent: originText(found.line), title: found.line}));
  request.append(`. ${by} ${bytesText(found.limit)}${found.limit < settings.capacity ? "" : ` (${sourceText(settings.capacity_from)})`}. ` +
    (room < found.wanted
      ? `${bytesText(found.reserved)} of it ${isRecorded ? "were" : "are"} reserved, so ${bytesText(room)} ${isRecorded ? "were" : "are"} left, but the request ${isRecorded ? "needed" : "needs"} ${bytesText(found.wanted)}.`
      : `${bytesText(room)} of it ${isRecorded ? "were" : "are"} not reserved.`));
  parts.push(request);
  if (found.stack.length > 1)
    parts.push(element("details", {}, element("summary", {textContent: "Call stack of the request"}),
      element("ol", {className: "calls"}, ...found.stack.map((frame) => element("li", {textContent: frame})))));

  const releasable = Math.max(0, found.cached - found.non_releasable);
  parts.push(...memoryBar([["--live", "tensors", found.allocated], ["--pending", "freed, but a stream still uses it", found.pending],
    ["--more", "free, cannot be released", found.non_releasable], ["--idle", "free, can be released", releasable], ["--grid", "not reserved", room]], Math.max(found.limit, found.reserved)));

  if (found.held.length > 0) {
    const hasLines = found.held.some((one) => one.line !== undefined);
    const hasKept = found.held.some((one) => one.keeps_non_releasable > 0);
    const held = new Map();
    for (const one of found.held) {
      const name = one.size !== undefined ? `requests of ${bytesText(one.size)}` : originText(one.line);
      const of = held.get(name) ?? {lines: [], bytes: 0, blocks: 0, kept: 0};
      held.set(name, {lines: [...of.lines, one.line ?? ""], bytes: of.bytes + one.bytes, blocks: of.blocks + one.blocks, kept: Math.max(of.kept, one.keeps_non_releasable)});
    }
    const rows = [...held].sort((a, b) => b[1].bytes - a[1].bytes).map(([name, one]) => [element("td", {className: "line", textContent: name, title: one.lines.join("\n")}),
      bytesText(one.bytes), one.blocks.toLocaleString("en"), ...(hasKept ? [one.kept ? bytesText(one.kept) : ""] : [])]);
    if (found.held_by_others) rows.push(["all others", bytesText(found.held_by_others), "", ...(hasKept ? [""] : [])]);
    const table = (some) => tableElement([hasLines ? "source line" : "size", "tensors", "blocks", ...(hasKept ? [element("th", {textContent: "kept from release", title: "free memory in the segments of these blocks"})] : [])], some, "held");
    parts.push(element("h3", {textContent: "What held memory"}), table(rows.slice(0, 6)));
    if (rows.length > 6) parts.push(element("details", {}, element("summary", {textContent: `${rows.length - 6} more`}), table(rows.slice(6))));
  }

  if (found.non_releasable > 0 || found.largest_free > 0) {
    parts.push(element("h3", {textContent: "What is free, and why it does not help"}));
    const list = element("ul");
    const largest = found.text.map((line) => line.match(/^largest free block: .*?: (.*)$/)).find(Boolean);
    if (found.largest_free > 0)
      list.append(element("li", {}, `The largest free block has ${bytesText(found.largest_free)}; the request needs one of ${bytesText(found.block)}. `, ...(largest ? streams.inText(reasonText(largest[1])) : [])));
    if (found.non_releasable > 0) {
      const units = found.text.filter((line) => /^a (segment|physical chunk) of /.test(line));
      const unit = units[0]?.startsWith("a physical chunk") ? "physical chunk" : "segment";
      const kept = element("li", {}, `${bytesText(found.non_releasable)} are free, but live blocks share their ${unit}s, and only a whole ${unit} can be released.`);
      if (units.length > 0) {
        const blocks = (line) => found.blocks.find((text) => text.startsWith(line.match(/0x[0-9a-f]+$/)?.[0] + ":"))?.replace(/^0x[0-9a-f]+: /, "");
        kept.append(" Most are in:", element("ul", {}, ...units.map((line) =>
          element("li", {}, line.replace(/, (at|the first at) 0x[0-9a-f]+$/, ""), element("div", {className: "quiet line", textContent: keepersText(blocks(line) ?? "")})))));
      }
      list.append(kept);
    }
    parts.push(list);
  }

  const last = found.text.filter((line) => /^no policy (would|is known to) help: /.test(line)).map((line) => line.replace(/^no policy (would|is known to) help: /, ""));
  if (found.hints.length > 0 || last.length > 0) {
    parts.push(element("h3", {textContent: "What would help"}),
      element("ul", {id: "hints"}, ...found.hints.map((hint) => hintElement(hint, settings.conf)),
        ...last.map((line) => element("li", {textContent: `${line[0].toUpperCase()}${line.slice(1)}. No setting would help.`}))));
  }
  parts.push(
    element("p", {className: "quiet", textContent: found.state === "recorded" ? "This is the recorded state, when the last request failed."
      : "This is the state of a replay, which begins without a cache."}),
    element("details", {}, element("summary", {textContent: "The tool\u2019s report"}), element("pre", {}, ...streams.inText(found.text.join("\n")))));
  byId("why").replaceChildren(...parts);
}

function showWhy(oom, run) {
  const found = parsed(oom);
  if (!found) {
    byId("why").replaceChildren(element("p", {className: "error", textContent: errorText(oom.error)}));
  } else if (found.completes) {
    const {settings} = found;
    const isSaid = settings.capacity_from === "default" ? "; the file does not say how much the GPU had" : "";
    const survived = run.recorded?.failures ? "The recorded run had requests that failed. " : "No out-of-memory was recorded. ";
    byId("why").replaceChildren(element("p", {id: "request", textContent: `${survived}A replay with ${bytesText(settings.capacity)} of GPU memory serves every request${isSaid}.`}));
  } else {
    showFailure(found);
  }
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
      // The page has said the same above.
      inside.append(element("style", {textContent: "main{padding:14px!important}h1{font-size:17px!important;margin:4px 0!important}"}));
      const fitHeight = () => (frame.style.height = inside.scrollHeight + 2 + "px");
      fitHeight();
      new ResizeObserver(fitHeight).observe(inside.querySelector("main") ?? inside);
      takeFiles(frame.contentDocument);
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
  const {settings} = runs[Math.min(current.device, runs.length - 1)];
  current.ownCapacity ??= current.capacity === "" ? `${bytesText(settings.capacity)} (${settings.capacity_from === "default" ? "not recorded" : "as recorded"})` : "";
  const sizes = ["", "8GiB", "12GiB", "16GiB", "24GiB", "32GiB", "40GiB", "48GiB", "80GiB", "141GiB"];
  if (!sizes.includes(current.capacity)) sizes.push(current.capacity);
  const textOf = (value) => (value === "" ? current.ownCapacity || "as recorded" : value.replace("GiB", "\u00a0GiB"));
  const size = element("select", {id: "capacity"}, ...sizes.map((value) => element("option", {value, textContent: textOf(value), selected: value === current.capacity})));
  size.onchange = () => open(current.bytes, current.name, {capacity: size.value, device: current.device, ownCapacity: current.ownCapacity});
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
  // fit finds a capacity, so it needs none.
  const limit = asked.capacity && words[0] !== "fit" ? ["--capacity", asked.capacity] : [];
  const result = await worker.run([words[0], name, ...words.slice(1), ...limit, ...asked.options], {[name]: asked.bytes},
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
async function open(bytes, name, {capacity = "", device = 0, ownCapacity} = {}) {
  worker.stop();
  ++opened;
  const mine = {bytes, name, path: name.startsWith("-") ? "./" + name : name, capacity, device, ownCapacity, fits: {}, fitCells: {}, results: {},
    options: []};
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

  const oom = await ask(["explain-oom", "--json"], "Looking for a request that fails");
  if (!oom) return undefined;
  showWhy(oom, run);
  const drawn = await ask(["draw", "--out", "report.html"], "Drawing memory over time");
  if (!drawn) return undefined;
  showPicture(drawn);
  const searched = [...measured(run), ...moreSettings.map((conf) => ({name: conf, recipe: "pytorch", conf}))];
  for (const one of searched) {
    if (fitKey(one) in mine.fits) continue;
    const fit = await ask(["fit", "--recipe", one.recipe, ...(one.conf ? ["--conf", one.conf] : []), "--json"], `Finding the least GPU memory with ${one.name}`);
    if (!fit) return undefined;
    // A request that failed in the recorded run is none that the program needs to go on, but it is one to serve.
    const found = parsed(fit);
    mine.fits[fitKey(one)] = found?.capacity_with_refused ?? found?.capacity ?? null;
    fitCell(one);
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
  ++opened;
  if (!current) return;
  const before = current;
  current = {...before};  // answers of the ended run do not come
  showWork("");
  byId("work").firstElementChild.textContent = "Cancelled.";
  if (!before.compared) {
    byId("answer").textContent = before.name + " was not read to its end";
    byId("lead").replaceChildren(element("p", {textContent: "Choose a file, or drop one, to begin again."}));
  } else {
    for (const cell of Object.values(before.fitCells)) if (cell.textContent === "\u2026") cell.textContent = "";
    showSearch("ready");
  }
}

let opened = 0;  // files so far: one that is read slowly must not take the place of a later one

async function openFile(file) {
  const number = ++opened;
  let bytes;
  try {
    bytes = new Uint8Array(await file.arrayBuffer());
  } catch (error) {
    if (number !== opened) return;
    worker.stop();
    current = null;
    const isTooLarge = file.size > 2 ** 31 - 1;
    showError(file.name, isTooLarge ? "the browser gives no more memory to this page: " + error.message : "the browser cannot read it: " + error.message);
    showWork("");
    return;
  }
  if (number !== opened) return;
  try {
    await open(bytes, file.name);
  } catch (error) {
    showError(file.name, "this browser cannot run the tool: " + error.message);
    showWork("");
  }
}

byId("file").onchange = (event) => {
  const file = event.target.files[0];
  event.target.value = "";
  if (file) openFile(file);
};
byId("cancel").onclick = cancel;

/** Opens files that are dropped on a document or pasted into it. */
function takeFiles(target) {
  const isOver = (is) => document.body.classList.toggle("over", is);
  target.addEventListener("dragover", (event) => {
    event.preventDefault();
    isOver(true);
  });
  target.addEventListener("dragleave", (event) => event.relatedTarget ?? isOver(false));
  target.addEventListener("drop", (event) => {
    event.preventDefault();
    isOver(false);
    const file = event.dataTransfer.files[0];
    if (file) openFile(file);
  });
  target.addEventListener("paste", (event) => {
    const file = event.clipboardData?.files[0];
    if (file) openFile(file);
  });
  target.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && byId("work").classList.contains("busy")) cancel();
  });
}
takeFiles(document);

/** For scripts and tests: the same as a drop of a file, the button Cancel, and what is known about the current file. */
window.playground = {open, cancel, tune: startTune, get current() { return current; }};
worker.start().catch(() => {});  // reported when a file is opened
