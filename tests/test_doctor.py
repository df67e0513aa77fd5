"""What the doctor says of machines that are not this one."""

import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from labkit import doctor
from labkit.doctor import ROOT, Finding

H100 = SimpleNamespace(name="NVIDIA H100", total_memory=80 * 2**30, major=9, minor=0)


def fake_torch(*, available=False, built=True, fails_with=None, card=H100):
    """As much of torch as the doctor looks at: one H100, or another card, if `available`."""

    def fail(*args, **kwargs):
        raise RuntimeError(fails_with)

    tensor = SimpleNamespace(add_=lambda x: SimpleNamespace(item=lambda: 2.0))
    return SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda="13.0" if built else None, hip=None),
        backends=SimpleNamespace(cuda=SimpleNamespace(is_built=lambda: built)),
        cuda=SimpleNamespace(
            is_available=lambda: available,
            init=fail,
            get_device_properties=lambda index: card,
            device_count=lambda: 1,
        ),
        ones=fail if fails_with else lambda *args, **kwargs: tensor,
    )


@pytest.fixture
def on_machine(monkeypatch):
    """Make the doctor see a torch, a driver and a card that are not here; returns its finding on the GPU."""

    def examine(torch, driver=None, card=False, visible=None):
        monkeypatch.setattr(doctor, "try_import", lambda name: (torch, ""))
        monkeypatch.setattr(doctor, "driver_version", lambda: driver)
        monkeypatch.setattr(doctor, "has_nvidia_card", lambda: card)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        return doctor.gpu()

    return examine


def test_a_gpu_that_works(on_machine):
    assert on_machine(fake_torch(available=True), driver="580.1", card=True) == Finding(
        "CUDA GPU", "ok", "NVIDIA H100, 80 GiB, compute capability 9.0, driver 580.1"
    )


@pytest.mark.parametrize(
    ("name", "capability", "status"),
    [
        ("Tesla T4", (7, 5), "missing"),
        ("NVIDIA A100-SXM4-40GB", (8, 0), "ok"),
    ],
)
def test_a_gpu_that_triton_does_not_compile_for(on_machine, name, capability, status):
    card = SimpleNamespace(name=name, total_memory=2**34, major=capability[0], minor=capability[1])
    finding = on_machine(fake_torch(available=True, card=card), driver="580.1", card=True)
    assert finding.status == status and finding.detail.startswith(name)
    too_old = "too old: its compute capability is {}.{}, and Triton needs 8.0 or newer".format(*capability)
    assert (too_old in finding.detail) is (status == "missing")
    assert ("CUDA_VISIBLE_DEVICES= make lab" in finding.remedy) is (status == "missing")


@pytest.mark.parametrize(
    ("version", "status", "said", "remedy"),
    [
        ((3, 10, 14), "missing", "3.10.14 is too old", "3.11 or newer: `make lab PYTHON=python3.12`"),
        ((3, 11, 0), "ok", "3.11.0", ""),
        (
            (3, 14, 0),
            "ok",
            "3.14.0, newer than the newest that labkit is tested with, 3.13",
            "if a package does not install: `make lab PYTHON=python3.13`",
        ),
    ],
)
def test_pythons(monkeypatch, version, status, said, remedy):
    monkeypatch.setattr(doctor.sys, "version_info", (*version, "final", 0))
    monkeypatch.setattr(doctor.platform, "python_version", lambda: ".".join(map(str, version)))
    assert doctor.python_version() == Finding("Python", status, said, remedy)


GPUS_OFF = {  # the machine, what is said of it, and how the remedy begins
    "no GPU": ({}, {}, "there is no NVIDIA GPU", "nothing: every lesson runs on the CPU"),
    "no driver": (
        {},
        {"card": True},
        "there is an NVIDIA GPU, but no driver answers",
        "install NVIDIA's driver",
    ),
    "a CPU build of torch": (
        {"built": False},
        {"driver": "580.1", "card": True},
        "the GPU and its driver (580.1) are there, but this torch is a CPU build",
        "install a CUDA build of torch",
    ),
    "a driver too old": (
        {"fails_with": "The NVIDIA driver on your system is too old (found version 11040).\nMore"},
        {"driver": "470.1", "card": True},
        "driver 470.1 and torch for CUDA 13.0 do not get on: "
        "The NVIDIA driver on your system is too old (found version 11040).",
        "update NVIDIA's driver",
    ),
    "hidden": (
        {},
        {"driver": "580.1", "card": True, "visible": ""},
        "hidden by CUDA_VISIBLE_DEVICES=",
        "unset CUDA_VISIBLE_DEVICES",
    ),
    "a first operation that fails": (
        {"available": True, "fails_with": "no kernel image is available"},
        {"driver": "580.1"},
        "NVIDIA H100 fails its first operation: no kernel image is available",
        "",
    ),
}


@pytest.mark.parametrize(("torch", "machine", "detail", "remedy"), GPUS_OFF.values(), ids=GPUS_OFF)
def test_a_gpu_that_cannot_be_used(on_machine, torch, machine, detail, remedy):
    finding = on_machine(fake_torch(**torch), **machine)
    assert (finding.what, finding.status, finding.detail) == ("CUDA GPU", "off", detail)
    assert finding.remedy.startswith(remedy)


