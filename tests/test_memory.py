# SPDX-License-Identifier: Apache-2.0
"""The daemon's own memory, and whose control group pays for the bytes."""
import os
import pathlib
import re
import tempfile

import kv
import pytest

MiB = kv.MiB
PF_MEMALLOC_NOIO = 0x80000  # include/linux/sched.h
CAP_SYS_RESOURCE = 1 << 24


class Group:
    """A control group for memory, of version 1 or 2."""

    def __init__(self):
        root = pathlib.Path("/sys/fs/cgroup")
        self.v1 = (root / "memory" / "cgroup.procs").exists()
        if not self.v1 and "memory" not in _text(root / "cgroup.subtree_control"):
            pytest.skip("no control groups for memory")
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="kvcachefs-test-", dir=root / "memory" if self.v1 else root))

    def add(self, pid):
        (self.path / "cgroup.procs").write_text(str(pid))

    def limit(self, count):
        (self.path / ("memory.limit_in_bytes" if self.v1 else "memory.max")).write_text(str(count))

    def used(self):
        return int((self.path / ("memory.usage_in_bytes" if self.v1 else "memory.current")).read_text())

    def killed(self):
        lines = (self.path / ("memory.oom_control" if self.v1 else "memory.events")).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _text(path):
    return path.read_text() if path.exists() else ""


@pytest.fixture
def group():
    """A function that makes a control group; it goes when its processes have ended."""
    made = []

    def make():
        made.append(Group())
        return made[-1]

    yield make
    for one in made:
        for pid in _text(one.path / "cgroup.procs").split():
            (one.path.parent / "cgroup.procs").write_text(pid)
        one.path.rmdir()


@pytest.mark.parametrize("passthrough", ["on", "off"])
def test_bytes_are_charged_to_who_writes_them_unless_they_come_through_the_daemon(launch, other, group, passthrough):
    """As on a tmpfs: a container pays for the blocks that it puts. Through the daemon it pays for page cache, which can go."""
    mount = launch(passthrough=passthrough)
    if passthrough == "on" and (why := mount.lacks("passthrough")):
        pytest.skip(why)
    writers, daemons = group(), group()
    writers.add(other.pid)
    daemons.add(mount.process.pid)
    other.kv.put_many(mount.path, "k", 64, bytes(MiB))
    assert (writers if passthrough == "on" else daemons).used() >= 64 * MiB
    if passthrough == "on":
        assert daemons.used() < 32 * MiB


@pytest.mark.concurrency
@pytest.mark.parametrize("passthrough", ["on", "off"])
def test_writers_at_full_speed_kill_no_daemon_in_a_small_control_group(launch, spawn, group, passthrough):
    """Its limit holds the hard limit of the memory tier and 64 MiB."""
    mount = launch(passthrough=passthrough, ram_size="64M")
    daemons, pid = group(), mount.process.pid
    daemons.limit((64 + 8 + 128 + 64) * MiB)
    daemons.add(pid)
    writers = [spawn() for _ in range(4)]
    for rounds in range(4):
        for n, writer in enumerate(writers):
            writer.begin("kv.put_many", mount.path, f"w{n}-{rounds}-", 50, bytes(2 * MiB))
        for writer in writers:
            writer.result()
    assert mount.running() and mount.process.pid == pid
    assert daemons.killed() == 0
    kv.put(mount.path / "key", kv.pattern(MiB))
    assert kv.get(mount.path / "key") == kv.pattern(MiB)


def test_daemon_does_no_io_to_get_memory(mount):
    """What the kernel would write back to get memory for the daemon may be waiting for the daemon (PR_SET_IO_FLUSHER)."""
    capabilities = re.search(r"^CapEff:\s*(\w+)$", pathlib.Path("/proc/self/status").read_text(), re.M)
    if not int(capabilities.group(1), 16) & CAP_SYS_RESOURCE:
        pytest.skip("needs CAP_SYS_RESOURCE")
    for task in pathlib.Path(f"/proc/{mount.process.pid}/task").iterdir():
        flags = int((task / "stat").read_text().rpartition(")")[2].split()[6])
        assert flags & PF_MEMALLOC_NOIO, (task / "comm").read_text()


@pytest.mark.options(ram_size="64M")
def test_what_the_kernel_forgets_the_daemon_forgets(mount, spawn):
    count = 3000
    kv.put_many(mount.path, "k", count, b"x")
    kv.eventually(lambda: kv.counter(mount.path, "kvcachefs_processing") == 0, what="everything is published")
    descriptors = len(os.listdir(f"/proc/{mount.process.pid}/fd"))
    for other in (spawn(), spawn()):
        for _ in range(2):
            assert len(other.kv.present(mount.path, [f"k{n}" for n in range(count)])) == count
            assert other.kv.present(mount.path, [f"missing{n}" for n in range(count)]) == []
    assert kv.counter(mount.path, "kvcachefs_nodes") >= count
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("2\n")
    kv.eventually(lambda: kv.counter(mount.path, "kvcachefs_nodes") < 100, what="the nodes are gone")
    assert len(os.listdir(f"/proc/{mount.process.pid}/fd")) <= descriptors + 10
    assert kv.get(mount.path / "k7") == b"x"
