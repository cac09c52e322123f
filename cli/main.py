"""The command line. Exit status: 0 conforms, 1 does not conform, 2 could not run, 130 interrupted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.markup import escape

from hloracle.cli import options
from hloracle.cli.bench import BENCH_COMMANDS
from hloracle.cli.fleet import fleet
from hloracle.cli.ops import OPS_COMMANDS
from hloracle.cli.options import DEFAULT_MODEL, MODEL_HELP, progress_shown, tell
from hloracle.cli.records import RECORD_COMMANDS
from hloracle.cli.versions import VERSION_COMMANDS
from hloracle.core.bounds import BATCH, TRIES
from hloracle.core.console import Output, harmless, say, terminal, verdict_stands
from hloracle.core.errors import InputError
from hloracle.core.files import is_special, write_file
from hloracle.core.folder import begin_report
from hloracle.core.program import Interrupted, run_command_line, run_program
from hloracle.core.record import Record


class _Group(click.Group):
    """Lists commands in the order in which a newcomer needs them."""

    def invoke(self, ctx: click.Context) -> Any:
        """Click answers Ctrl-C with an empty line, and a reader who has gone away with status 1: does not conform.

        So Ctrl-C raises Interrupted here, and a broken pipe ends the command with status 0.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None
        except BrokenPipeError:
            sys.stdout = None
            return 0

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which this file adds them; click would sort them by name."""
        return list(self.commands)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hloracle")
def cli() -> None:
    """Checks that a StableHLO graph of a language model computes what the model computes.

    \b
    hloracle run                       check the emitted Llama graph on a real model
    hloracle suite                     that, and every other family on a tiny one
    hloracle emit MODEL --phase decode -o decode.mlir
    hloracle check decode.mlir --abi decode.abi.json --model MODEL
    hloracle abi decode.mlir --model MODEL -o abi.toml    what the arguments of your emitter's graph are
    hloracle diff BASE.json HEAD.json -o diff.html     what a change made worse
    hloracle bisect REPRODUCER --package iree-base-compiler --good 3.5.0 --bad 3.13.0    the release that broke it
    hloracle generate MODEL -p "Hello" --stream
    """


@cli.command(epilog=MODEL_HELP)
@options.model(DEFAULT_MODEL)
@options.as_
@options.sources
@options.project
@options.backends
@options.device
@options.precision
@options.layout()
@options.fused("fused")
@options.tokens
@options.capacity()
@options.batch
@options.compute
@options.ring
@options.kv
@options.rounds
@options.reuse
@click.option(
    "--mutant", default="",
    help="Plant a deliberate fault, to see it caught; `hloracle mutants` lists them. It says the precision and the layout.",
)  # fmt: skip
@options.timeout
@options.as_json
@options.threads
@options.out()
def run(model: str, mutant: str, as_json: bool, out: Path, **asked: Any) -> int:
    """Check the emitted graphs of MODEL (default: a real model of 135 million parameters).

    Compiles the oracle's and the emitter's graphs with XLA and IREE, runs every prompt through each,
    holds them to Hugging Face transformers at temperature 0, and writes a report. Exits with 0 for
    `conforms` and `near-tie` alone. --source and --backend put others in their place.
    """
    import hloracle
    from hloracle.backends.devices import open_device
    from hloracle.mutants import named

    open_device(asked["device"], asked["cuda_target"])  # refuses a device before anything is written
    asked["backends"] = asked["backends"] or None
    if mutant and "emitter" not in asked["sources"]:
        raise InputError("is planted in a run of the bundled emitter", f"--mutant {mutant}", "add --source emitter")
    if mutant:  # in weights that are held otherwise it would not be planted
        asked["fault"] = fault = named(mutant)
        asked["precision"], asked["layout"], asked["fused"] = fault.held
        asked["compute"], asked["ring"], asked["kv"] = fault.compute, fault.ring, fault.kv
    begin_report(out)
    with progress_shown() as progress:
        record = hloracle.run(model, out=out, progress=progress, **asked).data
    return _finish(record, out, as_json)


@cli.command()
@click.argument("families", nargs=-1, metavar="[FAMILY]...")
@options.jobs
@options.capacity(None, "256, and 111 of a tiny model")
@options.batch
@options.compute
@options.ring
@options.kv
@options.rounds
@options.reuse
@options.as_json
@options.device
@options.threads
@options.out()
def suite(families: tuple[str, ...], jobs: int, as_json: bool, out: Path, **asked: Any) -> int:
    """Check a tiny model of every FAMILY (llama, qwen3, …), and the real model in full beside them.

    Families that are named run alone, without the real model. The table has a row for each model, and the report is
    that of the real one with the same table; a family's own record goes to families/FAMILY/ beside it. Exits with 0 only
    if all conform.
    """
    import hloracle
    from hloracle.backends.devices import open_device
    from hloracle.cli.show import print_families
    from hloracle.conformance.settings import QUICK_CAPACITY
    from hloracle.conformance.suite import selected, with_rings
    from hloracle.reports.record import remove_family, write_family

    chosen, model = selected(families), None if families else DEFAULT_MODEL
    slots = asked["capacity"] or QUICK_CAPACITY
    if asked["capacity"] is None:
        del asked["capacity"]
    if asked["ring"] and not families:
        chosen, model = with_rings(chosen, slots), None
        left = [name for name in selected(()) if name not in chosen]
        say(
            f"{DEFAULT_MODEL} and {len(left)} families are left out, which have no layer with a window: {', '.join(left)}"
        )
    for name in () if model else ("rounds", "threads"):
        if click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise InputError("has no effect on families alone: it is of the real model", f"--{name}", "leave it out")
        del asked[name]
    open_device(asked["device"], asked["cuda_target"])  # refuses a device before anything is removed
    begin_report(out)
    for name in selected(()):
        remove_family(out, name)

    def keep(name: str, record: hloracle.Record) -> str:
        return write_family(record.data, out, name)

    with progress_shown() as progress:
        record = hloracle.suite(chosen, model, jobs, keep, out=out, progress=progress, **asked).data
    return _finish(record, out, as_json, print_families)


@cli.command(epilog=MODEL_HELP)
@click.argument("graphs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="GRAPH...")
@click.option(
    "--abi", type=click.Path(path_type=Path), multiple=True,
    help="The graph's ABI file; one for each graph, in order. By default what the project's file says, or NAME.abi.json "
    "beside NAME.mlir.",
)  # fmt: skip
@click.option(
    "--model", help="The model that the graphs claim to compute. By default the one that the project's file names."
)
@options.as_
@options.project
@options.precision
@options.tokens
@options.backends
@click.option(
    "--allow-custom-call", "custom_calls", metavar="TARGET=LIBRARY", multiple=True,
    help="A custom_call that the graph may have, and the shared library with its function, which XLA calls; may be given "
    "several times. See docs/custom-call.md.",
)  # fmt: skip
@options.timeout
@options.as_json
@options.threads
@options.out()
def check(graphs: tuple[Path, ...], backends: tuple[str, ...], as_json: bool, out: Path, **asked: Any) -> int:
    """Judge StableHLO files that anyone wrote against MODEL.

    \b
    hloracle check decode.mlir --model tiny-llama
    hloracle check prefill.mlir decode.mlir --model tiny-llama

    A decode graph is given the prompts one token at a time, unless prefill graphs stand beside it; a prefill graph alone
    is held to the first token after each prompt that fits its bucket. Head and caches are compared, taps are not.
    """
    import hloracle

    begin_report(out)
    with progress_shown() as progress:
        record = hloracle.check(*graphs, backends=backends or None, out=out, progress=progress, **asked).data
    return _finish(record, out, as_json)


@cli.command(epilog=MODEL_HELP)
@click.argument("graphs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="GRAPH...")
@click.option("--model", required=True, help="The model that the graphs claim to compute.")
@options.precision
@options.as_
@click.option(
    "-o", "output", type=click.Path(path_type=Path), help="The file to write; the proposal goes to stdout without it."
)
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.option(
    "--tries", type=click.IntRange(1, TRIES), default=1000, show_default=True,
    help="How often each graph may be run, to find out what names and types leave open.",
)  # fmt: skip
@click.option(
    "--timeout", "seconds", type=options.seconds(1), default=600, show_default=True, metavar="SECONDS",
    help="How long that may take.",
)  # fmt: skip
def abi(
    graphs: tuple[Path, ...], model: str, output: Path | None, force: bool, tries: int, seconds: float, **asked: str
) -> int:
    """Propose the ABI file of the emitter that wrote GRAPH, for `check`.

    \b
    hloracle abi decode.mlir prefill.mlir --model MODEL -o abi.toml
    hloracle check decode.mlir prefill.mlir --abi abi.toml --model MODEL

    Arguments and results are told by their names and locations, and by their types. What these leave open, such as gate_proj
    and up_proj of one shape, is decided by what computes Hugging Face's caches and logits; it is marked `guessed`. What fits
    nothing is `unknown`, and marked `could not tell`: write it by hand, and `check` says what is still wrong. Name all graphs
    of the emitter at once, one of each phase.

    The last line, on stderr, says how far it got. Exits with 0 if the graphs compute right with the proposal, and with 1 if
    they do not: then the graphs are wrong, or the proposal is. It is written all the same.
    """
    from hloracle.conformance.graphs.proposed import propose_abi
    from hloracle.foreign.proposal.file import Limits
    from hloracle.reference.fixtures.named import resolve
    from hloracle.reference.model.checkpoint import open_checkpoint

    if output and output.exists() and not is_special(output) and not force:
        raise InputError("is there already", output, "name another file, or add --force")
    with progress_shown() as progress, progress.stage("propose"):
        directory = resolve(model, progress.report, **asked)
        text, proposal = propose_abi(graphs, open_checkpoint(directory), model, Limits(tries, seconds), progress.report)
    if output:
        write_file(output, text)
        options.written(output)
    else:
        click.echo(text, nl=False)
    say(proposal.closing)
    return 0 if proposal.right else 1


@cli.command(epilog=MODEL_HELP)
@options.model()
@options.as_
@click.option("--phase", type=click.Choice(["prefill", "extend", "decode"]), required=True, help="Which of the graphs.")
@options.source
@click.option(
    "--head", type=click.Choice(["token", "logits"]), default="logits", show_default=True, help="What it answers with."
)
@click.option("--bucket", type=int, default=64, show_default=True, help="Tokens of a prefill or an extend graph.")
@options.capacity()
@options.batch
@options.compute
@options.ring
@options.kv
@options.precision
@options.layout("panels")
@options.fused("fuse", False)
@click.option(
    "--gemm", metavar="TARGET", default=None,
    help="Leave products with weights to a custom_call of this name (docs/custom-call.md). Takes --layout rows.",
)  # fmt: skip
@click.option("--portable", is_flag=True, help="Write versioned StableHLO bytecode instead of text.")
@click.option(
    "--taps", is_flag=False, flag_value="all", default=None, metavar="[ANCHORS]",
    help="Also return the values at anchors: `all` (as without a value), or a comma-separated list of names and "
    "patterns, such as `layers.0.*,norm`.",
)  # fmt: skip
@click.option(
    "-o", "output", type=click.Path(path_type=Path), required=True, help="The graph's file; its ABI goes beside it."
)
def emit(output: Path, **asked: Any) -> int:
    """Write one graph of MODEL, and NAME.abi.json beside it.

    Weights are arguments of the graph, so only MODEL's config matters; in int8 and int4 also which of its weights a GGUF
    file holds in which of them.
    """
    from hloracle.production.emit import Emission, emit_file

    with terminal.status("emitting"):
        written = emit_file(Emission(**asked), output)
    options.written(*written)
    if len(written) == 1:
        click.echo("hloracle: no ABI file was written: it stands beside a graph's file, and -o names none", err=True)
    return 0


ROWS = 4  # of the graphs of several rows that are compiled for every target
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


@cli.command(epilog=MODEL_HELP)
@options.model()
@options.as_
@click.option("-p", "--prompt", help="What to continue.")
@click.option(
    "--prompts", type=click.Path(path_type=Path), metavar="FILE",
    help='What to continue, many at once: a JSON object a line, such as {"prompt": "The sea", "count": 20}. So is the answer.',
)  # fmt: skip
@click.option("-n", "count", type=int, default=48, show_default=True, help="At most so many tokens.")
@click.option("--stream", is_flag=True, help="Print each token as soon as it is known.")
@click.option("--raw", is_flag=True, help="Give the prompt as it is, without the model's chat template.")
@click.option("--stop", multiple=True, metavar="TEXT", help="What the text ends before. May be given several times.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 takes the most likely token.")
@click.option("--top-k", type=int, default=0, show_default=True, help="Draw from the K most likely tokens; 0 for all.")
@click.option(
    "--top-p", type=float, default=1.0, show_default=True, help="Draw from the fewest that have this probability."
)
@click.option(
    "--min-p",
    type=float,
    default=0.0,
    show_default=True,
    help="Draw from those with this share of the likeliest one's.",
)
@click.option(
    "--repetition-penalty", type=float, default=1.0, show_default=True, help="Above 1 makes what was said less likely."
)
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed draws the same tokens.")
@click.option("--batch", type=int, default=4, show_default=True, metavar="B", help="How many of --prompts at once.")
@options.ring
@options.kv
@options.source
@click.option(
    "--backend", type=click.Choice(["iree-cpu", "xla-cpu"]), help="What runs them: IREE on --device, if not given."
)
@options.device
@options.precision
@options.compute
@options.threads
def generate(
    model: str, prompt: str | None, prompts: Path | None, count: int, stream: bool, raw: bool, stop: tuple[str, ...],
    batch: int, **asked: Any,
) -> int:  # fmt: skip
    """Continue a prompt with MODEL, or many prompts at once, on the compiled graphs.

    The prompt is put into the model's chat template if it has one. Stops at the end-of-text token, as
    transformers does. What is drawn is drawn from what transformers would draw it from.
    """
    from hloracle.backends.devices import open_device
    from hloracle.production.generate import Engine, Wanted, generate_many, generate_text, read_prompts
    from hloracle.production.sampling import Sampling

    device, backend = open_device(asked["device"], asked["cuda_target"]), asked["backend"]
    if backend and device.remote:
        raise InputError("is of the processor", f"--backend {backend}", f"leave it out, or --device {device}")
    if (prompt is None) == (prompts is None):
        what = "is given beside --prompts" if prompts else "is not given"
        raise InputError(what, "--prompt", "give one prompt, or --prompts with a file of many")
    if not 1 <= batch <= BATCH:
        raise InputError(f"is {batch}", "--batch", f"give 1 to {BATCH:,} rows")
    engine = Engine(
        asked["source"], backend or device.backend, asked["threads"], asked["precision"], device, asked["as_"], batch,
        asked["compute"], asked["ring"], asked["kv"],
    )  # fmt: skip

    def tell(line: str) -> None:
        terminal.print(f"[dim]hloracle: {escape(line)}[/]", soft_wrap=True)

    if prompts is not None:
        for name in ("count", "stream", "raw", "stop", *SAMPLING):
            if click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT:
                flag = "-n" if name == "count" else f"--{name.replace('_', '-')}"
                raise InputError("has no effect beside --prompts", flag, "write it into the lines of the file")
        many = generate_many(model, read_prompts(prompts), engine, tell)
        with terminal.status("generating"):
            for found in many:
                click.echo(json.dumps(found))
        return 0
    with terminal.status("loading"):
        sampling = Sampling(**{name: asked[name] for name in SAMPLING})
        pieces = generate_text(model, Wanted(prompt or "", count, raw, sampling, stop), engine, tell)
        first = next(pieces, "")
    for piece in chain([first], pieces) if stream else [first, *pieces]:
        click.echo(harmless(piece), nl=False)  # which flushes
    click.echo()
    return 0


@cli.command()
@click.argument("ids", nargs=-1, metavar="[MUTANT]...")
@click.option("--list", "listing", is_flag=True, help="List them instead of running them.")
@options.jobs
@options.reuse
@options.as_json
@options.pin
def mutants(ids: tuple[str, ...], listing: bool, jobs: int, reuse: bool, as_json: bool, pin: bool) -> int:
    """Plant deliberate faults, one a run, and see each caught, in its class and at its place.

    Each mutant goes through a whole run of a tiny model of its family. MUTANT is an id, a mechanism (`rope`), a part
    (`emitter`, `reference`, `compiler`, `session`) or a family (`gemma2`); all of them when none is given. Exits with 0
    only if every fault is caught, in the class that it belongs to, and at the anchor where it is, or in a few cases at one
    that reads it.
    """
    from hloracle.cli.show import print_mutants, print_trial, print_trials
    from hloracle.studies.mutants import PINS, as_records, pins, problems, run_mutants, selected
    from hloracle.studies.study import write_pins

    chosen = selected(ids)
    if listing:
        print_mutants(chosen, Output(highlight=False))
        return 0
    out = Output(highlight=False)
    with progress_shown() as progress:
        trials = run_mutants(
            chosen, jobs, progress.report, lambda t: None if as_json else print_trial(t, out), reuse
        )  # fmt: skip
    found = problems(trials)
    tell({"trials": as_records(trials), "problems": found}, as_json, lambda out: print_trials(trials, found, out))
    if pin and not found:
        write_pins(PINS, pins(dict.fromkeys(m.architecture for m in chosen)))
    return 1 if found else 0


@cli.command()
@click.argument("families", nargs=-1, metavar="[FAMILY]...")
@click.option("--kind", "kinds", multiple=True, help="Spoil this kind of thing alone; may be given several times.")
@click.option("--list", "listing", is_flag=True, help="List them instead of running them.")
@options.jobs
@options.reuse
@options.as_json
@options.pin
def holes(
    families: tuple[str, ...], kinds: tuple[str, ...], listing: bool, as_json: bool, pin: bool, **asked: Any
) -> int:
    """Spoil everything that a run could observe, one thing at a time, and see each noticed.

    The right graphs of each FAMILY's tiny model (llama, gemma3_text, mixtral and deepseek_v3, where none is named) are
    spoiled at every result, slot, position, length and token id, and judged as `run` and as `check` judge graphs. Exits
    with 0 only if both notice each of them, but those of which a reason says that nobody can, and notice none of these.
    """
    from hloracle.cli.show import print_items, print_outcomes
    from hloracle.studies.holes import PINS, as_records, pins, problems, run_holes, selected
    from hloracle.studies.study import write_pins

    items = selected(families, kinds)
    if listing:
        print_items(items, Output(highlight=False))
        return 0
    with progress_shown() as progress:
        outcomes = run_holes(items, report=progress.report, **asked)
    found = problems(outcomes)
    tell(
        {"spoilings": as_records(outcomes), "problems": found}, as_json,
        lambda console: print_outcomes(outcomes, found, console),
    )  # fmt: skip
    if pin and not found:
        write_pins(PINS, pins(outcomes))
    return 1 if found else 0


@cli.command()
def models() -> int:
    """List the architectures and the models that can be named."""
    from rich.table import Table

    from hloracle.reference.fixtures.named import FIXTURES
    from hloracle.reference.model.registry import FAMILIES

    table = Table("model", "what it is", "parameters", "license", "size", box=None, pad_edge=False)
    for name, fixture in FIXTURES.items():
        table.add_row(name, fixture.description, f"{fixture.parameters:,}", fixture.license, str(fixture.size))
    Output().print(table)
    click.echo(f"\nAny Hugging Face checkpoint directory or .gguf file of these types: {', '.join(sorted(FAMILIES))}")
    return 0


@cli.command()
@click.argument("name")
@options.as_
@options.precision
def fetch(name: str, as_: str, precision: str) -> int:
    """Bring the model NAME into the cache, and print where its checkpoint directory is."""
    from hloracle.reference.fixtures.named import resolve

    with progress_shown() as progress, progress.stage(f"fetch {name}"):
        directory = resolve(name, progress.report, precision, as_)
    click.echo(directory)
    return 0


@cli.command(epilog=MODEL_HELP)
@options.model(DEFAULT_MODEL)
@options.precision
@click.option("--cuda-target", default="", metavar="sm_NN", help="What is compiled for on CUDA. sm_89, if not given.")
@options.as_json
@options.threads
def targets(model: str, precision: str, cuda_target: str, as_json: bool, threads: int) -> int:
    """Compile MODEL's emitted graphs, also those of several rows, for every target that IREE's compiler has; no device is needed.

    Exits with 1 if they do not compile for the processor or for CUDA, which hloracle runs them on.
    """
    from hloracle.backends.devices import known_cuda_targets
    from hloracle.cli.show import print_targets
    from hloracle.conformance.record.record import compiled_rows
    from hloracle.conformance.runs.code_generation import compile_all, for_every_target
    from hloracle.production.choice import production_graphs, untuned
    from hloracle.reference.fixtures.named import resolve
    from hloracle.reference.model.checkpoint import open_checkpoint
    from hloracle.reference.model.contract import GraphSpec

    with progress_shown() as progress:
        with progress.stage("model"):
            checkpoint = open_checkpoint(resolve(model, progress.report, precision))
        with progress.stage("compile"):
            known = known_cuda_targets()
            if cuda_target and cuda_target not in known:
                where = f"--cuda-target {cuda_target}"
                raise InputError("is not known to this compiler", where, f"name one of {', '.join(known)}")
            progress.report("compiling for every target")
            specs = [GraphSpec("decode", "token", 256), GraphSpec("prefill", "token", 256, 64)]
            specs += [GraphSpec("decode", "token", 256, 0, ROWS), GraphSpec("extend", "token", 256, 64, ROWS)]
            wanted = [
                ("emitter", graph, device)
                for device in for_every_target(cuda_target)
                for graph in production_graphs(checkpoint, precision, untuned(device=device), specs)
            ]
            rows = compile_all(wanted, threads)
    found = compiled_rows(rows)
    told = {"model": model, "precision": precision, "cuda_targets": known, "compiled": found}
    tell(told, as_json, lambda console: print_targets(found, known, console))
    return 1 if any(row.message for row in rows if row.kind in ("cpu", "cuda")) else 0


for _command in (*BENCH_COMMANDS, *RECORD_COMMANDS, *VERSION_COMMANDS, *OPS_COMMANDS, fleet):
    cli.add_command(_command)


# ---- shared by the commands


def _finish(
    record: Record, out: Path, as_json: bool, show: Callable[[Record, Path, Console], None] | None = None
) -> int:
    from hloracle.cli.show import print_record
    from hloracle.core.environment import untried_line
    from hloracle.reports.record import to_json, write_all

    write_all(record, out)
    if line := untried_line(record["environment"]["untried"]):
        say(line)
    with verdict_stands():
        if as_json:
            click.echo(to_json(record), nl=False)
        else:
            (show or print_record)(record, out, Output(highlight=False))
    return 0 if record["passed"] else 1


def main() -> None:
    """The console script."""
    run_program(cli, "hloracle")


def invoke(arguments: list[str]) -> int:
    """Run a command line; returns the exit status."""
    return run_command_line(cli, arguments, "hloracle")


if __name__ == "__main__":
    main()
