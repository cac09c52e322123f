"""What is run before a change is merged. `nox` runs it all; `nox -s NAME` one; arguments go after `--`."""

from __future__ import annotations

import gzip
import json
import os
import platform
import re
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["lint", "tests", "browser", "conformance-cpu", "mutants"]
# pip and not uv: uv does not look where a CPU build of torch may be at hand (`find-links` in pip's configuration).
nox.options.default_venv_backend = "venv"

# A folder of wheels: nothing is fetched then, and what they lack is taken from the Python that runs nox.
WHEELS = os.environ.get("HLORACLE_WHEELS", "")
CONSTRAINTS = "constraints.txt"
# What is installed in CI, file by file, with the SHA-256 of each; `nox -s lock` writes it. environment.txt is what the
# sessions share, but for torch. GROUPS are those of pyproject.toml.
LOCK = Path("lock")
GROUPS = ("nox", "reports", "tools")
# torch is locked twice. On Linux, PyPI's build needs gigabytes of these packages: torch-cuda.txt. PyTorch's own build for
# processors needs none: torch-cpu.txt, which is taken where pip is configured to find it.
CUDA = ("cuda-", "nvidia-", "torch==", "triton==")
# The index that has that build is none that `nox -s lock` asks. These are its wheels for Linux on x86-64 and Python 3.11,
# 3.12 and 3.13. The first was computed from the wheel; all three are what public lock files have from PyTorch's index.
CPU_TORCH = (
    "torch==2.13.0+cpu",
    "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
    "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",
    "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",
)
# The lower ends of the ranges in pyproject.toml, of the packages that a verdict depends on most.
LOWEST = (
    "iree-base-compiler==3.12.0", "iree-base-runtime==3.12.0", "jax==0.9.1", "jaxlib==0.9.1", "torch==2.13.0",
    "transformers==5.19.0",
)  # fmt: skip
# Quick ones, of each part: what a graph is, what JAX lowers, how processes are started and end.
QUICK = (
    "tests/test_environment.py", "tests/test_builder.py", "tests/test_abi.py", "tests/test_inline.py", "tests/test_child.py",
    "tests/test_open_files.py",
)  # fmt: skip


@nox.session(reuse_venv=True, default=False, venv_params=["--system-site-packages"] if WHEELS else [])
def environment(session: nox.Session) -> None:
    """Install hloracle and its tools into the one virtual environment that all sessions share."""
    files = [Path("pyproject.toml"), Path(CONSTRAINTS), *sorted(LOCK.glob("*.txt"))]
    wanted = "\n".join([str(Path.cwd()), WHEELS, *(file.read_text() for file in files)])
    stamp = Path(session.virtualenv.location) / "installed.txt"
    if stamp.is_file() and stamp.read_text() == wanted:
        session.log(f"nothing to install: pyproject.toml, {CONSTRAINTS} and {LOCK}/ are the same")
        return
    session.log("installing; the first time takes minutes (torch, IREE, JAX)")
    if WHEELS:
        wheels = sorted(str(wheel) for wheel in Path(WHEELS).glob("*.whl") if not wheel.name.startswith("hloracle-"))
        if not wheels:
            session.error(f"HLORACLE_WHEELS={WHEELS}: holds no wheels; name the folder that `unpack.sh` made")
        session.install("--no-index", "--no-deps", *wheels)
        session.install("--no-index", "--no-deps", "--no-build-isolation", "-e", ".")
    elif other := unlocked():
        session.warn(f"{LOCK}/ is not for {other}: versions are those of {CONSTRAINTS}, and no file is held to a hash")
        session.install("--no-compile", "-c", CONSTRAINTS, "-e", ".[test,browser,lint,fleet]")
    else:
        install_environment(session)
        session.install("--no-deps", "--no-build-isolation", "-e", ".")
        session.run("python", "-m", "pip", "check")
    stamp.write_text(wanted)


