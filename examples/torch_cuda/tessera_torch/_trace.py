# SPDX-License-Identifier: Apache-2.0
"""Converts PyTorch's snapshots to traces of tessera, as tessera-replay does when it reads a snapshot."""


def to_csv(snapshot, device):
    """The history of a device as the text of a trace, beginning with the blocks that are live at its start.

    A block is freed when its free completes, because a snapshot does not say which streams use it.
    """
    traces = snapshot["device_traces"]
    trace = traces[device] if device < len(traces) else []
    began = trace[0].get("time_us", 0) if trace else 0
    lines, ids, made = ["op,id,bytes,stream,t_us"], {}, 0

    def add(op, number, size, stream, time):
        lines.append(f"{op},{number},{size},{stream % 2**64},{max(time - began, 0)}")

    for address, (size, stream) in sorted(_blocks_at_start(snapshot, trace, device).items()):
        ids[address], made = made, made + 1
        add("a", ids[address], size, stream, began)
    has_released = False
    for entry in trace:
        action, size, stream, time = entry["action"], entry["size"], entry["stream"], entry.get("time_us", 0)
        # Segments that were released before a request for memory may have been released by the allocator itself.
        is_release = action in ("segment_free", "segment_unmap")
        if has_released and not is_release and action not in ("segment_alloc", "segment_map", "oom"):
            add("c", 0, 0, 0, time)
        has_released = is_release
        if action == "alloc" and size > 0:
            ids[entry["addr"]], made = made, made + 1
            add("a", ids[entry["addr"]], size, stream, time)
        elif action == "free_completed" and entry["addr"] in ids:
            add("f", ids.pop(entry["addr"]), 0, stream, time)
        elif action == "oom" and size > 0:
            add("o", made, size, stream, time)
            made += 1
    if has_released:
        add("c", 0, 0, 0, trace[-1].get("time_us", 0))
    return "\n".join(lines) + "\n"


def _blocks_at_start(snapshot, trace, device):
    """The requested bytes and the streams of the blocks that are live when the history begins, by address.

    They are freed without an allocation before, or live at the end without an event.
    """
    found, seen = {}, set()
    for entry in trace:
        if entry["action"] not in ("alloc", "free_requested", "free_completed"):
            continue
        address = entry["addr"]
        if address not in seen and entry["action"] != "alloc":
            found[address] = entry["size"], entry["stream"]
        seen.add(address)
    for segment in snapshot["segments"]:
        if segment["device"] != device:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive" and address not in seen:
                requested = block.get("requested_size", 0)
                found[address] = requested if 0 < requested <= block["size"] else block["size"], segment["stream"]
            address += block["size"]
    return found
