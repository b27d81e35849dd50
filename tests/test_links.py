# SPDX-License-Identifier: Apache-2.0
"""Symbolic links, hard links, and the kinds of file that are no keys."""
import errno
import os
import socket
import stat
import subprocess

import kv
import pytest

DATA = kv.pattern(50_000)


@pytest.mark.parametrize("target", ["key", "no/such/target", "/absolute", "t" * 4095, "ünï\n"])
def test_symbolic_link_holds_its_target(mount, other, target):
    os.symlink(target, mount.path / "link")
    assert other.os.readlink(mount.path / "link") == target
    found = os.lstat(mount.path / "link")
    assert stat.S_ISLNK(found.st_mode) and found.st_size == len(os.fsencode(target))
    mount.restart("kill9")
    assert os.readlink(mount.path / "link") == target


def test_symbolic_link_is_followed(mount, other):
    mount.mkdir("d")
    kv.put(mount.path / "d" / "key", DATA)
    os.symlink("d", mount.path / "s")
    os.symlink("s/key", mount.path / "t")
    assert other.kv.get(mount.path / "t") == DATA
    kv.put(mount.path / "s" / "new", b"through the link")
    assert other.kv.get(mount.path / "d" / "new") == b"through the link"
    os.symlink("loop", mount.path / "loop")
    with kv.fails(errno.ELOOP):
        os.stat(mount.path / "loop")
    with kv.fails(errno.EEXIST):
        os.symlink("x", mount.path / "t")


def test_hard_links_are_one_object(any_mount, other):
    path, link = any_mount.path / "key", any_mount.mkdir("d") / "link"
    kv.put(path, DATA)
    os.link(path, link)
    one, two = os.stat(path), other.os.stat(link)
    assert (one.st_ino, one.st_size, one.st_nlink) == (two.st_ino, len(DATA), 2)
    assert other.kv.get(link) == DATA
    os.chmod(link, 0o600)
    assert other.os.stat(path).st_mode & 0o777 == 0o600
    os.utime(link, (1, 2))
    assert other.os.stat(path).st_mtime == 2


def test_both_names_see_an_overwrite(any_mount, other):
    path, link = any_mount.path / "key", any_mount.path / "link"
    kv.put(path, DATA)
    os.link(path, link)
    reader = os.open(link, os.O_RDONLY)
    for at, data in ((path, b"first"), (link, b"second one")):
        other.kv.put(at, data)
        for name in (path, link):
            assert kv.get(name) == data
            assert other.kv.get(name) == data
        assert os.stat(path).st_ino == os.stat(link).st_ino
        assert os.stat(path).st_nlink == 2
    assert kv.read_all(reader) == DATA
    os.close(reader)


def test_both_names_see_a_change_and_a_truncation(any_mount, other):
    path, link = any_mount.path / "key", any_mount.path / "link"
    kv.put(path, DATA)
    os.link(path, link)
    fd = other.os.open(link, os.O_RDWR)
    other.os.pwrite(fd, b"changed", 0)
    other.os.close(fd)
    assert kv.get(path) == kv.get(link) == b"changed" + DATA[7:]
    other.os.truncate(path, 3)
    assert kv.get(path) == kv.get(link) == b"cha"


def test_rename_over_one_name_leaves_the_other(mount, other):
    path, link = mount.path / "key", mount.path / "link"
    kv.put(path, DATA)
    os.link(path, link)
    other.kv.put(mount.path / "tmp", b"new")
    other.os.replace(mount.path / "tmp", path)
    assert kv.get(path) == b"new"
    assert kv.get(link) == DATA
    assert os.stat(link).st_nlink == 1


def test_bytes_stay_until_the_last_name_goes(any_mount, other):
    free = any_mount.free_bytes()
    path, link = any_mount.path / "key", any_mount.path / "link"
    kv.put(path, DATA)
    os.link(path, link)
    os.unlink(path)
    assert other.kv.get(link) == DATA
    assert os.stat(link).st_nlink == 1
    os.unlink(link)
    assert not kv.exists(link)
    assert any_mount.free_bytes() >= free


def test_rename_of_one_name_onto_another_of_the_same_object_does_nothing(mount):
    path, link = mount.path / "key", mount.path / "link"
    kv.put(path, DATA)
    os.link(path, link)
    os.rename(path, link)
    assert sorted(os.listdir(mount.path)) == ["key", "link"]


def test_link_errors(mount):
    kv.put(mount.path / "key", b"")
    mount.mkdir("d")
    with kv.fails(errno.EEXIST):
        os.link(mount.path / "key", mount.path / "d")
    with kv.fails(errno.EPERM):
        os.link(mount.path / "d", mount.path / "link")
    with kv.fails(errno.ENOENT):
        os.link(mount.path / "missing", mount.path / "link")
    with kv.fails(errno.EXDEV):
        os.link("/proc/self/status", mount.path / "link")


def test_hard_link_count_and_bytes_survive_restart(mount):
    kv.put(mount.path / "key", DATA)
    os.link(mount.path / "key", mount.mkdir("d") / "link")
    os.symlink("key", mount.path / "symbolic")
    os.link(mount.path / "symbolic", mount.path / "d" / "symbolic", follow_symlinks=False)
    mount.restart("kill9")
    assert kv.get(mount.path / "d" / "link") == DATA
    assert os.stat(mount.path / "key").st_nlink == 2
    assert os.stat(mount.path / "key").st_ino == os.stat(mount.path / "d" / "link").st_ino
    assert os.readlink(mount.path / "d" / "symbolic") == "key"
    kv.put(mount.path / "d" / "link", b"new")
    assert kv.get(mount.path / "key") == b"new"


@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFBLK], ids=["character", "block"])
def test_device_node_is_refused(mount, kind):
    with kv.fails(errno.EPERM):
        os.mknod(mount.path / "device", kind | 0o600, os.makedev(1, 3))
    assert os.listdir(mount.path) == []


def test_fifo_connects_two_processes(mount, other):
    path = mount.path / "fifo"
    os.mkfifo(path)
    assert stat.S_ISFIFO(other.os.stat(path).st_mode)
    other.begin("kv.put", path, b"through the fifo", 0)
    with open(path, "rb") as fifo:
        assert fifo.read() == b"through the fifo"
    other.result()
    path.unlink()
    assert not kv.exists(path)


def test_socket_connects_two_processes(mount):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(mount.path / "socket"))
        server.listen()
        script = "import socket,sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.send(b'hello')"
        with subprocess.Popen(["/usr/bin/python3", "-c", script, mount.path / "socket"]) as client:
            assert server.accept()[0].recv(5) == b"hello"
            assert client.wait() == 0
    assert stat.S_ISSOCK(os.stat(mount.path / "socket").st_mode)


def test_mknod_makes_an_empty_key(mount, other):
    os.mknod(mount.path / "key", stat.S_IFREG | 0o640)
    assert other.kv.get(mount.path / "key") == b""
    assert other.os.stat(mount.path / "key").st_mode == stat.S_IFREG | 0o640
    with kv.fails(errno.EEXIST):
        os.mknod(mount.path / "key", stat.S_IFREG | 0o640)