@pytest.fixture
def nvidia_smi(monkeypatch, tmp_path):
    """A function: put a shell script in nvidia-smi's place, the only program on PATH besides sh's own."""

    def install(script: str, mode: int = 0o755) -> None:
        path = tmp_path / "nvidia-smi"
        path.write_text(script)
        path.chmod(mode)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")

    return install


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands for nvidia-smi")
@pytest.mark.parametrize(
    ("script", "version"),
    [
        ("echo '  580.159.04  '; echo 580.159.04; echo warning >&2", "580.159.04"),
        ("echo 580.1; exit 9", None),
        ("exit 0", None),
        (r"printf '\377 580.1'", None),
        ("echo No devices were found", None),
    ],
)
def test_driver_version(nvidia_smi, script, version):
    nvidia_smi(f"#!/bin/sh\n{script}\n")
    assert doctor.driver_version() == version


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands for nvidia-smi")
@pytest.mark.parametrize(
    ("script", "mode"), [("#!/no/such/shell\n", 0o755), ("no script", 0o755), ("", 0o644)]
)
def test_driver_version_where_nothing_can_be_started(nvidia_smi, monkeypatch, tmp_path, script, mode):
    nvidia_smi(script, mode)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.driver_version() is None


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands for nvidia-smi")
def test_of_a_driver_that_says_too_much_little_is_read(nvidia_smi):
    nvidia_smi("#!/bin/sh\nyes 580.1 | head -c 100000000\n")
    assert doctor.first_words(["nvidia-smi"]) == "" and doctor.driver_version() is None


HANGING = {
    "leaves another behind that sleeps": "sleep 600 & echo 580.1",
    "ignores being asked to end": "trap '' TERM INT; echo 580.1; sleep 600",
    "closes its output and sleeps": "exec >&-; sleep 600",
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands for nvidia-smi")
@pytest.mark.parametrize("script", HANGING.values(), ids=HANGING)
def test_a_driver_that_hangs_is_not_waited_for_and_is_ended(nvidia_smi, monkeypatch, script):
    started = []

    class Popen(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self.pid)

    monkeypatch.setattr(doctor.subprocess, "Popen", Popen)
    monkeypatch.setattr(doctor, "ANSWER_SECONDS", 0.2)
    nvidia_smi(f"#!/bin/sh\n{script}\n")
    assert doctor.driver_version() is None
    with pytest.raises(ProcessLookupError):
        for _ in range(100):  # what it left behind is ended, and taken away by whoever inherits it
            os.killpg(started[0], 0)
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("vendor", "kind", "expected"),
    [
        ("0x10de", "0x030200", True),
        ("0x10de", "0x040300", False),  # the sound device of an NVIDIA card
        ("0x1002", "0x030000", False),
    ],
)
def test_has_nvidia_card(monkeypatch, tmp_path, vendor, kind, expected):
    (tmp_path / "0000:00:01.0").mkdir()
    (tmp_path / "0000:00:01.0/vendor").write_text(f"{vendor}\n")
    (tmp_path / "0000:00:01.0/class").write_text(f"{kind}\n")
    monkeypatch.setattr(doctor, "PCI_DEVICES", tmp_path)
    assert doctor.has_nvidia_card() is expected


def test_torch_build():
    version = SimpleNamespace(cuda=None, hip="7.1")
    assert doctor.torch_build(SimpleNamespace(version=version)) == "ROCm 7.1"


