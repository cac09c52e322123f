"""The record of a run as types: what a run writes, and what all reports are drawn from.

reports/report.schema.json is generated from these types, `python -m hloracle.reports.record` writes it. What no type can
say, for instance that a run with a failed check has not passed, is checked by reports/record.py.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, Field, WithJsonSchema
from typing_extensions import TypedDict

SCHEMA: Final = "hloracle-report/11"
LARGEST: Final = 2**63 - 1  # what other readers of JSON can hold

# A record may come from anywhere: of a list of a million wrong entries the first is enough.
T = TypeVar("T")
List = Annotated[list[T], Field(fail_fast=True)]
Dict = Annotated[dict[str, T], Field(fail_fast=True)]


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("is blank")
    return value


# Not by a pattern alone: that takes no string with half a surrogate pair, which the name of a file can have.
Words = Annotated[str, AfterValidator(_not_blank), WithJsonSchema({"type": "string", "pattern": r"\S"})]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Place = Annotated[int, Field(ge=1, le=LARGEST)]  # a line, or whatever else is counted from 1
Token = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# JSON has no word for the rest of the floats, so they are strings.
NotFinite = Literal["NaN", "Infinity", "-Infinity"]
Float = Number | NotFinite  # that was measured
Figure = Number | NotFinite | None  # None where it was not measured
Scalar = str | Token | Number | bool | None

# `invariant-broken`: no value that was compared is wrong, and the graph breaks a stated invariant. `unsupported`,
# `out-of-memory` and `timeout`: a configuration did not run, so whether the graph is right is not known.
Class = Literal[
    "conforms", "near-tie", "reference-fault", "emitter-fault", "compiler-fault", "device-fault", "invariant-broken",
    "unsupported", "out-of-memory", "timeout", "harness-error",
]  # fmt: skip
Phase = Literal["prefill", "extend", "decode"]
Head = Literal["token", "logits"]
Status = Literal["passed", "failed", "skipped", "error"]
Stage = Literal["", "compile", "load", "run", "memory", "timeout", "process"]
Census = Dict[Count]


class Confidence(TypedDict):
    """How sure the class of a verdict is, and why."""

    level: Literal["certain", "likely", "possible"]
    because: List[str]


_Classed = TypedDict("_Classed", {"class": Class})


class Verdict(_Classed):
    """What the run concluded, and the first thing that is wrong.

    Of a suite whose own model passes and another does not: the class of the first that does not, with nothing of this
    record's own model named.
    """

    anchor: str | None
    """The first anchor whose value is wrong, e.g. `layers.3.self_attn.q_proj`; null where none was found."""
    operation: str | None
    """The first wrong operation and where it stands, e.g. `stablehlo.rsqrt %l0.x at line 61 of llama_decode_logits`."""
    prompt: str | None
    """The id of the prompt it was seen on."""
    step: Count | None
    """The generated token it was seen at, counted from 0."""
    explanation: Words
    """One sentence or a few; what was not compared comes first."""
    compared: List[Words]
    """What of this record's own model was compared, in the order in which it is told, e.g. `both caches whole`."""
    not_compared: List[Words]
    """What could not be compared, each with the reason; of a suite that passes also what was not of its other models."""
    evidence: List[str]
    """The observations that the verdict follows from, the most telling first."""
    confidence: Confidence | None
    """Null where the verdict passes."""
    fusion_dependent: bool
    """The fault is gone once intermediate values are made outputs."""


class Model(TypedDict):
    """The checkpoint that the graphs are of."""

    name: Words
    """What the user called it."""
    directory_name: str
    """The last part of the checkpoint's path."""
    digest: str
    """SHA-256 of the checkpoint, hex."""
    architecture: Words
    """In Hugging Face's word for it, such as `llama`."""
    own_type: str | None
    """What its config.json calls the model, where `--as` named the architecture; null for all others."""
    ignored_keys: List[str]
    """Keys of its config.json that were left out: transformers never reads them, and a short prompt gives the same bits."""
    parameters: Count
    config: Dict[Scalar]
    """The configuration under Hugging Face's keys, flat."""


class Arithmetic(TypedDict):
    """What products of float32 are computed in."""

    reference: Words
    device: Words
    """Of what IREE runs the judged graphs on. Of CUDA it is read from the compiled code."""


class Builds(TypedDict):
    """The set of flags that IREE compiled the production graphs of each phase with."""

    decode: Words
    prefill: Words


