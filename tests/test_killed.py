# SPDX-License-Identifier: Apache-2.0
"""The daemon's end at the worst moment: the kernel makes one of its threads wait for a client that waits for the daemon.

A removal whose lookup waits for a closing writer holds the lock of its directory; being told that a name of the directory changed,
the kernel waits for that lock, and no signal ends this wait. Nobody may be left hanging.
"""
import contextlib
import errno
import os
import pathlib
import signal
import time

import kv
import pytest

pytestmark = [pytest.mark.concurrency, pytest.mark.options(publish_wait="20s")]
LET_GO = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENODEV)
SOON = 8  # seconds; less than publish_wait


def tasks(pid, name):
    """The states of a process's threads of this name."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # it has just ended
            comm, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(") ")
            if comm == name:
                found.append(rest[0])
    return found


def guard_of(pid):
    """The process that the daemon leaves to watch over it."""
    found = [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    assert len(found) == 1, found
    return found[0]


@pytest.fixture
def stuck(mount, spawn):
    """A mount whose thread that tells the kernel waits for a lookup, and that lookup's process."""
    directory = mount.mkdir("d")
    kv.put(directory / "key", b"old")
    kv.put(mount.path / "other", b"bytes")
    os.stat(mount.path / "other")
    overwriter, closer, reader = spawn(), spawn(), spawn()
    new = overwriter.os.open(directory / "key", os.O_WRONLY | os.O_TRUNC)
    overwriter.os.write(new, b"new")
    slow = closer.os.open(directory / "slow", os.O_WRONLY | os.O_CREAT)
    closer.os.close(closer.os.dup(slow))
    waits = kv.counter(mount.path, "lookup_waits")
    reader.begin("os.unlink", directory / "slow")
    kv.eventually(lambda: kv.counter(mount.path, "lookup_waits") > waits, what="the lookup waits for the writer")
    overwriter.os.close(new)
    kv.eventually(lambda: tasks(mount.process.pid, "notify") == ["D"], what="the kernel makes the daemon wait")
    return mount, reader


def let_go(reader):
    with kv.fails(*LET_GO):
        reader.result(SOON)


def serves_what_was_published(mount):
    assert kv.get(mount.path / "other") == b"bytes"
    assert kv.get(mount.path / "d" / "key") == b"new"


def test_kill_ends_the_daemon_and_lets_its_users_go(stuck):
    mount, reader = stuck
    guard = guard_of(mount.process.pid)
    os.kill(mount.process.pid, signal.SIGKILL)
    assert mount.process.wait(SOON) == -signal.SIGKILL
    let_go(reader)
    kv.eventually(lambda: not pathlib.Path(f"/proc/{guard}").exists(), what="the guard ends")
    mount.start()
    serves_what_was_published(mount)


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGQUIT],
                         ids=lambda n: n.name)
def test_crash_ends_the_daemon_and_lets_its_users_go(stuck, number):
    """Before the kernel dumps core all threads must come to their end."""
    mount, reader = stuck
    os.kill(mount.process.pid, number)
    assert mount.process.wait(SOON) != 0
    let_go(reader)
    mount.expect_errors("Sanitizer|DEADLYSIGNAL")
    mount.start()
    serves_what_was_published(mount)


def test_stop_waits_for_the_closing_writer_and_no_longer(stuck):
    mount, reader = stuck
    started = time.monotonic()
    mount.stop()
    assert time.monotonic() - started < 25
    with kv.fails(errno.ENOENT, *LET_GO):
        reader.result(SOON)
    mount.start()
    serves_what_was_published(mount)


def test_next_daemon_ends_one_that_was_killed_with_its_guard(stuck):
    """As when a whole control group is killed."""
    mount, reader = stuck
    os.kill(guard_of(mount.process.pid), signal.SIGKILL)
    os.kill(mount.process.pid, signal.SIGKILL)
    killed = mount.process
    kv.eventually(lambda: "Z" in tasks(mount.process.pid, pathlib.Path(kv.BINARY).name[:15]), what="the main thread is dead")
    assert not reader.answered(), "nobody ends the connection"
    mount.start()
    assert killed.wait(SOON) == -signal.SIGKILL
    let_go(reader)
    serves_what_was_published(mount)


def test_lost_guard_changes_nothing(mount):
    os.kill(guard_of(mount.process.pid), signal.SIGKILL)
    kv.put(mount.path / "key", b"bytes")
    assert kv.get(mount.path / "key") == b"bytes"
    mount.restart()
    assert kv.get(mount.path / "key") == b"bytes"


def test_guard_is_deaf_holds_nothing_and_goes_with_the_daemon(mount):
    guard = guard_of(mount.process.pid)
    proc = pathlib.Path(f"/proc/{guard}")
    kv.eventually(lambda: (proc / "comm").read_text() == "kvcache-guard\n", what="the guard has its name")
    assert (proc / "cmdline").read_bytes().strip(b"\0").split(b"\0")[:2] == [b"kvcache-guard", os.fsencode(mount.path)]
    assert os.getsid(guard) == guard
    assert os.readlink(proc / "cwd") == "/"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(guard, number)
    held = [os.readlink(fd) for fd in (proc / "fd").iterdir()]
    assert not [path for path in held if path.startswith((str(mount.work), "/dev/"))], held
    kv.put(mount.path / "key", b"bytes")
    mount.umount()
    assert not proc.exists()
