# SPDX-License-Identifier: Apache-2.0
"""Directories with user.kvcache.publish=open: names show at once and writes go in place, as on any filesystem."""
import os
import subprocess
import sys

import kv
import pytest
import syscalls


@pytest.fixture
def plain(any_mount):
    return any_mount.mkdir("plain", publish="open")


def test_new_name_is_visible_at_once_with_the_bytes_so_far(plain, other):
    path = plain / "log"
    fd = other.os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    assert kv.get(path) == b""
    for n in range(1, 4):
        other.os.write(fd, b"line\n")
        assert os.stat(path).st_size == 5 * n
        assert kv.get(path) == b"line\n" * n
    other.os.close(fd)


def test_writes_go_in_place_and_are_seen_through_open_descriptors(plain, other):
    path = plain / "slab"
    kv.put(path, bytes(1 << 20))
    reader = os.open(path, os.O_RDONLY)
    fd = other.os.open(path, os.O_RDWR)
    other.os.pwrite(fd, b"changed", 4096)
    assert os.pread(reader, 7, 4096) == b"changed"
    assert os.fstat(reader).st_ino == os.stat(path).st_ino
    other.os.close(fd)
    assert os.pread(reader, 7, 4096) == b"changed"
    os.close(reader)


def test_truncation_is_seen_by_readers(plain, other):
    path = plain / "file"
    kv.put(path, b"x" * 10_000)
    reader = os.open(path, os.O_RDONLY)
    fd = other.os.open(path, os.O_WRONLY | os.O_TRUNC)
    assert os.fstat(reader).st_size == 0
    other.os.write(fd, b"new")
    assert os.pread(reader, 100, 0) == b"new"
    other.os.truncate(path, 1)
    assert os.pread(reader, 100, 0) == b"n"
    other.os.close(fd)
    os.close(reader)


def test_killed_writer_leaves_what_it_wrote(plain, other):
    fd = other.os.open(plain / "log", os.O_WRONLY | os.O_CREAT, 0o644)
    other.os.write(fd, b"so far")
    other.kill()
    assert kv.get(plain / "log") == b"so far"


def test_appending_processes_lose_nothing(plain, spawn):
    writers = [spawn() for _ in range(4)]
    fds = [w.os.open(plain / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) for w in writers]
    for _ in range(50):
        for i, (w, fd) in enumerate(zip(writers, fds, strict=True)):
            w.os.write(fd, b"%d\n" % i)
    assert sorted(kv.get(plain / "log").split()) == sorted([b"0", b"1", b"2", b"3"] * 50)


def test_shared_mappings_of_two_processes_are_one_memory(plain, other):
    path = plain / "shared"
    kv.put(path, bytes(8192))
    fd = os.open(path, os.O_RDWR)
    mapping = syscalls.Mapping(fd, 8192)
    elsewhere = other.os.open(path, os.O_RDWR)
    other.os.pwrite(elsewhere, b"from there", 100)
    assert mapping.load()[100:110] == b"from there"
    mapping.store(5000, b"from here")
    assert other.os.pread(elsewhere, 9, 5000) == b"from here"
    mapping.close()
    os.close(fd)


def test_mode_is_inherited_by_directories_made_below(any_mount, plain, other):
    deep = plain / "a" / "b"
    deep.mkdir(parents=True)
    assert kv.attribute(deep, "publish") == "open"
    fd = other.os.open(deep / "file", os.O_WRONLY | os.O_CREAT, 0o644)
    assert kv.exists(deep / "file")
    other.os.close(fd)
    os.setxattr(deep, "user.kvcache.publish", b"close")
    fd = other.os.open(deep / "hidden", os.O_WRONLY | os.O_CREAT, 0o644)
    assert not kv.exists(deep / "hidden")
    other.os.close(fd)
    assert kv.attribute(any_mount.path, "publish") == "close"


def test_mode_and_bytes_survive_restart(any_mount, plain, other):
    kv.put(plain / "file", b"in place")
    for how in ("SIGTERM", "kill9"):
        any_mount.restart(how)
        assert kv.attribute(plain, "publish") == "open"
        assert kv.get(plain / "file") == b"in place"


def test_file_written_in_place_survives_a_killed_daemon_even_while_it_is_open(any_mount, plain, other):
    fd = other.os.open(plain / "file", os.O_RDWR | os.O_CREAT, 0o644)
    other.os.write(fd, b"bytes")
    other.os.fsync(fd)
    any_mount.restart("kill9")
    assert kv.get(plain / "file") == b"bytes"


SQLITE = """
import sqlite3, sys
path, name, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
db = sqlite3.connect(path, timeout=30, isolation_level=None)
assert db.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
db.execute("CREATE TABLE IF NOT EXISTS t (who TEXT, n INTEGER)")
for n in range(rows):
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO t VALUES (?, ?)", (name, n))
    db.execute("COMMIT")
    (seen,) = db.execute("SELECT count(*) FROM t WHERE who = ?", (name,)).fetchone()
    assert seen == n + 1, (seen, n)
assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
"""


@pytest.mark.concurrency
def test_sqlite_database_in_wal_mode_is_used_by_two_processes(any_mount, plain):
    path = plain / "app.db"
    # Two that switch to WAL at a time are in each other's way on any filesystem.
    subprocess.run(["sqlite3", path, "PRAGMA journal_mode=WAL"], check=True, capture_output=True)
    writers = [subprocess.Popen([sys.executable, "-c", SQLITE, path, name, "100"]) for name in "ab"]
    assert [w.wait() for w in writers] == [0, 0]
    any_mount.restart()
    count = subprocess.run(["sqlite3", path, "SELECT who, count(*) FROM t GROUP BY who; PRAGMA integrity_check;"],
                           check=True, capture_output=True, text=True).stdout
    assert count.split() == ["a|100", "b|100", "ok"]


def git(*args, cwd):
    environment = os.environ | {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "safe.directory=*")
    return subprocess.run(["git", *who, *args], cwd=cwd, env=environment, check=True, capture_output=True, text=True).stdout


def test_git_repository_works(any_mount, plain):
    repo = plain / "repo"
    git("init", "-q", "-b", "main", repo, cwd=plain)
    for n in range(10):
        (repo / f"file{n}").write_text(f"content {n}\n" * 100)
        git("add", ".", cwd=repo)
        git("commit", "-q", "-m", f"commit {n}", cwd=repo)
    git("clone", "-q", repo, plain / "clone", cwd=plain)
    git("gc", "-q", cwd=repo)
    git("fsck", "--full", "--strict", cwd=repo)
    assert len(git("log", "--oneline", cwd=plain / "clone").splitlines()) == 10
    assert git("status", "--porcelain", cwd=repo) == ""
    any_mount.restart("kill9")
    git("fsck", "--full", "--strict", cwd=repo)
    assert git("status", "--porcelain", cwd=repo) == ""