def unlocked() -> str:
    """What this machine is, if it is none that lock/ was made for."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return f"{platform.system()} on {platform.machine()}"
    version = sys.version_info[:2]
    return "" if (3, 11) <= version <= (3, 13) else "Python {}.{}".format(*version)


def install_locked(session: nox.Session, name: str) -> None:
    """Install what lock/NAME.txt lists, and nothing else. pip refuses a file whose hash is not there."""
    # pip would compile all of torch and transformers, which takes as long as to install them; `run` what is imported.
    session.install("--no-compile", "--no-deps", "--require-hashes", "-r", str(LOCK / f"{name}.txt"))


def install_environment(session: nox.Session) -> None:
    """Install all that hloracle and its checks need: of torch the build without CUDA, if pip finds it."""
    install_locked(session, "environment")
    listed = session.run("python", "-m", "pip", "index", "versions", "torch", silent=True)
    install_locked(session, "torch-cpu" if CPU_TORCH[0].removeprefix("torch==") in str(listed) else "torch-cuda")


def locked(*names: str) -> list[str]:
    """The requirements in these files of lock/, each with its hashes."""
    found = (re.findall(r"^\w.*(?:\n .*)*\n", (LOCK / f"{name}.txt").read_text(), re.MULTILINE) for name in names)
    return [requirement for requirements in found for requirement in requirements]


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Write lock/ anew, for pyproject.toml and constraints.txt. Arguments go to uv: `nox -s lock -- --upgrade`."""
    install_locked(session, "tools")

    def resolve(name: str, *what: str) -> None:
        """What the file has already stays as it is, where it fits."""
        how = ["--universal", "--python-version", "3.11", "--fork-strategy", "fewest", "--generate-hashes"]
        form = ["--no-annotate", "--no-header", "--constraint", CONSTRAINTS, "--output-file", str(LOCK / f"{name}.txt")]
        session.run("uv", "pip", "compile", "--quiet", "--no-config", *how, *form, *what, *session.posargs)

    def write(name: str, requirements: list[str]) -> None:
        (LOCK / f"{name}.txt").write_text("# Written by `nox -s lock`.\n" + "".join(sorted(requirements)))

    write("environment", locked("environment", "torch-cuda"))
    resolve(
        "environment", "pyproject.toml", "--extra", "test", "--extra", "browser", "--extra", "lint", "--extra", "fleet"
    )
    for group in GROUPS:
        resolve(group, "--group", group, "--constraint", str(LOCK / "environment.txt"))
        write(group, locked(group))
    found = locked("environment")
    write("environment", [requirement for requirement in found if not requirement.startswith(CUDA)])
    write("torch-cuda", [requirement for requirement in found if requirement.startswith(CUDA)])
    write("torch-cpu", [" \\\n    --hash=sha256:".join(CPU_TORCH) + "\n"])
    if not any(requirement.startswith(CPU_TORCH[0].replace("+cpu", " ")) for requirement in found):
        session.error(f"noxfile.py has hashes of {CPU_TORCH[0]}: put those of the locked version there")


@nox.session(default=False)
def sbom(session: nox.Session) -> None:
    """List what lock/ has for the sessions' environment as CycloneDX does, an SBOM: out/sbom.cdx.json."""
    install_locked(session, "tools")
    Path("out").mkdir(exist_ok=True)
    requirements = locked("environment", "torch-cuda")
    both, made = Path(session.create_tmp()) / "locked.txt", Path("out/sbom.cdx.json")
    both.write_text("".join(requirements))
    how = ["--output-reproducible", "--pyproject", "pyproject.toml", "--mc-type", "library", "--output-file", str(made)]
    session.run("cyclonedx-py", "requirements", *how, str(both))
    listed = {f"{part['name']}=={part['version']}" for part in json.loads(made.read_text())["components"]}
    if listed != {requirement.split()[0] for requirement in requirements}:
        session.error(f"{made} does not list what {LOCK}/ lists")


@nox.session(default=False)
def audit(session: nox.Session) -> None:
    """Ask the package index whether anything in lock/ is known to be vulnerable. What it knows nothing of fails, too."""
    install_locked(session, "tools")
    # The index has no build of torch without CUDA; torch-cuda.txt has the same version.
    names = ("environment", "torch-cuda", *GROUPS)
    files = [word for name in names for word in ("--requirement", str(LOCK / f"{name}.txt"))]
    session.run("pip-audit", "--strict", "--require-hashes", "--disable-pip", "--progress-spinner", "off", *files)


