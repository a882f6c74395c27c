"""Drives SGLang's own prefix cache without a GPU, and tells each request's cached tokens and each batch.

    PYTHON tests/engines/sglang/drive.py --wheel FOLDER --tree rust --seed 1 --requests 400 --out REC.jsonl.gz

FOLDER is an unpacked wheel of SGLang, PYTHON an environment of constraints-sglang.txt (`make test-sglang` makes
both). Its tree, event classes, encoder and publisher are its own; layers, kernels and models are inert.

Requests find their prefix (of all tokens but the last, as SGLang's scheduler asks), lock it, evict what
they need, insert their prompt, decode while others run, insert the whole, and unlock. Now and then the
cache is flushed. A line is a batch as it is published, or a request with the tokens that the tree found.
With `--live` the batches go out through SGLang's own publisher, each request is told on the standard
output, and the next line of the standard input lets it go on.
"""

import argparse
import gzip
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import torch


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--tree", default="rust", choices=["rust", "python", "radix"])
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--pages", type=int, default=96)
    parser.add_argument("--host-pages", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--running", type=int, default=4, help="the most requests at a time")
    parser.add_argument("--eagle", action="store_true")
    parser.add_argument("--format", default="default", choices=["default", "dynamo"])
    parser.add_argument("--policy", default="lru")
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--states", type=int, default=0)
    parser.add_argument("--salts", action="store_true")
    parser.add_argument("--loras", action="store_true")
    parser.add_argument("--extra-keys", action="store_true")
    parser.add_argument("--out", type=Path, help="write the recording here")
    parser.add_argument("--live", type=int, default=0,
                        help="the first rank's port; replays are as many ports further as there are ranks")  # fmt: skip
    parser.add_argument("--ranks", type=int, default=1, help="data-parallel ranks, a process each")
    parser.add_argument("--rank", type=int, default=0, help="the one of this process")
    return parser.parse_args()


class Request:
    """A request that runs: it holds a prefix in the tree, and slots of its own behind it."""

    def __init__(self, drive: "Drive", ids: list[int], space: Any) -> None:
        self._drive, self._cache, self._rng = drive, drive.cache, drive.rng
        self.ids, self.space, self._prompt = list(ids), space, len(ids)
        found = self._cache.match(ids[:-1], space)
        drive.tell(ids, space, found)
        cache = self._cache
        if found.host and cache.tree.load_back(found.result.best_match_node):
            found = cache.match(ids[:-1], space)
        self._kept = found.device
        self._handle = cache.lock(found.result.last_device_node)
        self._slots = cache.slots_of(found.result)[: found.device]
        self._state = cache.allocate_state() if cache.form.states else None
        self._output = self._rng.randint(1, 3 * cache.form.page)
        self._failed = not self._take(len(ids) - found.device)
        if not self._failed:
            # The request goes on in its own state, and the tree gets a copy.
            self._insert(cache.allocate_state() if cache.form.states else None)

    def step(self) -> bool:
        """Decode one token; return whether the request is over."""
        longest = self._drive.prompts.longest * 2
        if not self._failed and self._output > 0 and len(self.ids) < longest and self._take(1):
            self.ids.append(self._drive.prompts.ids(1)[0])
            self._output -= 1
            return False
        if not self._failed:
            self._insert(self._state)
            self._drive.prompts.ended(self.ids, self.space)
        elif self._state is not None:
            self._cache.free_state(self._state)
        self._cache.allocator.free(self._slots[self._kept :])
        self._cache.unlock(self._handle)
        return True

    def _take(self, count: int) -> bool:
        taken = self._cache.allocate(count)
        if taken is None:
            self._failed = True
            return False
        self._slots = torch.cat([self._slots, taken])
        return True

    def _insert(self, state: torch.Tensor | None) -> None:
        """Hand all full pages to the tree; of those that it had already, use the tree's own slots.

        `state` is the one at the last token; the tree takes it, or has one already.
        """
        cache = self._cache
        whole = cache.pages_of(self.ids, self.space)
        size = len(whole)
        if size <= 0:
            return
        slots = self._slots[:size].clone()
        states = {} if state is None else {"mamba_value": state}
        result = cache.insert(whole, slots, **self._behind(self._kept), **states)
        if state is not None and result.mamba_exist:
            cache.free_state(state)
        if not cache.unified and result.prefix_len > self._kept:
            cache.allocator.free(self._slots[self._kept : result.prefix_len])
        prompt = cache.pages_of(self.ids[: self._prompt], self.space)
        if 0 < len(prompt) < size and state is None:
            # Its end splits the node, and the prompt is worth more.
            cache.insert(prompt, slots[: len(prompt)], priority=1, **self._behind(len(prompt)))
        found = result if cache.tells_path else cache.match(self.ids, self.space).result
        own = cache.slots_of(found)
        assert len(own) == size, (len(own), size)
        self._slots = torch.cat([own, self._slots[size:]])
        cache.unlock(self._handle)
        self._handle = cache.lock(found.last_device_node)
        self._kept = size

    def _behind(self, tokens: int) -> dict[str, int]:
        return {"prev_prefix_len": tokens} if self._cache.unified else {}


class Drive:
    """A cache with its requests; makes lines of what happens."""

    def __init__(self, args: argparse.Namespace) -> None:
        # They import SGLang, whose folder must be on the path.
        from cache import Cache, Form
        from prompts import Prompts

        form = Form(
            args.tree, args.page_size, args.pages, args.host_pages, args.eagle, args.format, args.policy,
            args.window, args.states,
        )  # fmt: skip
        self.cache, self.rng, self.form = Cache(form), Random(args.seed), form
        self.prompts = Prompts(
            self.rng, form.page, form.page * form.pages // 4,
            ("tenant-a", "tenant-b") if args.salts else (),
            ("support", "legal") if args.loras else (),
            ("class-1", "class-2") if args.extra_keys else (),
        )  # fmt: skip
        self._publisher = self.cache.sglang.ZmqEventPublisher(
            args.rank, endpoint=f"tcp://*:{args.live}",
            replay_endpoint=f"tcp://127.0.0.1:{args.live + args.ranks}",
        ) if args.live else None  # fmt: skip
        self._encoder = msgspec.msgpack.Encoder()
        self._clock, self._batches, self._args = 0.0, 0, args
        tree = type(getattr(self.cache.tree, "tree_core", self.cache.tree)).__name__
        self.lines: list[dict[str, Any]] = [
            {"kind": "trace", "source": "tests/engines/sglang/drive.py", "sglang": args.wheel.name}
            | asdict(form) | {"tree": tree, "seed": args.seed}
        ]  # fmt: skip
        self.running: list[Request] = []

    def tell(self, ids: list[int], space: Any, found: Any) -> None:
        line = {"kind": "request", "tokens": list(ids)} | asdict(space)
        line |= {"device": found.device, "host": found.host, "cached": found.device + found.host}
        line["full"] = getattr(found.result, "full_kv_hit_length", None)
        self.lines.append(line)
        if self._publisher:
            print(json.dumps(line | {"published": self._batches - 1}), flush=True)
            sys.stdin.readline()

    def publish(self) -> None:
        """Publish one iteration's events, as SGLang's scheduler does."""
        events = self.cache.tree.take_events()
        if not events:
            return
        batch = self.cache.sglang.KVEventBatch(self._clock, events, self._args.rank)
        payload = self._encoder.encode(batch).hex()
        if self._publisher:
            self._publisher.publish(batch)
        self.lines.append(
            {"kind": "events", "topic": "", "seq": self._batches, "payload_hex": payload}
        )
        self._batches += 1

    def run(self) -> None:
        rng, sent = self.rng, 0
        self.publish()
        while sent < self._args.requests or self.running:
            self._clock += 0.01
            few = len(self.running) < self._args.running
            if sent < self._args.requests and few and (not self.running or rng.random() < 0.4):
                ids, space = self.prompts.next()
                self.running.append(Request(self, ids, space))
                sent += 1
            elif self.running:
                self._decode(rng.choice(self.running))
            if self.cache.host:
                self.cache.host.finish_copies(rng)
            self.publish()
            if not self.running and rng.random() < 0.02:
                self.cache.reset()
                self.publish()

    def _decode(self, request: Request) -> None:
        for _ in range(self.rng.randint(1, self.form.page)):
            if request.step():
                self.running.remove(request)
                return


def main() -> None:
    args = options()
    sys.path.insert(0, str(args.wheel))
    # Some trees compile their hashes with the machine's compiler; two versions must not share the result.
    os.environ["TORCH_EXTENSIONS_DIR"] = str(args.wheel.absolute() / "compiled")
    drive = Drive(args)
    drive.run()
    if args.out:
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in drive.lines)
        args.out.write_bytes(gzip.compress(text.encode(), mtime=0))
    asked = [line for line in drive.lines if line["kind"] == "request"]
    warm = sum(line["cached"] > 0 for line in asked)
    print(json.dumps({"kind": "end", "requests": len(asked), "warm": warm}))


main()
