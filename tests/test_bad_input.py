# SPDX-License-Identifier: Apache-2.0
"""Wrong input: a message that names the thing, an exit code, and nothing lost."""
import errno
import os
import random
import re
import sqlite3
import subprocess

import kv
import pytest


@pytest.fixture
def place(work):
    """A mount point and room for a state directory."""
    (work / "mnt").mkdir()
    return work


def refused(place, *args, says, state=True):
    """The daemon must refuse to start and name the thing, in the foreground as in the background."""
    command = [str(a) for a in args]
    if state:
        command += ["-o", f"state_dir={place}/state,ram_size=16M"]
    before = kv.mounts(place)
    for foreground in ([], ["-f"]):
        done = subprocess.run([kv.BINARY, *foreground, *command], capture_output=True, errors="replace", timeout=40,
                              check=False)
        text = done.stdout + done.stderr
        assert done.returncode > 0, f"started, or died by a signal: {text}"
        for thing in [says] if isinstance(says, str) else says:
            assert thing in text, f"{thing!r} is not in: {text}"
        assert [m for m in kv.mounts(place) if m[1].startswith("fuse")] == [m for m in before if m[1].startswith("fuse")]
    return done.returncode, text


# ---- the command line

@pytest.mark.parametrize("option, says", [
    ("nosuch", "nosuch"), ("nosuch=1", "nosuch"), ("ram-size=1G", "ram-size"), ("ram_size=lots", ["ram_size", "lots"]),
    ("ram_size=", "ram_size"), ("ram_size", "ram_size"), ("ram_size=1K", "ram_size"), ("ram_size=-1", "ram_size"),
    ("ram_size=99999999999999999999", "ram_size"), ("passthrough=perhaps", ["passthrough", "perhaps"]),
    ("huge=enormous", ["huge", "enormous"]), ("threads=many", "threads"), ("entry_timeout=soon", "entry_timeout"),
    ("lookup_grace=-5", "lookup_grace"), ("state_dir=relative/path", "state_dir"), ("evict=sometimes", "evict")])
def test_wrong_option_is_named(place, option, says):
    code, _ = refused(place, place / "mnt", "-o", option, says=says)
    assert code == 1


@pytest.mark.parametrize("arguments, says", [
    ([], "mount point"), (["--nosuch"], "nosuch"), (["-o"], "-o"), (["--config"], "config"), (["a", "b", "c"], "c")])
def test_wrong_command_line_is_a_usage_error(place, arguments, says):
    code, text = refused(place, *arguments, says=[], state=False)
    assert code == 1
    assert says.lower() in text.lower()


# ---- the configuration file

@pytest.mark.parametrize("lines, line, says", [
    (["ram_size = 16M", "nosuch = 1"], 2, "nosuch"), (["", "# comment", "ram_size = lots"], 3, "lots"),
    (["this is not a setting"], 1, ""), (["evict = on", "", "evict = maybe"], 3, "evict"),
    (["ram_size = 16M", "ram_size = 32M"], 2, "ram_size"), (["evict = on", "x" * 100_000], 2, ""),
    (["evict = on", "huge = \xff\xfe"], 2, "huge")])
def test_wrong_line_of_the_configuration_file_is_named(place, lines, line, says):
    file = place / "kv.conf"
    file.write_text("\n".join(lines) + "\n", encoding="latin-1")
    refused(place, place / "mnt", "--config", file, says=[f"{file}:{line}", says])


@pytest.mark.parametrize("make", ["missing", "directory", "binary"])
def test_unreadable_configuration_file_is_named(place, make):
    file = place / "kv.conf"
    if make == "directory":
        file.mkdir()
    elif make == "binary":
        file.write_bytes(random.Random(1).randbytes(5000))
    refused(place, place / "mnt", "--config", file, says=str(file))


# ---- the mount point

def test_missing_mount_point_is_named(place):
    refused(place, place / "nowhere", says=str(place / "nowhere"))


def test_file_as_mount_point_is_named(place):
    (place / "file").write_text("x")
    refused(place, place / "file", says=str(place / "file"))


