# SPDX-License-Identifier: Apache-2.0
"""agent - the other end of kv.Other: call what standard input asks for, answer on standard output.

A request is a pickled (function name with its module, arguments); a reply is (True, value) or (False, exception).
"""
import ctypes
import importlib
import json
import os
import pickle
import sys

PR_SET_DUMPABLE = 4


def call(name, args):
    module, _, function = name.rpartition(".")
    try:
        return True, getattr(importlib.import_module(module), function)(*args)
    except Exception as error:  # every one belongs to the caller
        return False, error


def become(uid, groups):
    """Be that user, who perhaps may not read the directory of the tests: what is called from there is imported before."""
    for module in ("kv", "syscalls"):
        importlib.import_module(module)
    os.setgroups(groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # As after an exec by that user: /proc/PID is the user's own.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "prctl")


def main():
    uid, groups = json.loads(sys.argv[1])
    if uid:
        become(uid, groups)
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            name, args = pickle.load(requests)
        except EOFError:
            return
        pickle.dump(call(name, args), replies)
        replies.flush()


if __name__ == "__main__":
    main()
