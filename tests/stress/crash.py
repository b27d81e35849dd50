#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""crash - kill -9 the daemon at random moments of a load, start it again, and look at every key.

    crash.py [--kills 50] [--readers 8] [--writers 4] [--names 100] [--ram 256M] [--passthrough on] [--work DIR]

After each restart a key must be whole and of a version that its writer's journal allows: the last one that was
finished, or one that was under way; never one older than a reader has seen. With --evicting (a small --ram) a key may
also be gone. The bytes in use must be those of the keys: nothing leaks.
"""
import argparse
import os
import pathlib
import random
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import content  # noqa: E402
import kv  # noqa: E402
import load  # noqa: E402


def allowed_versions(journals, before):
    """By name, the versions that may be there after the crash (None: the name is not), from the journals of a round."""
    allowed = {name: {version} for name, version in before.items()}
    for journal in sorted(pathlib.Path(journals).glob("Writer*")):
        for line in journal.read_text().splitlines():
            what, name, version = line.split()
            version = None if version == "None" else int(version)
            if what == "done":
                allowed[name] = {version}
            else:
                allowed.setdefault(name, {None}).add(version)
    for journal in sorted(pathlib.Path(journals).glob("Reader*")):
        for line in journal.read_text().splitlines():
            _, name, version = line.split()
            versions = allowed.setdefault(name, {None})
            allowed[name] = {v for v in versions if v is None or v >= int(version)} or {f"at least {version}"}
    return allowed


def verify(directory, allowed, evicting):
    """Look at every key; returns (versions found by name, faults)."""
    found, faults = {}, []
    listed = set(os.listdir(directory))
    for name in sorted(listed):
        key = name.partition(".tmp")[0]
        try:
            version = content.check(kv.get(directory / name), key)
        except (content.Wrong, OSError, AssertionError) as fault:
            faults.append(f"after the crash: {name}: {fault!r}")
            continue
        if name != key:
            os.unlink(directory / name)
            continue
        found[name] = version
        if version not in allowed.get(name, set()):
            faults.append(f"after the crash: {name} is version {version}, allowed were {allowed.get(name)}")
    for name in set(allowed) - listed:
        found[name] = None
        if None not in allowed[name] and not evicting:
            faults.append(f"after the crash: {name} is gone, allowed were {allowed[name]}")
    return found, faults


def leaked_bytes(daemon):
    """Bytes in use that belong to no key."""
    inodes = {st.st_ino: st.st_blocks * 512 for st in (os.stat(daemon.path / n) for n in os.listdir(daemon.path))}
    capacity = os.statvfs(daemon.path).f_blocks * 4096
    return capacity - daemon.free_bytes() - sum(inodes.values())


def round_of(daemon, given, number, before):
    """One load, one kill, one restart; returns (versions found, faults)."""
    with tempfile.TemporaryDirectory(prefix="kvcachefs-journal-") as journals:
        plan = load.Plan(daemon.path, seconds=30, readers=given.readers, writers=given.writers, names=given.names,
                         seed=f"{given.seed}/{number}", first_version=number * 1_000_000, journals=journals,
                         evicting=given.evicting, will_crash=True)
        processes = load.start(plan)
        time.sleep(random.Random(f"{given.seed}/{number}").uniform(0.05, 1.5))  # the random moment
        daemon.kill9()
        _, faults = load.finish(plan, processes)
        allowed = allowed_versions(journals, before)
    daemon.start()
    found, more = verify(daemon.path, allowed, given.evicting)
    try:  # what was removed goes with the last close, which the kernel reports later
        kv.eventually(lambda: leaked_bytes(daemon) == 0)
    except AssertionError:
        more.append(f"{leaked_bytes(daemon)} bytes in use belong to no key")
    return found, faults + more


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--names", type=int, default=100)
    parser.add_argument("--ram", default="256M")
    parser.add_argument("--evicting", action="store_true")
    parser.add_argument("--passthrough", default="on")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--work")
    given = parser.parse_args()
    before, nr_faults = {}, 0
    print(f"seed={given.seed}")
    with kv.scratch_daemon(given.work, ram_size=given.ram, passthrough=given.passthrough) as daemon:
        for number in range(given.kills):
            before, faults = round_of(daemon, given, number, before)
            nr_faults += len(faults)
            present = sum(version is not None for version in before.values())
            print(f"kill={number + 1} keys={present} faults={len(faults)}", *faults[:20], sep="\n  ", flush=True)
    return 1 if nr_faults else 0


if __name__ == "__main__":
    sys.exit(main())
