"""What labkit mends in `triton.runtime.interpreter`, which runs kernels where there is no GPU."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType, SimpleNamespace
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
    """Let it prepare `triton.language` once for a launch, and put it back behind a call without a grid. By
    itself it prepares it again for each call of a function inside of a kernel, `tl.sum` among them, which
    takes longer than what the call computes. And what it leaves prepared `builtins_untraced` cannot reach."""
    prepare, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    call = interpreter.InterpretedFunction.__call__
    # Within a launch or a call, prepared: names of what a kernel sees of the language; first: what puts that
    # back.
    thread = threading.local()

    def prepare_once(fn: Callable) -> Any:
        prepared = getattr(thread, "prepared", None)
        if prepared is None:  # for somebody else
            return prepare(fn)
        visible = fn.__globals__.values()
        seen = {each.__name__ for each in (language, language.core) if any(v is each for v in visible)}
        if seen and seen <= prepared:
            return None  # which only a launch would use
        scope = prepare(fn)
        thread.first = thread.first or scope
        prepared |= seen
        return scope

    @contextmanager
    def prepared_anew() -> Iterator[None]:
        outer = getattr(thread, "prepared", None), getattr(thread, "first", None)
        thread.prepared, thread.first = set(), None
        try:
            yield
        finally:
            thread.prepared, thread.first = outer

    def launch_once(*args: Any, **kwargs: Any) -> None:
        with prepared_anew():
            launch(*args, **kwargs)

    def call_once(*args: Any, **kwargs: Any) -> Any:
        if getattr(thread, "prepared", None) is not None:
            return call(*args, **kwargs)
        with prepared_anew():
            try:
                return call(*args, **kwargs)
            finally:
                if thread.first is not None:
                    thread.first.restore()

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = prepare_once, launch_once
    interpreter.InterpretedFunction.__call__ = call_once


@contextmanager
def builtins_untraced() -> Iterator[None]:
    """Inside the block, a trace function sees nothing of what the interpreter does for `tl.load` and the
    like. Those are thousands of calls, none of them the kernel's, and to look at each takes longer than to
    make it."""
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    if not hasattr(interpreter, "_patch_attr"):
        yield
        return
    inner = interpreter._patch_attr

    def patch_attr(*arguments: Any) -> None:
        *others, scope = arguments

        def set_attr(owner: object, name: str, value: Callable) -> None:
            scope.set_attr(owner, name, untraced(value))

        inner(*others, SimpleNamespace(set_attr=set_attr))

    interpreter._patch_attr = patch_attr
    try:
        yield
    finally:
        interpreter._patch_attr = inner


def untraced(function: Callable) -> Callable:
    """The function, during whose calls nothing is traced."""

    def call(*args: Any, **kwargs: Any) -> Any:
        trace = sys.gettrace()
        if trace is None:
            return function(*args, **kwargs)
        sys.settrace(None)
        try:
            return function(*args, **kwargs)
        finally:
            sys.settrace(trace)

    return call
