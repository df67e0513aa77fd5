"""What labkit mends in Triton's interpreter."""

import itertools
import math

import pytest
import torch
from triton_marks import needs_triton

from labkit.kernels.interpreter import mend_calls, mend_loops, mend_numbers, mend_types
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
def add(x_ptr, n):
    tl.store(x_ptr, tl.load(x_ptr) + n)


@needs_triton
def test_integers_are_added_once(monkeypatch):
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    for owner, name in ((builder, "options"), (interpreter, "_get_np_dtype")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    mend_numbers(interpreter)
    added, binary_op = [], type(builder).binary_op

    def noted(self, lhs, rhs, operation):
        added.append(operation.__name__)
        return binary_op(self, lhs, rhs, operation)

    monkeypatch.setattr(type(builder), "binary_op", noted)
    x = torch.tensor([2**31 - 1, 5], dtype=torch.int32)
    add[(1,)](x, 2)
    assert x.tolist() == [-(2**31) + 1, 5]  # as on a GPU
    assert added == ["add"]


@needs_triton
def test_numpy_s_dtypes_are_those_that_the_interpreter_looks_up(monkeypatch):
    from triton.runtime import interpreter

    look_up, asked = interpreter._get_np_dtype, []
    monkeypatch.setattr(interpreter.interpreter_builder, "options", interpreter.interpreter_builder.options)
    monkeypatch.setattr(interpreter, "_get_np_dtype", lambda dtype: asked.append(dtype) or look_up(dtype))
    mend_numbers(interpreter)
    scalars = [tl.int1, tl.bfloat16, tl.float8e4nv, tl.int64, tl.float32, tl.pointer_type(tl.float32)]
    for dtype in [*scalars, *(tl.block_type(each, [2]) for each in scalars)]:
        assert interpreter._get_np_dtype(dtype) == look_up(dtype)
    assert asked == scalars  # each once


@needs_triton
@pytest.mark.parametrize("kind", ["block_type", "tensor"])
def test_types_and_tensors_are_made_once_of_each_shape(monkeypatch, kind):
    made, each = [], getattr(tl.core, kind)
    for patched in (tl.core.tensor, tl.core.block_type):
        monkeypatch.setattr(patched, "__init__", patched.__init__)
    monkeypatch.setattr(each, "__init__", lambda *given, init=each.__init__: made.append(init(*given)))
    mend_types(tl.core)
    elements = [tl.float32, tl.pointer_type(tl.float32), tl.pointer_type(tl.float32, 3)]
    for _, element, shape in itertools.product(range(2), elements, [(2,), (2, 4), (tl.constexpr(2), 8)]):
        block = tl.block_type(element, list(shape))
        scalar, tensor = (tl.core.tensor(handle, type) for handle, type in (("a", element), ("b", block)))
        sizes = [int(getattr(size, "value", size)) for size in shape]
        assert (list(block.shape), block.numel, block.element_ty) == (sizes, math.prod(sizes), element)
        assert ([*map(int, tensor.shape)], int(tensor.numel)) == (sizes, block.numel)
        assert (tensor.handle, tensor.type, tensor.dtype) == ("b", block, element)
        assert (scalar.handle, scalar.type, scalar.dtype, len(scalar.shape)) == ("a", element, element, 0)
    assert len(made) == {"block_type": 9, "tensor": 4}[kind]


@triton.jit
def half_of(x):
    return x / 2


@triton.jit
def sums(x_ptr, out_ptr, BLOCK: tl.constexpr):
    x = half_of(tl.load(x_ptr + tl.arange(0, BLOCK)))
    tl.store(out_ptr + tl.program_id(0), tl.sum(x) + half_of(tl.max(x)))


@needs_triton
def test_the_language_is_prepared_once_for_a_launch(monkeypatch):
    from triton.runtime import interpreter

    prepared = []

    def prepare(fn, inner=interpreter._patch_lang):
        prepared.append(fn)
        return inner(fn)

    monkeypatch.setattr(interpreter, "_patch_lang", prepare)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", interpreter.GridExecutor.__call__)
    mend_calls(interpreter, tl)
    out = torch.zeros(3)
    sums[(3,)](torch.tensor([1.0, 3.0]), out, BLOCK=2)
    assert out.tolist() == [2.75] * 3
    assert len(prepared) == 2  # for what a kernel sees, and for what `tl.sum` does; not for each call of it
