"""`python -m labkit.doctor`: what this machine can run, and what to do about what it can't.

Exit status 0 if the lessons can run, 1 if something that they need is missing. Packages, and labkit's
own modules, are imported inside the checks: a missing or broken one becomes a line of the table.
"""

from __future__ import annotations  # an older Python must get far enough to be told that it is too old

import argparse
import importlib
import importlib.metadata
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
PCI_DEVICES = Path("/sys/bus/pci/devices")
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)  # the newest that is tried with every change
OLDEST_GPU = (8, 0)  # compute capability: Triton compiles for no older one
NVIDIA_VENDOR, DISPLAY_CLASS = "0x10de", "0x03"  # PCI's numbers; 0x0300 is a VGA and 0x0302 a 3D controller
REINSTALL = "`make lab`, or `pip install -e .`"
ANSWER_SECONDS = 5  # of another program: more is no answer
NEEDS_TORCH = "not checked: needs torch"


@dataclass(frozen=True)
class Finding:
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
    torch = package(wanted.pop("torch"))
    wanted.pop("triton")  # no package that the lessons need: `triton` reports it
    return [
        *basics,
        torch,
        gpu(),
        triton(),
        *map(package, wanted.values()),
        test_tools(),
        checkpoint(ROOT / "data/tiny-gpt2"),
        nvtx(),
        profiler("Nsight Systems", "nsys"),
        profiler("Nsight Compute", "ncu"),
        machine(),
    ]


def try_import(name: str) -> tuple[ModuleType | None, str]:
    """The module, or None and why it does not import."""
    try:
        return importlib.import_module(name), ""
    except ModuleNotFoundError as error:
        return None, "not installed" if error.name == name else f"does not import: {first_line(error)}"
    except Exception as error:  # a broken package may raise anything
        return None, f"does not import: {first_line(error)}"


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the name of its type if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def python_version() -> Finding:
    """Whether this Python is new enough, and none that nobody has tried."""
    version = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        return Finding(
            "Python", "missing", f"{version} is too old", "3.11 or newer: `make lab PYTHON=python3.12`"
        )
    if sys.version_info[:2] > NEWEST_PYTHON:
        newest = ".".join(map(str, NEWEST_PYTHON))
        return Finding(
            "Python",
            "ok",
            f"{version}, newer than the newest that labkit is tested with, {newest}",
            f"if a package does not install: `make lab PYTHON=python{newest}`",
        )
    return Finding("Python", "ok", version)


def project() -> Finding:
    """Whether the whole project is here, or the installed package alone."""
    if not (ROOT / "pyproject.toml").is_file():
        return Finding(
            "labkit", "missing", f"{ROOT} has the package alone", "clone the project, and `make lab` in it"
        )
    return Finding("labkit", "ok", "the whole project is here")


def requirements(extra: str = "") -> dict[str, str]:
    """Package name to requirement, as pyproject.toml has them: the dependencies, or those of an extra, but
    for labkit itself with its other extras."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["optional-dependencies"][extra] if extra else project["dependencies"]
    names = {re.match(r"[\w.-]+", requirement)[0]: requirement for requirement in wanted}
    return {name: requirement for name, requirement in names.items() if name != "labkit"}


def package(requirement: str) -> Finding:
    """Whether a package is there in a version that pyproject.toml allows, and imports."""
    name = re.match(r"[\w.-]+", requirement)[0]
    module, problem = try_import(name)
    if module is None:
        return Finding(name, "missing", problem, REINSTALL)
    version = str(module.__version__)
    if not satisfies(version, requirement):
        return Finding(name, "missing", f"{version}, but labkit needs {requirement}", REINSTALL)
    return Finding(name, "ok", f"{version}, {torch_build(module)} build" if name == "torch" else version)


def satisfies(version: str, requirement: str) -> bool:
    """Whether a version is one that a requirement such as "numpy>=2,<3" allows."""
    packaging, _ = try_import("packaging.requirements")
    if packaging is None:
        return True  # cannot tell; `packaging` has its own line
    return packaging.Requirement(requirement).specifier.contains(version, prereleases=True)


def torch_build(torch: ModuleType) -> str:
    """What torch was built for: "CUDA 13.0", "ROCm 6.4" or "CPU"."""
    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    return f"ROCm {torch.version.hip}" if torch.version.hip else "CPU"


def test_tools() -> Finding:
    """What `make test` needs besides the lessons' packages."""
    versions = {name: installed_version(name) for name in requirements("test")}
    absent = [name for name, version in versions.items() if version is None]
    if absent:
        return Finding(
            "test tools", "off", f"not installed: {', '.join(absent)}", "`pip install -e '.[test]'`"
        )
    return Finding("test tools", "ok", ", ".join(f"{name} {version}" for name, version in versions.items()))


