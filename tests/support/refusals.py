"""A kernel's wrapper is given one wrong tensor after another, and must refuse each by its name."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor


def strided(tensor: Tensor) -> Tensor:
    """The same values, the last dimension two apart."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def another_dtype(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return tensor.float() if tensor.dtype == torch.float64 else tensor.half()
    return tensor.short()


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "rank": lambda t: t[None],
    "rows": lambda t: t[1:],
    "width": lambda t: t[..., 1:],
    "dtype": another_dtype,
    "device": lambda t: t.to("meta"),
    "gaps": strided,
}


def tensors_of(arguments: Mapping[str, object]) -> Iterator[tuple[str, Tensor, Callable[[Tensor], dict]]]:
    """Each tensor, also of a named tuple: its name, itself, and the arguments with another in its place."""
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            yield name, value, lambda t, name=name: {**arguments, name: t}
        elif hasattr(value, "_asdict"):
            for field, part in value._asdict().items():
                if isinstance(part, Tensor):
                    changed = lambda t, n=name, v=value, f=field: {**arguments, n: v._replace(**{f: t})}  # noqa: E731
                    yield f"{name}.{field}", part, changed


def bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


@contextmanager
def unchanged(arguments: Mapping[str, object], but: Collection[str] = ()) -> Iterator[None]:
    """Inside of the block no tensor of the arguments changes a bit, but those of these names."""
    before = {key: bytes_of(tensor) for key, tensor, _ in tensors_of(arguments) if key not in but}
    yield
    for key, tensor, _ in tensors_of(arguments):
        assert key in but or torch.equal(bytes_of(tensor), before[key]), key


def assert_each_wrong_tensor_is_refused(
    call: Callable[..., object], arguments: Mapping[str, object], free: Collection[str] = ()
) -> None:
    """With a ValueError that begins with the name of an argument, and before anything is written.

    free: what a tensor may have as it likes, as "name rows" for a dimension that no other tensor has.
    """
    keys = {*arguments, *(key for key, _, _ in tensors_of(arguments))}
    named = "|".join({part for key in keys for part in (key, key.split(".")[-1])})
    for name, tensor, with_another in tensors_of(arguments):
        for what, change in WRONG.items():
            if f"{name} {what}" in free:
                continue
            begins = rf"^({named})\b.*(expected|outside|covers|but)"
            with unchanged(arguments), pytest.raises(ValueError, match=begins):
                call(**with_another(change(tensor)))
                pytest.fail(f"{name} of another {what} is taken")


def assert_refused(call: Callable[..., object], case: Any, changes: dict[str, Any], message: str) -> None:
    """With an error that begins so, and before anything is written. case: has `arguments` and both pools."""
    pools = {"k_pool": case.k_pool, "v_pool": case.v_pool}
    with unchanged(pools), pytest.raises(ValueError, match=f"^{message}"):
        call(**case.arguments | changes)
