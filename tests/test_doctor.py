"""What the doctor says of machines that are not this one."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit import doctor
from labkit.doctor import Finding

H100 = SimpleNamespace(name="NVIDIA H100", total_memory=80 * 2**30, major=9, minor=0)


def fake_torch(*, available=False, built=True, card=H100):
    """As much of torch as the doctor looks at: one H100, or another card, if `available`."""
    return SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda="13.0" if built else None, hip=None),
        backends=SimpleNamespace(cuda=SimpleNamespace(is_built=lambda: built)),
        cuda=SimpleNamespace(
            is_available=lambda: available, get_device_properties=lambda index: card, device_count=lambda: 1
        ),
    )


@pytest.fixture
def on_machine(monkeypatch):
    """Make the doctor see a torch and a driver that are not here; returns its finding on the GPU."""

    def examine(torch, driver=None, visible=None):
        monkeypatch.setattr(doctor, "try_import", lambda name: (torch, ""))
        monkeypatch.setattr(doctor, "driver_version", lambda: driver)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        return doctor.gpu()

    return examine


def test_a_gpu_that_triton_does_not_compile_for(on_machine):
    card = SimpleNamespace(name="Tesla T4", total_memory=2**34, major=7, minor=5)
    finding = on_machine(fake_torch(available=True, card=card), driver="580.1")
    assert finding.status == "missing" and "CUDA_VISIBLE_DEVICES= make lab" in finding.remedy
    assert "too old: 1 x Tesla T4" in finding.detail and "Triton needs 8.0 or newer" in finding.detail


@pytest.mark.parametrize(
    ("version", "status", "said", "remedy"),
    [
        ((3, 10, 14), "missing", "3.10.14 is too old", "`make lab PYTHON=python3.12`"),
        ((3, 11, 0), "ok", "3.11.0", ""),
        ((3, 14, 0), "ok", "newer than the newest tested one, 3.13", "PYTHON=python3.13`"),
    ],
)
def test_pythons(monkeypatch, version, status, said, remedy):
    monkeypatch.setattr(doctor.sys, "version_info", (*version, "final", 0))
    monkeypatch.setattr(doctor.platform, "python_version", lambda: ".".join(map(str, version)))
    finding = doctor.python_version()
    assert finding.status == status and said in finding.detail and finding.remedy.endswith(remedy)


GPUS_OFF = {  # the machine, what is said of it, and how the remedy begins
    "no driver": ({}, {}, "no NVIDIA GPU, or no driver answers", "nothing: every lesson runs on the CPU"),
    "a CPU build": ({"built": False}, {"driver": "1"}, "this torch is a CPU build", "install a CUDA build"),
    "an old driver": ({}, {"driver": "470.1"}, "470.1 and torch for CUDA 13.0 do not fit", "update NVIDIA"),
    "hidden": ({}, {"driver": "580.1", "visible": ""}, "hidden by CUDA_VISIBLE_DEVICES=", "unset CUDA_VIS"),
}


@pytest.mark.parametrize(("torch", "machine", "detail", "remedy"), GPUS_OFF.values(), ids=GPUS_OFF)
def test_a_gpu_that_cannot_be_used(on_machine, torch, machine, detail, remedy):
    finding = on_machine(fake_torch(**torch), **machine)
    assert (finding.what, finding.status) == ("CUDA GPU", "off")
    assert detail in finding.detail and "\n" not in finding.detail and finding.remedy.startswith(remedy)


@pytest.fixture
def nvidia_smi(monkeypatch, tmp_path):
    """A function: put a shell script in nvidia-smi's place, the only program on PATH besides sh's own."""

    def install(script: str) -> None:
        path = tmp_path / "nvidia-smi"
        path.write_text(script)
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")

    return install


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands for nvidia-smi")
@pytest.mark.parametrize(
    ("script", "version"),
    [
        ("echo '  580.159.04  '; echo 580.159.04; echo warning >&2", "580.159.04"),
        ("echo 580.1; exit 9", None),
        (r"printf '\377 580.1'", None),
    ],
)
def test_driver_version(nvidia_smi, script, version):
    nvidia_smi(f"#!/bin/sh\n{script}\n")
    assert doctor.driver_version() == version


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands for nvidia-smi")
def test_a_driver_that_hangs_is_not_waited_for(nvidia_smi, monkeypatch):
    monkeypatch.setattr(doctor, "ANSWER_SECONDS", 0.2)
    nvidia_smi("#!/bin/sh\necho 580.1; exec sleep 600\n")
    assert doctor.driver_version() is None


@pytest.mark.parametrize(
    ("requirement", "module", "expected"),
    [
        ("torch>=2.11,<2.14", fake_torch(built=False), ("ok", "2.13.0, CPU build")),
        ("torch>=2.11,<2.14", fake_torch(), ("ok", "2.13.0, CUDA 13.0 build")),
        ("tqdm>=4,<5", SimpleNamespace(__version__="4.1.dev1+cu130"), ("ok", "4.1.dev1+cu130")),
        (
            "tqdm>=5,<6",
            SimpleNamespace(__version__="4.70.1"),
            ("missing", "4.70.1, but labkit needs tqdm>=5,<6"),
        ),
        ("tqdm>=4", None, ("missing", "not installed")),
    ],
)
def test_package(monkeypatch, requirement, module, expected):
    real_import = doctor.try_import

    def try_import(name):
        return (
            real_import(name) if name.startswith("packaging") else (module, "" if module else "not installed")
        )

    monkeypatch.setattr(doctor, "try_import", try_import)
    finding = doctor.package(requirement)
    assert (finding.status, finding.detail) == expected
    assert finding.remedy == ("" if finding.status == "ok" else doctor.REINSTALL)


def test_try_import_tells_a_missing_package_from_a_broken_one(monkeypatch, tmp_path):
    (tmp_path / "needs_more.py").write_text("import not_there_at_all\n")
    (tmp_path / "cut_short.py").write_text("raise OSError('libfoo.so: too short\\nand more')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert doctor.try_import("not_there_at_all") == (None, "not installed")
    assert doctor.try_import("needs_more") == (None, "does not import: No module named 'not_there_at_all'")
    assert doctor.try_import("cut_short") == (None, "does not import: libfoo.so: too short")


@pytest.mark.parametrize(
    ("name", "value", "statuses", "remedy"),
    [
        ("OLDEST_PYTHON", (99, 0), ("missing", "ok"), "PYTHON="),
        ("ROOT", Path("nowhere"), ("ok", "missing"), "clone"),  # a package without its project
    ],
)
def test_without_a_python_or_the_project_the_examination_ends(monkeypatch, name, value, statuses, remedy):
    monkeypatch.setattr(doctor, name, value)
    findings = doctor.examine()
    assert tuple(finding.status for finding in findings) == statuses
    assert remedy in findings[statuses.index("missing")].remedy


@pytest.mark.parametrize(
    ("mode", "reason", "kernel_error", "status", "said"),
    [
        ("interpreter", "there is no CUDA GPU", None, "ok", "interpreter on the CPU"),
        ("off", "Triton is not installed", None, "off", "not installed; the plain PyTorch path is used"),
        ("native", "there is a CUDA GPU", "Failed to find C compiler", "off", "Failed to find C compiler"),
    ],
)
def test_triton(monkeypatch, mode, reason, kernel_error, status, said):
    def check_triton():
        if kernel_error:
            raise RuntimeError(kernel_error)

    runtime = SimpleNamespace(
        triton=SimpleNamespace(__version__="3.7.1"),
        triton_status=lambda: SimpleNamespace(mode=mode, reason=reason),
        check_triton=check_triton,
    )
    monkeypatch.setattr(doctor, "try_import", lambda name: (runtime, ""))
    finding = doctor.triton()
    assert finding.status == status
    assert said in finding.detail
    assert ("gcc" in finding.remedy) is bool(kernel_error)


def test_a_checkpoint_that_is_not_there(tmp_path):
    finding = doctor.checkpoint(tmp_path / "data/tiny-gpt2")
    assert (finding.what, finding.status) == ("data/tiny-gpt2", "missing")
    assert "git checkout -- data/tiny-gpt2" in finding.remedy


PYTHON = Finding("Python", "ok", "3.12.1")
NO_GPU = Finding("CUDA GPU", "off", "there is no NVIDIA GPU", "nothing: every lesson runs on the CPU")


def test_the_report_says_what_to_do_and_ends_with_a_conclusion():
    assert doctor.report([PYTHON, NO_GPU]).splitlines() == [
        "Python    ok       3.12.1",
        "CUDA GPU  off      there is no NVIDIA GPU",
        "                   -> nothing: every lesson runs on the CPU",
        "",
        "CPU scale: every cell runs here, with the shipped model and small batches. "
        "Recorded GPU results are plotted.",
    ]


def test_nothing_is_installed():
    """What a reader sees who starts the doctor first."""
    code = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({[*doctor.requirements()]}));"
        "runpy.run_module('labkit.doctor', run_name='__main__')"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    statuses = dict(re.findall(r"^(\S.*?) +(ok|off|missing) ", answer.stdout, re.MULTILINE))
    assert answer.returncode == 1
    assert {name for name, status in statuses.items() if status == "missing"} == (
        set(doctor.requirements()) - {"triton"}
    )
