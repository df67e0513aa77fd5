"""What labkit mends in `triton.runtime.interpreter`, which runs kernels where there is no GPU."""

import threading
from collections.abc import Callable
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