def installed_version(name: str) -> str | None:
    """The installed version of a package, or None if there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def gpu() -> Finding:
    """The CUDA GPU that torch can use, or which of the things between torch and a GPU is not there.

    "missing" for a GPU that is too old: while it is in sight, lessons would use it.
    """
    torch, _ = try_import("torch")
    if torch is None:
        return Finding("CUDA GPU", "off", NEEDS_TORCH)
    if not torch.cuda.is_available():
        return Finding("CUDA GPU", "off", *why_no_gpu(torch))
    properties = torch.cuda.get_device_properties(0)
    if (properties.major, properties.minor) < OLDEST_GPU:
        return Finding(
            "CUDA GPU",
            "missing",
            f"{properties.name} is too old: its compute capability is {properties.major}.{properties.minor}, "
            f"and Triton needs {'.'.join(map(str, OLDEST_GPU))} or newer (an A100, an RTX 30, or later)",
            "hide it, then every lesson runs on the CPU: `CUDA_VISIBLE_DEVICES= make lab`",
        )
    try:
        torch.ones(1, device="cuda").add_(1).item()
    except Exception as error:
        return Finding(
            "CUDA GPU",
            "off",
            f"{properties.name} fails its first operation: {first_line(error)}",
            "see `nvidia-smi`: is its memory full, is it too old for this torch, is the driver?",
        )
    count = torch.cuda.device_count()
    return Finding(
        "CUDA GPU",
        "ok",
        f"{f'{count} x ' if count > 1 else ''}{properties.name}, {properties.total_memory / 2**30:.0f} GiB, "
        f"compute capability {properties.major}.{properties.minor}, driver {driver_version() or 'unknown'}",
    )


def why_no_gpu(torch: ModuleType) -> tuple[str, str]:
    """Why torch sees no CUDA GPU, and what to do about it."""
    driver = driver_version()
    if driver is None and not has_nvidia_card():
        return "there is no NVIDIA GPU", "nothing: every lesson runs on the CPU"
    if driver is None:
        return (
            "there is an NVIDIA GPU, but no driver answers",
            "install NVIDIA's driver; start a container with access to the GPU",
        )
    if not torch.backends.cuda.is_built():
        return (
            f"the GPU and its driver ({driver}) are there, but this torch is a CPU build",
            "install a CUDA build of torch, as PyTorch's Get Started page says",
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible in ("", "-1"):
        return f"hidden by CUDA_VISIBLE_DEVICES={visible}", "unset CUDA_VISIBLE_DEVICES"
    return (
        f"driver {driver} and torch for CUDA {torch.version.cuda} do not get on: {cuda_problem(torch)}",
        "update NVIDIA's driver, or install a torch built for an older CUDA",
    )


def driver_version() -> str | None:
    """Version of the NVIDIA driver, or None if none answers."""
    answer = first_words(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    version = re.match(r"\s*(\d[\d.]*)(\s|$)", answer)
    return version[1] if version else None


def first_words(command: list[str]) -> str:
    """What a program prints; "" if there is no such program or it fails.

    A program that takes longer than ANSWER_SECONDS is ended, with whatever it started, and gives "" too.
    """
    try:
        program = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError:
        return ""
    try:
        answer, _ = program.communicate(timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        end(program)
        return ""
    return "" if program.returncode else answer.decode(errors="replace")


def end(program: subprocess.Popen) -> None:
    """Kill a program and, where there are process groups, whatever it has started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    else:
        program.kill()
    with suppress(subprocess.TimeoutExpired):  # the driver may hold it so that nothing ends it
        program.wait(1)


def has_nvidia_card() -> bool:
    """Whether Linux lists an NVIDIA display card on the PCI bus; it does without a driver too."""
    return any(
        (device / "vendor").read_text().strip() == NVIDIA_VENDOR
        and (device / "class").read_text().startswith(DISPLAY_CLASS)
        for device in PCI_DEVICES.glob("*")
    )


def cuda_problem(torch: ModuleType) -> str:
    """What CUDA says when it is started."""
    try:
        torch.cuda.init()
    except Exception as error:
        return first_line(error)
    return "CUDA starts, but lists no GPU"


