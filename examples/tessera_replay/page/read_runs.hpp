// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace replay::page {

/// The script that reads the data of a page.
inline constexpr const char* read_runs = R"js(
// Runs as typed arrays. Events are numbered from 0; what exists from event `from` to event `to` exists after event
// `from`, and does not exist after event `to`. An event NEVER does not come.
const NEVER = 4294967295;

/// Fills an array with the numbers of a column: seven bits a byte, the lowest first, as base64.
function column(text, into) {
  const raw = atob(text);
  for (let i = 0, at = 0; i < into.length; ++i) {
    let byte = raw.charCodeAt(at++), n = byte & 127;
    for (let scale = 128; byte > 127; scale *= 128) {
      byte = raw.charCodeAt(at++);
      n += (byte & 127) * scale;
    }
    into[i] = n;
  }
  return into;
}
/// Replaces differences by their sums, in place.
function sums(of) {
  for (let i = 1; i < of.length; ++i) of[i] += of[i - 1];
  return of;
}
/// The same for differences of either sign, whose lowest bit is the sign.
function signedSums(of) {
  for (let i = 0, sum = 0; i < of.length; ++i) of[i] = sum += of[i] % 2 ? -(of[i] + 1) / 2 : of[i] / 2;
  return of;
}
/// Replaces lengths by ends, in place. A length of 0 means NEVER.
function ends(from, lengths) {
  for (let i = 0; i < lengths.length; ++i) lengths[i] = lengths[i] ? from[i] + lengths[i] : NEVER;
  return lengths;
}
/// The position of the first element of a sorted array that is above a number.
function above(sorted, n, low = 0, high = sorted.length) {
  while (low < high) {
    const half = (low + high) >> 1;
    if (sorted[half] <= n) low = half + 1; else high = half;
  }
  return low;
}

/// Names streams. A handle that is an address becomes a number, in the order of appearance, that no other stream has.
function streamNames(data) {
  const handles = [...data.blocks.kinds.map(([, stream]) => stream), ...data.runs.flatMap(r => r.owners.map(([stream]) => stream))];
  const isAddress = handle => handle >= 100000;
  const taken = new Set(handles.filter(h => !isAddress(h))), names = new Map();
  let last = 0;
  for (const handle of handles) {
    if (!isAddress(handle) || names.has(handle)) continue;
    do ++last; while (taken.has(last));
    names.set(handle, String(last));
  }
  return handle => names.get(handle) ?? String(handle);
}

/// The allocations of the program, which all runs share.
function readProgram(data, nameOf) {
  const b = data.blocks, n = b.count;
  const birth = sums(column(b.births, new Uint32Array(n)));
  const program = {
    count: n, birth, death: ends(birth, column(b.lives, new Uint32Array(n))), kind: column(b.kind, new Uint32Array(n)),
    kinds: b.kinds.map(([bytes, stream, stack, label]) => ({bytes, stream: nameOf(stream), handle: stream, stack, label: data.labels?.[label] ?? ""})),
    id: slot => slot,
  };
  for (const k of program.kinds) {
    const stack = data.stacks?.[k.stack] || [0];
    k.line = data.lines?.[stack[0]] ?? "";
    k.calls = stack.slice(1).map(f => data.frames[f]);
  }
  if (typeof b.ids === "string") {
    const ids = signedSums(column(b.ids, new Float64Array(n)));
    program.id = slot => ids[slot];
  } else if (b.ids) {
    program.id = slot => b.ids[slot];
  }
  program.counts = new Uint32Array(program.kinds.length);
  program.weights = new Float64Array(program.kinds.length);  // byte-events
  for (let s = 0; s < n; ++s) {
    ++program.counts[program.kind[s]];
    program.weights[program.kind[s]] += program.kinds[program.kind[s]].bytes * (Math.min(program.death[s], data.events) - birth[s]);
  }
  program.requested = sumOver(data.events, add => {
    for (let s = 0; s < n; ++s) add(birth[s], program.death[s], program.kinds[program.kind[s]].bytes);
  });
  return program;
}

