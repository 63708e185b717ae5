# SPDX-License-Identifier: Apache-2.0
"""Checks ranks_dask.py on this machine: python3 check.py TOOL TRACES.

Starts a scheduler and two workers as processes, and ends one of the workers while it measures a snapshot. Exits with
77 if Dask's scheduler is not installed.
"""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

try:
    import distributed
except ImportError:
    print("SKIPPED: Dask's distributed scheduler (python3-distributed) is not installed")
    sys.exit(77)

import ranks_dask

RANKS = 8


def check(condition, what):
    if not condition:
        sys.exit(f"failed: {what}")


def make_snapshots(tool, traces, folder):
    """Writes a snapshot for each rank: beginnings of different lengths of a recorded program. One file is wrong."""
    lines = (traces / "gnn_sage.csv").read_text().splitlines(keepends=True)
    for rank in range(RANKS):
        trace = folder / "trace.csv"
        trace.write_text("".join(lines[: len(lines) // 4 + 500 * rank]))
        subprocess.run([tool, "snapshot", trace, "--at", "end", "--out", folder / f"rank{rank}.pickle"], check=True,
                       stdout=subprocess.DEVNULL)
        trace.unlink()
    (folder / f"rank{RANKS}.pickle").write_bytes(b"\x80\x04 is cut short")
    return [str(folder / f"rank{rank}.pickle") for rank in range(RANKS + 1)]


def wait_until(condition, what, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        check(time.monotonic() < end, f"{what} took longer than {seconds} seconds")
        time.sleep(0.02)


class Cluster:
    """A scheduler and workers, as processes."""

    def __init__(self, folder, workers):
        self.address = folder / "scheduler.json"
        self.log = open(folder / "log", "w", encoding="utf-8")
        self.folder = folder
        self.scheduler = self.start("scheduler", "--scheduler-file", self.address, "--host", "127.0.0.1", "--port", "0",
                                    "--no-dashboard")
        wait_until(self.address.exists, "the scheduler's start")
        self.workers = {name: self.start("worker", "--scheduler-file", self.address, "--host", "127.0.0.1", "--nthreads",
                                         "1", "--no-nanny", "--no-dashboard", "--name", name, "--local-directory",
                                         folder / name)
                        for name in workers}

    def start(self, kind, *words):
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *map(str, words)]
        # Workers import measure() from ranks_dask.
        paths = os.pathsep.join([str(pathlib.Path(ranks_dask.__file__).parent), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(command, stdout=self.log, stderr=self.log, cwd=self.folder,
                                env={**os.environ, "PYTHONPATH": paths})

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in [*self.workers.values(), self.scheduler]:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        self.log.close()


def measure_while_a_worker_dies(client, cluster, paths, tool, options):
    """Returns the lines, and how many tasks the worker that died was working on."""
    tasks = client.map(ranks_dask.measure, paths, tool=tool, options=options, retries=2, pure=False)
    addresses = {info["name"]: address for address, info in client.scheduler_info()["workers"].items()}
    working = lambda: client.processing().get(addresses["second"], ())
    wait_until(lambda: working() and any(task.done() for task in tasks), "the first result")
    lost = len(working())
    cluster.workers["second"].send_signal(signal.SIGKILL)
    cluster.workers["second"].wait()
    return client.gather(tasks), lost


def main():
    tool = str(pathlib.Path(sys.argv[1]).resolve())
    options = ["--conf", "expandable_segments:True", "--recipe", "pytorch"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        paths = make_snapshots(tool, pathlib.Path(sys.argv[2]), folder)
        with Cluster(folder, ["first", "second"]) as cluster:
            with distributed.Client(scheduler_file=str(cluster.address)) as client:
                client.wait_for_workers(2, timeout=120)
                lines, lost = measure_while_a_worker_dies(client, cluster, paths, tool, options)
                check(lost > 0, "the worker that died had no task")
                check(len(client.scheduler_info()["workers"]) == 1, "the worker did not die")

        alone = subprocess.run([tool, "ranks", *paths, "--jobs", "1", "--results", "-", *options], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        check(alone.returncode == ranks_dask.INPUT_IS_WRONG, "the wrong file is an error")
        check(sorted(lines) == sorted(alone.stdout.splitlines(keepends=True)), "the cluster's results differ")

        results = folder / "all.jsonl"
        check(ranks_dask.reduce(lines, results, tool, []) == ranks_dask.INPUT_IS_WRONG, "the exit code of the table")
        tables = [subprocess.run([tool, "ranks", "--json", *what, *options], text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL).stdout for what in ([results], paths)]
        check(tables[0] == tables[1], "the table of the cluster's results differs from that of the files")
        check('"rank": 7' in tables[0] and '"errors": 1' in tables[0], "the table lacks a rank or the error")
    print(f"{len(lines)} results are the same, although a worker died with {lost} tasks")


if __name__ == "__main__":
    main()