def triton() -> Finding:
    """How Triton kernels run here, tried with a tiny one."""
    runtime, problem = try_import("labkit.kernels.triton_runtime")
    if runtime is None:
        return Finding("Triton", "off", NEEDS_TORCH if try_import("torch")[0] is None else problem)
    status = runtime.triton_status()
    if status.mode == "off":
        remedy = "`pip install -e .`" if sys.platform == "linux" else "nothing: Triton needs Linux (or WSL 2)"
        return Finding("Triton", "off", f"{status.reason}; the plain PyTorch path is used", remedy)
    version = runtime.triton.__version__
    try:
        runtime.check_triton()
    except Exception as error:
        remedy = (
            "a C compiler and Python's headers (gcc, python3-dev)" if status.mode == "native" else REINSTALL
        )
        return Finding("Triton", "off", f"{version}, but a test kernel fails: {first_line(error)}", remedy)
    how = "compiles for the GPU" if status.mode == "native" else "interpreter on the CPU"
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
        return Finding(
            what, "missing", first_line(error), f"`git checkout -- {what}`, or clone the project again"
        )
    size = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    return Finding(what, "ok", f"loads: {parameters / 1e6:.1f} M parameters, {size / 1e6:.1f} MB")


def nvtx() -> Finding:
    """Whether the engine names its phases for Nsight Systems."""
    ranges, _ = try_import("labkit.ranges")
    if ranges is not None and ranges.nvtx_enabled:
        return Finding("NVTX ranges", "ok", "the engine names its phases for Nsight Systems")
    if os.environ.get("LABKIT_NVTX") == "1":
        return Finding("NVTX ranges", "off", "LABKIT_NVTX=1 is set, but ranges need a CUDA GPU")
    return Finding("NVTX ranges", "off", "LABKIT_NVTX is not 1", "on a GPU: set LABKIT_NVTX=1")


def profiler(what: str, command: str) -> Finding:
    """Whether a profiler's command is on PATH."""
    path = shutil.which(command)
    if path is None:
        return Finding(what, "off", f"{command} is not on PATH", "on a GPU: get it from NVIDIA")
    return Finding(what, "ok", path)


def machine() -> Finding:
    """The operating system, the cores that this process may use, and the memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    names = getattr(os, "sysconf_names", {})  # Windows has none
    if "SC_PHYS_PAGES" in names:
        memory = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB memory"
    else:
        memory = "memory unknown"
    return Finding("machine", "ok", f"{platform.system()} {platform.machine()}, {cores} cores, {memory}")


def conclusion(findings: list[Finding]) -> str:
    """Whether the lessons run here, and at which scale."""
    if missing := [finding.what for finding in findings if finding.status == "missing"]:
        return f"The lessons cannot run yet. First see to: {', '.join(missing)}."
    if any(finding.what == "CUDA GPU" and finding.status == "ok" for finding in findings):
        return "GPU scale: the lessons run here, and their benchmark cells at full size."
    return (
        "CPU scale: every cell runs here, with the shipped model and small batches. "
        "Recorded GPU results are plotted."
    )


def report(findings: list[Finding], width: int = 110) -> str:
    """The findings as a table `width` characters wide (80 or more), and the conclusion below it."""
    rows = [Finding("what", "status", "detail", "what to do"), *findings]
    what_width = max(len(row.what) for row in rows)
    status_width = max(len(row.status) for row in rows)
    room = width - what_width - status_width - 6  # three gaps of two
    detail_width = room * 3 // 5
    lines = []
    for row in rows:
        details = textwrap.wrap(row.detail, detail_width)
        remedies = textwrap.wrap(row.remedy, room - detail_width)
        for what, status, detail, remedy in zip_longest(
            [row.what], [row.status], details, remedies, fillvalue=""
        ):
            line = f"{what:{what_width}}  {status:{status_width}}  {detail:{detail_width}}  {remedy}"
            lines.append(line.rstrip())
    lines.insert(1, "-" * width)
    return "\n".join([*lines, "", *textwrap.wrap(conclusion(findings), width)])


def main() -> int:
    """Print the report; the exit status is 1 if something that the lessons need is missing."""
    what = "Say what this machine can run, and what to do about what it can't."
    argparse.ArgumentParser(prog="python -m labkit.doctor", description=what).parse_args()
    findings = examine()
    print(report(findings, width=max(80, shutil.get_terminal_size((110, 24)).columns)))
    return int(any(finding.status == "missing" for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
