"""What labkit mends in Triton's interpreter."""

from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace

import pytest
import torch
from triton_marks import needs_triton

from labkit.kernels.interpreter import PreparedOnce, mend_loops
from labkit.kernels.triton_runtime import tl, triton
from labkit.watch import record_accesses

pytestmark = pytest.mark.slow


@triton.jit
def count_to(given, loaded_ptr, out_ptr):
    count = 0
    for _ in range(0, given):
        count += 1
    for _ in range(0, tl.load(loaded_ptr)):
        count += 10
    tl.store(out_ptr, count)


def counted() -> int:
    """What count_to stores for 3 that is given and 2 that is loaded, in the interpreter."""
    loaded, out = torch.tensor([2]), torch.zeros(1, dtype=torch.int64)
    with record_accesses():
        count_to[(1,)](3, loaded, out)
    return out.item()


@needs_triton
def test_an_interpreter_whose_numbers_have_no_index_is_mended(monkeypatch):
    from triton.runtime import interpreter

    def as_in_triton_3_6(tensor, scope, patch_tensor=interpreter._patch_lang_tensor):
        def int_of_0_dimensions(self):  # as NumPy 2.4 and newer make one
            if self.handle.data.ndim:
                raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
            return int(self.handle.data)

        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", int_of_0_dimensions)

    monkeypatch.delattr(tl.tensor, "__index__", raising=False)  # of launches in two threads at once
    monkeypatch.setattr(interpreter, "_patch_lang_tensor", as_in_triton_3_6)
    with pytest.raises(Exception, match="only 0-dimensional arrays"):
        counted()
    mend_loops(interpreter)
    assert counted() == 23
    assert not hasattr(tl.tensor, "__index__")  # nothing of it stays behind a launch


@triton.jit
def half_of(x):
    return x / 2


@triton.jit
def sums(x_ptr, out_ptr, BLOCK: tl.constexpr):
    x = half_of(tl.load(x_ptr + tl.arange(0, BLOCK)))
    tl.store(out_ptr + tl.program_id(0), tl.sum(x) + half_of(tl.max(x)))


@needs_triton
def test_the_language_is_prepared_once_for_a_launch_and_undone_behind_it(monkeypatch):
    from triton.runtime import interpreter

    prepared, load = [], tl.load

    def prepare(fn, inner=interpreter._patch_lang._prepare):
        prepared.append(fn)
        return inner(fn)

    monkeypatch.setattr(interpreter, "_patch_lang", PreparedOnce(prepare, (tl, tl.core)))
    out = torch.zeros(3)
    sums[(3,)](torch.tensor([1.0, 3.0]), out, BLOCK=2)
    assert out.tolist() == [2.75] * 3
    assert len(prepared) == 2  # for what a kernel sees, and for what `tl.sum` does; not for each call of it
    assert tl.load is load


def test_a_launch_that_another_overlaps_leaves_the_language_to_it():
    done = []

    def prepare(fn):
        done.append(f"prepared for {fn.__name__}")
        return SimpleNamespace(restore=lambda: done.append(f"undone for {fn.__name__}"))

    language, core = ModuleType("language"), ModuleType("core")
    prepare_once = PreparedOnce(prepare, (language, core))
    kernel, helper, other = (SimpleNamespace(__name__=name) for name in ("kernel", "helper", "other"))
    kernel.__globals__, helper.__globals__, other.__globals__ = {"tl": language}, {"c": core}, {"x": language}
    with ThreadPoolExecutor(1) as thread:
        first = prepare_once(kernel)
        second = thread.submit(prepare_once, other).result()
        prepare_once(helper)
        first.restore()
        assert done == ["prepared for kernel", "prepared for helper"]
        thread.submit(second.restore).result()
    assert done[2:] == ["undone for helper", "undone for kernel"]
