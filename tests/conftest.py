"""What all tests share.

labkit is imported first: it turns Triton's interpreter on, and transformers' GPT-2 imports Triton.
"""

from __future__ import annotations  # to look up a class of transformers takes two seconds

import gc
import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"  # no test depends on the network
os.environ["LABKIT_MINE"] = tempfile.mkdtemp()  # no test, and no notebook under test, sees what a reader kept
os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in lessons; before torch reads it

import labkit

# isort: split
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import HealthCheck, settings

from labkit import paths
from labkit.bench.record import current_commit, describe_host
from labkit.paths import ROOT
from labkit.results import GpuTests

# A busy machine is no failure.
settings.register_profile("labkit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", settings.get_profile("labkit"), max_examples=20_000)
settings.load_profile("labkit")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

paths.CACHE = Path(os.environ["LABKIT_MINE"]) / "cache"  # nor what the reader's GPU was measured for

STARTED = pytest.StashKey[float]()
TINY = ROOT / "data/tiny-gpt2"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, help="write the numbers of passed and failed tests to this file")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STARTED] = time.monotonic()
    if config.pluginmanager.hasplugin("nbval"):
        import forked_kernels
        import notebook_kernels

        forked_kernels.install()
        notebook_kernels.install()


def pytest_collection_finish() -> None:
    """Let no garbage collection go through fifteen thousand tests again: none of them is ever garbage."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["LABKIT_MINE"], ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """--record: what ran, where, and how it ended."""
    path = config.getoption("--record")
    if path is None or hasattr(config, "workerinput"):  # a worker of pytest-xdist knows its own tests alone
        return
    counts = {outcome: len(reports) for outcome, reports in terminalreporter.stats.items()}
    if not torch.cuda.is_available() or not counts.get("passed"):
        terminalreporter.write_line(f"{path} is left as it is: no test has passed on a GPU")
        return
    tests = GpuTests(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=current_commit(),
        passed=counts["passed"],
        failed=counts.get("failed", 0) + counts.get("error", 0),
        skipped=counts.get("skipped", 0),
        seconds=round(time.monotonic() - config.stash[STARTED]),
        num_gpus=torch.cuda.device_count(),
        host=replace(describe_host(torch.device("cuda")), transformers=transformers.__version__),
    )
    path.write_text(json.dumps(tests.to_dict(), indent=1) + "\n", encoding="utf-8")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")


@pytest.fixture(scope="session")
def tiny() -> labkit.LanguageModel:
    """The shipped checkpoint, float32 on the CPU."""
    return labkit.load_model("data/tiny-gpt2")


@pytest.fixture(scope="session")
def tiny_hf() -> transformers.GPT2LMHeadModel:
    """The same checkpoint as transformers runs it."""
    return transformers.GPT2LMHeadModel.from_pretrained(TINY, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def random_hf() -> Callable[..., transformers.GPT2LMHeadModel]:
    """A function: a transformers GPT-2 of the given config, its biases and norms random like the rest."""

    def make(**config: object) -> transformers.GPT2LMHeadModel:
        torch.manual_seed(0)
        hf = transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **config))
        for parameter in hf.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        return hf.eval()

    return make


@pytest.fixture(scope="session")
def save_checkpoint() -> Callable[[transformers.GPT2LMHeadModel, Path], Path]:
    """A function: write a transformers GPT-2 and, cut to its vocabulary, the shipped tokenizer."""

    def save(hf: transformers.GPT2LMHeadModel, directory: Path) -> Path:
        hf.save_pretrained(directory)
        tokenizer = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
        bpe = tokenizer["model"]
        bpe["vocab"] = {token: i for token, i in bpe["vocab"].items() if i < hf.config.vocab_size}
        bpe["merges"] = [pair for pair in bpe["merges"] if {*pair, "".join(pair)} <= bpe["vocab"].keys()]
        (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
        return directory

    return save
