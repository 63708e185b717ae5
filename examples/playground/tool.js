// SPDX-License-Identifier: Apache-2.0
// Runs the tool, which is a WebAssembly module, as a worker. A message is {module} or {id, words, files: {path: bytes}}.
// Each run has a new instance, so that nothing of one run is left in the next.
"use strict";

/** Ends a run; `code` is the exit code. */
class exited extends Error {
  constructor(code) {
    super("exit code " + code);
    this.code = code;
  }
}

/**
 * Runs the tool once.
 * @param {WebAssembly.Module} module
 * @param {string[]} words the command line, without the name of the tool
 * @param {Map<string, Uint8Array>} files those that the tool can read; those that it writes are added
 * @param {(line: string) => void} progress receives what a terminal would show while the tool works
 * @returns {{code: number, out: string, error: string}} the exit code, and what the tool printed
 */
function runTool(module, words, files, progress) {
  const printed = {1: [], 2: []};
  const utf8 = new TextEncoder();
  const fromUtf8 = new TextDecoder();
  const args = ["tessera-replay", ...words].map((word) => utf8.encode(word + "\0"));
  let memory;

  // Pointers and sizes come as BigInt, because the module's addresses have 64 bits.
  const bytes = (at, count) => new Uint8Array(memory.buffer, Number(at), Number(count));
  const setWord = (at, value) => new DataView(memory.buffer).setBigUint64(Number(at), BigInt(value), true);
  const word = (at) => Number(new DataView(memory.buffer).getBigUint64(Number(at), true));
  const text = (at) => {
    const all = new Uint8Array(memory.buffer);
    return fromUtf8.decode(all.slice(Number(at), all.indexOf(0, Number(at))));
  };

  const wasi = {
    args_sizes_get(count, size) {
      setWord(count, args.length);
      setWord(size, args.reduce((sum, arg) => sum + arg.length, 0));
      return 0;
    },
    args_get(pointers, to) {
      let at = Number(to);
      args.forEach((arg, i) => {
        setWord(Number(pointers) + 8 * i, at);
        bytes(at, arg.length).set(arg);
        at += arg.length;
      });
      return 0;
    },
    environ_sizes_get(count, size) {
      setWord(count, 0);
      setWord(size, 0);
      return 0;
    },
    environ_get: () => 0,
    clock_time_get(clock, precision, to) {
      const ms = clock === 0 ? Date.now() : performance.now();
      new DataView(memory.buffer).setBigUint64(Number(to), BigInt(Math.round(ms * 1e6)), true);
      return 0;
    },
    fd_write(file, buffers, count, written) {
      let total = 0;
      for (let i = 0; i < Number(count); ++i) {
        const part = bytes(word(Number(buffers) + 16 * i), word(Number(buffers) + 16 * i + 8)).slice();
        total += part.length;
        printed[file].push(part);
        if (file === 2 && part.length) progress(fromUtf8.decode(part));
      }
      setWord(written, total);
      return 0;
    },
    fd_fdstat_get(file, to) {
      bytes(to, 24).fill(0);
      bytes(to, 1)[0] = file === 2 ? 2 : 4;  // a terminal, or a file
      return 0;
    },
    proc_exit(code) {
      throw new exited(Number(code));
    },
  };
  const page = {
    size: (path) => files.get(text(path))?.length ?? -1,
    read(path, offset, to, count) {
      const part = files.get(text(path)).subarray(offset, offset + count);
      bytes(to, part.length).set(part);
      return part.length;
    },
    write(path, from, count) {
      const name = text(path);
      const before = files.get(name);
      const all = new Uint8Array(before.length + count);
      all.set(before);
      all.set(bytes(from, count), before.length);
      files.set(name, all);
    },
    create: (path) => files.set(text(path), new Uint8Array()),
    rename(path, to) {
      const name = text(path);
      if (Number(to) !== 0) files.set(text(to), files.get(name));
      files.delete(name);
    },
  };
  const known = {wasi_snapshot_preview1: wasi, page, env: {emscripten_notify_memory_growth() {}}};
  const imports = {};
  for (const {module: from, name} of WebAssembly.Module.imports(module))
    (imports[from] ??= {})[name] = known[from]?.[name] ?? (() => { throw new Error(`the page has no ${name}`); });

  const output = (file) => fromUtf8.decode(concatenated(printed[file]));
  const finished = (code) => ({code, out: output(1), error: lastShown(output(2))});
  try {
    const {exports} = new WebAssembly.Instance(module, imports);
    memory = exports.memory;
    exports._start();
    return finished(0);
  } catch (error) {
    if (error instanceof exited) return finished(error.code);
    const isMemory = error instanceof RangeError && /alloc|memory/i.test(error.message);
    const reason = isMemory ? "the browser gives no more memory to this page: " : "the tool stopped: ";
    return {code: 2, out: "", error: "tessera-replay: " + reason + error.message};
  }
}

/** What a terminal shows in the end: a line that begins with \r replaces the one before. */
function lastShown(shown) {
  return shown
    .split("\n")
    .map((line) => line.slice(line.lastIndexOf("\r") + 1).replaceAll("\x1b[K", ""))
    .join("\n");
}

function concatenated(parts) {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

if (typeof self !== "undefined" && typeof document === "undefined") {
  let module;
  self.onmessage = ({data}) => {
    if (data.module) module = data.module;
    if (!data.words) return;
    const files = new Map(Object.entries(data.files));
    const begin = performance.now();
    const result = runTool(module, data.words, files, (line) => {
      const shown = lastShown(line).trim();
      if (shown) self.postMessage({id: data.id, progress: shown});
    });
    result.ms = performance.now() - begin;
    for (const path of Object.keys(data.files)) files.delete(path);
    result.files = Object.fromEntries([...files].map(([path, bytes]) => [path, new TextDecoder().decode(bytes)]));
    self.postMessage({id: data.id, result});
  };
}
