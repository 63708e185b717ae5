// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace replay::page {

/// The script that finds what exists after an event.
inline constexpr const char* moments = R"js(
// What exists after an event.

/// Notes the blocks that exist after some events, so that those after any event are found quickly.
function noteAlive(all) {
  const {program: p, events, runs} = all;
  let over = p.death;  // when the last run ends each block
  if (runs.some(r => r.late)) {
    over = p.death.slice();
    for (const r of runs) if (r.late) for (let i = 0; i < p.count; ++i) if (r.end[i] > over[i]) over[i] = r.end[i];
  }
  const marks = Math.min(512, Math.ceil(events / 64)), most = 6e6;
  const notes = [];
  let alive = [], next = 0, total = 0;
  for (let k = 1; k < marks && total < most; ++k) {
    const event = Math.floor(events * k / marks);
    const kept = [];
    for (const s of alive) if (over[s] > event) kept.push(s);
    for (; next < p.count && p.birth[next] <= event; ++next) if (over[next] > event) kept.push(next);
    alive = kept;
    total += alive.length;
    notes.push({event, next, alive: Uint32Array.from(alive)});
  }
  all.notes = notes;
  all.noteEvents = Uint32Array.from(notes, n => n.event);
  // The blocks that live for many events, so that a picture of many events need not look at all others.
  all.long = [];
  for (const life of [64, 512, 4096, 32768]) {
    let count = 0;
    for (let i = 0; i < p.count; ++i) if (over[i] - p.birth[i] >= life) ++count;
    const slots = new Uint32Array(count), births = new Uint32Array(count);
    for (let i = 0, at = 0; i < p.count; ++i) {
      if (over[i] - p.birth[i] < life) continue;
      slots[at] = i;
      births[at++] = p.birth[i];
    }
    all.long.push({life, slots, births});
  }
}

/// Follows the blocks of a run that exist, from event to event, oldest first. What a picture needs of them lies side by
/// side in arrays of `count` elements.
class Follower {
  constructor(all, run, event, colorOf = null) {
    Object.assign(this, {all, run, event, colorOf, count: 0, nextEnd: NEVER});
    this.reserve(1024);
    for (const slot of aliveAt(all, run, event)) this.add(slot);
  }
  reserve(n) {
    const grown = (old, of) => { const made = new of(n); if (old) made.set(old); return made; };
    this.slots = grown(this.slots, Uint32Array);
    this.ends = grown(this.ends, Uint32Array);
    this.sizes = grown(this.sizes, Float64Array);
    this.heights = grown(this.heights, Float64Array);
    this.colors = grown(this.colors, Uint32Array);
  }
  add(slot) {
    if (this.count === this.slots.length) this.reserve(2 * this.count);
    const {run} = this, at = this.count++, end = run.end[slot];
    this.slots[at] = slot;
    this.ends[at] = end;
    this.sizes[at] = run.bytes[run.place[slot]];
    this.heights[at] = run.heights[run.place[slot]];
    if (this.colorOf) this.colors[at] = this.colorOf(slot);
    if (end < this.nextEnd) this.nextEnd = end;
  }
  /// Goes on to a later event.
  go(event) {
    const {all, run: {end, place}, event: since} = this, {birth} = all.program;
    if (event === since) return;
    this.event = event;
    if (this.nextEnd <= event) this.drop(event);
    // Of the blocks that begin long before the event, only long ones can exist after it.
    let from = since;
    for (let k = all.long.length - 1; k >= 0; --k) {
      const {life, slots, births} = all.long[k];
      if (event - since < 4 * life) continue;
      from = event - life;
      for (let i = above(births, since); i < births.length && births[i] <= from; ++i)
        if (end[slots[i]] > event && place[slots[i]]) this.add(slots[i]);
      break;
    }
    for (let slot = above(birth, from); slot < birth.length && birth[slot] <= event; ++slot)
      if (end[slot] > event && place[slot]) this.add(slot);
  }
  /// Removes the blocks that do not exist after an event.
  drop(event) {
    const {slots, ends, sizes, heights, colors, count} = this;
    let kept = 0, next = NEVER;
    for (let i = 0; i < count; ++i) {
      const end = ends[i];
      if (end <= event) continue;
      if (end < next) next = end;
      if (kept !== i) {
        slots[kept] = slots[i];
        ends[kept] = end;
        sizes[kept] = sizes[i];
        heights[kept] = heights[i];
        colors[kept] = colors[i];
      }
      ++kept;
    }
    this.count = kept;
    this.nextEnd = next;
  }
}