@nox.session(default=False)
def dist(session: nox.Session) -> None:
    """Build the sdist, and the wheel from it, twice and byte for byte alike, and check their metadata: dist/."""
    install_locked(session, "tools")
    epoch = str(session.run("git", "log", "-1", "--format=%ct", external=True, silent=True)).strip()
    built: list[dict[str, bytes]] = []
    for folder in (Path(session.create_tmp()) / "again", Path("dist")):
        for old in folder.glob("*"):
            old.unlink()
        build = ["python", "-m", "build", "--no-isolation", "--outdir", str(folder)]
        session.run(*build, env={"SOURCE_DATE_EPOCH": epoch}, silent=True)
        for archive in folder.glob("*.tar.gz"):
            normalize(archive, int(epoch))
        built.append({path.name: path.read_bytes() for path in folder.iterdir()})
    if built[0] != built[1]:
        session.error("dist/: two builds of one commit differ")
    session.run("twine", "check", "--strict", *(f"dist/{name}" for name in sorted(built[1])))


def normalize(archive: Path, epoch: int) -> None:
    """Write a .tar.gz anew so that it depends on its files alone. setuptools gives each the time of the build."""
    with tarfile.open(archive) as tar:
        held = [(m, (tar.extractfile(m) or BytesIO()).read() if m.isfile() else b"") for m in tar.getmembers()]
    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", mtime=epoch, fileobj=file) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for member, content in sorted(held, key=lambda pair: pair[0].name):
            about = tarfile.TarInfo(member.name)
            about.type, about.size, about.mtime = member.type, len(content), epoch
            about.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            tar.addfile(about, BytesIO(content))


@nox.session(default=False)
def released(session: nox.Session) -> None:
    """Install the wheel in dist/ as a user does, in an environment of its own, and run the README's example."""
    install_environment(session)
    (wheel,) = Path("dist").glob("*.whl")
    session.install("--no-deps", "--force-reinstall", str(wheel))
    (example,) = re.findall(r"^```console\n(.*?)^```", Path("README.md").read_text(), re.MULTILINE | re.DOTALL)
    commands = [line.removeprefix("$ ") for line in example.splitlines() if line.startswith("$ ")]
    with session.chdir(session.create_tmp()):
        session.run("hloracle", "check", "--help", silent=True)
        for command in commands:
            said = session.run("bash", "-c", command, external=True, success_codes=[0, 1], silent=True)
        if "emitter-fault" not in str(said):
            session.error(f"README.md's example does not end as it says: {said}")


def run(session: nox.Session, program: str, *arguments: str) -> None:
    """Run a program of the shared environment."""
    folder = session.cache_dir.parent / "environment" / "bin"
    keep_compiled = {"PYTHONDONTWRITEBYTECODE": ""}  # many images of containers set it
    session.run(str(folder / program), *arguments, external=True, env=keep_compiled)


def pytest(session: nox.Session, *arguments: str) -> None:
    """Run tests on every core. Each worker goes through neighbouring tests, so that few fixtures are made twice."""
    cores = ["-n", "logical", "--dist", "worksteal"]
    run(session, "python", "-m", "pytest", *cores, *arguments, *session.posargs)


@nox.session(venv_backend="none", requires=["environment"])
def tests(session: nox.Session) -> None:
    """The test suite. Arguments go to pytest: `nox -s tests -- tests/test_rope.py -k llama3`."""
    pytest(session)


@nox.session(name="tests-nightly", venv_backend="none", requires=["environment"], default=False)
def tests_nightly(session: nox.Session) -> None:
    """All tests, those of every family, mutant and precision too, and XLA optimizes. Arguments go to pytest."""
    session.env["XLA_FLAGS"] = ""
    pytest(session, "-m", "")
    if not session.posargs:
        run(session, "python", "-m", "pytest", "tests/bench_emit.py")  # times, which workers beside it would spoil


