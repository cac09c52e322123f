"""Runs samples of targets in this process, for whoever adds one: `python -m fuzz.probe NAME…`."""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from pathlib import Path

from fuzz.attempt import Stage
from fuzz.one import input_of, sample_wrong, tried
from fuzz.stops import IMPORTED, stopped
from fuzz.targets import BY_NAME


def main(names: list[str]) -> None:
    from hloracle.cli.main import invoke

    for name in IMPORTED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder, stopped():
        stage = Stage(Path(folder))
        for name in names or BY_NAME:
            target = BY_NAME[name]
            begun = time.time()
            samples = target.samples()
            print(f"== {name}: {len(samples)} samples in {time.time() - begun:.1f} s")
            for case in samples:
                seen = stage.attempt(case, invoke)
                seen = stage.attempt(case, invoke)
                print(
                    f"   {seen.seconds:.3f} s  {' '.join(case.arguments)} -> {seen.status} {seen.left}",
                    sample_wrong(seen, target),
                    seen.err[:300],
                )
            begun, n = time.time(), 0
            while time.time() - begun < 4:
                found = tried(stage, invoke, target, input_of(1, target, n, {name: samples}))
                if found.wrong:
                    print("   !!", n, found.wrong, found.raised[-700:])
                n += 1
            print(f"   {n / 4:.0f} inputs/s")


if __name__ == "__main__":
    main(sys.argv[1:])