class CustomCall(TypedDict):
    """A function that a judged graph was allowed to call by custom_call, with the library it is in."""

    target: Words
    library: Words
    """The file's name."""
    sha256: Words


class Settings(TypedDict):
    """What the user asked for."""

    device: Words
    precision: Words
    compute: Literal["f32", "bf16", "f16"]
    """What values between modules and caches are of; of less than f32 the weights are, too."""
    kv: Literal["compute", "int8"]
    """What keys and values are kept in: in what is computed in, or in 8 bits with a scale for each slot of each head."""
    ring: Count
    """Slots of the caches of layers with a window, where these are as long as the window; 0 where all have the capacity."""
    layout: Words
    fused: bool
    """Weights that are multiplied with the same values are one argument."""
    on_device: bool
    """What is looked up at a token or a position is looked up by the graph itself, so that the host waits for nothing."""
    arithmetic: Arithmetic
    builds: Builds
    chosen: Literal["untuned", "tuned", "asked"]
    """Layout and builds are those taken everywhere, those found fastest on the machine, or those that the user named."""
    ignored: str
    """Why what was found fastest on the machine was not taken."""
    tokens: Count
    """Tokens generated after each prompt."""
    capacity: Count
    """Slots of the key and value caches."""
    buckets: List[Count]
    """Lengths that a prefill graph was made for."""
    threads: Count
    timeout: Positive
    """Seconds within which a configuration has to end."""
    quick: bool
    """Of one model of many: one bucket, and anchors on one backend alone."""
    backends: Annotated[List[Words], Field(min_length=1)]
    """Those that graphs were to run on."""
    custom_calls: List[CustomCall]


class Source(TypedDict):
    """Where graphs come from. In a record they stand in the order in which they are shown."""

    id: Words
    title: Words
    """In the words of a column's head, e.g. `Emitted graph`."""
    judged: bool
    """The verdict is about its graphs; those of the others are what they are judged by."""
    brought: bool
    """Its graphs are files of the user's."""


class Reference(TypedDict):
    """What Hugging Face transformers generates in float32 at temperature 0."""

    tokens: List[Token]
    pieces: List[str] | None
    """The text of each token; null where the model has no tokenizer."""
    text: str | None
    gaps: List[Figure]
    """The reference's largest logit less its second, for each token."""


class Prompt(TypedDict):
    """A prompt that was run."""

    id: Words
    """`PROMPT@BUCKET`, e.g. `chat@64`."""
    prompt: Words
    bucket: Count
    why: str
    """What this prompt can show that the others cannot."""
    text: str | None
    """Null where the model has no tokenizer."""
    token_ids: List[Token]
    reference: Reference


class Answer(TypedDict):
    """One configuration's tokens after one prompt."""

    agreed: Count
    total: Count
    tokens: List[Token]
    pieces: List[str] | None
    text: str | None
    first_mismatch: Count | None
    """The first step whose token differs, counted from 0; null where none does, though tokens may be missing at the end."""
    disagreements: Count
    """Steps whose token differs."""
    near_ties: Count
    """Those of them where the reference's own lead is inside the noise."""
    largest_gap: Figure
    """The reference's largest lead at a step whose token differs."""
    errors: List[Float]
    """The logit error at each step; empty where logits are not read back."""
    logit_error: Figure
    """Largest absolute difference from the float64 reference, over all steps and the vocabulary."""
    logit_floor: Figure
    """The measured distance between two references that are both right."""
    logit_limit: Figure
    """The error that is still accepted: a stated multiple of the floor."""


class Answers(TypedDict):
    """How far the tokens after one prompt agree with the reference's."""

    agreed: Count
    """That of the worst configuration; 0 where one has no result."""
    total: Count
    configurations: Dict[Answer]
    """Configuration -> its tokens. One that is not here was not compared on this prompt."""


class Program(TypedDict):
    """What a backend's compiler made of a graph."""

    graph: Words
    """Its id among `graphs`."""
    seconds: Seconds | None
    """That it took when it was made, which need not have been in this run; null where that is not known."""
    bytes: Count | None
    """Null where a program is in no file."""