@nox.session(venv_backend="none", requires=["environment"])
def browser(session: nox.Session) -> None:
    """Open the pages in Chromium; pictures go to out/browser/. Arguments go to pytest: `nox -s browser -- -k failing`."""
    run(session, "python", "tests/browser/chromium.py")
    run(session, "python", "-m", "pytest", "tests/browser", *session.posargs)


@nox.session(venv_backend="none", requires=["environment"])
def lint(session: nox.Session) -> None:
    """Ruff's rules and format, the rules of what may import what, mypy in strict mode, and pyright."""
    run(session, "ruff", "check")
    run(session, "ruff", "format", "--check")
    run(session, "lint-imports", "--no-cache")
    run(session, "mypy")
    folder = session.cache_dir.parent / "environment"
    run(session, "pyright", "--pythonpath", str(folder / "bin" / "python"))


def quick_tests(session: nox.Session) -> None:
    """Some of the tests, in this session's own environment."""
    session.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *QUICK)


@nox.session(python=["3.11", "3.12", "3.13"], default=False)
def pythons(session: nox.Session) -> None:
    """Install hloracle on each Python that it is for, and see a model conform: `nox -s pythons-3.12` for one of them."""
    session.install("-c", CONSTRAINTS, ".[test]")
    quick_tests(session)
    session.run("hloracle", "run", "tiny-llama", "--rounds", "0", "--tokens", "8", "--capacity", "128")


@nox.session(default=False)
def lowest(session: nox.Session) -> None:
    """The lowest versions in the ranges of pyproject.toml: lower ones are right on some families. Arguments: families."""
    session.install(".[test]", *LOWEST)
    quick_tests(session)
    session.run("hloracle", "suite", *session.posargs)


@nox.session(default=False)
def highest(session: nox.Session) -> None:
    """The highest versions in the ranges that are released. Arguments: families, or all of them."""
    session.install("--upgrade", "--upgrade-strategy", "eager", ".[test]")
    quick_tests(session)
    session.run("hloracle", "suite", *session.posargs)


@nox.session(name="conformance-cpu", venv_backend="none", requires=["environment"])
def conformance_cpu(session: nox.Session) -> None:
    """Check every family on a tiny model, and a real model in full, on the CPU; the report goes to out/.

    Arguments go to `hloracle run`, which is of one model: `nox -s conformance-cpu -- tiny-qwen3`.
    """
    if session.posargs:
        run(session, "hloracle", "run", "--device", "cpu", *session.posargs)
    else:
        run(session, "hloracle", "suite", "--device", "cpu")


@nox.session(venv_backend="none", requires=["environment"], default=False)
def upgrade(session: nox.Session) -> None:
    """What moving from the release of IREE before the pinned one changes, on every family and a real model: out/upgrade/.

    Arguments are models: `nox -s upgrade -- tiny-llama tiny-mixtral`.
    """
    package = "iree-base-compiler"
    pinned = next(line for line in Path(CONSTRAINTS).read_text().splitlines() if line.startswith(f"{package}=="))
    version = pinned.partition("==")[2]
    python = session.cache_dir.parent / "environment" / "bin" / "python"
    ask = f"from hloracle.versions.releases import before; print(before({package!r}, {version!r}))"
    previous = str(session.run(str(python), "-c", ask, external=True, silent=True)).split()[-1]
    models = session.posargs or ["--real"]
    run(session, "hloracle", "upgrade", f"iree=={previous}", f"iree=={version}", "--out", "out/upgrade", *models)


@nox.session(name="conformance-cuda", venv_backend="none", requires=["environment"], default=False)
def conformance_cuda(session: nox.Session) -> None:
    """The same on an NVIDIA GPU. Without one it fails: a session that compares nothing is no pass.

    Arguments go to `hloracle run`, as those of conformance-cpu. On a machine without network HLORACLE_WHEELS names a folder
    of wheels: see docs/cuda.md.
    """
    if session.posargs:
        run(session, "hloracle", "run", "--device", "cuda", *session.posargs)
    else:
        run(session, "hloracle", "suite", "--device", "cuda")


