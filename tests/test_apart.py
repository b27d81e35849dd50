# SPDX-License-Identifier: Apache-2.0
"""A daemon in a pid namespace of its own, as in a container: its users' requests bear no process id."""
import errno
import os
import pathlib
import signal

import kv
import pytest

OLD, NEW = kv.pattern(200_000, 1), kv.pattern(123_457, 2)
OVERWRITE = os.O_WRONLY | os.O_TRUNC


class Apart(kv.Daemon):
    def command(self, **options):
        return ["unshare", "--pid", "--fork", *super().command(**options)]

    def stop(self, number=signal.SIGTERM):
        (child,) = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        os.kill(int(child), number)
        self.end(number.name)


@pytest.fixture(params=["passthrough", "daemon"])
def apart(request, work):
    daemon = Apart(work, {} if request.param == "passthrough" else {"passthrough": "off"}).start()
    if request.param == "passthrough" and (why := daemon.lacks("passthrough")):
        daemon.finish()
        pytest.skip(why)
    yield daemon
    daemon.finish()


@pytest.fixture
def key(apart):
    path = apart.path / "key"
    kv.put(path, OLD)
    kv.eventually(lambda: kv.exists(path), what="the key is published")
    return path


def test_new_name_appears_at_close(apart, other):
    path = apart.path / "key"
    fd = other.os.open(path, os.O_WRONLY | os.O_CREAT)
    other.os.write(fd, OLD)
    assert other.os.fstat(fd).st_size == len(OLD)
    assert not kv.exists(path)
    other.os.close(fd)
    assert kv.get(path) == OLD


@pytest.mark.parametrize("flags", [OVERWRITE, OVERWRITE | os.O_CREAT])
def test_overwrite_beside_a_reader(key, other, flags):
    reader = os.open(key, os.O_RDONLY)
    fd = other.os.open(key, flags)
    other.os.write(fd, NEW)
    assert kv.get(key) == OLD and os.stat(key).st_size == len(OLD)
    other.os.close(fd)
    assert kv.get(key) == NEW and os.stat(key).st_size == len(NEW)
    assert kv.read_all(reader) == OLD
    os.close(reader)


def test_change_without_truncation_is_private_until_close(key, other):
    fd = other.os.open(key, os.O_RDWR)
    assert other.os.pread(fd, 100, 0) == OLD[:100]
    other.os.pwrite(fd, b"changed", 0)
    assert kv.get(key) == OLD
    other.os.close(fd)
    assert kv.get(key) == b"changed" + OLD[7:]


@pytest.mark.parametrize("size", [0, 1, 100_001, 300_000])
def test_truncate_by_path(key, other, size):
    reader = os.open(key, os.O_RDONLY)
    other.os.truncate(key, size)
    assert kv.get(key) == OLD[:size].ljust(size, b"\0")
    assert kv.read_all(reader) == OLD
    os.close(reader)


def test_lookups_between_a_writers_two_steps_see_the_old_version(apart, key, other, spawn):
    """The writer is sent round and does not come back under the name, so that its note stays for all lookups that follow."""
    held = os.open(key, os.O_RDONLY)
    for _ in range(3):
        with kv.fails(errno.ESTALE):
            os.open(f"/proc/self/fd/{held}", OVERWRITE)
        other.os.rename(key, f"{key}.moved")
        other.os.rename(f"{key}.moved", key)
        for process in (other, spawn()):
            assert process.os.stat(key).st_size == len(OLD)
            assert process.kv.get(key) == OLD
    fd = other.os.open(key, OVERWRITE)
    assert kv.get(key) == OLD
    other.os.write(fd, NEW)
    other.os.close(fd)
    assert kv.get(key) == NEW
    kv.eventually(lambda: kv.counter(apart.path, "kvcachefs_processing") == 0, what="no spare version is left")
    os.close(held)


@pytest.mark.concurrency
def test_readers_while_a_key_is_overwritten_see_one_version_or_the_other(key, spawn):
    kv.put(key, bytes(8192))
    kv.eventually(lambda: os.stat(key).st_size == 8192, what="it is published")
    writer = spawn()
    writer.begin("kv.replace_in_place", key, 300)
    reads = 0
    while not writer.answered():
        data = kv.get(key)
        assert len(data) == 8192 and len(set(data)) == 1, "torn"
        assert os.stat(key).st_size == 8192
        reads += 1
    writer.result()
    assert reads > 0