class Configuration(TypedDict):
    """A source on a backend: a column of the matrix."""

    id: Words
    """`SOURCE/BACKEND`, e.g. `emitter/iree-cpu`, with `/token` where that is its head."""
    source: Words
    backend: Words
    head: Head
    """What is read back at each step.

    With `logits` the token is the argmax on the host, with `token` the graph picks it on the device. Either way each step is
    fed the reference's token.
    """
    status: Literal["ran", "reused", "failed"]
    """`reused`: the tokens are those of an earlier run, from the cache. `failed`: there are none."""
    message: str
    """Why it failed; otherwise empty, or a remark."""
    agreed: Count
    """Over all prompts."""
    total: Count
    seconds: Seconds
    tokens_per_second: Seconds | None
    peak_bytes: Count | None
    """The most that its process held, and a backend in a process of its own beside it; null where it had no process."""
    programs: List[Program]
    """Of the graphs that were loaded; empty where the backend says nothing of them."""


class Witness(TypedDict):
    """A backend that the run was asked for."""

    name: Words
    title: Words
    """For a sentence, e.g. `IREE 3.12.0`."""
    family: Words
    """Compilers of one family are one witness."""
    said: str
    """What it says of itself, where it is a process of its own: its version, its device."""
    passed: bool
    """It passed gate zero, and was asked more than that."""


class Cell(TypedDict):
    """What a backend makes of a source's graphs, with all their heads."""

    source: Words
    backend: Words
    state: Literal["right", "wrong", "failed", "unknown"]
    """`failed`: it does not compile, load or run them. `unknown`: there is no answer, or not all of it could be compared."""
    first: str
    """What is wrong first; empty where nothing is."""
    anchor: str
    """The first wrong anchor; empty where it is not known."""


class Matrix(TypedDict):
    """Sources by backends."""

    backends: List[Witness]
    cells: List[Cell]
    sentences: List[Words]
    """What follows for a reader: of each source, and of what is independent of what."""


class Word(TypedDict):
    """What StableHLO's interpreter computes at an anchor, from right inputs."""

    phase: Phase
    anchor: Words
    off: Figure
    """Distance from the reference in floors; null where it has no word."""
    why_not: str
    """Why it has none."""


class Check(TypedDict):
    """One question with a figure, a limit and a status."""

    id: Words
    """What it is about, and its kind, e.g. `emitter/iree-cpu.caches`."""
    kind: Words
    source: str
    """Empty where it is about no source, and so of backend and head."""
    backend: str
    head: Literal["", "token", "logits"]
    title: Words
    status: Status
    """`skipped` and `error` are not passes: the first did not apply or could not run, the second tried and broke."""
    figure: str
    """What was measured."""
    limit: str
    """What is accepted."""
    detail: str
    error: Stage
    """Of an error the stage at which the configuration failed, where that is why."""


class Anchors(TypedDict):
    """How far the values at the anchors are from the reference's, in one configuration, phase and prompt."""

    configuration: Words
    """Of a file that was judged also one that did not run."""
    source: Words
    phase: Phase
    prompt: Words
    positions: List[Count]
    """The columns of `errors`: positions in the sequence, counted from 0."""
    anchors: List[Words]
    """The rows of `errors`, in the order of computation."""
    errors: List[List[Figure]]
    """Multiples of the anchor's floor; null where nothing was compared."""


class Figures(TypedDict):
    """How absolute errors are spread: the root of their mean square, the median, the 99th percentile, the largest."""

    rms: Float
    median: Float
    p99: Float
    largest: Float


class Spread(TypedDict):
    """How errors are spread in a graph that computes in less than float32, beside those of Hugging Face in the same rows."""

    configuration: Words
    phase: Phase
    anchor: Words
    """`logits` are those of all prompts. Of anchors of one kind in several layers it is the one nearest to its limits."""
    rows: Count
    scale: Float
    """The root mean square of the right values."""
    float32: Figures
    """Of Hugging Face in float32."""
    narrow: Figures
    """Of Hugging Face in what the graph computes in: of its passes the worst, by each figure."""
    graph: Figures
    limit: Figures
    """What is accepted of the graph."""


class Floor(TypedDict):
    """The measured noise at an anchor, between references that are both right."""

    anchor: Words
    scale: Float
    """The reference's largest absolute value."""
    noise: Float
    """The largest absolute difference between Hugging Face's float32 and its float64."""
    relative: Float
    """The median over the rows of a row's noise, divided by the row's scale."""
    oracle: Figure
    """The JAX oracle's own largest error, in floors."""
    limit: Seconds
    """The error that is still accepted, in floors."""


