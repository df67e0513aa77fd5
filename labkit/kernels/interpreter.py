"""What labkit mends in `triton.runtime.interpreter`, which runs kernels where there is no GPU."""

import threading
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any


def mend_loops(interpreter: ModuleType) -> None:
    """Let it loop up to a number that a kernel was given or has loaded. Such a number is an array of one, of
    which NumPy 2.4 and newer make no int, and Triton before 3.7 asks for one (its issue 9171)."""
    patch_tensor = interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor: type, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_lang_tensor


def mend_numbers(interpreter: ModuleType) -> None:
    """Let it not compute whether each sum, difference and product of integers overflows, which nobody looks
    at if a kernel is not compiled for debugging; and not make a table of NumPy's dtypes for each operation
    anew. Together they took it about a third of its time."""
    builder, look_up = interpreter.interpreter_builder, interpreter._get_np_dtype
    builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)
    known: dict[str, Any] = {}

    def looked_up(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in known:
            known[name] = look_up(dtype)
        return known[name]

    interpreter._get_np_dtype = looked_up


def mend_types(core: ModuleType) -> None:
    """Let tensors of one shape share it, and blocks of one type what they say of themselves. By itself it
    makes both anew for each result of an operation, which takes longer than most operations. core:
    `triton.language.core`."""
    make_tensor, make_type = core.tensor.__init__, core.block_type.__init__
    sizes: dict[tuple, dict[str, Any]] = {}
    types: dict[tuple, dict[str, Any]] = {}

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        shape = tuple(type.shape) if type.is_block() else ()
        if shape not in sizes:
            make_tensor(self, handle, type)
            own = ("handle", "type", "dtype")
            sizes[shape] = {name: value for name, value in vars(self).items() if name not in own}
        vars(self).update(sizes[shape], handle=handle, type=type, dtype=type.scalar)

    def init_type(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, getattr(element_ty, "address_space", None))
        key += tuple(getattr(size, "value", size) for size in shape)
        if key not in types:
            make_type(self, element_ty, shape)
            types[key] = dict(vars(self))
        vars(self).update(types[key])

    core.tensor.__init__, core.block_type.__init__ = init_tensor, init_type


def mend_calls(interpreter: ModuleType, language: ModuleType) -> None:
    """Let it prepare `triton.language` once for a launch. By itself it prepares it again for each call of a
    function inside of a kernel, `tl.sum` among them, which takes longer than what the call computes."""
    prepare, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    thread = threading.local()  # within a launch, prepared: names of what a kernel sees of the language

    def prepare_once(fn: Callable) -> Any:
        prepared = getattr(thread, "prepared", None)
        if prepared is None:  # for somebody else
            return prepare(fn)
        visible = fn.__globals__.values()
        seen = {each.__name__ for each in (language, language.core) if any(v is each for v in visible)}
        if seen and seen <= prepared:
            return None  # which only a launch would use
        scope = prepare(fn)
        prepared |= seen
        return scope

    def launch_once(*args: Any, **kwargs: Any) -> None:
        outer = getattr(thread, "prepared", None)
        thread.prepared = set()
        try:
            launch(*args, **kwargs)
        finally:
            thread.prepared = outer

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = prepare_once, launch_once
