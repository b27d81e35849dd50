# SPDX-License-Identifier: Apache-2.0
"""Extended attributes: what the daemon tells, what may be set, what is stored."""
import contextlib
import errno
import json
import os
import sqlite3
import subprocess

import kv
import pytest

TOLD = {"tier", "replicas", "is_memory_replica", "is_local_disk_replica", "is_dfs_replica", "is_nof_replica",
        "checksum", "generation", "status", "pin", "tier_served"}


@pytest.fixture
def key(mount):
    path = mount.path / "key"
    kv.put(path, kv.pattern(100_000))
    kv.eventually(lambda: kv.attribute(path, "status") == "COMPLETE", what="published")
    return path


@pytest.mark.parametrize("name, value", [
    ("tier", "memory"), ("status", "COMPLETE"), ("is_memory_replica", "1"), ("is_local_disk_replica", "0"),
    ("is_dfs_replica", "0"), ("is_nof_replica", "0"), ("pin", "none")])
def test_attribute_of_a_key_in_memory(key, other, name, value):
    assert kv.attribute(key, name) == value
    assert other.kv.attribute(key, name) == value


def test_replicas_are_a_json_array_with_the_one_in_memory(key):
    (replica,) = json.loads(kv.attribute(key, "replicas"))
    assert replica["tier"] == "memory"
    assert replica["status"] == "COMPLETE"
    assert replica["size"] == 100_000


def test_open_descriptor_tells_what_served_it(key):
    fd = os.open(key, os.O_RDONLY)
    os.read(fd, 10)
    assert os.getxattr(fd, "user.kvcache.tier_served") == b"memory"
    os.close(fd)


def test_checksum_depends_on_the_bytes_alone(any_mount, other):
    paths = [any_mount.path / name for name in "abc"]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        other.kv.put(path, kv.pattern(300_000, seed))
    a, b, c = (kv.eventually(lambda p=p: kv.attribute(p, "checksum"), what="a checksum") for p in paths)
    assert a == b != c
    assert kv.attribute(paths[0], "checksum") == a
    other.kv.put(paths[0], kv.pattern(300_000, 2))
    assert kv.attribute(paths[0], "checksum") == c
    any_mount.restart("kill9")
    assert kv.attribute(paths[1], "checksum") == b


def test_all_are_listed(key):
    os.setxattr(key, "user.mine", b"1")
    assert {f"user.kvcache.{name}" for name in TOLD} | {"user.mine"} <= set(os.listxattr(key)) | {
        "user.kvcache.tier_served"}
    for name in os.listxattr(key):
        os.getxattr(key, name)


def test_getfattr_dumps_everything(key):
    out = subprocess.run(["getfattr", "-d", key], check=True, capture_output=True, text=True).stdout
    assert 'user.kvcache.tier="memory"' in out


@pytest.mark.parametrize("name", sorted(TOLD - {"pin"}))
def test_what_is_told_cannot_be_set_or_removed(key, name):
    try:
        before = os.getxattr(key, f"user.kvcache.{name}")
    except OSError:
        before = None
    with kv.fails(errno.EPERM, errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP, errno.EROFS):
        os.setxattr(key, f"user.kvcache.{name}", b"1")
    with kv.fails(errno.EPERM, errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP, errno.EROFS, errno.ENODATA):
        os.removexattr(key, f"user.kvcache.{name}")
    if before:
        assert os.getxattr(key, f"user.kvcache.{name}") == before


def test_unknown_name_of_ours_is_refused(key):
    for path in (key, key.parent):
        with kv.fails(errno.EINVAL, errno.EOPNOTSUPP):
            os.setxattr(path, "user.kvcache.no_such_thing", b"1")
        with kv.fails(errno.ENODATA, errno.EOPNOTSUPP):
            os.getxattr(path, "user.kvcache.no_such_thing")


@pytest.mark.parametrize("name", ["trusted.x", "security.x", "system.other"])
def test_other_namespaces_are_not_supported(key, name):
    for path in (key, key.parent):
        with kv.fails(errno.EOPNOTSUPP):
            os.setxattr(path, name, b"1")
        with kv.fails(errno.EOPNOTSUPP):
            os.getxattr(path, name)


# ---- pin

@pytest.mark.parametrize("value", ["hard", "soft:60", "none"])
def test_pin_is_set_and_read_back(mount, key, value):
    os.setxattr(key, "user.kvcache.pin", value.encode())
    assert kv.attribute(key, "pin").startswith(value.split(":")[0])
    mount.restart("kill9")
    assert kv.attribute(key, "pin").startswith(value.split(":")[0])