class Compiled(TypedDict):
    """A graph that was compiled for a target that nothing was run on."""

    source: Words
    graph: Words
    compiler: Words
    """IREE's name of the code generator, e.g. `cuda`."""
    target: str
    """What of it, e.g. `sm_89`; empty where there is one."""
    status: Literal["compiled", "failed"]
    message: str
    """The compiler's, where it failed."""
    arithmetic: List[Words]
    """Of CUDA: what the code multiplies with, e.g. `fma f32`."""
    seconds: Seconds


class LocalError(TypedDict):
    """The errors at one anchor of a graph that was taken apart, in floors."""

    anchor: Words
    phase: Phase
    accumulated: Figure
    """With all that went wrong before."""
    local: Figure
    """When this part alone is given the right inputs."""
    peer: Figure
    """The local error of the graph that is right."""


class Element(TypedDict):
    """One element of a value that is wrong."""

    index: List[Count]
    value: Float
    expected: Float


class Origin(TypedDict):
    """A line of the emitter's Python."""

    file: Words
    """From the package's folder on, with `/`."""
    line: Place
    function: Words


class Candidate(TypedDict):
    """An operation that may be to blame."""

    name: Words
    line: Place | None
    text: str
    words: str
    """The change of it that makes the anchor right."""


class ChangedLine(TypedDict):
    """A line of a graph, counted from 1, and what should stand in its place."""

    graph: Words
    line: Place
    before: str
    after: List[str]


class Repair(TypedDict):
    """What puts the graphs right."""

    change: str
    """The first of the changes, in words."""
    lines: List[ChangedLine]
    """The first of those that are changed."""
    count: Count
    """How many are changed."""
    patch: str
    """The file beside the report that changes them all; empty where none was written."""
    configuration: Words
    """The one that was run with them, e.g. `emitter/xla-cpu`; no other was."""
    conforms: bool
    """Whether it passes with them."""
    detail: str
    """What does not pass."""


class Operation(TypedDict):
    """The first wrong operation."""

    name: Words
    """E.g. `stablehlo.rsqrt`."""
    value: str
    """The name of its result in the graph's text."""
    line: Place | None
    """Of the graph's text, counted from 1."""
    graph: str
    text: str
    """The operation as the graph has it."""
    anchor: str
    """The anchor that it stands in."""
    operands: List[str]
    """The operands' types."""
    result: str
    """The result's type."""
    worst: Element | None
    """The element that is furthest off; null where there is no single one."""
    why: str
    """What shows that it is this one."""
    origin: List[Origin]
    """The lines of Python that wrote it, the innermost first; of the bundled emitter's."""


class ReproducerOn(TypedDict):
    """What a reproducer did on a backend of the run."""

    backend: Words
    title: Words
    """With its version and its flags."""
    shows: bool | None
    """Null where it could not be told."""
    detail: str
    """How far off it was, or what the backend said."""


class Reproducer(TypedDict):
    """A few operations that show the fault by themselves."""

    folder: Words
    """Relative to the report's folder, with `/`."""
    files: List[Words]
    """Relative to `folder`."""
    command: Words
    """What to run in `folder`. A backslash at the end of a line continues it."""
    shown: bool
    """The command was run, and it showed the fault."""
    output: str
    """What it printed."""
    needs: List[Words]
    """What pip installs for the command, where it is of another version of a compiler than this environment's."""
    backends: List[ReproducerOn]
    """Those that it was run on: of a compiler's fault."""
    notes: List[str]
    """How it was made smaller."""


class Localization(TypedDict):
    """What was found by taking a failing run apart."""

    configuration: Words
    """The one that was taken apart."""
    source: Words
    reason: str
    """Why that one."""
    phase: Phase
    prompt: Words
    step: Count | None
    """The generated token, counted from 0."""
    position: Count | None
    """The position in the sequence, counted from 0."""
    anchor: str | None
    """The first wrong one."""
    first_accumulated: str | None
    """The first anchor over its limit when the graph runs from its own inputs."""
    first_local: str | None
    """The first anchor over its limit when each part is given the right inputs."""
    errors: List[LocalError]
    """In the order of computation."""
    operation: Operation | None
    """Null where none was found."""
    candidates: List[Candidate]
    """The operations whose change makes the anchor right, the best first."""
    sole: bool
    """Of all changes that were tried, those of one operation alone make the anchor right."""
    repair: Repair | None
    """Null where none was found, or looked for."""
    fusion_dependent: bool
    """The fault is gone once intermediate values are made outputs."""
    interpreted: Word | None
    """Null where the interpreter was not asked: nothing is wrong by itself."""
    reproducer: Reproducer | None
    """Null where none was written."""
    notes: List[str]