@pytest.mark.parametrize(
    ("requirement", "module", "expected"),
    [
        ("torch>=2.11,<2.14", fake_torch(built=False), ("ok", "2.13.0, CPU build")),
        ("torch>=2.11,<2.14", fake_torch(), ("ok", "2.13.0, CUDA 13.0 build")),
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


def test_local_and_nightly_versions_satisfy_a_requirement():
    assert doctor.satisfies("2.13.0+cu130", "torch>=2.11,<2.14")
    assert doctor.satisfies("2.13.0.dev20260101", "torch>=2.11,<2.14")
    assert not doctor.satisfies("2.10.1", "torch>=2.11,<2.14")


def test_try_import_tells_a_missing_package_from_a_broken_one(monkeypatch, tmp_path):
    (tmp_path / "needs_more.py").write_text("import not_there_at_all\n")
    (tmp_path / "cut_short.py").write_text("raise OSError('libfoo.so: too short\\nand more')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert doctor.try_import("not_there_at_all") == (None, "not installed")
    assert doctor.try_import("needs_more") == (None, "does not import: No module named 'not_there_at_all'")
    assert doctor.try_import("cut_short") == (None, "does not import: libfoo.so: too short")


def test_an_old_python_ends_the_examination(monkeypatch):
    monkeypatch.setattr(doctor, "OLDEST_PYTHON", (99, 0))
    python, labkit = doctor.examine()
    assert (python.status, labkit.status) == ("missing", "ok")
    assert "too old" in python.detail
    assert "PYTHON=" in python.remedy


def test_a_package_without_its_project_ends_the_examination(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    python, labkit = doctor.examine()
    assert (python.status, labkit.status) == ("ok", "missing")
    assert "clone" in labkit.remedy


def test_test_tools(monkeypatch):
    monkeypatch.setattr(doctor, "installed_version", lambda name: None if name == "nbval" else "1.0")
    finding = doctor.test_tools()
    assert (finding.status, finding.detail) == ("off", "not installed: nbval")
    assert finding.remedy == "`pip install -e '.[test]'`"


@pytest.mark.parametrize(
    ("mode", "reason", "kernel_error", "status", "said"),
    [
        ("native", "there is a CUDA GPU", None, "ok", "compiles for the GPU"),
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


@pytest.mark.parametrize(
    ("platform", "remedy"), [("linux", "pip install"), ("darwin", "needs Linux"), ("win32", "WSL")]
)
def test_what_to_do_without_triton_depends_on_the_platform(monkeypatch, platform, remedy):
    runtime = SimpleNamespace(
        triton_status=lambda: SimpleNamespace(mode="off", reason="Triton is not installed")
    )
    monkeypatch.setattr(doctor, "try_import", lambda name: (runtime, ""))
    monkeypatch.setattr(doctor.sys, "platform", platform)
    assert remedy in doctor.triton().remedy


def test_the_shipped_checkpoint_loads():
    finding = doctor.checkpoint(ROOT / "data/tiny-gpt2")
    assert (finding.what, finding.status) == ("data/tiny-gpt2", "ok")
    assert finding.detail.startswith("loads: ")


def test_a_checkpoint_that_is_not_there(tmp_path):
    finding = doctor.checkpoint(tmp_path / "data/tiny-gpt2")
    assert (finding.what, finding.status) == ("data/tiny-gpt2", "missing")
    assert "git checkout -- data/tiny-gpt2" in finding.remedy


@pytest.mark.parametrize(
    ("setting", "enabled", "status", "said"),
    [
        ("1", True, "ok", "names its phases"),
        ("1", False, "off", "need a CUDA GPU"),
    ],
)
def test_nvtx(monkeypatch, setting, enabled, status, said):
    monkeypatch.setenv("LABKIT_NVTX", setting)
    monkeypatch.setattr(doctor, "try_import", lambda name: (SimpleNamespace(nvtx_enabled=enabled), ""))
    finding = doctor.nvtx()
    assert finding.status == status
    assert said in finding.detail


def test_profiler(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", {"nsys": "/opt/nsys"}.get)
    assert doctor.profiler("Nsight Systems", "nsys") == Finding("Nsight Systems", "ok", "/opt/nsys")
    assert doctor.profiler("Nsight Compute", "ncu").status == "off"


PYTHON = Finding("Python", "ok", "3.12.1")
NO_GPU = Finding("CUDA GPU", "off", "there is no NVIDIA GPU", "nothing: every lesson runs on the CPU")


def test_report_is_a_table_with_a_conclusion():
    assert doctor.report([PYTHON, NO_GPU], width=80) == (
        "what      status  detail                                what to do\n"
        "--------------------------------------------------------------------------------\n"
        "Python    ok      3.12.1\n"
        "CUDA GPU  off     there is no NVIDIA GPU                nothing: every lesson\n"
        "                                                        runs on the CPU\n"
        "\n"
        "CPU scale: every cell runs here, with the shipped model and small batches.\n"
        "Recorded GPU results are plotted."
    )


def test_report_keeps_within_its_width():
    findings = [PYTHON, Finding("torch", "missing", "word " * 60, "remedy " * 60)]
    assert max(map(len, doctor.report(findings, 80).splitlines())) <= 80


def test_conclusion():
    missing = [Finding("torch", "missing", ""), Finding("tqdm", "missing", "")]
    assert doctor.conclusion(missing) == "The lessons cannot run yet. First see to: torch, tqdm."
    assert doctor.conclusion([PYTHON, Finding("CUDA GPU", "ok", "NVIDIA H100")]).startswith("GPU scale:")


def doctor_without(*packages: str) -> tuple[int, dict[str, str], str]:
    """`python -m labkit.doctor` where `packages` do not import: exit status, status by line, last line."""
    code = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({packages}));"
        "runpy.run_module('labkit.doctor', run_name='__main__')"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout, answer.stderr
    statuses = dict(re.findall(r"^(\S.*?) +(ok|off|missing) ", answer.stdout, re.MULTILINE))
    return answer.returncode, statuses, answer.stdout.splitlines()[-1]


@pytest.mark.slow
def test_lessons_do_not_run_without_torch():
    code, statuses, last_line = doctor_without("torch")
    assert code == 1
    assert (statuses["torch"], statuses["CUDA GPU"], statuses["data/tiny-gpt2"]) == ("missing", "off", "off")
    assert last_line == "The lessons cannot run yet. First see to: torch."


def test_nothing_is_installed():
    """What a reader sees who starts the doctor first."""
    names = [*doctor.requirements(), *doctor.requirements("test")]
    code, statuses, _ = doctor_without(*names)
    assert code == 1
    assert {name for name, status in statuses.items() if status == "missing"} == set(
        doctor.requirements()
    ) - {"triton"}
