# SPDX-License-Identifier: Apache-2.0
"""Measures the ranks of a job on a Dask cluster, and makes one table and picture of them.

    python3 ranks_dask.py --scheduler tcp://host:8786 --results ranks.jsonl --out ranks.html /job/rank*.pickle

Each snapshot is one task, which prints one line of JSON. Workers need the snapshots and tessera-replay at the same
paths, as on a shared file system. If a worker dies, Dask repeats its task elsewhere: a task writes no file, and the
same file gives the same line. Any other engine that runs a command for each file can do the same.
"""
import argparse
import subprocess
import sys

INPUT_IS_WRONG = 2  # the exit code; the line then holds the error


def measure(path, tool, options):
    """Measures one snapshot. Returns its line of JSON."""
    command = [tool, "ranks", path, "--jobs", "1", "--results", "-", *options]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not 0 <= made.returncode <= INPUT_IS_WRONG or not made.stdout.startswith("{"):
        raise RuntimeError(f"{path}: exit code {made.returncode}: {made.stderr.strip()}")
    return made.stdout


def measure_all(client, paths, tool, options):
    """Measures snapshots on the cluster. Returns their lines in the order of the paths."""
    from distributed import as_completed

    tasks = client.map(measure, paths, tool=tool, options=options, retries=2, pure=False)
    for done, _ in enumerate(as_completed(tasks), 1):
        print(f"{done} of {len(tasks)} snapshots", file=sys.stderr)
    return client.gather(tasks)


def reduce(lines, results, tool, options):
    """Prints the table of all ranks. Returns the tool's exit code."""
    with open(results, "w", encoding="utf-8") as file:
        file.writelines(lines)
    return subprocess.run([tool, "ranks", results, *options]).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshots", nargs="+")
    parser.add_argument("--scheduler", required=True, help="its address")
    parser.add_argument("--tool", default="tessera-replay", help="the path of tessera-replay on the workers")
    parser.add_argument("--results", default="ranks.jsonl", help="the file for the lines of all snapshots")
    parser.add_argument("--conf", action="append", default=[], help="a setting to try; may be repeated")
    parser.add_argument("--capacity", help="of the devices, as in 80GiB")
    parser.add_argument("--out", help="the picture, .svg or .html")
    args = parser.parse_args()
    try:
        from distributed import Client
    except ImportError:
        sys.exit("ranks_dask.py: Dask's distributed scheduler is not installed")
    capacity = ["--capacity", args.capacity] if args.capacity else []
    settings = [word for conf in args.conf for word in ("--conf", conf)]
    with Client(args.scheduler) as client:
        lines = measure_all(client, args.snapshots, args.tool, capacity + settings)
    out = ["--out", args.out] if args.out else []
    return reduce(lines, args.results, args.tool, capacity + out)


if __name__ == "__main__":
    sys.exit(main())
