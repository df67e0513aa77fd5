"""What labkit mends in `triton.runtime.interpreter`, which runs kernels where there is no GPU."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def mend_calls(interpreter: ModuleType, language: ModuleType) -> None:
    """Let it prepare `triton.language` once for a launch. By itself it does so again for each call of a
    function inside of a kernel, `tl.sum` among them, which takes longer than what the call computes."""
    if hasattr(interpreter, "_patch_lang"):
        interpreter._patch_lang = PreparedOnce(interpreter._patch_lang, (language, language.core))


class PreparedOnce:
    """Prepares the language for launches of kernels, in any thread, and undoes it behind the last of them."""

    def __init__(self, prepare: Callable[[Callable], Any], languages: tuple[ModuleType, ...]) -> None:
        """prepare: as the interpreter has it: for a function, and what it returns can `restore`. languages:
        the modules that a function may see, of which those are prepared that it sees."""
        self._prepare, self._languages = prepare, languages
        self._prepared: set[str] = set()
        self._undo: list[Any] = []
        self._num_launches = 0
        self._lock, self._thread = threading.Lock(), threading.local()

    def __call__(self, fn: Callable) -> SimpleNamespace:
        is_launch = not getattr(self._thread, "is_in_launch", False)  # else a call inside of a kernel
        visible = fn.__globals__.values()
        seen = {each.__name__ for each in self._languages if any(value is each for value in visible)}
        with self._lock:
            if not seen or not seen <= self._prepared:
                self._undo.append(self._prepare(fn))
                self._prepared |= seen
            self._num_launches += is_launch
        self._thread.is_in_launch = True
        return SimpleNamespace(restore=self._end_launch if is_launch else lambda: None)

    def _end_launch(self) -> None:
        self._thread.is_in_launch = False
        with self._lock:
            self._num_launches -= 1
            if not self._num_launches:
                while self._undo:
                    self._undo.pop().restore()
                self._prepared.clear()


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
