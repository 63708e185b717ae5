// SPDX-License-Identifier: Apache-2.0
// Opens the playground from disk in a real browser, gives it files as a user does, and compares what it says with the tool.
//   node playground.mjs BROWSER PAGE.html TOOL TRACES SCRATCH [SNAPSHOTS]
// Speaks the DevTools protocol over a pipe, so that it needs no package.
import assert from "node:assert/strict";
import {spawn, spawnSync} from "node:child_process";
import {existsSync, mkdirSync, readFileSync, rmSync, writeFileSync} from "node:fs";
import {basename, resolve} from "node:path";
import {pathToFileURL} from "node:url";

const [browserPath, pagePath, tool, traces, scratch, snapshots] = process.argv.slice(2).map((text, i) => (i === 2 ? resolve(text) : text));
const limitMs = 600_000;

/** A browser with one page. */
class browser {
  #next = 0;
  #waiting = new Map();
  #rest = "";
  requests = [];
  problems = [];

  constructor() {
    this.process = spawn(browserPath, ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe",
      "--disable-dev-shm-usage", `--user-data-dir=${scratch}/profile`, "about:blank"], {stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"]});
    this.process.stdio[4].setEncoding("utf8").on("data", (text) => {
      const messages = (this.#rest + text).split("\0");
      this.#rest = messages.pop();
      for (const message of messages) this.#receive(JSON.parse(message));
    });
    this.process.stdio[3].on("error", () => {});
  }
  #receive({id, result, error, method, params}) {
    if (method === "Network.requestWillBeSent") this.requests.push(params.request.url);
    if (method === "Runtime.exceptionThrown") this.problems.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
    const waiting = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (waiting) error ? waiting.reject(new Error(error.message)) : waiting.resolve(result);
  }
  call(method, params = {}) {
    const id = ++this.#next;
    this.process.stdio[3].write(JSON.stringify({id, method, params, sessionId: this.session}) + "\0");
    return new Promise((resolve, reject) => this.#waiting.set(id, {resolve, reject}));
  }
  async open(url) {
    const {targetId} = await this.call("Target.createTarget", {url: "about:blank"});
    this.session = (await this.call("Target.attachToTarget", {targetId, flatten: true})).sessionId;
    for (const domain of ["Network", "Runtime", "Page", "DOM"]) await this.call(domain + ".enable");
    await this.call("Page.navigate", {url});
    await this.until("document.readyState === 'complete' && typeof playground === 'object'");
  }
  async value(expression) {
    const {result, exceptionDetails} = await this.call("Runtime.evaluate", {expression, returnByValue: true, awaitPromise: true});
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }
  async until(expression) {
    for (const end = Date.now() + limitMs; !(await this.value(expression)); await new Promise((next) => setTimeout(next, 50)))
      if (Date.now() > end) throw new Error("it never came to: " + expression);
  }
  /** Gives a file to the page's own field for files. */
  async give(path) {
    await this.value("window.previous = playground.current, 0");
    const {root} = await this.call("DOM.getDocument");
    const {nodeId} = await this.call("DOM.querySelector", {nodeId: root.nodeId, selector: "#file"});
    await this.call("DOM.setFileInputFiles", {nodeId, files: [resolve(path)]});
    await this.until(`playground.current !== previous && playground.current?.name === ${JSON.stringify(basename(path))}`);
  }
}

/** Runs the tool itself in the folder of a file. */
function native(words, folder) {
  const {status, stdout, stderr} = spawnSync(tool, words, {cwd: folder, encoding: "utf8", maxBuffer: 1 << 28});
  return {code: status, out: stdout, error: stderr};
}
/** Without what differs from run to run: the time per operation. */
const withoutTimes = (text) => text
  .replace(/"host_ns_per_operation": [0-9.]+/g, "")
  .replace(/("(?:ns|host_ns|nanoseconds|seconds)": ?)[0-9.]+/g, "$1")
  .replace(/<td>[0-9.,]+<\/td><\/tr>/g, "</tr>");
const digitsOf = (bytes) => {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; bytes >= 1024; ++unit) bytes /= 1024;
  return bytes.toFixed(unit === 0 || bytes >= 1000 ? 0 : bytes >= 100 ? 1 : 2).replace(/\B(?=(\d{3})+(?!\d)(?=\D|$))/g, ",") + "\u00a0" + units[unit];
};

if (!existsSync(pagePath)) {
  console.log(`SKIPPED: ${pagePath} is not there; the target playground writes it`);
  process.exit(0);
}
rmSync(scratch, {recursive: true, force: true});
mkdirSync(scratch, {recursive: true});
const shown = new browser();
let compared = 0;

/** Gives a file to the page, waits for all answers, and compares each with that of the tool. */
async function expectSame(path) {
  const folder = resolve(path, "..");
  await shown.give(path);
  await shown.until("!document.querySelector('#work').classList.contains('busy')");
  const results = await shown.value("playground.current.results");
  assert.ok(Object.keys(results).length > 0, `${path}: the page asked nothing`);
  for (const [command, here] of Object.entries(results)) {
    const [verb, ...rest] = command.split(" ");
    const options = await shown.value("playground.current.options");
    const there = native([verb, basename(path), ...rest, ...(verb === "compare" ? [] : options)], folder);
    const which = `${basename(path)}: ${command}`;
    assert.equal(here.code, there.code, which + ": the exit code");
    assert.equal(here.error.trim(), there.error.trim(), which + ": the error");
    assert.equal(withoutTimes(here.out), withoutTimes(there.out), which + ": the output");
    const written = here.files["report.html"];
    if (verb === "draw" && there.code === 0)
      assert.equal(withoutTimes(written), withoutTimes(readFileSync(folder + "/report.html", "utf8")), which + ": the file");
    ++compared;
  }
  return results;
}
const text = (selector) => shown.value(`document.querySelector(${JSON.stringify(selector)}).innerText`);

/** A file that is read: the page shows its numbers. */
async function expectAnswer(path) {
  const results = await expectSame(path);
  for (const verb of ["compare --json", "explain-oom --json", "draw --out report.html"]) assert.ok(results[verb], `${path}: ${verb} is missing`);
  const [run] = JSON.parse(native(["compare", basename(path), "--json"], resolve(path, "..")).out);
  const table = await text("#settings");
  for (const row of run.recipes.filter((one) => ["pytorch_expandable", "cuda_async"].includes(one.recipe)))
    assert.ok(table.includes(digitsOf(row.peak_reserved)), `${path}: ${row.recipe}: ${digitsOf(row.peak_reserved)} is not in ${table}`);
  assert.ok((await text("#facts")).includes(digitsOf(run.peak_live)), `${path}: peak live is not shown`);
  assert.match(await text("#answer"), /reserve/, path);
  assert.equal(await shown.value("document.querySelector('iframe').contentDocument.querySelector('h1').innerText.length > 10"), true, path);
  const seconds = await shown.value("playground.current.answeredAfter / 1000");
  await expectDistinctRows(path);
  console.log(`${basename(path)}: ${await text("#answer")} (${seconds.toFixed(2)} s)`);
  return results;
}
/** No table has two rows of the same name, and a recorded run that its replay repeats is not a row of its own. */
async function expectDistinctRows(path) {
  const tables = await shown.value(`[...document.querySelectorAll("#settings table")].map((table) =>
    [...table.tBodies[0].rows].map((row) => row.cells[0].firstChild.textContent))`);
  for (const names of tables) assert.equal(new Set(names).size, names.length, `${path}: equal rows: ${names}`);
  const [run] = await shown.value("playground.current.compared");
  const cells = await shown.value(`[...document.querySelectorAll("#settings table.did, #settings table.replays")].map((table) => table.innerText)`);
  const confs = {pytorch: "", pytorch_expandable: "expandable_segments:True"};
  const isRepeated = run.recorded && !run.recorded.cached_at_start && run.recipes.some((row) => confs[row.recipe] === run.settings.conf &&
    row.peak_reserved === run.recorded.peak_reserved && row.failures === run.recorded.failures);
  if (isRepeated) {
    assert.equal(cells.length, 1, `${path}: the recorded run has a table of its own`);
    assert.match(cells[0], /as recorded/, path);
  } else if (run.recorded) {
    assert.equal(cells.length, 2, `${path}: the recorded run is among the replays`);
    assert.ok(cells[0].includes(digitsOf(run.recorded.peak_reserved)), `${path}: ${cells[0]}`);
  }
}
/** A file whose program runs out of memory, on a GPU of `capacity` if it is given: the page shows the numbers of explain-oom. */
async function expectExplained(path, capacity) {
  await expectSame(path);
  if (capacity) await shown.value(`playground.open(playground.current.bytes, ${JSON.stringify(basename(path))}, {capacity: "${capacity}"}).then(() => 0)`);
  const {out} = native(["explain-oom", basename(path), "--json", ...(capacity ? ["--capacity", capacity] : [])], resolve(path, ".."));
  const found = JSON.parse(out);
  assert.equal(found.completes, false, path);
  // Hidden details are part of textContent.
  const why = await shown.value("document.querySelector('#why').textContent");
  const has = (words) => assert.ok(why.includes(words), `${path}: "${words}" is not in: ${why}`);
  for (const bytes of [found.bytes, found.limit, found.reserved, found.largest_free].filter((bytes) => bytes > 0)) has(digitsOf(bytes));
  // A row may stand for several lines, which its tooltip has.
  const held = await shown.value(`[...document.querySelectorAll("table.held tbody tr")].map((row) =>
    ({lines: row.cells[0].title.split("\\n"), cells: [...row.cells].map((cell) => cell.textContent)}))`);
  assert.equal(new Set(held.map((row) => row.cells[0])).size, held.length, `${path}: equal rows`);
  for (const one of found.held) {
    const row = held.find((row) => (one.size !== undefined ? row.cells[0] === "requests of " + digitsOf(one.size) : row.lines.includes(one.line)));
    assert.ok(row, `${path}: ${JSON.stringify(one)} is not among ${JSON.stringify(held)}`);
    const same = found.held.filter((other) => (one.size !== undefined ? digitsOf(other.size) === digitsOf(one.size) : row.lines.includes(other.line)));
    assert.deepEqual(row.cells.slice(1, 3), [digitsOf(same.reduce((sum, other) => sum + other.bytes, 0)), same.reduce((sum, other) => sum + other.blocks, 0).toLocaleString("en")], path);
  }
  for (const frame of found.stack) has(frame);
  if (found.line) assert.ok((await shown.value("document.querySelector('#why').innerHTML")).includes(found.line.split("/").at(-1)), path);
  has(`at event ${found.event.toLocaleString("en")} of ${found.events.toLocaleString("en")}`);
  const settings = found.hints.map((hint) => hint.setting).filter((setting) => /^[a-z_0-9]+:\S+$/.test(setting));
  const copied = await shown.value("[...document.querySelectorAll('#hints pre')].map((one) => one.textContent).join()");
  for (const setting of settings) assert.ok(copied.includes(setting), `${path}: ${setting} is not in: ${copied}`);
  // Streams have names, and their handles are in tooltips.
  assert.doesNotMatch(why, /stream 0x/, path);
  const titles = await shown.value("[...document.querySelectorAll('#request [title]')].map((one) => one.title)");
  assert.deepEqual(titles, [found.stream === 0 ? "handle 0" : "handle 0x" + found.stream.toString(16)], path);
  assert.match(await text("#answer"), capacity ? /^Memory would run out: / : /^Memory (ran|would run) out: /);
  await expectDistinctRows(path);
  console.log(`${basename(path)}: ${await text("#request")}`);
}
/** A file that is refused: the page shows the tool's words. */
async function expectRefusal(path, words) {
  const results = await expectSame(path);
  assert.equal(results["compare --json"].code, 2, path);
  const lead = await text("#lead");
  const said = native(["compare", basename(path), "--json"], resolve(path, "..")).error.trim().replaceAll("tessera-replay: ", "");
  assert.ok(lead.includes(said) && words.test(said), `${path}: the page says ${lead}, the tool ${said}`);
  assert.equal(await shown.value("document.querySelector('#results').hidden"), true, path);
  console.log(`${basename(path)}: ${said}`);
}

async function run() {
  const bytesOf = (path) => `Uint8Array.from(atob("${readFileSync(path).toString("base64")}"), (c) => c.charCodeAt(0))`;
  const made = (name, bytes) => (writeFileSync(`${scratch}/${name}`, bytes), `${scratch}/${name}`);
  const fromTool = (name, ...words) => {
    const {code, error} = native(["snapshot", resolve(traces, "gnn_sage_streams.csv"), "--out", name, ...words], scratch);
    assert.ok(code < 2, error);
    return `${scratch}/${name}`;
  };
  await shown.open(pathToFileURL(resolve(pagePath)).href);

  await expectAnswer(made("trace.csv", readFileSync(resolve(traces, "gnn_sage_streams.csv"))));
  await expectAnswer(fromTool("taken.pickle"));
  await expectAnswer(fromTool("log_rmm.csv"));
  assert.match(await text("#why"), /^No out-of-memory was recorded\. .* serves every request/);
  await expectExplained(fromTool("full.pickle", "--at", "end", "--capacity", "1000MiB"));
  await expectExplained(`${scratch}/full.pickle`, "512MiB");
  // Two streams whose handles are addresses; the second asks for more than the GPU has.
  const gib = 2 ** 30;
  await expectExplained(made("handles.csv", ["op,id,bytes,stream,t_us", `a,0,${2 * gib},511987104,1`, `a,1,${3 * gib},511987105,2`, "f,0,0,0,3",
    `a,2,${gib},511987105,4`, `a,3,${3 * gib},511987105,5`, `a,4,${3 * gib},511987105,6`, ""].join("\n")), "8GiB");

  await expectRefusal(made("empty.pickle", ""), /empty|nothing|trace|header/i);
  await expectRefusal(made("wrong.pickle", Buffer.from("\x89PNG\r\n\x1a\n no snapshot", "latin1")), /./);
  await expectRefusal(made("weights.pt", Buffer.from("PK\x03\x04 weights", "latin1")), /zip archive/);
  await expectRefusal(made("hostile.pickle", Buffer.from("\x80\x02cos\nsystem\n(S'echo hostile'\ntR.", "latin1")), /./);
  await expectRefusal(made("cut.pickle", readFileSync(`${scratch}/taken.pickle`).subarray(0, 5000)), /byte|end|cut/);
  await expectRefusal(made("claims.pickle", Buffer.from("\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f", "latin1")), /./);
  if (snapshots && existsSync(`${snapshots}/decomfl.pickle`)) await expectAnswer(made("decomfl.pickle", readFileSync(`${snapshots}/decomfl.pickle`)));

  // The verbs that the page does not ask by itself are in the module, too; ranks is refused.
  const inModule = async (words, path) => {
    const {code, out, error, files} = await shown.value(
      `worker.run(${JSON.stringify(words)}, {${JSON.stringify(basename(path))}: ${bytesOf(path)}}, () => {})`);
    const there = native(words, scratch);
    const which = words.join(" ");
    assert.deepEqual({code, error: error.trim()}, {code: there.code, error: there.error.trim()}, which);
    assert.equal(withoutTimes(out), withoutTimes(there.out), which);
    for (const [name, written] of Object.entries(files)) assert.equal(written, readFileSync(`${scratch}/${name}`, "utf8"), `${which}: ${name}`);
    ++compared;
  };
  for (const verb of ["verify", "decisions"]) await inModule([verb, "taken.pickle"], `${scratch}/taken.pickle`);
  await inModule(["plan", "trace.csv", "--json", "--out", "plan.hpp"], `${scratch}/trace.csv`);
  await inModule(["snapshot", "trace.csv", "--out", "events.json"], `${scratch}/trace.csv`);
  await inModule(["explain", "max_split_size_mb:64"], `${scratch}/trace.csv`);
  // Times decide the order of tune's candidates.
  const tuned = await shown.value(`worker.run(["tune", "handles.csv"], {"handles.csv": ${bytesOf(`${scratch}/handles.csv`)}}, () => {})`);
  assert.equal(tuned.code, 0, tuned.error);
  assert.match(tuned.out, /tessera::/);
  const refused = await shown.value(`worker.run(["ranks", "handles.csv"], {}, () => {})`);
  assert.equal(refused.code, 2);
  assert.match(refused.error, /^tessera-replay: ranks: measures each file in a process of its own, which a page does not have$/m);

  // Nothing that is pasted or dropped does nothing.
  const before = await text("#answer");
  await shown.value("document.dispatchEvent(new ClipboardEvent('paste', {clipboardData: new DataTransfer()}))");
  await shown.value("document.dispatchEvent(new DragEvent('drop', {dataTransfer: new DataTransfer(), cancelable: true}))");
  assert.equal(await text("#answer"), before);

  // A second file ends the first.
  await shown.value(`void (window.first = playground.open(${bytesOf(`${scratch}/taken.pickle`)}, "first.pickle"))`);
  await shown.until("document.querySelector('#work').classList.contains('busy')");
  await expectAnswer(`${scratch}/trace.csv`);
  assert.equal(await shown.value("window.first.then((results) => results === undefined)"), true);

  // A run that is cancelled ends, and the next file is answered.
  await shown.value(`void playground.open(${bytesOf(`${scratch}/trace.csv`)}, "again.csv")`);
  await shown.value("playground.cancel()");
  assert.equal(await shown.value("document.querySelector('#work').classList.contains('busy')"), false);
  await expectAnswer(made("last.csv", readFileSync(`${scratch}/trace.csv`)));

  // The page fetches nothing but itself, and cannot.
  const foreign = shown.requests.filter((url) => !/^(file:|blob:|data:|about:)/.test(url));
  assert.deepEqual(foreign, []);
  assert.match(await shown.value("fetch('https://example.org/').then(() => 'fetched', (error) => 'refused')"), /refused/);
  assert.deepEqual(shown.problems, []);
  console.log(`${compared} answers are those of the tool`);
}

run().then(() => 0, (error) => (console.error(error.message), 1)).then((code) => {
  shown.process.on("exit", () => process.exit(code));
  shown.process.kill();
});