class Canary(TypedDict):
    """A copy of the graph that was broken on purpose, to see that this run would have noticed."""

    anchor: Words
    """Where it was broken."""
    graph: str
    caught: bool
    named: str | None
    """The anchor that the comparison named."""
    detail: str


class Graph(TypedDict):
    """A graph that was inspected."""

    id: Words
    source: Words
    phase: Phase
    head: Head
    bucket: Place | None
    """Null for decode."""
    ops: Census
    """Operation -> how often it stands in the graph."""
    op_total: Count
    op_kinds: Count
    weights: Count
    """Weight arguments."""
    flops: Count | None
    """Two for each product of a dot_general, one for each element of other arithmetic and of a reduction's operand."""
    bytes: Count | None
    """What each scope reads from outside and gives others, in all: the traffic if each scope were one kernel."""
    text_bytes: Count
    """Size of the StableHLO text."""
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the text, hex."""
    scopes: Dict[Census]
    """Anchor, with `*` for a layer's number -> the operations in it."""


class ListedOp(TypedDict):
    """An operation of a graph that is shown."""

    op: Words
    """Without its dialect where that is StableHLO, e.g. `rsqrt`."""
    type: str
    """Of its result, e.g. `1x576xf32`."""
    line: Place | None
    """Of the graph's text, counted from 1."""
    text: str
    """The line as the graph has it, without its location; large constants are cut."""


class Scope(TypedDict):
    """A scope of a graph that is shown."""

    anchor: str
    """E.g. `layers.0.self_attn.q_rope`; empty outside of every scope."""
    layers: List[Count]
    """The layers that have the same operations here, that of `anchor` among them; empty outside the layers."""
    flops: Count | None
    """Of the one scope; null where it computes what is not counted, such as in a loop."""
    bytes: Count | None
    """Of the one scope; null where it computes what is not counted, such as in a loop."""
    ops: List[ListedOp]


class Listing(TypedDict):
    """The operations of a graph that is shown. Layers whose operations in a scope are alike are listed once."""

    graph: Words
    """Its id among `graphs`."""
    name: Words
    """What `localization.operation.graph` calls it."""
    scopes: List[Scope]
    """In the order of computation."""


class Node(TypedDict):
    """A part of the layer that is drawn."""

    anchor: str
    """Empty where it is no anchor, such as a sum in a block; a name outside this layer for what comes from before it."""
    ops: Census
    weights: List[str]
    """The weights that it reads."""


class Block(TypedDict):
    """One layer as a drawing: what its scopes compute from what. Read off the judged graph."""

    graph: Words
    layer: Count
    nodes: List[Node]
    edges: List[Annotated[List[Count], Field(min_length=2, max_length=2)]]
    """Indices of nodes: the second reads what the first computes. The second is the larger."""


class Contender(TypedDict):
    """One of those whose decode steps were timed."""

    id: Words
    """A configuration's, such as `emitter/iree-cpu/token`, or `transformers`."""
    source: str
    """Of the graph; empty where there is none."""
    backend: str
    title: Words
    packages: List[Words]
    """Those among the environment's packages that decide how fast it is, its graph apart."""
    ms_per_token: List[Positive]
    """A round each."""
    resident_bytes: Count | None
    """By how much the process grew while this one was loaded and warmed up."""


class Speed(TypedDict):
    """Decode steps of the production graph, the first contender, and of its peers, taking turns in one process.

    A ratio to a peer is taken round by round.
    """

    reason: str
    """Why nothing was measured; empty where something was."""
    context: Count
    """Prompt tokens before the steps that are timed."""
    tokens: Count
    """Steps in a round."""
    contenders: List[Contender]


class Part(TypedDict):
    """What was done in a stage beside other parts of it."""

    name: Words
    begin: Seconds
    """Since the run began."""
    seconds: Seconds
    reused: bool


class Timing(TypedDict):
    """A stage of the run."""

    stage: Words
    begin: Seconds
    """Since the run began."""
    seconds: Seconds
    reused: bool
    """The result was taken from the cache."""
    detail: str
    parts: List[Part]


class Process(TypedDict):
    """What a process held when the run held the most."""

    name: Words
    peak_bytes: Count


class Memory(TypedDict):
    """The most memory that the run and its processes held at once."""

    peak_bytes: Count
    processes: List[Process]


