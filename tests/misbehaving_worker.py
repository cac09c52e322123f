"""A worker that hands requests on to another one, and does something wrong, or takes much memory, at one of them.

python misbehaving_worker.py FAULT REQUEST NUMBER COMMAND…: at the NUMBERth REQUEST, or `start`. Standard library alone.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

Answer = dict[str, Any]
EAT = "b = []\nwhile True: b.append(b'x' * 2**24)"


def say(line: str) -> None:
    print(line, flush=True)


# ---- instead of an answer


def crash() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signal.SIGSEGV)


def leave() -> None:
    print("loading…\nacme: no licence", file=sys.stderr)
    sys.exit(3)


def hang() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


def stop_answering() -> None:
    os.close(1)
    hang()


def answer_without_end() -> None:
    while True:
        sys.stdout.write("x" * 2**16)


def answer_in_part() -> None:
    sys.stdout.write('{"id": ')
    sys.stdout.flush()
    os._exit(0)


def eat() -> None:
    exec(EAT)


def have_a_child_eat() -> None:
    subprocess.run([sys.executable, "-c", EAT], check=False)
    hang()


INSTEAD: dict[str, Callable[[], None]] = {
    "crash": crash, "leave": leave, "hang": hang, "stop answering": stop_answering, "no end": answer_without_end,
    "in part": answer_in_part, "eat": eat, "child eats": have_a_child_eat, "rubbish": lambda: say("Hello, world"),
    "bytes": lambda: sys.exit(os.write(1, b"\xff\xfe\n")), "nested": lambda: say("[" * 100_000), "deep": lambda: say("[" * 900 + "]" * 900), "a list": lambda: say("[1, 2]"),
    "empty": lambda: say(""),
}  # fmt: skip

# ---- a changed answer


def of_first(change: Callable[[Answer], Answer]) -> Callable[[Answer], Answer]:
    """Of the first array that an answer holds."""

    def changed(answer: Answer) -> Answer:
        if "results" not in answer:
            return change(answer)
        first = next(i for i, result in enumerate(answer["results"]) if isinstance(result, dict))
        answer["results"][first] = change(answer["results"][first])
        return answer

    return changed


HELD: list[bytes] = []
CHANGES: dict[str, Callable[[Answer], Answer]] = {
    "wrong id": lambda a: {**a, "id": a["id"] + 1},
    "nothing": lambda a: {"id": a["id"]},
    "version": lambda a: {**a, "protocol": 2},
    "no version": lambda a: {**a, "protocol": "one"},
    "error": lambda a: {"id": a["id"], "error": {"stage": "run", "message": "no such\nkernel"}},
    "hold": lambda a: HELD.append(b"x" * 2**30) or a,
    "memory": lambda a: {"id": a["id"], "error": {"stage": "memory", "message": "no room"}},
    "no error": lambda a: {"id": a["id"], "error": "no"},
    "no name": lambda a: {**a, **dict.fromkeys(("loaded", "array"), 7)},
    "too few": lambda a: {**a, "results": a["results"][1:]},
    "no results": lambda a: {**a, "results": {}},
    "no array": lambda a: {**a, "results": [7 for _ in a["results"]]},
    "shape": of_first(lambda r: {**r, "shape": [*r["shape"], 1]}),
    "bytes missing": of_first(lambda r: {**r, "shape": [*r["shape"], 2]}),
    "negative": of_first(lambda r: {**r, "shape": [-1]}),
    "dtype": of_first(lambda r: {**r, "dtype": "i32"}),
    "no dtype": of_first(lambda r: {**r, "dtype": "f7"}),
}


def main() -> None:
    fault, where, number, *command = sys.argv[1:]
    if where == "start":
        INSTEAD[fault]()
    behaves = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert behaves.stdin
    assert behaves.stdout
    left = int(number)
    for line in sys.stdin:
        left -= (asked := json.loads(line)["do"] == where)
        now = asked and left == 0
        if now and fault in INSTEAD:
            INSTEAD[fault]()
            continue
        behaves.stdin.write(line)
        behaves.stdin.flush()
        answer = json.loads(behaves.stdout.readline())
        say(json.dumps(CHANGES[fault](answer) if now else answer))


if __name__ == "__main__":
    main()
