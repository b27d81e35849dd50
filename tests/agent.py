# SPDX-License-Identifier: Apache-2.0
"""agent - the other end of kv.Other: call what standard input asks for, answer on standard output.

A request is a pickled (function name with its module, arguments); a reply is (True, value) or (False, exception).
"""
import importlib
import pickle
import sys


def call(name, args):
    module, _, function = name.rpartition(".")
    try:
        return True, getattr(importlib.import_module(module), function)(*args)
    except Exception as error:  # every one belongs to the caller
        return False, error


def main():
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
