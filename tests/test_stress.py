# SPDX-License-Identifier: Apache-2.0
"""The short form of what tests/stress does for long: run those programs by hand with their defaults."""
import os
import pathlib
import subprocess
import sys

import kv
import pytest

STRESS = pathlib.Path(__file__).resolve().parent / "stress"


def run(work, program, *args):
    done = subprocess.run([sys.executable, str(STRESS / program), "--work", str(work), *args], capture_output=True, text=True,
                          check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"


@pytest.mark.stress
@pytest.mark.concurrency
@pytest.mark.timeout(180)
@pytest.mark.parametrize("passthrough", ["on", "off"])
def test_no_reader_sees_wrong_short_or_torn_bytes_under_load(work, passthrough):
    run(work, "load.py", "--seconds", "6", "--readers", "12", "--writers", "6", "--names", "150", "--ram", "24M",
        "--passthrough", passthrough)


@pytest.mark.stress
@pytest.mark.concurrency
@pytest.mark.timeout(180)
@pytest.mark.parametrize("options", [["--ram", "512M"], ["--ram", "24M", "--evicting"],
                                     ["--ram", "512M", "--passthrough", "off"]], ids=["roomy", "evicting", "daemon"])
def test_published_keys_survive_kills_of_the_daemon(work, options):
    run(work, "crash.py", "--kills", "4", *options)


@pytest.mark.stress
@pytest.mark.concurrency
@pytest.mark.timeout(180)
@pytest.mark.parametrize("passthrough", ["on", "off"])
def test_no_name_is_seen_early_in_part_or_late(work, passthrough):
    run(work, "publish.py", "--names", "300", "--killed", "30", "--passthrough", passthrough)


OPERATIONS = ("chmod,copy-file,dir,fallocate,fcntl,flock,fpunch,handle,hdd,iomix,link,lockofd,open,rename,symlink,sync-file,touch,utime,"
              "xattr,libaio-direct,io_uring-direct,mmap,psync,pvsync2,fallocate-keep,many-files,overwrite")


@pytest.mark.stress
@pytest.mark.timeout(300)
def test_packaged_suites_of_file_operations_find_nothing_that_works_on_tmpfs(work):
    run(work, "fileops.py", "--seconds", "1", "--only", OPERATIONS)


@pytest.mark.stress
@pytest.mark.timeout(300)
def test_many_keys_cost_no_more_each_than_few(work):
    """With room for noise: the figures to show are those of the full run."""
    run(work, "keys.py", "--keys", "20000", "--ram", "512M", "--slower", "3")


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", [512 * kv.MiB, 0x7ffff000])
def test_object_of_this_size_is_written_and_read_by_one_call(launch, size):
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if available < 3 * size + kv.GiB:
        pytest.skip(f"too little memory for an object of {size} bytes")
    mount = launch(ram_size="4G")
    data = kv.pattern(1 << 20, 1) * (size // (1 << 20) + 1)
    data = memoryview(data)[:size]
    kv.put(mount.path / "key", data)
    fd = os.open(mount.path / "key", os.O_RDONLY)
    buffer = bytearray(size)
    assert os.readv(fd, [buffer]) == size
    assert memoryview(buffer) == data
    os.close(fd)
