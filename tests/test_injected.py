"""The table of injected faults: its judge can fail, its page is what the table says, and a few rows are tried for real."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from nightly import nightly

from hloracle.studies.injected import faults, hook, page
from hloracle.studies.injected.__main__ import namespace, try_row, warm
from hloracle.studies.injected.judge import CONFORMS, Expected, Ran, problems
from hloracle.studies.injected.place import Place
from hloracle.studies.injected.table import COMMANDS, ROWS
from hloracle.studies.injected.trial import judged
from hloracle.studies.injected.trial import tried as trial

RECORD: dict[str, Any] = {
    "schema": "s", "verdict": {"class": "conforms", "explanation": "Equal."}, "checks": [], "damaged": [], "passed": True,
}  # fmt: skip
GOOD = Ran(0, "", "", RECORD, 1.0)
REFUSED = Ran(2, "", "hloracle: /c: the disk is full; free some space\n", None, 1.0)
FULL = Expected(2, says="the disk is full")


def of(**changes: Any) -> dict[str, Any]:
    return {**RECORD, **changes}


# ---- the judge


@pytest.mark.parametrize(("expected", "ran"), [(CONFORMS, GOOD), (FULL, REFUSED)])
def test_the_judge_is_content(expected: Expected, ran: Ran) -> None:
    assert [*problems(expected, ran)] == []


@pytest.mark.parametrize(
    ("expected", "ran", "words"),
    [
        (CONFORMS, {"hung": True}, "it hung, and was killed"),
        (CONFORMS, {"happened": False}, "the fault did not come about"),
        (CONFORMS, {"status": 1}, "status 1, not 0: stderr is empty"),
        (CONFORMS, {"others": (0, -9)}, "what ran beside it ended with (0, -9)"),
        (CONFORMS, {"stderr": "Traceback (most recent call last):\n"}, "a traceback: Traceback (most recent call last):"),
        (CONFORMS, {"stdout": "Traceback (most recent call last):\n"}, "a traceback: stderr is empty"),
        (CONFORMS, {"stderr": "free(): invalid size\n"}, "stderr has lines of others: free(): invalid size"),
        (CONFORMS, {"record": None}, "there is no report"),
        (CONFORMS, {"record": of(verdict={"class": "near-tie", "explanation": "Near."})}, "verdict near-tie, not conforms: Near."),
        (CONFORMS, {"record": of(damaged=["truth/a"])}, "entries were damaged: truth"),
        (CONFORMS, {"processes": ("sleep 60",)}, "left running: sleep 60"),
        (CONFORMS, {"files": ("tmp/x",)}, "left: tmp/x"),
        (
            dataclasses.replace(CONFORMS, anew="truth"), {"stderr": "hloracle: x had been damaged and was made anew: x"},
            "the record does not say that an entry of truth was made anew",
        ),
        (
            dataclasses.replace(CONFORMS, anew="truth"), {"record": of(damaged=["truth/a"])},
            "stderr does not say that an entry was made anew",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_verdict_is_red(expected: Expected, ran: dict[str, Any], words: str) -> None:
    assert words in [*problems(expected, dataclasses.replace(GOOD, **ran))]


@pytest.mark.parametrize(
    ("ran", "words"),
    [
        ({"stderr": "hloracle: one\nhloracle: the disk is full\n"}, "2 lines on stderr, not 1"),
        ({"stderr": "hloracle: no\n"}, "stderr does not say 'the disk is full': hloracle: no"),
        ({"record": RECORD}, "a report stands there, although there is no verdict"),
    ],
)
def test_what_is_wrong_with_a_refusal_is_red(ran: dict[str, Any], words: str) -> None:
    assert words in [*problems(FULL, dataclasses.replace(REFUSED, **ran))]


def test_a_killed_command_may_leave_files_and_the_next_one_may_not() -> None:
    killed = Expected(-9, killed=True)
    gone = Ran(-9, "", "", None, 1.0, files=("tmp/x",))
    assert judged(killed, gone, GOOD) == []
    assert judged(killed, gone, dataclasses.replace(GOOD, files=("tmp/x",))) == ["once it is lifted: left: tmp/x"]


def test_a_poisoned_cache_is_red() -> None:
    poisoned = dataclasses.replace(
        GOOD, status=1, record=of(verdict={"class": "compiler-fault", "explanation": "Wrong."})
    )
    assert judged(CONFORMS, GOOD, poisoned) == [
        "once it is lifted: status 1, not 0: stderr is empty",
        "once it is lifted: verdict compiler-fault, not conforms: Wrong.",
    ]
    torn = dataclasses.replace(GOOD, record=of(damaged=["truth/a"]))
    assert judged(CONFORMS, GOOD, torn) == ["once it is lifted: entries were damaged: truth"]


# ---- a place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """With a cache of one entry, and a command that says what it is."""
    base = tmp_path / "base"
    for name in ("cache/kind", "work"):
        (base / name).mkdir(parents=True)
    (base / "cache" / "kind" / "entry").write_bytes(b"0123456789")
    found = Place(tmp_path / "place", ["--version"], seconds=60)
    found.prepare(base)
    return found


def test_what_is_left_is_seen(place: Place) -> None:
    (place.work / "out" / "report.json").unlink()
    for file in ("tmp/a", "work/out/.report.html.12", "cache/kind/.entry.34", "home/.config"):
        (place.folder / file).write_text("")
    (place.cache / "kind" / ".sealed").write_text("")
    wanted = {"tmp/a", "home/.config", "work/out/.report.html.12", "cache/kind/.entry.34"}
    stale = {f"work/out/{name}" for name in ("report.html", "summary.md", "junit.xml")}
    assert {*place.left_files()} == wanted | stale


def test_a_process_that_is_left_is_seen_and_ended(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloracle.studies.injected.place.ENDING", 0.1)
    with subprocess.Popen(["sleep", "60"], cwd=place.work) as left:
        assert place.left_processes() == ["sleep 60"]
        assert left.wait(10) == -9


def test_a_command_that_hangs_is_ended(place: Place) -> None:
    place.seconds = 1
    faults.In("core.program:run_program", "hang").put(place)
    ran = place.run()
    assert ran.hung
    assert ran.processes == ()


@pytest.mark.parametrize(
    ("how", "data"),
    [
        (faults.bit, b"01234\x34" + b"6789"), (faults.half, b"01234"), (faults.empty, b""), (faults.deep, b"[" * 100_000),
        (faults.exchanged, b"{}"),
    ],
)  # fmt: skip
def test_an_entry_is_torn(place: Place, how: Any, data: bytes) -> None:
    faults.Torn("kind", how).put(place)
    assert (place.cache / "kind" / "entry").read_bytes() == data


def test_what_is_not_there_cannot_be_torn(place: Place) -> None:
    with pytest.raises(ValueError, match="other: the cache has no such entry"):
        faults.Torn("other", faults.bit).put(place)


# ---- what a process does wrong

AT = "colorsys:rgb_to_yiq"
SCRIPT = "import colorsys; [print(n, *map(int, colorsys.rgb_to_yiq(0, 0, 0))) for n in (1, 2)]"


def script(place: Place, fault: faults.Fault, text: str = SCRIPT) -> subprocess.CompletedProcess[str]:
    """A script in which the fault is put into what it imports."""
    fault.put(place)
    (place.hook / "plan.json").write_text(json.dumps(place.plan))
    environment = {"PYTHONPATH": str(place.hook)}
    return subprocess.run([sys.executable, "-c", text], env=environment, cwd=place.work, capture_output=True, text=True)


def test_a_fault_is_planted_in_a_function(place: Place) -> None:
    done = script(place, faults.In(AT, "end", 9, first=2))
    assert (done.returncode, done.stdout) == (-9, "")  # what was printed was not written yet
    assert place.happened


def test_one_that_is_not_reached_did_not_happen(place: Place) -> None:
    done = script(place, faults.In(AT, "end", 9, first=3))
    assert (done.returncode, done.stdout) == (0, "1 0 0 0\n2 0 0 0\n")
    assert not place.happened


@pytest.mark.parametrize(
    ("do", "number", "says"),
    [("want memory", 0, "MemoryError"), ("refuse", 28, "OSError: [Errno 28] No space left on device: 'a file'")],
)
def test_it_raises(place: Place, do: str, number: int, says: str) -> None:
    done = script(place, faults.In(AT, do, number))
    assert done.stderr.splitlines()[-1] == says


def test_the_clock_jumps(place: Place) -> None:
    text = "import colorsys, time; a = time.time(); colorsys.rgb_to_yiq(0, 0, 0); print(round(a - time.time()))"
    assert script(place, faults.In(AT, "jump", -3600, times=1), text).stdout == "3600\n"


def test_files_are_refused(place: Place) -> None:
    text = "open('a', 'w'); print(open('a').read()); open('b', 'w')"
    done = script(place, faults.Refused("b$", 122), text)
    assert (done.stdout, done.stderr.splitlines()[-1]) == ("\n", "OSError: [Errno 122] Disk quota exceeded: 'b'")


def test_each_action_is_one_of_the_hook() -> None:
    def planted(fault: Any) -> Any:
        for one in getattr(fault, "faults", [fault]):
            if isinstance(one, faults.In):
                yield one

    used = {one.do for row in ROWS for one in planted(row.fault)}
    assert used <= set(hook.ACTIONS)


# ---- the table


def test_rows_have_ids_of_their_own() -> None:
    assert [id for id, count in Counter(row.id for row in ROWS).items() if count > 1] == []
    assert all(row.id.startswith(f"{row.command}-") for row in ROWS)
    assert len(ROWS) >= 60
    assert {row.command for row in ROWS} == set(COMMANDS)


def test_the_page_is_what_the_table_says() -> None:
    """`nox -s injected-faults` tells whether each row ends as it says."""
    assert page.PAGE.read_text("utf-8") == page.text()


# ---- rows for real


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which `hloracle ops` has run as the table has it."""
    folder = tmp_path_factory.mktemp("injected") / "base"
    warm(folder, ["ops"])
    return folder


@pytest.mark.parametrize(
    "id", ["ops-torn-ops-exchanged", nightly("ops-call-main-killed"), nightly("ops-read-only-cold")]
)
def test_a_row_is_green(id: str, base: Path, tmp_path: Path) -> None:
    (row,) = (row for row in ROWS if row.id == id)
    if row.fault.needs_mounts and not namespace():
        pytest.skip("nothing may be mounted here")
    tried = try_row(row, base, tmp_path)
    assert tried
    assert tried.wrong == [], tried.said


def test_a_row_that_expects_something_else_is_red(base: Path, tmp_path: Path) -> None:
    (row,) = (row for row in ROWS if row.id == "ops-stdout-full")
    found = trial(dataclasses.replace(row, expected=FULL), base, tmp_path / "place")
    assert "status 0, not 2: hloracle: stdout: cannot be written" in found.wrong[0]
    assert not any(line.startswith("once it is lifted") for line in found.wrong)