def test_mount_point_in_use_is_named_and_left_alone(launch, place):
    mount = launch()
    kv.put(mount.path / "key", b"x")
    refused(place, mount.path, says=str(mount.path))
    assert len(kv.mounts(mount.path)) == 1
    assert kv.get(mount.path / "key") == b"x"


# ---- the state directory

@pytest.mark.timeout(120)
def test_second_daemon_on_one_state_is_refused_and_the_first_serves_on(launch, place):
    mount = launch()
    kv.put(mount.path / "key", b"x")
    options = f"state_dir={mount.state},ram_size=16M"
    refused(place, place / "mnt", "-o", options, says=str(mount.state), state=False)
    assert kv.get(mount.path / "key") == b"x"
    mount.restart("kill9")
    assert kv.get(mount.path / "key") == b"x"


@pytest.mark.parametrize("below", ["mnt", "mnt/state", "mnt/a/b"])
@pytest.mark.parametrize("option", ["state_dir", "memory_dir"])
def test_directory_below_the_mount_point_is_refused(place, option, below):
    (place / "mnt" / "state").mkdir()
    other = "memory_dir" if option == "state_dir" else "state_dir"
    (place / "other").mkdir()
    refused(place, place / "mnt", "-o", f"{option}={place}/{below},{other}={place}/other,ram_size=16M",
            says=f"{place}/mnt", state=False)
    assert os.listdir(place / "mnt") == ["state"] and os.listdir(place / "mnt" / "state") == []


def test_symbolic_link_to_below_the_mount_point_is_refused(place):
    (place / "mnt" / "state").mkdir()
    (place / "link").symlink_to("mnt/state")
    refused(place, place / "mnt", "-o", f"state_dir={place}/link,ram_size=16M", says=[], state=False)
    assert os.listdir(place / "mnt" / "state") == []


def test_file_as_state_directory_is_named(place):
    (place / "state").write_text("x")
    refused(place, place / "mnt", says=f"{place}/state")


def test_read_only_state_directory_is_named(place):
    (place / "state").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,mode=700", "tmpfs", place / "state"], check=True)
    refused(place, place / "mnt", says=f"{place}/state")


# ---- the database

@pytest.fixture
def stopped(launch):
    """A stopped daemon with a key in its state."""
    mount = launch()
    kv.put(mount.path / "key", kv.pattern(100_000))
    mount.stop()
    return mount


def database(mount):
    (path,) = (p for p in mount.state.iterdir() if p.is_file() and p.read_bytes()[:15] == b"SQLite format 3")
    return path


def refuses_state(mount, says):
    refused(mount.work, mount.path, "-o", f"state_dir={mount.state},ram_size=16M", says=says, state=False)


def test_database_of_a_newer_schema_is_refused_and_left_alone(stopped):
    path = database(stopped)
    with sqlite3.connect(path) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        db.execute("PRAGMA user_version = 999")
    db.close()
    refuses_state(stopped, [str(path), "999"])
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (999,)
        db.execute(f"PRAGMA user_version = {version}")
    db.close()
    stopped.start()
    assert kv.get(stopped.path / "key") == kv.pattern(100_000)


def overwrite(at, data):
    def damage(path):
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(data)
    return damage


