#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""keys - many keys in one directory: what each costs against few, and what the daemon keeps of those nobody uses.

    keys.py [--keys 1000000] [--few 1000] [--ram 8G] [--work DIR] [--slower 1.5] [--grown 64]

Prints the time per create, stat, miss and unlink with few and with many keys there, and the daemon's resident memory before,
after a walk over all keys, and after the kernel has dropped its caches. Exit status 1 when many keys make a step more
than --slower times as slow, or more than --grown MiB stay.
"""
import argparse
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import kv  # noqa: E402

SAMPLE = 1000


def resident_mib(daemon):
    status = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def drop_caches():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("2\n")


def create(directory, first, count):
    for n in range(first, first + count):
        os.close(os.open(f"{directory}/{n:016x}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))


def stat(directory, first, count):
    for n in range(first, first + count):
        os.stat(f"{directory}/{n:016x}")


def miss(directory, first, count):
    for n in range(first, first + count):
        os.path.exists(f"{directory}/missing{n:016x}")


def unlink(directory, first, count):
    for n in range(first, first + count):
        os.unlink(f"{directory}/{n:016x}")


def per_call_us(function, *args):
    started = time.perf_counter()
    function(*args)
    return (time.perf_counter() - started) / args[-1] * 1e6


def measure(directory, first):
    """Time per call with the keys that are there, the best of five; leaves the directory as it was."""
    best = {}
    for turn in range(5):
        at = first + turn * SAMPLE
        for function in (create, stat, miss, unlink):
            spent = per_call_us(function, directory, at, SAMPLE)
            best[function.__name__] = min(best.get(function.__name__, spent), spent)
    return best


def walk(directory):
    seen = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            entry.stat(follow_symlinks=False)
            seen += 1
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--few", type=int, default=1000)
    parser.add_argument("--ram", default="8G")
    parser.add_argument("--slower", type=float, default=1.5)
    parser.add_argument("--grown", type=float, default=64)
    parser.add_argument("--work")
    given = parser.parse_args()
    with kv.scratch_daemon(given.work, ram_size=given.ram) as daemon:
        directory = daemon.path / "keys"
        directory.mkdir()
        create(directory, 0, given.few)
        few = measure(directory, 1 << 40)
        create(directory, given.few, given.keys - given.few)
        many = measure(directory, 1 << 41)
        drop_caches()
        before = resident_mib(daemon)
        seen = walk(directory)
        walked = resident_mib(daemon)
        drop_caches()
        kv.eventually(lambda: resident_mib(daemon) <= before + given.grown or None, 20, "memory is given back")
        after = resident_mib(daemon)
    ratios = {name: many[name] / few[name] for name in few}
    for name, ratio in ratios.items():
        print(f"{name}: {few[name]:.1f} us with {given.few} keys, {many[name]:.1f} us with {given.keys}, ratio {ratio:.2f}")
    print(f"resident MiB: before the walk {before:.0f}, after it {walked:.0f}, after drop_caches {after:.0f}")
    return 1 if seen != given.keys or max(ratios.values()) > given.slower else 0


if __name__ == "__main__":
    sys.exit(main())