/// The sum of the bytes that exist after each event. `list` calls add(from, to, bytes) for each of them.
function sumOver(events, list) {
  const all = new Float64Array(events + 1);
  list((from, to, bytes) => {
    all[from] += bytes;
    if (to < events) all[to] -= bytes;
  });
  return sums(all).subarray(0, events);
}

function readSpans(s) {
  const from = signedSums(column(s.from, new Float64Array(s.count)));
  return {count: s.count, from, to: ends(from, column(s.lives, new Float64Array(s.count))),
          address: signedSums(column(s.addresses, new Float64Array(s.count))),
          bytes: column(s.sizes, new Float64Array(s.count)),
          owner: s.owner ? column(s.owner, new Uint32Array(s.count)) : null};
}

function readRun(data, program, r, nameOf) {
  const b = r.blocks, run = {name: r.name, is: r.is, failures: r.failures, moment: r.moment};
  run.hex = address => "0x" + (BigInt(r.base) + BigInt(address)).toString(16);
  // Place 0 is that of a failed allocation.
  run.address = new Float64Array(b.places + 1);
  run.address.set(sums(column(b.addresses, new Float64Array(b.places))), 1);
  run.bytes = new Float64Array(b.places + 1);
  run.bytes.set(column(b.sizes, new Float64Array(b.places)), 1);
  run.place = column(b.place, new Uint32Array(program.count));
  // Until a block's free completes, `end`, it is pending from `freed` on.
  run.freed = run.end = program.death;
  run.late = b.late || 0;
  if (b.late) {
    run.freed = run.end.slice();
    run.end = run.end.slice();
    const slots = sums(column(b.lateSlots, new Uint32Array(b.late)));
    const lives = column(b.lateLives, new Uint32Array(b.late)), over = column(b.lateEnds, new Uint32Array(b.late));
    slots.forEach((slot, i) => {
      run.freed[slot] = lives[i] ? program.birth[slot] + lives[i] : NEVER;
      run.end[slot] = over[i] ? program.birth[slot] + over[i] : NEVER;
    });
  }
  run.owners = r.owners.map(([stream, pool, range]) => ({stream: nameOf(stream), pool: String(pool), range: !!range}));
  run.uses = (r.uses || []).map(([pool, from, to]) => ({pool: String(pool), from, to}));  // of private pools
  const s = run.segments = readSpans(r.segments);
  run.asleep = r.asleep ? readSpans(r.asleep) : null;

  const over = spans => sumOver(data.events, add => {
    for (let i = 0; i < spans.count; ++i) add(spans.from[i], spans.to[i], spans.bytes[i]);
  });
  const blocks = to => sumOver(data.events, add => {
    for (let i = 0; i < program.count; ++i) add(program.birth[i], to[i], run.bytes[run.place[i]]);
  });
  // Sums in bytes. Pending blocks are active, and not live.
  run.active = blocks(run.end);
  run.live = run.late ? blocks(run.freed) : run.active;
  run.reserved = over(s);
  if (run.asleep) {
    run.sleeping = over(run.asleep);
    run.reserved = run.reserved.map((n, i) => n - run.sleeping[i]);
  }
  for (const name of ["active", "reserved"]) run[name + "Peaks"] = extremes(run[name]);

  // The order of a map: by private pool, stream and address.
  const rank = run.owners.map((o, i) => i).sort((a, b) => {
    const [x, y] = [run.owners[a], run.owners[b]];
    return x.pool - y.pool || x.stream - y.stream || x.range - y.range;
  });
  const place = [];
  rank.forEach((owner, i) => { place[owner] = i; });
  s.order = Uint32Array.from({length: s.count}, (_, i) => i)
    .sort((a, b) => place[s.owner[a]] - place[s.owner[b]] || s.address[a] - s.address[b]);
  layOut(run);
  return run;
}

