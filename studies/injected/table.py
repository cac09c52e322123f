"""The faults: each a row with the command, the stage, what goes wrong there, and what has to come of it."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hloracle.studies.injected.faults import (
    CRASH,
    FILES,
    KILL,
    SIZE,
    TERMINATE,
    Also,
    Beside,
    Dated,
    Fault,
    Forgotten,
    Full,
    In,
    Limited,
    ReadOnly,
    Refused,
    Stream,
    Tool,
    Torn,
    With,
    Worker,
    bit,
    closed,
    deep,
    empty,
    exchanged,
    folders,
    half,
)
from hloracle.studies.injected.judge import CONFORMS, Expected
from hloracle.studies.injected.place import SECONDS

COMMANDS: dict[str, tuple[str, ...]] = {
    "check": ("check", "decode.mlir", "--model", "tiny-llama", "--tokens", "4", "--backend", "xla-cpu", "--out", "out"),
    "run": (
        "run",
        "tiny-llama",
        "--tokens",
        "4",
        "--capacity",
        "128",
        "--rounds",
        "0",
        "--threads",
        "2",
        "--out",
        "out",
    ),
    "suite": ("suite", "llama", "--jobs", "1", "--out", "out"),
    "ops": ("ops", "floor/f64/one", "floor/f64/heads", "--jobs", "1", "--out", "out"),
}


@dataclass(frozen=True)
class Row:
    """A fault, where it comes about, and what has to come of it.

    id: of the row. command: a key of COMMANDS. stage, what: for a reader. more: words of the command line, before `--out`.
    seconds: that the command may take.
    """

    id: str
    command: str
    stage: str
    what: str
    fault: Fault
    expected: Expected
    more: tuple[str, ...] = ()
    seconds: float = SECONDS

    @property
    def words(self) -> list[str]:
        """Of the command line."""
        words = COMMANDS[self.command]
        return [*words[:-2], *self.more, *words[-2:]]


def after(kinds: str, *faults: Fault) -> Fault:
    """Faults, where the cache has nothing of these kinds."""
    return Also((Forgotten(tuple(kinds.split())), *faults))


ROWS: list[Row] = []


def row(
    id: str,
    stage: str,
    what: str,
    fault: Fault,
    expected: Expected,
    more: tuple[str, ...] = (),
    seconds: float = SECONDS,
) -> None:
    """Add a row, whose id begins with its command."""
    ROWS.append(Row(id, id.partition("-")[0], stage, what, fault, expected, more, seconds))


# ---- entries of the cache that are torn

Way = Callable[[Sequence[Path]], None]  # what is done to the files of a kind of entry
DAMAGES: dict[Way, str] = {
    bit: "one bit of each file is another", half: "half of each file is there", empty: "each file is empty",
    deep: "each file is JSON nested 100 000 deep", exchanged: "each file has another entry's content",
    folders: "a folder stands in the place of each file", closed: "a link to nowhere stands in the place of each file",
}  # fmt: skip
TORN: dict[str, dict[str, tuple[Way, ...]]] = {
    "check": {
        "anchors": (bit, exchanged), "compiled": (half, exchanged), "configurations": (bit, empty, deep, exchanged, folders),
        "finite": (deep,), "interpreted": (half,), "models": (bit, half), "named": (deep, closed), "oracle": (bit,),
        "probes": (exchanged,), "truth": (bit, folders),
    },
    "run": {"compiled/[0-3]*": (half,)},
    "suite": {"configurations": (half,)},
    "ops": {"ops": (bit, deep, exchanged)},
}  # fmt: skip
for command, torn in TORN.items():
    for kind, ways in torn.items():
        for way in ways:
            name = kind.partition("/")[0]
            row(
                f"{command}-torn-{name}-{way.__name__}", f"`{kind}` in the cache", DAMAGES[way], Torn(kind, way),
                Expected(0, "conforms", anew=name),
            )  # fmt: skip

# ---- processes that are killed, crash or are stopped

PARSE = "conformance.run:_inspect"
GATE = "conformance.runs.gate_zero:_run"
LOWER = "reference.oracle.lower:lower"
TRUTH = "reference.huggingface.truth:_compute"
ANCHORS = "reference.huggingface.anchor_truth:_compute"
COMPILE = "conformance.runs.compiling:_compile_xla"
CONFIGURATION = "conformance.runs.configurations:_run"
PROBES = "conformance.runs.probes:_run"
INSIDE = "conformance.runs.inside:_run"
INTERPRETER = "conformance.runs.interpreted:_run"
CONCLUDE = "conformance.run:conclude"  # in the command's own process
WRITE = "reports.record:write_all"  # there, too
SERVED = "serving:_Worker"  # a backend's process

HARNESS = Expected(1, "harness-error")
MEMORY = Expected(1, "out-of-memory")
TIMEOUT = Expected(1, "timeout")


def refused(says: str) -> Expected:
    """One line, and status 2."""
    return Expected(2, says=says)


row(
    "check-parse-killed",
    "graphs are parsed",
    "the process is killed",
    In(PARSE, "end", KILL),
    refused("SIGKILL.*free some memory"),
)
row(
    "check-parse-crash",
    "graphs are parsed",
    "the process crashes",
    In(PARSE, "end", CRASH),
    refused("MLIR's parser crashes"),
)
row(
    "check-lower-killed",
    "the oracle is lowered",
    "the process is killed",
    after("oracle", In(LOWER, "end", KILL)),
    refused("SIGKILL.*free some memory"),
)
row("check-gate-killed", "gate zero", "the process is killed", In(GATE, "end", KILL), HARNESS)
row(
    "check-truth-killed",
    "Hugging Face's answers",
    "the process is killed",
    after("truth", In(TRUTH, "end", KILL)),
    HARNESS,
)
row(
    "check-truth-terminated",
    "Hugging Face's answers",
    "the process is terminated",
    after("truth", In(TRUTH, "end", TERMINATE)),
    HARNESS,
)
row(
    "check-anchors-killed",
    "Hugging Face's values",
    "the process is killed",
    after("anchors", In(ANCHORS, "end", KILL)),
    HARNESS,
)
row(
    "check-compile-killed",
    "XLA compiles",
    "the process is killed",
    after("compiled", In(COMPILE, "end", KILL)),
    CONFORMS,
)
row(
    "check-configuration-killed",
    "a configuration",
    "its process is killed",
    after("configurations", In(CONFIGURATION, "end", KILL)),
    HARNESS,
)
row(
    "check-configuration-crash",
    "a configuration",
    "its process crashes",
    after("configurations", In(CONFIGURATION, "end", CRASH)),
    HARNESS,
)
row(
    "check-configuration-killed-once",
    "a configuration",
    "the first process is killed",
    after("configurations", In(CONFIGURATION, "end", KILL, times=1)),
    HARNESS,
)
row("check-probes-killed", "probes", "the process is killed", after("probes", In(PROBES, "end", KILL)), HARNESS)
row(
    "check-inside-killed", "anchors", "the process is killed", after("anchors/*.json", In(INSIDE, "end", KILL)), HARNESS
)
row(
    "check-interpreter-killed",
    "the interpreter",
    "the process is killed",
    after("interpreted", In(INTERPRETER, "end", KILL)),
    CONFORMS,
)
row("suite-family-killed", "a family", "its process is killed", In("conformance.suite:judged", "end", KILL), HARNESS)
row(
    "suite-family-killed-once",
    "a family",
    "its process is killed the first time",
    In("conformance.suite:judged", "end", KILL, times=1),
    CONFORMS,
)
row(
    "suite-configuration-crash",
    "a configuration",
    "the process of its family crashes",
    after("configurations", In(CONFIGURATION, "end", CRASH)),
    HARNESS,
)
row(
    "ops-load-killed",
    "a module is loaded",
    "the backend's process is killed",
    after("ops", In(f"{SERVED}.load", "end", KILL)),
    Expected(1, "failures", "crash"),
)
row(
    "ops-load-killed-once",
    "a module is loaded",
    "the backend's process is killed, once",
    after("ops", In(f"{SERVED}.load", "end", KILL, times=1)),
    CONFORMS,
)
row(
    "ops-call-crash",
    "a module is called",
    "the backend's process crashes",
    after("ops", In(f"{SERVED}.call", "end", CRASH)),
    Expected(1, "failures", "crash"),
    ("--no-cache",),  # what crashes is what the backend does, and is kept
)
row(
    "ops-describe-crash",
    "a backend is opened",
    "its process crashes",
    In(f"{SERVED}.describe", "end", CRASH),
    refused("cannot be opened"),
)

# ---- the command itself is stopped

SIGNALS = {
    "killed": signal.SIGKILL,
    "terminated": signal.SIGTERM,
    "interrupted": signal.SIGINT,
    "hung up": signal.SIGHUP,
}
for stage, at, kinds, chosen in (
    ("truth", TRUTH, "truth", SIGNALS), ("gate", GATE, "", ["terminated"]),
    ("configuration", CONFIGURATION, "configurations", ["killed", "interrupted"]),
):  # fmt: skip
    for told, number in ((told, SIGNALS[told]) for told in chosen):
        stopped = Expected(-9, killed=True) if number == signal.SIGKILL else Expected(130, says="hloracle: interrupted")
        fault: Fault = In(at, "tell main", number)
        row(
            f"check-{stage}-main-{told.replace(' ', '-')}", f"during {stage}", f"the command is {told}",
            after(kinds, fault) if kinds else fault, stopped,
        )  # fmt: skip
row(
    "check-write-main-killed",
    "the report is written",
    "the command is killed",
    In(WRITE, "end", KILL),
    Expected(-9, killed=True),
)
row(
    "check-write-main-terminated",
    "the report is written",
    "the command is terminated",
    In(WRITE, "end", TERMINATE),
    Expected(130, says="interrupted"),
)
row(
    "suite-family-main-killed",
    "a family",
    "the command is killed",
    In("conformance.suite:judged", "tell main", KILL),
    Expected(-9, killed=True),
)
row(
    "suite-family-main-terminated",
    "a family",
    "the command is terminated",
    In("conformance.suite:judged", "tell main", TERMINATE),
    Expected(130, says="interrupted"),
)
row(
    "ops-call-main-killed",
    "a module is called",
    "the command is killed",
    after("ops", In(f"{SERVED}.call", "tell main", KILL)),
    Expected(-9, killed=True),
)
row(
    "ops-call-main-interrupted",
    "a module is called",
    "the command is interrupted",
    after("ops", In(f"{SERVED}.call", "tell main", signal.SIGINT)),
    Expected(130, says="interrupted"),
)

# ---- memory

row("check-parse-memory", "graphs are parsed", "MemoryError", In(PARSE, "want memory"), refused("ran out of memory"))
row("check-truth-memory", "Hugging Face's answers", "MemoryError", after("truth", In(TRUTH, "want memory")), HARNESS)
row(
    "check-truth-limit",
    "Hugging Face's answers",
    "the process gets 16 MiB more",
    after("truth", In(TRUTH, "limit memory", 2**24)),
    HARNESS,
)
row("check-gate-memory", "gate zero", "MemoryError", In(GATE, "want memory"), HARNESS)
row(
    "check-configuration-memory",
    "a configuration",
    "MemoryError",
    after("configurations", In(CONFIGURATION, "want memory")),
    MEMORY,
)
row(
    "check-configuration-limit",
    "a configuration",
    "its process gets 16 MiB more",
    after("configurations", In(CONFIGURATION, "limit memory", 2**24)),
    MEMORY,
)
row("check-inside-memory", "anchors", "MemoryError", after("anchors/*.json", In(INSIDE, "want memory")), HARNESS)
row(
    "check-conclude-memory",
    "the verdict",
    "MemoryError in the command itself",
    In(CONCLUDE, "want memory"),
    refused("memory: "),
)
row(
    "check-write-memory",
    "the report is written",
    "MemoryError in the command itself",
    In(WRITE, "want memory"),
    refused("memory: "),
)
row("suite-family-memory", "a family", "MemoryError", In("conformance.suite:judged", "want memory"), HARNESS)
row(
    "ops-load-memory",
    "a module is loaded",
    "MemoryError",
    after("ops", In(f"{SERVED}.load", "want memory")),
    Expected(1, "failures", "out of memory"),
)

# ---- what hangs

QUICK = ("--timeout", "15")
row("check-gate-hangs", "gate zero", "the process hangs", In(GATE, "hang"), HARNESS, QUICK)
row(
    "check-configuration-hangs",
    "a configuration",
    "its process hangs",
    after("configurations", In(CONFIGURATION, "hang")),
    TIMEOUT,
    QUICK,
)
row(
    "check-configuration-stopped",
    "a configuration",
    "its process is stopped (SIGSTOP)",
    after("configurations", In(CONFIGURATION, "end", signal.SIGSTOP)),
    TIMEOUT,
    QUICK,
)
row(
    "check-compile-hangs",
    "XLA compiles",
    "the process hangs",
    after("compiled configurations", In("backends.xla:XlaCpu.load", "hang", first=4)),
    TIMEOUT,
    QUICK,
)
row("check-inside-hangs", "anchors", "the process hangs", after("anchors/*.json", In(INSIDE, "hang")), HARNESS, QUICK)
row(
    "run-compiler-hangs",
    "IREE compiles",
    "the compiler hangs from gate zero on",
    Tool("exec sleep 1000"),
    TIMEOUT,
    QUICK,
)
row(
    "run-compiler-hangs-late",
    "IREE compiles",
    "the compiler hangs on the model's graphs",
    Tool('grep -q gate_zero "$1" && exec $real "$@"\nexec sleep 1000'),
    TIMEOUT,
    QUICK,
)
row(
    "ops-call-hangs",
    "a module is called",
    "the backend hangs",
    after("ops", In(f"{SERVED}.call", "hang")),
    Expected(1, "failures", "hang"),
    ("--timeout", "3"),
)

# ---- compilers that do something else

row(
    "run-compiler-killed",
    "IREE compiles",
    "the compiler is killed, as for want of memory",
    Tool("kill -9 $$"),
    MEMORY,
)
row(
    "run-compiler-garbage",
    "IREE compiles",
    "the compiler writes what is no module",
    Tool("echo garbage"),
    Expected(1, "compiler-fault"),
)

# ---- workers that lie

for lie, request, which in (
    ("rubbish", "call", 6), ("memory", "call", 6), ("leave", "start", 1),
):  # fmt: skip
    row(
        f"check-worker-{lie.replace(' ', '-')}", f"a worker at `{request}`", f"misbehaving_worker.py: {lie}", Worker(lie, request, which),
        Expected(1, "out-of-memory" if lie == "memory" else "compiler-fault"),
    )  # fmt: skip
row("check-worker-hangs", "a worker at `call`", "it hangs", Worker("hang", "call", 6), TIMEOUT, QUICK)

# ---- disks

FULL = "the disk is full"
for kinds in ("configurations", "truth", "anchors", "compiled", "oracle", "probes"):
    row(
        f"check-full-{kinds}",
        f"`{kinds}` in the cache",
        "the disk is full",
        after(kinds, Full("cache", 0)),
        refused(FULL),
    )
row(
    "check-full-cold",
    "the cache is cold",
    "the disk has 200 KiB",
    Also((Forgotten(()), Full("cache", 200))),
    refused(FULL),
)
row(
    "run-full-compiled",
    "`compiled` in the cache",
    "the disk has 64 KiB",
    after("compiled/[0-7]*", Full("cache", 64)),
    refused(FULL),
)
row(
    "suite-full-configurations",
    "`configurations` in the cache",
    "the disk is full",
    after("configurations", Full("cache", 0)),
    Expected(1, "harness-error", FULL),
)
row("ops-full-ops", "`ops` in the cache", "the disk is full", after("ops", Full("cache", 0)), refused(FULL))
row("check-full-out", "the report is written", "the disk has 64 KiB", Full("work", 64), refused(FULL))
row("ops-full-out", "the report is written", "the disk has 8 KiB", Full("work", 8), refused(FULL))
row("check-full-tmp", "temporary files", "the disk has 16 KiB", Full("tmp", 16), CONFORMS)
row(
    "run-full-tmp",
    "temporary files, while IREE compiles",
    "the disk has 64 KiB",
    after("compiled", Full("tmp", 64)),
    refused("all but full, and iree-compile failed"),
)
row(
    "check-quota",
    "`configurations` in the cache",
    "the quota is used up",
    after("configurations", Refused("/cache/configurations/", errno.EDQUOT)),
    refused(FULL),
)
row(
    "check-read-only-warm",
    "the cache is warm",
    "it is read-only",
    ReadOnly("cache"),
    refused("cannot be written.*read-only file system"),
)
row(
    "check-read-only-cold",
    "the truth is missing",
    "the cache is read-only",
    after("truth", ReadOnly("cache")),
    refused("cannot be written.*read-only file system"),
)
row(
    "run-read-only-warm",
    "the cache is warm",
    "it is read-only",
    ReadOnly("cache"),
    refused("cannot be written.*read-only file system"),
)
row(
    "suite-read-only-warm",
    "the cache is warm",
    "it is read-only",
    ReadOnly("cache"),
    Expected(1, "harness-error", "cannot be written.*read-only file system"),
)
row("ops-read-only-warm", "the cache is warm", "it is read-only", ReadOnly("cache"), CONFORMS)
row(
    "ops-read-only-cold",
    "outcomes are missing",
    "the cache is read-only",
    after("ops", ReadOnly("cache")),
    refused("cannot be written.*read-only file system"),
)
row(
    "check-read-only-out",
    "the report's folder",
    "it is read-only",
    ReadOnly("work"),
    Expected(2, says="cannot be written.*read-only file system", stays=True),
)
row(
    "check-io-error-read",
    "`configurations` in the cache",
    "an error of the disk when it is read",
    Refused("/cache/configurations/", errno.EIO, reads=True, times=1),
    Expected(0, "conforms", anew="configurations"),
)
row(
    "check-io-error-write",
    "`configurations` in the cache",
    "an error of the disk when it is written",
    after("configurations", Refused("/cache/configurations/", errno.EIO)),
    refused("configurations.*input/output error"),
)

# ---- two on one cache

row("check-two-warm", "the cache is warm", "two runs at once", Beside(), CONFORMS)
row("check-two-cold", "the cache is cold", "two runs at once", Also((Forgotten(()), Beside())), CONFORMS)
row(
    "check-two-one-killed",
    "the cache is cold",
    "two runs at once, of which one is killed amid the truth",
    Also((Forgotten(()), Beside(), In(TRUTH, "tell main", KILL))),
    Expected(-9, killed=True),
)
row("ops-two-cold", "the cache is cold", "two runs at once", Also((Forgotten(("ops",)), Beside())), CONFORMS)
row("suite-two-warm", "the cache is warm", "three runs at once", Beside(2), CONFORMS)

# ---- clocks

YEAR = 365 * 24 * 3600
row(
    "check-clock-back",
    "before gate zero",
    "the clock jumps back an hour",
    after("configurations", In("conformance.run:gates", "jump", -3600)),
    CONFORMS,
)
row(
    "check-clock-forward",
    "before gate zero",
    "the clock jumps forward a year",
    after("configurations", In("conformance.run:gates", "jump", YEAR)),
    CONFORMS,
)
row("run-clock-back", "before the verdict", "the clock jumps back a year", In(CONCLUDE, "jump", -YEAR), CONFORMS)
row("check-dated-future", "the cache", "all files have times of next year", Dated(YEAR), CONFORMS)
row("check-dated-past", "the cache", "all files have times of 1996", Dated(-30 * YEAR), CONFORMS)
row(
    "suite-clock-forward",
    "a family",
    "the clock jumps forward a year",
    after("configurations", In("conformance.suite:judged", "jump", YEAR)),
    CONFORMS,
)
row(
    "ops-clock-back",
    "a module is loaded",
    "the clock jumps back an hour",
    after("ops", In(f"{SERVED}.load", "jump", -3600)),
    CONFORMS,
)

# ---- the environment

row("check-tmpdir-missing", "the start", "TMPDIR is not there", With((("TMPDIR", "{folder}/nowhere"),)), CONFORMS)
row("check-tmpdir-read-only", "the start", "TMPDIR is read-only", ReadOnly("tmp"), CONFORMS)
row("check-home-missing", "the start", "HOME is not there", With((("HOME", "{folder}/nowhere"),)), CONFORMS)
row(
    "check-cache-file",
    "the start",
    "HLORACLE_CACHE is a file",
    With((("HLORACLE_CACHE", "{folder}/work/decode.mlir"),)),
    refused("cannot be written"),
)
row(
    "check-cache-proc",
    "the start",
    "HLORACLE_CACHE is in /proc",
    With((("HLORACLE_CACHE", "/proc/nowhere"),)),
    refused("cannot be written"),
)
row(
    "check-stdout-full",
    "the verdict is printed",
    "stdout is full",
    Stream("stdout"),
    Expected(0, "conforms", quiet=True),
)
row("check-stderr-full", "the whole run", "stderr is full", Stream("stderr"), Expected(0, "conforms", quiet=True))
row("ops-stdout-full", "the table is printed", "stdout is full", Stream("stdout"), Expected(0, "conforms", quiet=True))
row(
    "check-files-24",
    "the whole run",
    "a process may have 24 files open",
    after("configurations", Limited(FILES, 24)),
    refused("too many open files"),
)
row(
    "check-file-size",
    "`configurations` in the cache",
    "a file may have 16 KiB",
    after("configurations", Limited(SIZE, 2**14)),
    refused("file too large"),
)
row(
    "check-no-process",
    "gate zero",
    "no process can be started",
    In("core.child:_start", "refuse", errno.EAGAIN),
    refused("process"),
)
row(
    "run-no-compiler",
    "IREE compiles",
    "its compiler cannot be started",
    after("compiled/[0-7]*", Refused("iree-compile", errno.EAGAIN)),
    MEMORY,
)