DAMAGES = {
    "no database": lambda p: p.write_bytes(b"this is no database\n" * 500),
    "header": overwrite(0, b"\0" * 100),
    "first page": overwrite(100, random.Random(2).randbytes(3996)),
    "cut": lambda p: os.truncate(p, 5000),
    "all pages": lambda p: p.write_bytes(p.read_bytes()[:100] + random.Random(3).randbytes(p.stat().st_size - 100)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_database_is_refused_and_left_alone(stopped, damage):
    path = database(stopped)
    good = path.read_bytes()
    damage(path)
    bad = path.read_bytes()
    refuses_state(stopped, str(path))
    assert path.read_bytes() == bad
    path.write_bytes(good)
    stopped.start()
    assert kv.get(stopped.path / "key") == kv.pattern(100_000)


def test_directory_in_place_of_the_database_is_named(stopped):
    path = database(stopped)
    path.rename(f"{path}.away")
    path.mkdir()
    refuses_state(stopped, str(path))


# ---- a full disk under the state directory

FULL = r"(?i)disk is full|no space|cannot publish"


@pytest.fixture
def cramped(launch, work):
    """A daemon whose state directory is a small filesystem of its own."""
    state = work / "small"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16M,mode=700", "tmpfs", state], check=True)
    return launch(state_dir=state), state


def fill(path):
    """Write @path until its filesystem is full."""
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC


def until_no_space(directory, prefix):
    """Create keys until one is refused; the names of those whose every call succeeded."""
    done = []
    for n in range(200_000):
        name = f"{prefix}{n}".ljust(200, "x")
        try:
            kv.put(directory / name, b"%d" % n)
        except OSError as error:
            assert error.errno == errno.ENOSPC
            return done
        done.append(name)
    raise AssertionError("the disk does not get full")


@pytest.mark.parametrize("filler", (True, False), ids=("others", "keys"))
def test_full_state_disk_is_enospc_and_nothing_is_lost(cramped, filler):
    mount, state = cramped
    mount.expect_errors(FULL)
    kv.put(mount.path / "before", b"before")
    if filler:
        fill(state / "filler")
    done = until_no_space(mount.path, "k")
    assert mount.running()
    assert kv.get(mount.path / "before") == b"before"
    assert set(done) <= set(os.listdir(mount.path))
    mount.restart("kill9")
    assert set(done) | {"before"} == set(os.listdir(mount.path))
    for name in done[-50:]:
        assert kv.get(mount.path / name) == re.match(r"k(\d+)", name).group(1).encode()


def test_full_state_disk_lets_remove_and_rename_and_nothing_new(cramped):
    mount, state = cramped
    mount.expect_errors(FULL)
    kv.put(mount.path / "kept", b"kept")
    kv.put(mount.path / "old", b"moved")
    (mount.path / "dir").mkdir()
    fill(state / "filler")
    done = until_no_space(mount.path, "k")
    for refused in (
        lambda: (mount.path / "new").mkdir(),
        lambda: (mount.path / "new").symlink_to("x"),
        lambda: os.link(mount.path / "kept", mount.path / "new"),
        lambda: os.mkfifo(mount.path / "new"),
        lambda: os.setxattr(mount.path / "kept", "user.x", b"x"),
        lambda: kv.put(mount.path / "kept", b"again"),
    ):
        with pytest.raises(OSError) as error:
            refused()
        assert error.value.errno == errno.ENOSPC
    assert kv.get(mount.path / "kept") == b"kept"
    for name in done[:100]:
        os.unlink(mount.path / name)
    os.rename(mount.path / "old", mount.path / "moved")
    (mount.path / "dir").rmdir()
    mount.restart("kill9")
    assert set(os.listdir(mount.path)) == set(done[100:]) | {"kept", "moved"}
    (state / "filler").unlink()
    kv.eventually(lambda: works(mount.path / "after"), what="it works again")
    assert kv.get(mount.path / "moved") == b"moved"
    kv.put(mount.path / "kept", b"again")
    assert kv.get(mount.path / "kept") == b"again"


def test_what_is_open_when_the_state_disk_gets_full_is_published(cramped):
    mount, state = cramped
    mount.expect_errors(FULL)
    files = [open(mount.path / f"open{n}", "wb", buffering=0) for n in range(200)]
    fill(state / "filler")
    until_no_space(mount.path, "k")
    for n, file in enumerate(files):
        file.write(b"%d" % n)
        file.close()
    assert {f"open{n}" for n in range(200)} <= set(os.listdir(mount.path))
    mount.restart("kill9")
    for n in range(200):
        assert kv.get(mount.path / f"open{n}") == b"%d" % n


def works(path):
    try:
        kv.put(path, b"x")
        return True
    except OSError as error:
        assert error.errno == errno.ENOSPC
        return False