/// The blocks of a run that exist after an event, oldest first.
function aliveAt(all, run, event) {
  const {program: p, notes} = all, {end, place} = run;
  const k = above(all.noteEvents, event), note = k ? notes[k - 1] : {next: 0, alive: []}, alive = [];
  for (const s of note.alive) if (end[s] > event && place[s]) alive.push(s);
  for (let s = note.next; s < p.count && p.birth[s] <= event; ++s) if (end[s] > event && place[s]) alive.push(s);
  return alive;
}

/// The slots of blocks, sorted by address.
function byAddress(run, slots) {
  // A place is below 2^32 and a position below 2^21, so both fit in one number. Places are numbered by address.
  if (slots.length >= 2097152) return slots.slice().sort((a, b) => run.place[a] - run.place[b]);
  const keys = new Float64Array(slots.length);
  slots.forEach((s, i) => { keys[i] = run.place[s] * 2097152 + i; });
  keys.sort();
  return Array.from(keys, k => slots[k % 2097152]);
}

const LIVE = 0, PENDING = 1, KEPT = 2, IDLE = 3, ASLEEP = 4;

/// The memory map of a run after an event: the segments, and their cells in the order of addresses. Chunks of a range
/// that touch are one segment. A cell is a block, or free memory that is all releasable or all not.
///
/// Free memory is releasable if no block lies in its segment, or in its chunk of a range, and no private pool in use
/// owns it.
function mapAt(all, run, event) {
  const s = run.segments, blocks = byAddress(run, aliveAt(all, run, event)), segments = [], cells = [];
  const at = blocks.map(b => run.address[run.place[b]]);
  const sleeps = address => {
    const z = run.asleep;
    for (let i = 0; z && i < z.count; ++i)
      if (z.from[i] <= event && event < z.to[i] && z.address[i] <= address && address < z.address[i] + z.bytes[i]) return true;
    return false;
  };
  const sums = {reserved: 0, live: 0, pending: 0, kept: 0, idle: 0, asleep: 0, blocks: 0};
  const names = ["live", "pending", "kept", "idle", "asleep"];
  const here = [];
  for (const i of s.order) if (s.from[i] <= event && event < s.to[i]) here.push(i);
  let start = 0;
  for (let first = 0, last = 0; first < here.length; first = last) {
    const i = here[first], owner = run.owners[s.owner[i]], asleep = sleeps(s.address[i]);
    let end = s.address[i];
    do {
      end += s.bytes[here[last++]];
    } while (last < here.length && owner.range && s.owner[here[last]] === s.owner[i] && s.address[here[last]] === end
             && (!run.asleep || sleeps(s.address[here[last]]) === asleep));
    const segment = {address: s.address[i], bytes: end - s.address[i], owner, asleep, start, from: s.from[i], first: cells.length,
                     live: 0, kept: 0, blocks: 0};
    const held = run.uses.some(u => u.pool === owner.pool && u.from <= event && event < u.to);
    let chunk = first;
    const add = (is, bytes, slot) => {
      const before = cells[cells.length - 1];
      sums[names[is]] += bytes;
      if (is !== ASLEEP) sums.reserved += bytes;
      if (is === LIVE || is === PENDING) { segment.live += bytes; ++segment.blocks; sums.blocks += is === LIVE; }
      if (is === KEPT) segment.kept += bytes;
      if (slot < 0 && before && before.slot < 0 && before.is === is && before.segment === segment) before.bytes += bytes;
      else cells.push({is, bytes, slot, segment, start});
      start += bytes;
    };
    const addFree = (from, to) => {
      while (from < to) {
        while (s.address[here[chunk]] + s.bytes[here[chunk]] <= from) ++chunk;
        const begin = s.address[here[chunk]], until = Math.min(to, begin + s.bytes[here[chunk]]);
        const whole = !held && from === begin && until === begin + s.bytes[here[chunk]];
        add(asleep ? ASLEEP : whole ? IDLE : KEPT, until - from, -1);
        from = until;
      }
    };
    let place = s.address[i];
    for (let b = above(at, place - 1); b < at.length && at[b] < end; ++b) {
      addFree(place, at[b]);
      const slot = blocks[b], size = Math.min(run.bytes[run.place[slot]], end - Math.max(place, at[b]));
      add(asleep ? ASLEEP : event < run.freed[slot] ? LIVE : PENDING, size, slot);
      place = Math.max(place, at[b] + size);
    }
    addFree(place, end);
    segment.last = cells.length;
    segments.push(segment);
  }
  return {event, segments, cells, sums, total: start};
}

/// The used neighbours of a free cell in its segment: the positions of those before and after it.
function keepers(map, i) {
  const used = k => map.cells[k].is <= PENDING, {first, last} = map.cells[i].segment, found = [];
  for (let k = i - 1; k >= first; --k) if (used(k)) { found.push(k); break; }
  for (let k = i + 1; k < last; ++k) if (used(k)) { found.push(k); break; }
  return found;
}
)js";

}  // namespace replay::page
