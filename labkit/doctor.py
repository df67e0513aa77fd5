"""`python -m labkit.doctor`: what this machine can run, and what to do about what it can't.

Exit status 0 if the lessons can run, 1 if something that they need is missing. Packages, and labkit's
own modules, are imported inside the checks: a missing or broken one becomes a line of the report.
"""

from __future__ import annotations  # an older Python must get far enough to be told that it is too old

import argparse
import importlib
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)  # the newest that is tried with every change
OLDEST_GPU = (8, 0)  # compute capability: Triton compiles for no older one
REINSTALL = "`make lab`, or `pip install -e .`"
ANSWER_SECONDS = 5  # of another program: more is no answer
NEEDS_TORCH = "not checked: needs torch"


class Finding(NamedTuple):
    """One line of the report.

    status: "ok"; "off", the lessons run without it; or "missing", they do not.
    """

    what: str
    status: str
    detail: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Every check, in the order of the report. Takes seconds: packages are imported and kernels run."""
    basics = [python_version(), project()]
    if any(finding.status == "missing" for finding in basics):
        return basics  # nothing else is worth a look
    wanted = requirements()
    wanted.pop("triton")  # no package that the lessons need: `triton` reports it
    packages = [package(requirement) for requirement in wanted.values()]
    return [*basics, *packages, gpu(), triton(), checkpoint(ROOT / "data/tiny-gpt2"), machine()]


def try_import(name: str) -> tuple[ModuleType | None, str]:
    """The module, or None and why it does not import."""
    try:
        return importlib.import_module(name), ""
    except Exception as error:  # a broken package may raise anything
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == name
        return None, "not installed" if is_missing else f"does not import: {first_line(error)}"


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the name of its type if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def python_version() -> Finding:
    """Whether this Python is new enough, and not newer than any that was tested."""
    version, newest = platform.python_version(), ".".join(map(str, NEWEST_PYTHON))
    if sys.version_info < OLDEST_PYTHON:
        remedy = "3.11 or newer: `make lab PYTHON=python3.12`"
        return Finding("Python", "missing", f"{version} is too old", remedy)
    if sys.version_info[:2] > NEWEST_PYTHON:
        remedy = f"if a package does not install: `make lab PYTHON=python{newest}`"
        return Finding("Python", "ok", f"{version}, newer than the newest tested one, {newest}", remedy)
    return Finding("Python", "ok", version)


def project() -> Finding:
    """Whether the whole project is here, or the installed package alone."""
    if (ROOT / "pyproject.toml").is_file():
        return Finding("labkit", "ok", "the whole project is here")
    remedy = "clone the project; run `make lab` in it"
    return Finding("labkit", "missing", f"{ROOT} has the package alone", remedy)


def requirements() -> dict[str, str]:
    """Package name to requirement: the dependencies in pyproject.toml."""
    import tomllib

    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    return {re.match(r"[\w.-]+", requirement)[0]: requirement for requirement in wanted}


def package(requirement: str) -> Finding:
    """Whether a package is installed in a version that pyproject.toml allows, and imports."""
    name = re.match(r"[\w.-]+", requirement)[0]
    module, problem = try_import(name)
    if module is None:
        return Finding(name, "missing", problem, REINSTALL)
    version = str(module.__version__)
    packaging, _ = try_import("packaging.requirements")  # without it nothing can be said of versions
    if packaging and not packaging.Requirement(requirement).specifier.contains(version, prereleases=True):
        return Finding(name, "missing", f"{version}, but labkit needs {requirement}", REINSTALL)
    if name == "torch":
        built_for = module.version
        version += f", {f'CUDA {built_for.cuda}' if built_for.cuda else 'CPU'} build"
    return Finding(name, "ok", version)


def gpu() -> Finding:
    """The CUDA GPU that torch can use, or what is missing between torch and a GPU.

    "missing" for a GPU that is too old: while torch sees it, lessons would use it.
    """
    torch, _ = try_import("torch")
    if torch is None:
        return Finding("CUDA GPU", "off", NEEDS_TORCH)
    driver, visible = driver_version(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        said = f"{torch.cuda.device_count()} x {card.name}, {card.total_memory / 2**30:.0f} GiB, "
        said += f"compute capability {card.major}.{card.minor}, driver {driver or 'unknown'}"
        if (card.major, card.minor) >= OLDEST_GPU:
            return Finding("CUDA GPU", "ok", said)
        needed = f"Triton needs {'.'.join(map(str, OLDEST_GPU))} or newer (an A100, an RTX 30, or later)"
        remedy = "hide it, then every lesson runs on the CPU: `CUDA_VISIBLE_DEVICES= make lab`"
        return Finding("CUDA GPU", "missing", f"too old: {said}, and {needed}", remedy)
    if driver is None:
        said = "there is no NVIDIA GPU, or no driver answers"
        remedy = "nothing: every lesson runs on the CPU. If there is one, install NVIDIA's driver"
    elif not torch.backends.cuda.is_built():
        said = f"the GPU and its driver ({driver}) are there, but this torch is a CPU build"
        remedy = "install a CUDA build of torch, as PyTorch's Get Started page says"
    elif visible in ("", "-1"):
        said, remedy = f"hidden by CUDA_VISIBLE_DEVICES={visible}", "unset CUDA_VISIBLE_DEVICES"
    else:
        said = f"driver {driver} and torch for CUDA {torch.version.cuda} do not fit"
        remedy = "update NVIDIA's driver, or install a torch built for an older CUDA"
    return Finding("CUDA GPU", "off", said, remedy)


def driver_version() -> str | None:
    """Version of the NVIDIA driver, or None if none answers."""
    answer = first_words(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    version = re.match(r"\s*(\d[\d.]*)(\s|$)", answer)
    return version[1] if version else None


def first_words(command: list[str]) -> str:
    """What a program prints; "" if there is no such program, if it fails, or takes over ANSWER_SECONDS."""
    try:
        answer = subprocess.run(command, capture_output=True, timeout=ANSWER_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.decode(errors="replace")


def triton() -> Finding:
    """How Triton kernels run here, tried with a tiny one."""
    runtime, problem = try_import("labkit.kernels.triton_runtime")
    if runtime is None:
        return Finding("Triton", "off", NEEDS_TORCH if try_import("torch")[0] is None else problem)
    status = runtime.triton_status()
    if status.mode == "off":
        remedy = REINSTALL if sys.platform == "linux" else "nothing: Triton needs Linux (or WSL 2)"
        return Finding("Triton", "off", f"{status.reason}; the plain PyTorch path is used", remedy)
    version, native = runtime.triton.__version__, status.mode == "native"
    try:
        runtime.check_triton()
    except Exception as error:
        remedy = "a C compiler and Python's headers (gcc, python3-dev)" if native else REINSTALL
        return Finding("Triton", "off", f"{version}, but a test kernel fails: {first_line(error)}", remedy)
    how = "compiles for the GPU" if native else "interpreter on the CPU"
    return Finding("Triton", "ok", f"{version}, {how}: {status.reason}")


def checkpoint(directory: Path) -> Finding:
    """Whether the model that the lessons use is there and loads."""
    what = f"{directory.parent.name}/{directory.name}"
    if try_import("torch")[0] is None:
        return Finding(what, "off", NEEDS_TORCH)
    try:
        from labkit.model import load_model

        parameters = sum(p.numel() for p in load_model(directory).network.parameters())
    except Exception as error:
        remedy = f"`git checkout -- {what}`, or clone the project again"
        return Finding(what, "missing", first_line(error), remedy)
    return Finding(what, "ok", f"loads: {parameters / 1e6:.1f} M parameters")


def machine() -> Finding:
    """The operating system, and the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Finding("machine", "ok", f"{platform.system()} {platform.machine()}, {cores} cores")


def report(findings: list[Finding]) -> str:
    """A line for each finding, with what to do below it, and whether the lessons run here, at which scale."""
    width = max(len(finding.what) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.what:{width}}  {finding.status:7}  {finding.detail}")
        if finding.remedy:
            lines.append(f"{'':{width}}  {'':7}  -> {finding.remedy}")
    said = "CPU scale: every cell runs here, with the shipped model and small batches. "
    said += "Recorded GPU results are plotted."
    if missing := [finding.what for finding in findings if finding.status == "missing"]:
        said = f"The lessons cannot run yet. First see to: {', '.join(missing)}."
    elif any(finding[:2] == ("CUDA GPU", "ok") for finding in findings):
        said = "GPU scale: the lessons run here, and their benchmark cells at full size."
    return "\n".join([*lines, "", said])


def main() -> int:
    """Print the report; the exit status is 1 if something that the lessons need is missing."""
    what = "Say what this machine can run, and what to do about what it can't."
    argparse.ArgumentParser(prog="python -m labkit.doctor", description=what).parse_args()
    findings = examine()
    print(report(findings))
    return int(any(finding.status == "missing" for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
