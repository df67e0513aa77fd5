"""Damage to files, drawn at random: to values of their JSON, to their bytes, or to the file as a whole."""

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEEP = 50_000
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 255, 2**31, 2**32, 2**63, 2**64, 10**30),
    *(0.5, -1.5, 1e308, 5e-324, float("nan"), float("inf"), float("-inf")),
    *("", "x", "0", "\0", "\n", "\ud800", "../x", "x" * 10_000),
    *([], [0], [[]], {}, {"": None}, [None] * 1000),
)
ODD_BYTES = (
    b"\0",
    b"\xff",
    b"\xff" * 8,
    b"\0" * 8,
    b"{",
    b"}",
    b"[" * DEEP,
    b'"',
    b",",
    b"\xed\xa0\x80",
    b"9" * 5000,
)
ODD_LENGTHS = (0, 1, 2, 7, 8, 2**16, 2**31, 2**40, 2**63, 2**64 - 1)


@dataclass(frozen=True)
class Special:
    """What stands in a file's place: nothing, a folder, or a link."""

    what: str
    make: Callable[[Path], None]


SPECIALS = (
    Special("nothing", lambda path: None),
    Special("a folder", Path.mkdir),
    Special("a link to nothing", lambda path: path.symlink_to("nowhere")),
    Special("a link to itself", lambda path: path.symlink_to(path.name)),
    Special("a link to its folder", lambda path: path.symlink_to(".")),
    Special("a link to a device", lambda path: path.symlink_to("/dev/zero")),
)
Files = dict[str, bytes | Special]


def mutate(files: dict[str, bytes], dice: random.Random) -> tuple[Files, str]:
    """A copy of `files` of which one is damaged, in one to three places, and what was done."""
    name = dice.choice(list(files))
    raw, done = files[name], []
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        kind = dice.random()
        if kind < 0.04:
            special = dice.choice(SPECIALS)
            return {**files, name: special}, f"{name} is {special.what}"
        if kind < 0.06:
            other = dice.choice(list(files))
            raw, what = files[other], f"is {other}"
        elif kind < 0.7:
            raw, what = mutate_json(raw, dice)
        else:
            raw, what = mutate_bytes(raw, dice)
        done.append(what)
    return {**files, name: raw}, f"{name} {', '.join(done)}"


def write(files: Files, folder: Path) -> None:
    """Write all files into an empty folder."""
    for name, content in files.items():
        if isinstance(content, Special):
            content.make(folder / name)
        else:
            (folder / name).write_bytes(content)


# --- bytes -----------------------------------------------------------------------------------------------


def mutate_bytes(raw: bytes, dice: random.Random) -> tuple[bytes, str]:
    """Bytes with some of them changed, lost, doubled or added, and what was done."""
    begin = place(raw, dice)
    end = min(len(raw), begin + dice.choice((1, 1, 4, 8, 100, len(raw))))
    odd = dice.choice(ODD_BYTES)
    flipped = bytes(byte ^ 1 << dice.randrange(8) for byte in raw[begin : begin + 1])
    size = dice.choice(ODD_LENGTHS).to_bytes(8, "little")
    what, made = dice.choice(
        (
            ("has a bit flipped", raw[:begin] + flipped + raw[begin + 1 :]),
            ("ends", raw[:begin]),
            ("lacks bytes", raw[:begin] + raw[end:]),
            ("has bytes twice", raw[:end] + raw[begin:]),
            ("has other bytes", raw[:begin] + odd + raw[begin + len(odd) :]),
            ("has more bytes", raw[:begin] + odd + raw[begin:]),
            ("begins with another length", size + raw[8:]),
        )
    )
    return made, f"{what} at {begin}"


def place(raw: bytes, dice: random.Random) -> int:
    """Anywhere, or near the beginning or the end, where there is more to break."""
    near = min(len(raw), dice.choice((8, 64, 512)))
    return dice.choice((dice.randint(0, len(raw)), dice.randint(0, near), len(raw) - dice.randint(0, near)))


# --- JSON ------------------------------------------------------------------------------------------------


def mutate_json(raw: bytes, dice: random.Random) -> tuple[bytes, str]:
    """A file with a value of its JSON changed, or of the JSON header that a safetensors file begins with.

    Bytes are changed where there is no JSON.
    """
    if (value := parsed(raw)) is not None:
        value, what = mutate_value(value, dice)
        return json.dumps(value).encode(), what
    size = int.from_bytes(raw[:8], "little")
    if size <= len(raw) and (value := parsed(raw[8 : 8 + size])) is not None:
        value, what = mutate_value(value, dice)
        header = json.dumps(value).encode()
        return len(header).to_bytes(8, "little") + header + raw[8 + size :], f"in its header {what}"
    return mutate_bytes(raw, dice)


def parsed(raw: bytes) -> Any:
    """The value of JSON; None for what is none."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def mutate_value(value: Any, dice: random.Random) -> tuple[Any, str]:
    """A JSON value, changed in its place: one part is replaced, taken out, doubled or renamed; and what was
    done."""
    if not isinstance(value, list | dict) or not value:
        return dice.choice(ODD_VALUES), "is something else"
    owner, key = part_of(value, dice)
    kind = dice.choice(("odd", "odd", "near", "other", "gone", "again"))
    if kind == "gone":
        del owner[key]
    elif kind == "again" and isinstance(owner, list):
        owner.insert(key, owner[key])
    elif kind == "again":
        owner[dice.choice(("", "x", key + "x", "../" + key, "\n" * 100))] = owner[key]
    elif kind == "other":  # a part of the same file, which may hold this one
        other, its = part_of(value, dice)
        owner[key] = copy.deepcopy(other[its])
    else:
        owner[key] = near(owner[key], dice) if kind == "near" else copy.deepcopy(dice.choice(ODD_VALUES))
    return value, f"{kind} {key!r:.60}"


def part_of(value: Any, dice: random.Random) -> tuple[Any, Any]:
    """A place in a JSON list or object that is not empty: the list or object that has it, and its index or
    key. Each level is as likely as the next one."""
    while True:
        key = dice.choice(list(value)) if isinstance(value, dict) else dice.randrange(len(value))
        inner = value[key]
        if not isinstance(inner, list | dict) or not inner or dice.random() < 0.3:
            return value, key
        value = inner


def near(value: Any, dice: random.Random) -> Any:
    """A value much like this one."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return dice.choice((value + 1, value - 1, -value, value * 2, float(value), str(value), [value]))
    if isinstance(value, str):
        return dice.choice((value + "x", value[:-1], value.upper(), value.swapcase(), f" {value}", [value]))
    if isinstance(value, list):
        return dice.choice((value[:-1], value + value[-1:], value[::-1], [value], dict(enumerate(value))))
    return dice.choice(([value], list(value), list(value.values()), dict.fromkeys(value)))