def test_soft_pin_needs_no_time(key):
    os.setxattr(key, "user.kvcache.pin", b"soft")
    assert kv.attribute(key, "pin").startswith("soft")


@pytest.mark.parametrize("value", [b"", b"harder", b"HARD", b"soft:", b"soft:-1", b"soft:x", b"soft:0", b"none\0", b"\xff"])
def test_wrong_pin_is_einval_and_changes_nothing(key, value):
    os.setxattr(key, "user.kvcache.pin", b"hard")
    for path in (key, key.parent):
        with kv.fails(errno.EINVAL):
            os.setxattr(path, "user.kvcache.pin", value)
    assert kv.attribute(key, "pin") == "hard"


# ---- placement

PLACEMENT = [("replica_num", "2"), ("nof_replica_num", "1"), ("dfs_replica_num", "1"), ("disk_replica_num", "auto"),
             ("disk_replica_num", "1"), ("evict", "off"), ("evict", "on"), ("pin", "hard"), ("publish", "open")]


@pytest.mark.parametrize("name, value", PLACEMENT)
def test_placement_is_kept_inherited_and_survives_restart(mount, name, value):
    top = mount.mkdir("top", **{name: value})
    (top / "a" / "b").mkdir(parents=True)
    for how in (None, "SIGTERM", "kill9"):
        if how:
            mount.restart(how)
        for path in (top, top / "a", top / "a" / "b"):
            assert kv.attribute(path, name) == value
        assert f"user.kvcache.{name}" in os.listxattr(top)


def test_what_a_directory_says_itself_wins_over_what_it_inherits(mount):
    top = mount.mkdir("top", evict="off")
    (top / "a").mkdir()
    os.setxattr(top / "a", "user.kvcache.evict", b"on")
    (top / "a" / "b").mkdir()
    assert [kv.attribute(p, "evict") for p in (top, top / "a", top / "a" / "b")] == ["off", "on", "on"]


def test_removed_placement_is_inherited_again(mount):
    top = mount.mkdir("top", evict="off")
    (top / "a").mkdir()
    os.setxattr(top / "a", "user.kvcache.evict", b"on")
    os.removexattr(top / "a", "user.kvcache.evict")
    assert kv.attribute(top / "a", "evict") == "off"


WRONG = [("replica_num", "-1"), ("replica_num", "x"), ("replica_num", ""), ("replica_num", "1 "), ("replica_num", "99999999999"),
         ("nof_replica_num", "no"), ("dfs_replica_num", "2"), ("dfs_replica_num", "-1"), ("disk_replica_num", "some"),
         ("evict", "maybe"), ("evict", ""), ("publish", "sometimes"), ("publish", "OPEN"), ("pin", "soft:x")]


@pytest.mark.parametrize("name, value", WRONG)
def test_wrong_placement_is_einval_and_changes_nothing(mount, name, value):
    before = kv.attribute(mount.path, name)
    with kv.fails(errno.EINVAL):
        os.setxattr(mount.path, f"user.kvcache.{name}", value.encode())
    assert kv.attribute(mount.path, name) == before


def test_placement_without_any_replica_is_einval(mount):
    top = mount.mkdir("top", disk_replica_num="0", nof_replica_num="0", dfs_replica_num="0")
    with kv.fails(errno.EINVAL):
        os.setxattr(top, "user.kvcache.replica_num", b"0")
    assert kv.attribute(top, "replica_num") == "1"


def test_placement_on_the_dfs_alone_is_legal(mount):
    top = mount.mkdir("top", dfs_replica_num="1")
    for name in ("replica_num", "nof_replica_num"):
        os.setxattr(top, f"user.kvcache.{name}", b"0")
        assert kv.attribute(top, name) == "0"
    assert kv.attribute(top, "dfs_replica_num") == "1"


def test_placement_is_not_for_files(key):
    with kv.fails(errno.EINVAL, errno.ENOTDIR, errno.EOPNOTSUPP, errno.EPERM):
        os.setxattr(key, "user.kvcache.replica_num", b"1")


# ---- stored attributes

