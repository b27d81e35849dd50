#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""fileops - the suites of file operations that Debian packages, on a mount: stress-ng's class filesystem and fio, both verifying.

    fileops.py [--seconds 3] [--passes 2] [--only NAME,NAME] [--ram 1G] [--passthrough on] [--work DIR]

starts a daemon of its own. The first pass runs in a directory that publishes at the last close, the next in one with
publish=open, and so on. What fails, is skipped, or leaves files behind here but not on a tmpfs is a fault; exit status 1 when
there was one. Not run: what touches no file below its directory (procfs, ioprio, eventfd, binderfs, bind-mount).
"""
import argparse
import contextlib
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import kv  # noqa: E402

STRESSORS = {name: [] for name in """access chattr chdir chmod chown copy-file dentry dir dirdeep dirmany dnotify dup fallocate fanotify
    fcntl fiemap file-ioctl filename flock fpunch fsize fstat getdent handle hdd inode-flags inotify io iomix lease link locka
    lockf lockofd mknod open rename symlink sync-file touch utime verity xattr""".split()}
for stressor in ("hdd", "iomix", "fallocate", "sync-file"):
    STRESSORS[stressor] = [f"--{stressor}-bytes", "64m"]
STRESSORS["copy-file"] = ["--copy-file-bytes", "128m"]

FIO = ["--directory=.", "--minimal", "--size=16m", "--numjobs=2", "--verify_fatal=1", "--do_verify=1", "--verify_state_save=0",
       "--bsrange=4k-128k", "--iodepth=64"]
FIO_JOBS = {
    "libaio-direct": ["--ioengine=libaio", "--direct=1", "--rw=rw", "--verify=crc32c"],
    "libaio": ["--ioengine=libaio", "--rw=randrw", "--verify=crc32c"],
    "io_uring-direct": ["--ioengine=io_uring", "--direct=1", "--fixedbufs=1", "--registerfiles=1", "--iodepth=256", "--rw=randwrite",
                        "--verify=xxhash"],
    "io_uring": ["--ioengine=io_uring", "--rw=randwrite", "--verify=xxhash"],
    "psync": ["--ioengine=psync", "--rw=write", "--verify=md5"],
    "psync-direct": ["--ioengine=psync", "--direct=1", "--rw=randwrite", "--verify=md5"],
    "pvsync2": ["--ioengine=pvsync2", "--rw=randrw", "--verify=crc32c"],
    "posixaio": ["--ioengine=posixaio", "--rw=randrw", "--verify=crc32c"],
    "mmap": ["--ioengine=mmap", "--rw=randwrite", "--verify=crc32c"],
    "fallocate-keep": ["--ioengine=psync", "--fallocate=keep", "--rw=randwrite", "--fsync=16", "--verify=crc32c"],
    "truncate": ["--ioengine=psync", "--fallocate=truncate", "--rw=randwrite", "--fdatasync=16", "--verify=crc32c"],
    "many-files": ["--ioengine=psync", "--nrfiles=64", "--openfiles=8", "--create_on_open=1", "--rw=randwrite", "--verify=crc32c"],
    "overwrite": ["--ioengine=psync", "--overwrite=1", "--rw=rw", "--verify=crc32c"],
}
SUITE = [*STRESSORS, *FIO_JOBS]
SUITE_SECONDS = 120


def run(name, directory, seconds):
    """One entry of the suite in a directory: whether it went well, and what it said."""
    if name in STRESSORS:
        command = ["stress-ng", f"--{name}", "1", *STRESSORS[name], "-t", str(seconds), "--verify", "--temp-path", str(directory)]
    else:
        command = ["fio", f"--name={name}", *FIO, *FIO_JOBS[name]]
    done = subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                          timeout=SUITE_SECONDS)
    left = sorted(path.name for path in directory.iterdir()) if name in STRESSORS else []
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    said = f"exit status {done.returncode}, files left: {left[:5]}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.returncode == 0 and not left and "skipping stress" not in said, said


@contextlib.contextmanager
def tmpfs():
    path = pathlib.Path(tempfile.mkdtemp(prefix="kvcachefs-tmpfs-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1G", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)
        path.rmdir()


def one_pass(directory, names, seconds):
    """The faults, and how many entries went well."""
    faults, good = [], 0
    for name in names:
        well, said = run(name, directory, seconds)
        good += well
        if well:
            continue
        with tmpfs() as elsewhere:
            if run(name, elsewhere, seconds)[0]:
                faults.append(f"{name}: {said}")
    return faults, good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=3, help="for each stressor")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--only", type=lambda text: text.split(","), default=SUITE, help=f"of {', '.join(SUITE)}")
    parser.add_argument("--ram", default="1G")
    parser.add_argument("--passthrough", default="on")
    parser.add_argument("--work", type=pathlib.Path)
    args = parser.parse_args()
    if unknown := set(args.only) - set(SUITE):
        parser.error(f"not in the suite: {', '.join(unknown)}")
    faults = []
    with kv.scratch_daemon(args.work, ram_size=args.ram, passthrough=args.passthrough) as daemon:
        for number in range(args.passes):
            publish = ("close", "open")[number % 2]
            directory = daemon.mkdir(f"pass{number}", publish=publish, evict="off")
            found, good = one_pass(directory, args.only, args.seconds)
            print(f"publish={publish}: {good} of {len(args.only)} well, {len(found)} worse than on tmpfs")
            faults += found
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
