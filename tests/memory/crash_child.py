"""The processes that test_crash kills. Run as a script it serves rounds: it forks a worker for each line it is given,
so that the interpreter starts only once. Imports numpy, but not torch.

A worker writes to the pipe, before each change, what it is about to do, and after it that it is done:

    ["open", ids]                               what it found
    ["begin", name, before, deaths, births]     about to: let `before` die, then `deaths` die and `births` be born
    ["restore", n]                              about to go back to the n-th checkpoint that the parent knows
    ["checkpoint", state]                       made
    ["end"]                                     the last "begin" or "restore" is done
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np
from numbered import FIXED, VARIABLE, samples

from carm.memory.errors import CheckpointError
from carm.memory.orders import perform
from carm.memory.store import Store

SCHEMAS = {"fixed": FIXED, "variable": VARIABLE}


class Worker:
    def __init__(self, task: dict[str, Any], pipe: int) -> None:
        self.task, self.pipe = task, pipe
        self.rng = np.random.default_rng(task["seed"])
        self.states: list[dict[str, Any]] = task["states"]
        self.schema = SCHEMAS[task["schema"]]
        self.open()

    def say(self, *message: Any) -> None:
        os.write(self.pipe, json.dumps(message).encode() + b"\n")

    def open(self) -> None:
        self.store: Any = Store(
            self.task["directory"],
            schema=self.schema,
            capacity=self.task["capacity"],
            engine=self.task["engine"],
            seed=self.task["seed"],
        )
        self.say("open", self.ids())

    def ids(self) -> list[int]:
        out: list[int] = self.store.ids.tolist()
        return out

    def append(self) -> None:
        store = self.store
        ids = store.take_ids(int(self.rng.integers(1, 40)))
        records = self.schema.pack(samples(ids, self.schema))
        order = store.plan(records, ids)
        self.say("begin", "append", order.before.tolist(), order.deaths.tolist(), order.births["id"].tolist())
        perform(order, store.file, store.catalogue)
        store.confirm(order)
        self.say("end")

    def delete(self) -> None:
        ids = self.ids()
        if ids:
            chosen = self.rng.choice(ids, min(len(ids), int(self.rng.integers(1, 10))), replace=False).tolist()
            self.say("begin", "delete", [], chosen, [])
            self.store.delete(chosen)
            self.say("end")

    def checkpoint(self) -> None:
        self.say("begin", "checkpoint", [], [], [])
        state = self.store.checkpoint()
        self.say("checkpoint", state)
        self.states.append(state)
        self.say("end")

    def restore(self) -> None:
        if self.states:
            n = len(self.states) - 1 - int(self.rng.integers(0, min(2, len(self.states))))
            self.say("restore", n)
            try:
                self.store.restore(self.states[n])
                self.states = self.states[: n + 1]
                self.say("end")
            except CheckpointError:
                self.say("begin", "refused", [], [], [])
                self.say("end")

    def compact(self) -> None:
        self.say("begin", "compact", [], [], [])
        self.store.settle()
        self.store.catalogue.compact(self.store.past.floor)
        self.store.buried = 0
        self.say("end")

    def reopen(self) -> None:
        self.say("begin", "reopen", [], [], [])
        self.store.close()
        self.open()
        self.say("end")

    def work(self) -> None:
        acts = [self.append] * 8 + [self.delete, self.delete, self.checkpoint, self.restore, self.compact, self.reopen]
        while True:
            acts[int(self.rng.integers(0, len(acts)))]()


def main() -> None:
    """For each task on standard input, run a worker until it is killed; then say so."""
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            try:
                Worker(json.loads(line), 1).work()
            except BaseException:
                import traceback

                traceback.print_exc()
                os.write(1, b'["failed"]\n')
            finally:
                os._exit(1)
        os.write(1, json.dumps(["worker", pid]).encode() + b"\n")
        os.waitpid(pid, 0)
        os.write(1, b'["over"]\n')


if __name__ == "__main__":
    main()
