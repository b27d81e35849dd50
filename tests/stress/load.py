#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""load - readers and writers on one directory: overwrites, renames, links, unlinks, while the mount evicts.

Every reader and writer is a process. A writer owns some of the names, so the versions of a name only grow; a reader
that sees bytes nobody published, a short read, or a version older than one it has seen, has found a fault.

    load.py [--seconds 60] [--readers 64] [--writers 16] [--names 400] [--ram 64M] [--passthrough on] [--work DIR]

starts a daemon of its own and loads it; exit status 1 when there was a fault. Rerun a fault with its --seed.
"""
import argparse
import contextlib
import errno
import mmap
import multiprocessing
import os
import pathlib
import random
import signal
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import content  # noqa: E402
import kv  # noqa: E402

SIZES = (content.SMALLEST, 1000, 4096, 16_384, 65_536, 262_144, 1_000_000)
GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENODEV)


class Faults(list):
    """What went wrong in one process; too many are one too many."""

    def add(self, text):
        if len(self) < 20:
            self.append(text)


class Journal:
    """What a process did and saw, for whoever checks after a crash; None writes nothing."""

    def __init__(self, path):
        self._fd = path and os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, what, name, version):
        if self._fd:
            os.write(self._fd, f"{what} {name} {version}\n".encode())


class Worker:
    def __init__(self, plan, number):
        self.plan, self.number = plan, number
        self.random = random.Random(f"{plan.seed}/{type(self).__name__}/{number}")
        self.faults, self.count = Faults(), 0
        self.journal = Journal(plan.journals and f"{plan.journals}/{type(self).__name__}{number}")

    def path(self, name):
        return f"{self.plan.directory}/{name}"

    def fault_of(self, error):
        where = traceback.extract_tb(error.__traceback__)[1:]
        self.faults.add(f"{type(self).__name__}{self.number}: {error!r} in {', '.join(f.name for f in where)}")

    def run(self, result):
        deadline = time.monotonic() + self.plan.seconds
        try:
            while time.monotonic() < deadline and len(self.faults) < 20:
                try:
                    self.step()
                except FileNotFoundError:
                    pass  # evicted, or removed by its owner
                self.count += 1
        except OSError as error:
            if not (self.plan.will_crash and error.errno in GONE):
                self.fault_of(error)
        except Exception as error:  # whatever it is, the others are not to wait for this process for ever
            self.fault_of(error)
        result.send((type(self).__name__, self.count, list(self.faults)))


class Reader(Worker):
    def __init__(self, plan, number):
        super().__init__(plan, number)
        self.seen = {}
        self.ways = [self.whole, self.pieces, self.mapped, self.twice]

    def step(self):
        name = f"k{self.random.randrange(self.plan.names)}"
        fd = os.open(self.path(name), os.O_RDONLY)
        try:
            version = content.check(self.random.choice(self.ways)(fd), name)
        except (content.Wrong, AssertionError) as wrong:
            if self.plan.will_crash:
                os.statvfs(self.plan.directory)  # a read that was under way when the daemon died may be short
            self.faults.add(f"reader: {wrong}")
            return
        finally:
            os.close(fd)
        if version < self.seen.get(name, 0):
            self.faults.add(f"reader: {name} went back from version {self.seen[name]} to {version}")
        if version != self.seen.get(name):
            self.seen[name] = version
            self.journal.note("seen", name, version)

    def whole(self, fd):
        return kv.read_all(fd)

    def pieces(self, fd):
        data = b""
        while piece := os.read(fd, self.random.choice((100, 4096, 70_000))):
            data += piece
        return data

    def mapped(self, fd):
        with mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ) as mapping:
            return mapping[:]

    def twice(self, fd):
        first = kv.read_all(fd)
        if kv.read_all(fd) != first:
            raise content.Wrong("an open file has changed")
        return first


class Writer(Worker):
    """Its steps note an intent before and "done" after what a crash can no longer undo."""

    def __init__(self, plan, number):
        super().__init__(plan, number)
        self.version = plan.first_version
        self.state = {}  # name: version, None when removed; missing when not touched
        self.ways = [self.rename_after_close] * 6 + [self.rename_before_close] * 4 + [self.in_place] * 5 + [
            self.rewrite] * 2 + [self.publish_by_link] * 2 + [self.unlink] * 2

    def step(self):
        name = f"k{self.random.randrange(self.number, self.plan.names, self.plan.writers)}"
        self.version += 1
        way = self.random.choice(self.ways)
        version = None if way == self.unlink else self.version
        self.journal.note("intent", name, version)
        self.state.pop(name, None)
        data = content.build(name, self.version, self.random.choice(SIZES))
        final = way(name, data)
        self.state[name] = version
        if final:
            self.journal.note("done", name, version)
        self.look(name, version)

    def look(self, name, version):
        """What was just stored is what is there, unless it was evicted."""
        try:
            found = content.check(kv.get(self.path(name)), name)
        except FileNotFoundError:
            if version is not None and not self.plan.evicting:
                self.faults.add(f"writer: {name} version {version} is missing")
            return
        except content.Wrong as wrong:
            self.faults.add(f"writer: {wrong}")
            return
        if found != version:
            self.faults.add(f"writer: {name} is version {found} and not {version}")

    def temporary(self, name):
        return self.path(f"{name}.tmp{self.number}")

    def rename_after_close(self, name, data):
        kv.put(self.temporary(name), data)
        os.replace(self.temporary(name), self.path(name))
        return True

    def rename_before_close(self, name, data):
        fd = os.open(self.temporary(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            kv.write_all(fd, data)
            os.replace(self.temporary(name), self.path(name))
        finally:
            os.close(fd)
        return True

    def in_place(self, name, data):
        kv.put(self.path(name), data)
        return False

    def rewrite(self, name, data):
        """Change without O_TRUNC, in two writes."""
        fd = os.open(self.path(name), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.ftruncate(fd, len(data))
            half = len(data) // 2
            for at, part in ((half, data[half:]), (0, data[:half])):
                done = os.pwrite(fd, part, at)
                if done != len(part):
                    os.pwrite(fd, part[done:], at + done)  # the mount may have died in the middle
                    self.faults.add(f"writer: short write to {name}")
        finally:
            os.close(fd)
        return False

    def publish_by_link(self, name, data):
        self.journal.note("intent", name, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(name))
        kv.put(self.temporary(name), data)
        os.link(self.temporary(name), self.path(name))
        os.unlink(self.temporary(name))
        return True

    def unlink(self, name, _):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(name))
        return True


class Plan:
    """What the processes are to do."""

    def __init__(self, directory, **given):
        self.directory = directory
        self.seconds, self.readers, self.writers, self.names = 10, 8, 4, 100
        self.seed, self.first_version, self.journals = 0, 0, None
        self.evicting = True  # a key may vanish
        self.will_crash = False  # the mount may vanish
        self.__dict__.update(given)


def start(plan):
    """Start the processes; returns those, each with the end of a pipe where its result comes."""
    fork = multiprocessing.get_context("fork")
    workers = [Writer(plan, n) for n in range(plan.writers)] + [Reader(plan, n) for n in range(plan.readers)]
    processes = []
    for worker in workers:
        here, there = fork.Pipe(duplex=False)
        process = fork.Process(target=worker.run, args=(there,))
        process.start()
        there.close()
        processes.append((process, here))
    return processes


def finish(plan, processes):
    """Wait for all; returns (steps by kind, faults)."""
    steps, faults = {}, []
    for process, result in processes:
        with contextlib.suppress(EOFError), result:
            kind, count, found = result.recv()
            steps[kind] = steps.get(kind, 0) + count
            faults += found
        process.join()
        # With the daemon go the pages of a mapping, unless they are the memory tier's own.
        if process.exitcode and not (plan.will_crash and process.exitcode == -signal.SIGBUS):
            faults.append(f"a process ended with {process.exitcode}")
    return steps, faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--readers", type=int, default=64)
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--names", type=int, default=400)
    parser.add_argument("--ram", default="64M")
    parser.add_argument("--passthrough", default="on")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--work")
    given = parser.parse_args()
    with kv.scratch_daemon(given.work, ram_size=given.ram, passthrough=given.passthrough) as daemon:
        plan = Plan(daemon.path, seconds=given.seconds, readers=given.readers, writers=given.writers,
                    names=given.names, seed=given.seed)
        steps, faults = finish(plan, start(plan))
        evicted = kv.counter(daemon.path, "evicted_total")
    print(f"seed={given.seed} reads={steps['Reader']} writes={steps['Writer']} evicted={evicted} faults={len(faults)}")
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