@nox.session(name="conformance-emulated", venv_backend="none", requires=["environment"], default=False)
def conformance_emulated(session: nox.Session) -> None:
    """What conformance-cuda checks, on a CUDA driver that interprets a GPU's code: no GPU is needed, nor any speed to be had.

    Arguments are families: `nox -s conformance-emulated -- llama gemma2`; all of them, and the real model, without.
    """
    run(session, "hloracle", "suite", "--device", "emulated", *session.posargs)


@nox.session(venv_backend="none", requires=["environment"])
def mutants(session: nox.Session) -> None:
    """Plant every deliberate fault and see it caught, in its class and at its place. Arguments: `hloracle mutants`.

    What came of all of them is written to mutants/outcomes.json, from which reports tell it.
    """
    pin = ["--pin"] if session.posargs in ([], ["--no-cache"]) else []
    run(session, "hloracle", "mutants", *session.posargs, *pin)


@nox.session(venv_backend="none", requires=["environment"], default=False)
def holes(session: nox.Session) -> None:
    """Spoil everything that a run could observe, one thing at a time, and see each noticed. Arguments: `hloracle holes`.

    What came of all of them is written to mutants/holes.json.
    """
    pin = ["--pin"] if session.posargs in ([], ["--no-cache"]) else []
    run(session, "hloracle", "holes", *session.posargs, *pin)


@nox.session(name="random-models", venv_backend="none", requires=["environment"], default=False)
def random_models(session: nox.Session) -> None:
    """Judge random models of every architecture, made by transformers' own classes. Arguments: `-- --seeds 5 qwen3`."""
    run(session, "python", "-m", "hloracle.studies.random_models", *session.posargs)


@nox.session(venv_backend="none", requires=["environment"], default=False)
def schedules(session: nox.Session) -> None:
    """Let sequences join and leave batches at random, and hold each to what it gives alone: `-- --count 20 llama`."""
    run(session, "python", "-m", "hloracle.studies.schedules", *session.posargs)


@nox.session(name="random-faults", venv_backend="none", requires=["environment"], default=False)
def random_faults(session: nox.Session) -> None:
    """Change one line of our graphs at random, and see each fault noticed, named and put right: `-- --seeds 3 llama`."""
    run(session, "python", "-m", "hloracle.studies.random_faults", *session.posargs)


@nox.session(name="injected-faults", venv_backend="none", requires=["environment"], default=False)
def injected_faults(session: nox.Session) -> None:
    """Fill disks, tear entries of the cache, kill processes, stop clocks; see what comes of each: `-- --only 'ops-*'`.

    Where all rows are green it writes docs/injected-faults.md.
    """
    run(session, "python", "-m", "hloracle.studies.injected", "--jobs", "2", "--pin", *session.posargs)


@nox.session(venv_backend="none", requires=["environment"], default=False)
def fuzz(session: nox.Session) -> None:
    """Give spoilt input of every kind to the command line, and see each refused in one line: `-- --minutes 20 --seed 7`."""
    session.env["PYTHONPATH"] = "tests"
    run(session, "python", "-m", "fuzz", *session.posargs)


@nox.session(venv_backend="none", requires=["environment"], default=False)
def ops(session: nox.Session) -> None:
    """Try IREE and XLA on every operation. Arguments go to `hloracle ops`."""
    run(session, "hloracle", "ops", *session.posargs)


@nox.session(venv_backend="none", requires=["environment"], default=False)
def foreign(session: nox.Session) -> None:
    """Export graphs with other libraries, in environments of their own; see them conform, and faults in their text noticed.

    Arguments: `nox -s foreign -- --faults 2 torchax-llama`.
    """
    run(session, "python", "-m", "hloracle.studies.foreign", *session.posargs)


@nox.session(venv_backend="none", requires=["environment"], default=False)
def bench(session: nox.Session) -> None:
    """Measure decode speed. Arguments go to `hloracle bench`."""
    run(session, "hloracle", "bench", *session.posargs)