/// Gives each address a height. Segments that overlap, and chunks that touch, are one area, since addresses are used
/// again. Areas lie at the lowest height that is free while they exist, so that the picture is about as high as the memory
/// that exists at a time; areas of ranges lie above the others.
function layOut(run) {
  const s = run.segments, order = Uint32Array.from({length: s.count}, (_, i) => i).sort((a, b) => s.address[a] - s.address[b]);
  run.byBegin = Uint32Array.from(order).sort((a, b) => s.from[a] - s.from[b]);
  const areas = [];
  for (const i of order) {
    const range = run.owners[s.owner[i]].range, end = s.address[i] + s.bytes[i], last = areas[areas.length - 1];
    if (last && last.range === range && (s.address[i] < last.end || (range && s.address[i] === last.end))) {
      last.end = Math.max(last.end, end);
      last.from = Math.min(last.from, s.from[i]);
      last.to = Math.max(last.to, s.to[i]);
    } else {
      areas.push({begin: s.address[i], end, from: s.from[i], to: s.to[i], range, height: 0});
    }
  }
  run.height = 0;
  const most = 50000;  // areas that are packed; more would take long
  for (const range of [false, true]) {
    const mine = areas.filter(a => a.range === range).sort((a, b) => a.from - b.from), base = run.height;
    let placed = [];  // by height
    for (const area of mine) {
      const size = area.end - area.begin;
      if (mine.length > most) { area.height = run.height; run.height += size; continue; }
      placed = placed.filter(a => a.to > area.from);
      let at = base, i = 0;
      for (; i < placed.length && placed[i].height - at < size; ++i) at = placed[i].height + placed[i].end - placed[i].begin;
      area.height = at;
      placed.splice(i, 0, area);
      run.height = Math.max(run.height, at + size);
    }
  }
  const begins = Float64Array.from(areas, a => a.begin);
  run.heightOf = address => {
    const i = above(begins, address) - 1;
    return i < 0 ? 0 : areas[i].height + address - areas[i].begin;
  };
  s.height = s.address.map(run.heightOf);
  run.heights = run.address.map(run.heightOf);
}

/// The positions of the least and greatest elements of each 8, 64, 512 ... elements.
function extremes(of) {
  const levels = [];
  let low = null, high = null;
  for (let n = of.length; n > 8; ) {
    n = Math.ceil(n / 8);
    const least = new Uint32Array(n), most = new Uint32Array(n);
    for (let i = 0; i < n; ++i) {
      const last = Math.min(low ? low.length : of.length, 8 * i + 8);
      let a = low ? low[8 * i] : 8 * i, b = high ? high[8 * i] : 8 * i;
      for (let k = 8 * i + 1; k < last; ++k) {
        const x = low ? low[k] : k, y = high ? high[k] : k;
        if (of[x] < of[a]) a = x;
        if (of[y] > of[b]) b = y;
      }
      least[i] = a;
      most[i] = b;
    }
    levels.push({least, most});
    low = least;
    high = most;
  }
  return levels;
}
/// The positions of the least and the greatest element from `first` to `last`, the first ones if several are equal.
function extremesIn(of, levels, first, last) {
  let least = first, most = first;
  for (let at = first; at <= last; ) {
    let level = -1, width = 1;
    while (level + 1 < levels.length && (at & (8 * width - 1)) === 0 && at + 8 * width - 1 <= last) {
      ++level;
      width *= 8;
    }
    const a = level < 0 ? at : levels[level].least[at / width], b = level < 0 ? at : levels[level].most[at / width];
    if (of[a] < of[least]) least = a;
    if (of[b] > of[most]) most = b;
    at += width;
  }
  return [least, most];
}

/// All data of a page.
function readRuns(data) {
  const nameOf = streamNames(data), program = readProgram(data, nameOf);
  const all = {title: data.title, events: data.events, first: Math.max(0, Math.min(data.start - 1, data.events - 1)),
               start: data.start, peak: data.peak, note: data.note, program, hasLines: program.kinds.some(k => k.line),
               hasLabels: program.kinds.some(k => k.label)};
  all.times = data.times ? sums(column(data.times, new Float64Array(data.events))) : null;
  all.runs = data.runs.map(r => readRun(data, program, r, nameOf));
  program.requestedPeaks = extremes(program.requested);
  noteAlive(all);
  return all;
}
)js";

}  // namespace replay::page
