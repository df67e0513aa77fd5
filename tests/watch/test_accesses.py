"""What programs of a kernel read and write: recorded number by number, and kept inside of memory."""

import os
import subprocess
import sys

import pytest
import torch
from triton_marks import needs_triton

from labkit import kernels, watch
from labkit.errors import OptionError
from labkit.kernels.triton_runtime import HAS_GLUON, gl, gluon, tl, triton
from labkit.paths import ROOT
from labkit.watch.accesses import READ, WRITE, Layout

pytestmark = needs_triton
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def copy_kernel(from_ptr, to_ptr, n, shift, BLOCK: tl.constexpr, HAS_MASK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if HAS_MASK:
        tl.store(to_ptr + i + shift, tl.load(from_ptr + i, mask=i < n, other=-1.0), mask=i < n)
    else:
        tl.store(to_ptr + i + shift, tl.load(from_ptr + i))


@triton.jit
def doubled(x):
    return 2 * x


@triton.jit
def sum_kernel(from_ptr, total_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    total = tl.sum(doubled(tl.load(from_ptr + i * BLOCK + tl.arange(0, BLOCK))), axis=0)
    tl.atomic_add(total_ptr, total)
    tl.store(out_ptr + i, tl.maximum(total, 0.0))


def copied(n=6, shift=0, has_mask=True, room=16):
    source, target = torch.arange(1.0, n + 1, device=DEVICE), torch.zeros(room, device=DEVICE)
    with watch.record_accesses() as runs:
        copy_kernel[(2,)](source, target, n, shift, BLOCK=4, HAS_MASK=has_mask)
    (run,) = runs
    return run, target.tolist()


def test_each_load_and_store_of_each_program_is_recorded_in_order():
    run, target = copied()
    assert (run.kernel, run.grid, run.programs) == ("copy_kernel", (2,), [(0,), (1,)])
    seen = [(a.program, a.tensor, a.kind, a.offsets) for a in run.accesses]
    assert seen == [
        ((0,), "from_ptr", READ, (0, 1, 2, 3)),
        ((0,), "to_ptr", WRITE, (0, 1, 2, 3)),
        ((1,), "from_ptr", READ, (4, 5)),  # the mask stops two lanes
        ((1,), "to_ptr", WRITE, (4, 5)),
    ]
    assert target == [1, 2, 3, 4, 5, 6] + 10 * [0] and run.strays() == []


def test_an_access_outside_of_a_tensor_is_told_and_not_made():
    run, target = copied(has_mask=False, room=6)
    assert target == [1, 2, 3, 4, 5, 6]
    assert run.strays() == [
        ("from_ptr", 6, READ, (1,)),
        ("from_ptr", 7, READ, (1,)),
        ("to_ptr", 6, WRITE, (1,)),
        ("to_ptr", 7, WRITE, (1,)),
    ]


@pytest.mark.parametrize("shift", [-(2**31), 2**31 - 100, -3])
def test_an_offset_that_runs_away_is_still_its_own_tensors(shift):
    run, target = copied(shift=shift)
    assert [a.offsets[0] for a in run.accesses if a.tensor == "to_ptr"] == [shift, shift + 4]
    assert target == ([4, 5, 6] + 13 * [0] if shift == -3 else 16 * [0])


def test_an_element_of_a_view_is_told_from_what_lies_between():
    layout = Layout((3, 2, 6), (36, 6, 1))  # keys among queries and values
    assert layout.index_of(0) == (0, 0, 0) and layout.index_of(36 + 6 + 5) == (1, 1, 5)
    assert layout.index_of(2 * 36 + 11) == (2, 1, 5)
    assert all(layout.index_of(offset) is None for offset in (12, 35, 2 * 36 + 12, 3 * 36, -1))
    assert Layout((4,), (1,)).index_of(3) == (3,) and Layout((4, 1), (2, 7)).index_of(1) is None
    assert Layout((2, 3), (1, 2)).index_of(3) == (1, 1)  # dimensions in another order
    assert Layout((), ()).index_of(0) == () and Layout((), ()).index_of(1) is None


def test_what_a_kernel_calls_is_interpreted_and_atomics_are_writes():
    source = torch.arange(8.0, device=DEVICE)
    total, out = torch.zeros(1, device=DEVICE), torch.zeros(2, device=DEVICE)
    with watch.record_accesses() as (runs):
        sum_kernel[(2,)](source, total, out, BLOCK=4, num_warps=1)
    assert total.tolist() == [56] and out.tolist() == [12, 44]
    assert runs[0].touched("total_ptr") == [(0, WRITE, (0,)), (0, WRITE, (1,))]
    sum_kernel[(2,)](source, total, out, BLOCK=4)  # and afterwards as before
    assert total.tolist() == [112] and len(runs) == 1


def test_triton_s_language_is_as_before_a_record():
    """What a kernel calls is patched by the interpreter, which gives nothing back."""
    parts = (tl, tl.core, tl.math, tl.tensor)
    test_what_a_kernel_calls_is_interpreted_and_atomics_are_writes()
    before = [dict(vars(part)) for part in parts]
    with watch.record_accesses():
        sum_kernel[(2,)](*(torch.ones(8, device=DEVICE) for _ in range(3)), BLOCK=4)
    assert [dict(vars(part)) for part in parts] == before


def test_a_grid_can_depend_on_the_arguments_and_an_error_leaves_nothing_behind():
    source, target = torch.ones(4, device=DEVICE), torch.zeros(4, device=DEVICE)
    with watch.record_accesses() as runs:
        copy_kernel[lambda meta: (triton.cdiv(4, meta["BLOCK"]),)](
            source, target, 4, 0, BLOCK=2, HAS_MASK=True
        )
    assert runs[0].grid == (2,)
    with pytest.raises(RuntimeError, match="boom"), watch.record_accesses():
        raise RuntimeError("boom")
    target.zero_()
    copy_kernel[(2,)](source, target, 4, 0, BLOCK=2, HAS_MASK=True)
    assert target.tolist() == [1, 1, 1, 1]


@pytest.mark.skipif(not HAS_GLUON, reason="this Triton has no Gluon")
def test_a_kernel_in_gluon_is_refused_and_not_run():
    @gluon.jit
    def write_kernel(to_ptr):
        gl.store(to_ptr, 1.0)

    target = torch.zeros(1, device=DEVICE)
    with (
        pytest.raises(OptionError, match="write_kernel is written in Gluon"),
        watch.record_accesses() as runs,
    ):
        write_kernel[(1,)](target)
    assert runs == [] and target.tolist() == [0]


def test_the_packages_kernel_touches_what_it_writes_and_nothing_else():
    cache = torch.zeros(2, 5, 2, 4, 6, device=DEVICE)
    new = torch.randn(3, 3, 2, 6, device=DEVICE)  # queries, keys, values of 3 requests
    block_idx = torch.tensor([3, 0, 2], dtype=torch.int32, device=DEVICE)
    with watch.record_accesses() as (runs):
        kernels.kv_append_triton_full_batch(*cache, new[:, 1], new[:, 2], block_idx, 1)
    (run,) = runs
    assert run.grid == (3, 2, 1) and run.strays() == []
    places = {run.layouts["k_cache_ptr"].index_of(offset) for offset, _, _ in run.touched("k_cache_ptr")}
    assert places == {(block, h, 1, d) for block in (3, 0, 2) for h in range(2) for d in range(6)}
    assert {len(a.offsets) for a in run.accesses if a.tensor == "value_ptr"} == {6}
    assert torch.equal(cache[0, [3, 0, 2], :, 1], new[:, 1])


@pytest.mark.cuda
def test_on_a_gpu_the_interpreter_takes_over_and_what_was_written_goes_back():
    assert DEVICE == "cuda"
    for test in (
        test_what_a_kernel_calls_is_interpreted_and_atomics_are_writes,
        test_the_packages_kernel_touches_what_it_writes_and_nothing_else,
        test_an_access_outside_of_a_tensor_is_told_and_not_made,
    ):
        test()


WHERE_NOTHING_WAS_COMPILED = """
import torch
from types import SimpleNamespace
from unittest.mock import patch

with patch.object(torch.cuda, "is_available", lambda: True):  # so the interpreter stays off, as beside a GPU
    from labkit import watch
    from labkit.kernels.triton_runtime import tl, triton
    from labkit.watch import accesses


@triton.jit
def sum_kernel(from_ptr, to_ptr, BLOCK: tl.constexpr):
    tl.store(to_ptr, tl.sum(tl.load(from_ptr + tl.arange(0, BLOCK))))


out = torch.zeros(1)
with patch.object(accesses, "triton_status", lambda: SimpleNamespace(mode="gpu")), watch.record_accesses():
    sum_kernel[(1,)](torch.ones(4), out, BLOCK=4)
print(out.item())
"""


@pytest.mark.slow
def test_the_first_kernel_of_a_process_may_be_one_whose_accesses_are_recorded(tmp_path):
    """Triton imports more of itself at its first launch, and must not meet the interpreter's functions."""
    script = tmp_path / "first_launch.py"
    script.write_text(WHERE_NOTHING_WAS_COMPILED)
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = str(ROOT)
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True)
    assert done.stdout == "4.0\n", done.stderr
