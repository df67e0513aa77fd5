"""What labkit knows of Triton: with a GPU, without one, and where Triton is missing or came too early."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import EXACT
from triton_marks import StandIn, needs_triton

from labkit.kernels import triton_runtime
from labkit.kernels.triton_runtime import AbsentTriton, TritonUnavailableError, status_of

pytestmark = pytest.mark.slow

NOT_INSTALLED = ModuleNotFoundError("No module named 'triton'", name="triton")


def in_new_process(code: str, *arguments: object, **environment: str) -> dict:
    """The JSON that `code` prints in a Python of its own, on a machine without a GPU."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    answer = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=kept | {"CUDA_VISIBLE_DEVICES": ""} | environment,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.mark.parametrize(
    ("import_error", "has_gpu", "interpreted", "mode", "reason"),
    [
        (None, True, False, "native", "there is a CUDA GPU"),
        (None, False, True, "interpreter", "there is no CUDA GPU"),
        (None, True, True, "interpreter", "TRITON_INTERPRET is set"),
        (None, False, False, "off", "imported before labkit"),
        (NOT_INSTALLED, True, False, "off", "Triton is not installed"),
        (OSError("libtriton.so: cut short"), True, False, "off", "OSError: libtriton.so: cut short"),
        (ModuleNotFoundError("No module named 'numpy'", name="numpy"), False, False, "off", "named 'numpy'"),
    ],
)
def test_status_of(import_error, has_gpu, interpreted, mode, reason):
    status = status_of(import_error, has_gpu, interpreted)
    assert status.mode == mode
    assert reason in status.reason


@needs_triton
@pytest.mark.parametrize(
    ("first", "environment"), [("os", {}), ("triton", {"TRITON_INTERPRET": "1"})], ids=["labkit", "triton"]
)
def test_without_a_gpu_the_interpreter_is_on_or_survives_an_early_import_if_asked_for(
    first: str, environment: dict[str, str]
):
    answer = in_new_process(
        f"import json, os, {first}; from labkit.kernels import triton_runtime as r; r.check_triton();"
        "s = r.STATUS; print(json.dumps([os.environ['TRITON_INTERPRET'], s.mode, s.reason]))",
        **environment,
    )
    assert answer == ["1", "interpreter", "there is no CUDA GPU"]


TRITON_FIRST = """
import json, sys
import triton
from labkit import LADDER, CacheConfig, InferenceEngine, SamplingParams, load_model
from labkit.kernels.triton_runtime import triton_status
model = load_model(sys.argv[1])
exact = [rung.options for rung in LADDER.values() if rung.is_exact]
engines = [InferenceEngine(model, options, cache=CacheConfig(block_size=16)) for options in exact]
tokens = [e.generate([[1, 2, 3]], SamplingParams(3))[0].token_ids for e in engines]
print(json.dumps([tokens, triton_status().mode, triton_status().reason]))
"""


@needs_triton
def test_triton_imported_too_early_is_off_says_what_to_do_and_every_rung_runs_without_it(
    tmp_path: Path, random_hf: Callable, save_checkpoint: Callable
):
    """With a checkpoint whose weights are not aligned."""
    hf = random_hf(vocab_size=300, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    weights = save_checkpoint(hf, tmp_path) / "model.safetensors"
    content = weights.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = content[8:end].ljust(-(-end // 16) * 16)  # with its 8 bytes of length it ends at 8 modulo 16
    weights.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])
    tokens, mode, reason = in_new_process(TRITON_FIRST, tmp_path)
    assert tokens == [tokens[0]] * len(EXACT)
    assert mode == "off" and "import labkit first" in reason


def test_absent_triton_leaves_functions_as_they_are():
    absent_triton = absent_tl = AbsentTriton()

    def kernel(x_ptr, BLOCK: absent_tl.constexpr): ...

    configs = [absent_triton.Config({"BLOCK": 64}, num_warps=4)]
    assert absent_triton.jit(kernel) is kernel
    assert absent_triton.jit(do_not_specialize=["n"])(kernel) is kernel
    assert absent_triton.autotune(configs=configs, key=["n"])(kernel) is kernel
    assert absent_triton.heuristics({"EVEN": lambda args: True})(kernel) is kernel
    assert not hasattr(absent_triton, "__wrapped__")  # inspect and pytest look for names like this one


@needs_triton
def test_check_triton_finds_a_kernel_that_computes_nonsense(monkeypatch):
    monkeypatch.setattr(triton_runtime, "_add_lanes", StandIn(lambda *args, **kwargs: None))
    with pytest.raises(TritonUnavailableError, match=r"computed \[nan, .*not \[1.0, 2.0"):
        triton_runtime.check_triton()
