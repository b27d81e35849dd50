#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""publish - one writer, one poller in another process: is a name ever seen early, in part, or not at once?

    publish.py [--names 1000] [--killed 100] [--passthrough on] [--work DIR]

The poller looks at the name that is being written all the time, and once more after the writer's close has returned.
Before every third name it has asked for it already, so that the kernel has cached the miss. Then as many writers as
--killed says are killed half-way, and must leave neither a name nor bytes.
"""
import argparse
import ctypes
import multiprocessing
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import content  # noqa: E402
import kv  # noqa: E402

SIZE = 50_000
ASK_FIRST, WRITING, CLOSING, CLOSED = range(4)


class Stage:
    """Where writer and poller are: which name, what the writer does to it, and what the poller has dealt with."""

    def __init__(self, fork):
        self.name = fork.Value(ctypes.c_long, -1, lock=False)
        self.step = fork.Value(ctypes.c_long, ASK_FIRST, lock=False)
        self.seen_by_poller = fork.Value(ctypes.c_long, -1, lock=False)
        self.done_by_poller = fork.Value(ctypes.c_long, -1, lock=False)


def write(directory, stage, count):
    for n in range(count):
        data = content.build(f"n{n}", 1, SIZE)
        stage.step.value, stage.name.value = ASK_FIRST, n
        if n % 3 == 0:
            kv.eventually(lambda n=n: stage.seen_by_poller.value == n, what="the poller has asked")
        stage.step.value = WRITING
        fd = os.open(f"{directory}/n{n}", os.O_WRONLY | os.O_CREAT, 0o644)
        for at in range(0, SIZE, SIZE // 5):
            kv.write_all(fd, data[at:at + SIZE // 5])
        stage.step.value = CLOSING
        os.close(fd)
        stage.step.value = CLOSED
        kv.eventually(lambda n=n: stage.done_by_poller.value == n, what="the poller has looked")


def look(directory, name, step, counts):
    """One look at a name; step is what the writer was doing before it."""
    counts["looks"] += 1
    try:
        data = kv.get(f"{directory}/{name}")
    except FileNotFoundError:
        counts["missing"] += step == CLOSED
        return False
    except AssertionError:
        counts["partial"] += 1
        return True
    try:
        content.check(data, name)
    except content.Wrong:
        counts["partial"] += 1
    return True


def poll(directory, stage, count, results):
    counts = dict.fromkeys(("looks", "early", "partial", "missing"), 0)
    for n in range(count):
        while stage.name.value != n:
            os.sched_yield()
        while True:
            step = stage.step.value
            visible = look(directory, f"n{n}", step, counts)
            if visible and stage.step.value < CLOSING:
                counts["early"] += 1
                print(f"n{n} was seen early", file=sys.stderr)
            stage.seen_by_poller.value = n
            if step == CLOSED:
                break
        stage.done_by_poller.value = n
    results.put(counts)


def killed_writer(directory, name):
    fd = os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CREAT, 0o644)
    kv.write_all(fd, content.build(name, 1, SIZE)[:SIZE // 2])
    os.kill(os.getpid(), signal.SIGKILL)


def kill_writers(daemon, fork, count):
    """Names that appeared although their writer was killed."""
    free, appeared = daemon.free_bytes(), 0
    for n in range(count):
        process = fork.Process(target=killed_writer, args=(daemon.path, f"killed{n}"))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        appeared += kv.exists(daemon.path / f"killed{n}")
    kv.eventually(lambda: daemon.free_bytes() >= free, what="the killed writers' bytes are free")
    return appeared + sum(name.startswith("killed") for name in os.listdir(daemon.path))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", type=int, default=1000)
    parser.add_argument("--killed", type=int, default=100)
    parser.add_argument("--passthrough", default="on")
    parser.add_argument("--work")
    given = parser.parse_args()
    fork = multiprocessing.get_context("fork")
    with kv.scratch_daemon(given.work, passthrough=given.passthrough) as daemon:
        stage, results = Stage(fork), fork.SimpleQueue()
        processes = [fork.Process(target=write, args=(daemon.path, stage, given.names)),
                     fork.Process(target=poll, args=(daemon.path, stage, given.names, results))]
        for process in processes:
            process.start()
        processes[0].join()
        if processes[0].exitcode:
            processes[1].kill()
            return 1
        counts = results.get()
        processes[1].join()
        counts["killed_published"] = kill_writers(daemon, fork, given.killed)
    print(*(f"{name}={value}" for name, value in counts.items()))
    return 1 if any(value for name, value in counts.items() if name != "looks") else 0


if __name__ == "__main__":
    sys.exit(main())
