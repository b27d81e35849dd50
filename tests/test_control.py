# SPDX-License-Identifier: Apache-2.0
"""The control directory /.kvcache: not listed, readable, and nobody's to change."""
import errno
import os
import re
import subprocess

import kv
import pytest

DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
FILES = ["stats", "config", "version"]


@pytest.fixture
def control(mount):
    return mount.path / ".kvcache"


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def test_it_is_not_listed_in_the_root_but_it_is_there(mount, control):
    assert os.listdir(mount.path) == []
    assert control.is_dir()
    assert set(FILES) <= set(os.listdir(control))


@pytest.mark.parametrize("name", FILES)
def test_file_is_read_whole_or_in_small_pieces_by_anybody(control, spawn, name):
    text = read(control / name)
    assert text.endswith("\n")
    user = spawn(uid=4711)
    fd = user.os.open(control / name, os.O_RDONLY)
    assert user.os.pread(fd, 100, 1 << 30) == b""
    pieces = b""
    while piece := user.os.read(fd, 7):
        pieces += piece
    assert pieces.endswith(b"\n")
    if name != "stats":
        assert pieces.decode() == text
    with kv.fails(*DENIED):
        user.os.open(control / name, os.O_WRONLY)


SAMPLE = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(\{[a-zA-Z_][a-zA-Z0-9_]*=\"[^\"]*\"(,[a-zA-Z_][a-zA-Z0-9_]*=\"[^\"]*\")*\})? "
                    r"[-+]?[0-9.]+(e[-+]?[0-9]+)?")
COMMENT = re.compile(r"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+)")


def samples(control):
    """The metrics by name, after a check of every line's form."""
    found, types = {}, {}
    for line in read(control / "stats").splitlines():
        if line.startswith("#"):
            kind, name, rest = COMMENT.fullmatch(line).groups()
            if kind == "TYPE":
                assert rest in ("counter", "gauge", "histogram", "summary")
                assert name not in types
                types[name] = rest
        else:
            assert SAMPLE.fullmatch(line), line
            name, _, value = line.rpartition(" ")
            assert name.split("{")[0] in types, line
            found[name] = float(value)
    return found


def test_stats_are_in_the_text_format_of_prometheus(control):
    found = samples(control)
    assert len(found) >= 10
    assert all(name.startswith("kvcachefs_") for name in found)


def test_stats_count_what_happens(mount, control):
    before = samples(control)
    for n in range(10):
        kv.put(mount.path / f"k{n}", kv.pattern(10_000))
        kv.get(mount.path / f"k{n}")
        kv.exists(mount.path / f"missing{n}")
    after = samples(control)
    grown = {name for name in after if after[name] >= before[name] + 10}
    assert any("publish" in name for name in grown)
    assert any("lookup" in name for name in grown)
    assert any("used" in name and after[name] == before[name] + 10 * 12_288 for name in after)


@pytest.mark.options(ram_size="48M", lookup_grace="3s")
def test_config_tells_every_option_in_force(mount, control):
    text = read(control / "config")
    options = dict(re.findall(r"^([a-z_]+) *= *(.*)$", text, re.M))
    assert options["ram_size"] in ("48M", str(48 * kv.MiB))
    assert options["lookup_grace"] in ("3s", "3")
    assert options["state_dir"] == str(mount.state)
    assert {"passthrough", "io_uring", "evict", "entry_timeout", "negative_timeout"} <= set(options)


def test_config_can_be_given_back_to_the_daemon(mount, control, work):
    file = work / "again.conf"
    file.write_text(read(control / "config"))
    mount.stop()
    log = mount.log_path.open("ab")
    mount.process = subprocess.Popen([kv.BINARY, mount.path, "-f", "--config", file], stdout=log, stderr=log,
                                     stdin=subprocess.DEVNULL, start_new_session=True)
    log.close()
    kv.eventually(lambda: kv.mounted(mount.path), what="the mount")
    assert read(control / "config") == file.read_text()


def test_version_is_that_of_the_program(control):
    said = subprocess.run([kv.BINARY, "--version"], check=True, capture_output=True, text=True).stdout
    number = re.search(r"\d+\.\d+(\.\d+)?", read(control / "version")).group(0)
    assert number in said


CHANGES = {
    "write": lambda c: os.open(c / "stats", os.O_WRONLY),
    "write and read": lambda c: os.open(c / "config", os.O_RDWR),
    "truncate on open": lambda c: os.open(c / "version", os.O_RDONLY | os.O_TRUNC),
    "truncate": lambda c: os.truncate(c / "stats", 0),
    "create": lambda c: os.open(c / "new", os.O_WRONLY | os.O_CREAT),
    "create unnamed": lambda c: os.open(c, os.O_WRONLY | os.O_TMPFILE),
    "mkdir": lambda c: os.mkdir(c / "new"),
    "symlink": lambda c: os.symlink("x", c / "new"),
    "mkfifo": lambda c: os.mkfifo(c / "new"),
    "unlink": lambda c: os.unlink(c / "stats"),
    "rmdir": lambda c: os.rmdir(c),
    "rename it": lambda c: os.rename(c, c.parent / "new"),
    "rename inside": lambda c: os.rename(c / "stats", c / "new"),
    "rename out": lambda c: os.rename(c / "stats", c.parent / "new"),
    "rename in": lambda c: os.rename(c.parent / "key", c / "new"),
    "rename over a file": lambda c: os.rename(c.parent / "key", c / "stats"),
    "rename over it": lambda c: os.rename(c.parent / "dir", c),
    "link out": lambda c: os.link(c / "stats", c.parent / "new"),
    "link in": lambda c: os.link(c.parent / "key", c / "new"),
    "chmod": lambda c: os.chmod(c / "stats", 0o777),
    "chmod it": lambda c: os.chmod(c, 0o777),
    "chown": lambda c: os.chown(c, 1, 1),
    "utime": lambda c: os.utime(c / "stats"),
    "setxattr": lambda c: os.setxattr(c / "stats", "user.x", b"1"),
    "setxattr it": lambda c: os.setxattr(c, "user.kvcache.evict", b"off"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_change_is_refused(mount, control, change):
    kv.put(mount.path / "key", b"x")
    mount.mkdir("dir")
    with kv.fails(*DENIED, errno.EXDEV, errno.EOPNOTSUPP):
        change(control)
    assert set(FILES) <= set(os.listdir(control))
    assert sorted(os.listdir(mount.path)) == ["dir", "key"]


@pytest.mark.parametrize("make", [os.mkdir, lambda p: os.close(os.open(p, os.O_CREAT | os.O_EXCL)),
                                  lambda p: os.symlink("x", p), os.mkfifo], ids=["mkdir", "create", "symlink", "mkfifo"])
def test_name_is_taken(control, make):
    with kv.fails(errno.EEXIST, *DENIED):
        make(control)


def test_unknown_file_is_enoent(control):
    with kv.fails(errno.ENOENT):
        os.stat(control / "no such file")