class RemoteDevice(TypedDict):
    """What IREE ran the judged graphs on, where that is another one than the processor."""

    name: Words
    target: str | None
    """What was compiled for, e.g. `sm_89`."""
    capability: str | None
    """CUDA's compute capability, e.g. `9.0`."""
    memory_bytes: Count | None
    driver: str
    submitted: str
    """How CUDA is given the commands of a call."""


class Untried(TypedDict):
    """A package whose version here is none that hloracle was tried with."""

    package: Words
    version: Words
    tried: str
    """The versions that it was tried with."""


class Environment(TypedDict):
    """What a run depended on."""

    hloracle: str
    commit: str | None
    """The revision that was judged, with `+` at its end where the tree had changes; null where none is known."""
    python: str
    platform: str
    cpu: str
    cores: Count
    memory_bytes: Count
    device: RemoteDevice | None
    packages: Dict[str]
    untried: List[Untried]
    date: Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}")]
    """When the run began, ISO 8601."""


class Agreed(TypedDict):
    """Tokens over all prompts and configurations. One that a configuration did not give is not equal."""

    agreed: Count
    total: Count


class WorstAnchor(TypedDict):
    """The value at an anchor that is the largest multiple of its limit."""

    floors: Float
    """Its error, in multiples of the anchor's floor."""
    anchor: Words
    limit: Seconds
    """The error that is still accepted, in floors."""
    configuration: Words


class Mutants(TypedDict):
    """Deliberate faults in a family, as they were last planted."""

    killed: Count
    """How many were noticed, in their class and at their place."""
    total: Count
    pinned: bool
    """Whether this is what came of them elsewhere, with the very same sources and packages."""
    reason: str
    """Why there are none; empty where there are some."""


class Family(TypedDict):
    """One model of a suite."""

    architecture: Words
    model: Words
    """What can be given to `hloracle run`. No two rows have the same."""
    digest: str
    """SHA-256 of the checkpoint, hex."""
    verdict: Class
    anchor: str | None
    """The first wrong one of this model."""
    explanation: Words
    """One sentence or a few; what was not compared comes first."""
    not_compared: List[Words]
    """As in `verdict`, of this model."""
    passed: bool
    tokens: Agreed
    worst: WorstAnchor | None
    """Null where none was compared."""
    op_kinds: Count | None
    """Of the judged decode graph with logits; null where there is none."""
    matmuls: Count | None
    """`dot_general` in the production graph of decode; null where there is none."""
    weights: Count | None
    """Inputs of the production graph of decode that are weights; null where there is none."""
    mutants: Mutants
    seconds: Seconds
    failed: List[Check]
    """The checks that failed or ended with an error."""
    report: Annotated[str, Field(pattern=r"^(families/[a-z0-9_]+/report\.html)?$")]
    """The page of this model's own run, relative to the report's folder, with `/`; empty where there is none."""


class Record(TypedDict):
    """What one conformance run saw and concluded. Everything else is drawn from it and from nothing else."""

    schema: Literal["hloracle-report/11"]
    """The version of this form. Another version is another schema."""
    passed: bool
    """True for the verdicts `conforms` and `near-tie`, false for all others. Of a suite: whether every model passed."""
    verdict: Verdict
    mutant: str
    """The id of the deliberate fault that this run carries; empty where it carries none."""
    model: Model
    settings: Settings
    sources: List[Source]
    prompts: List[Prompt]
    tokens: Dict[Answers]
    """Prompt -> the tokens after it."""
    configurations: List[Configuration]
    matrix: Matrix
    checks: List[Check]
    anchors: List[Anchors]
    floors: List[Floor]
    spreads: List[Spread]
    """Empty for what computes in float32."""
    compiled: List[Compiled]
    localization: Localization | None
    """Null where nothing was taken apart."""
    canary: Canary | None
    """Null where there was none."""
    graphs: List[Graph]
    listings: List[Listing]
    """Of each phase one graph of each source."""
    block: Block | None
    """Null where none was read."""
    speed: Speed
    timings: List[Timing]
    """In order."""
    reused: List[str]
    """What was taken from the cache and not computed in this run."""
    damaged: List[str]
    """The entries of the cache that were found damaged, and made anew."""
    memory: Memory
    environment: Environment
    families: List[Family]
    """Of a suite a row for each model that was judged, this record's own first; empty for a run of one model."""