def test_other_user_attributes_are_stored(mount, key, other):
    values = {"user.a": b"", "user.b": b"text", "user.c": bytes(range(256)), "user.d": b"x" * 30_000,
              "user.kvcacheother": b"1", "user." + "n" * 250: b"long name"}
    for path in (key, mount.mkdir("d")):
        for name, value in values.items():
            os.setxattr(path, name, value)
        for how in (None, "SIGTERM", "kill9"):
            if how:
                mount.restart(how)
            assert {n for n in os.listxattr(path) if not n.startswith("user.kvcache.")} == set(values)
            for name, value in values.items():
                assert os.getxattr(path, name) == value
        other.os.removexattr(path, "user.a")
        with kv.fails(errno.ENODATA):
            os.getxattr(path, "user.a")


def test_create_and_replace_flags_are_honoured(key):
    with kv.fails(errno.ENODATA):
        os.setxattr(key, "user.x", b"1", os.XATTR_REPLACE)
    os.setxattr(key, "user.x", b"1", os.XATTR_CREATE)
    with kv.fails(errno.EEXIST):
        os.setxattr(key, "user.x", b"2", os.XATTR_CREATE)
    os.setxattr(key, "user.x", b"3", os.XATTR_REPLACE)
    assert os.getxattr(key, "user.x") == b"3"
    os.removexattr(key, "user.x")
    with kv.fails(errno.ENODATA):
        os.removexattr(key, "user.x")


def test_attributes_go_with_the_key_and_not_with_the_name(mount, key):
    os.setxattr(key, "user.x", b"1")
    key.rename(mount.path / "moved")
    assert os.getxattr(mount.path / "moved", "user.x") == b"1"
    os.unlink(mount.path / "moved")
    kv.put(mount.path / "moved", b"")
    with kv.fails(errno.ENODATA):
        os.getxattr(mount.path / "moved", "user.x")


def stored_rows(mount):
    with contextlib.closing(sqlite3.connect(f"file:{mount.state}/kvcachefs.db?mode=ro", uri=True)) as db:
        return db.execute("SELECT count(*) FROM xattr").fetchone()[0]


def test_attributes_of_an_unfinished_file_are_its_own_writers(mount, other):
    path = mount.path / "key"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.setxattr(fd, "user.a", b"1", os.XATTR_CREATE)
    with kv.fails(errno.EEXIST):
        os.setxattr(path, "user.a", b"2", os.XATTR_CREATE)
    os.setxattr(path, "user.a", b"22", os.XATTR_REPLACE)
    with kv.fails(errno.ENODATA):
        os.setxattr(path, "user.b", b"2", os.XATTR_REPLACE)
    os.setxattr(path, "user.b", b"")
    with kv.fails(errno.ENODATA):
        os.removexattr(path, "user.c")
    assert {"user.a", "user.b"} <= set(os.listxattr(path))
    os.removexattr(path, "user.b")
    assert "user.b" not in os.listxattr(fd)
    assert os.getxattr(path, "user.a") == b"22"
    assert stored_rows(mount) == 0
    os.close(fd)
    assert other.os.getxattr(path, "user.a") == b"22"
    assert not any(name == "user.b" for name in other.os.listxattr(path))


def test_attributes_of_a_file_that_was_given_up_leave_nothing(mount, other):
    for name in ("killed", "removed"):
        fd = other.os.open(mount.path / name, os.O_WRONLY | os.O_CREAT)
        other.os.setxattr(fd, "user.note", b"x" * 1000)
    other.os.unlink(mount.path / "removed")
    other.kill()
    kv.eventually(lambda: kv.counter(mount.path, "kvcachefs_processing") == 0, what="both are given up")
    assert stored_rows(mount) == 0


def test_attributes_stay_with_a_version_that_is_published_over_another_object(mount, other):
    path = mount.path / "key"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"mine")
    os.setxattr(fd, "user.note", b"mine")
    other.kv.put(f"{path}.new", b"theirs")
    other.os.rename(f"{path}.new", path)
    os.close(fd)
    kv.eventually(lambda: other.kv.get(path) == b"mine", what="the last close is published")
    assert other.os.getxattr(path, "user.note") == b"mine"
    assert stored_rows(mount) == 1


@pytest.mark.concurrency
def test_attribute_set_while_a_file_is_being_published_is_kept(mount, other):
    """Closing has returned before the file is published."""
    names = [mount.path / f"key{n}" for n in range(300)]
    for n, name in enumerate(names):
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT))
        for _ in range(n % 100):
            os.getppid()
        os.setxattr(name, "user.n", b"%d" % n)
    for n, name in enumerate(names):
        assert other.os.getxattr(name, "user.n") == b"%d" % n
