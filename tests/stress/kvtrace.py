#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""kvtrace - made-up traces of LLM serving, and their replay on a directory as one KV-cache client plays them.

    kvtrace.py make [seed=1] [seconds=1800] [rate=6] [mix=chat:50,tmpl:25,agent:15,doc:10] > FILE
    kvtrace.py replay DIRECTORY BLOCK_BYTES FILE

A trace has one JSON object a request: timestamp in ms, input_length and output_length in tokens, and hash_ids, the
blocks of 512 tokens; equal ids mean an equal prompt up to there. Only random() of random.Random is used, so that a seed
gives the same trace everywhere. rate is sessions a second over the seconds given. The kinds of session:

    chat   one shared block and a first prompt of 2 to 60; later turns after some two minutes, each a little longer
    tmpl   one of 6 shared prompts and a few blocks of its own, asked once
    agent  one of 3 shared prompts and 4 to 40 blocks of its own, then up to 40 steps seconds apart
    doc    20 to 150 blocks of a document that others ask about too, 1 to 5 questions

Each request ends in one block that nobody shares. The replay looks up the blocks of a request in order to the first
miss, reads the hits and creates the rest, all from one thread. A hit counts while all before it were hits.
"""
import json
import math
import os
import random
import sys

CHAT_GOES_ON = (.30, .45, .52, .58, .62)


class Maker:
    """Draws sessions and collects their requests as (time, blocks, output tokens)."""

    def __init__(self, seed):
        self._random = random.Random(seed).random
        self._next_id = 0
        self.requests = []
        self._system = self._new(1)
        self._templates = [self._new(self._uniform(4, 14)) for _ in range(6)]
        self._agents = [self._new(self._uniform(16, 24)) for _ in range(3)]
        self._documents = []

    def _new(self, count):
        first, self._next_id = self._next_id, self._next_id + count
        return list(range(first, self._next_id))

    def _uniform(self, low, high):
        return low + int(self._random() * (high - low + 1))

    def _log_uniform(self, low, high):
        return int(low * (high / low) ** self._random() + 0.5)

    def _log_normal(self, median, sigma):
        radius = math.sqrt(-2 * math.log(1 - self._random()))
        return median * math.exp(sigma * radius * math.cos(2 * math.pi * self._random()))

    def _ask(self, at, blocks, low, high):
        blocks = blocks + self._new(1)
        self.requests.append((at, blocks, self._uniform(low, high)))

    def chat(self, at):
        blocks, turn = self._system + self._new(self._log_uniform(2, 60)), 0
        while True:
            self._ask(at, blocks, 20, 700)
            if self._random() >= CHAT_GOES_ON[min(turn, 4)]:
                return
            turn += 1
            at += self._log_normal(110, .9)
            blocks = blocks + self._new(self._uniform(8, 40) if self._random() < .125 else self._uniform(1, 3))

    def tmpl(self, at):
        template = self._templates[int(6 * self._random() ** 2)]
        self._ask(at, template + self._new(self._uniform(0, 3)), 3, 60)

    def agent(self, at):
        blocks = self._agents[int(3 * self._random() ** 2)] + self._new(self._log_uniform(4, 40))
        for _ in range(self._log_uniform(4, 40)):
            self._ask(at, blocks, 50, 300)
            at += self._log_normal(9, .8)
            blocks = blocks + self._new(self._uniform(1, 3))

    def doc(self, at):
        if self._documents and self._random() < .33:
            blocks = self._documents[int(len(self._documents) * (1 - self._random() ** 2))]
        else:
            blocks = self._new(self._log_uniform(20, 150))
            self._documents.append(blocks)
        for _ in range(self._uniform(1, 5)):
            self._ask(at, blocks, 50, 400)
            at += self._log_normal(45, .7)

    def run(self, seconds, rate, mix):
        total, at = sum(mix.values()), 0.0
        while True:
            at += -math.log(1 - self._random()) / rate
            if at >= seconds:
                break
            draw = self._random() * total
            for kind, share in mix.items():
                draw -= share
                if draw < 0:
                    break
            getattr(self, kind)(at)


def make(seed=1, seconds=1800.0, rate=6.0, mix="chat:50,tmpl:25,agent:15,doc:10"):
    """The requests in order of time."""
    maker = Maker(int(seed))
    shares = {kind: float(share) for kind, share in (part.split(":") for part in mix.split(","))}
    maker.run(float(seconds), float(rate), shares)
    for at, blocks, output in sorted(maker.requests, key=lambda request: request[0]):
        yield {"timestamp": int(at * 1000), "input_length": len(blocks) * 512 - 100, "output_length": output,
               "hash_ids": blocks}


def lookup(directory, blocks):
    """How many of the blocks are there, up to the first miss."""
    for found, block in enumerate(blocks):
        try:
            os.stat(f"{directory}/b{block:08x}")
        except FileNotFoundError:
            return found
    return len(blocks)


def load(directory, block, size):
    """Read one block; False when it was evicted since it was looked up."""
    try:
        fd = os.open(f"{directory}/b{block:08x}", os.O_RDONLY)
    except FileNotFoundError:
        return False
    data = os.read(fd, size + 1)
    os.close(fd)
    assert len(data) == size, f"block {block}: {len(data)} bytes"
    return True


def store(directory, block, data):
    try:
        fd = os.open(f"{directory}/b{block:08x}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return
    done = os.write(fd, data)
    os.close(fd)
    assert done == len(data), f"block {block}: {done} bytes written"


def replay(directory, size, requests):
    """Play the requests, each a list of blocks; returns (prefix hits, blocks asked)."""
    data, hits, asked = os.urandom(size), 0, 0
    for blocks in requests:
        asked += len(blocks)
        found = lookup(directory, blocks)
        for at in range(found):
            if not load(directory, blocks[at], size):
                found = at
                break
        hits += found
        for block in blocks[found:]:
            store(directory, block, data)
    return hits, asked


def main(arguments):
    if arguments[:1] == ["make"]:
        for request in make(**dict(argument.split("=", 1) for argument in arguments[1:])):
            print(json.dumps(request))
    elif arguments[:1] == ["replay"] and len(arguments) == 4:
        with open(arguments[3], encoding="utf-8") as file:
            requests = [json.loads(line)["hash_ids"] for line in file]
        hits, asked = replay(arguments[1], int(arguments[2]), requests)
        print(f"prefix hit rate {hits / asked:.4f}")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
