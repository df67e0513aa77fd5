"""Lesson 17: what the reader's functions must hold, in random draws and in a running engine.

B requests, W tokens of a text at most, K drafts at most.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.checks import shown
from labkit.kernels.ngram_drafts import NO_DRAFT
from labkit.kernels.verify_rows import NOT_MADE
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Report, proven
from labkit.learn.lesson_17.engine import Accepted, Drafts, TakeBack, same_tokens
from labkit.learn.steps import noted
from labkit.watch import OperatorCounter

NUM_DRAWS = 60


# --- step 1: drafts -------------------------------------------------------------------------------------


def drawn_texts() -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
    """Texts [B, W], what follows each being left over from another; their lengths [B], limits [B], and K.
    Small ones first, of few tokens, so that much of them repeats."""
    numbers = torch.Generator().manual_seed(17)
    for draw in range(NUM_DRAWS):
        B, W = 1 + draw % 3, 4 + draw // 2
        texts = torch.randint(2 + draw % 4, (B, W), generator=numbers)
        lens = torch.randint(2, W + 1, (B,), generator=numbers)
        limits = torch.randint(1, 5, (B,), generator=numbers) if draw % 2 else torch.full((B,), 4)
        yield texts, lens, limits - draw // 40, 4 + draw // 20


def lookup(
    row: list[int],
    length: int,
    limit: int,
    *,
    tail: int = 2,
    lowest: int = 2,
    swapped: bool = False,
    first: bool = False,
    itself: bool = False,
    anywhere: bool = False,
    shift: int = 0,
    to_the_end: bool = True,
) -> list[int]:
    """What comes after the latest earlier place of a text's last two tokens; the rest makes likely mistakes.

    tail: so many last tokens. lowest: the first place that counts; before place 2 `roll` puts the row's end.
    swapped: the two in the wrong order. first: the first place instead. itself: the end counts as a place.
    anywhere: without a place, from the beginning. shift: the draft begins so many tokens later. to_the_end:
    no further than the text goes.
    """
    last = [row[length - n] for n in range(1, tail + 1)]
    wanted = last[::-1] if swapped else last
    ends = range(lowest, min(length + itself, len(row)))
    places = [p for p in ends if [row[p - n] for n in range(1, tail + 1)] == wanted]
    if not places:
        return row[: min(limit, length)] if anywhere else []
    start = (places[0] if first else places[-1]) + shift
    found = [*row, *row[-1:] * limit][start : start + limit]
    return found[: max(0, length - start)] if to_the_end else found


# A text and what lies behind it, its length and limit, and its drafts
Row = tuple[list[int], int, int, list[int]]

MISTAKES: dict[str, dict[str, Any]] = {
    "The end of the text is no earlier place.": {"itself": True},
    "A place needs two tokens before it: in front of a row, `roll` puts the row's end.": {"lowest": 1},
    "Place 2 has two tokens before it, too.": {"lowest": 3},
    "The token just before a place, `one`, must be the text's `last`, and `two` its `second`.": {
        "swapped": True
    },
    "That is what follows the first such place: take the latest.": {"first": True},
    "Two tokens must be the same, not only the last one.": {"tail": 1},
    "A text without such a place has no drafts: its `start` is 0.": {"anywhere": True},
    "A draft begins with the token after the two, which is one place further.": {"shift": -1},
    "A draft begins with the token after the two, and yours is one place too far.": {"shift": 1},
    "What lies behind the end belongs to another text, or to none.": {"to_the_end": False},
    "A request has no more drafts than its limit.": {"limit": 99},
}


def check_drafts(find: Drafts) -> Report:
    """Whether a function finds what follows the latest earlier place of the last two tokens, in tensors; and
    whether an engine that drafts so makes the tokens of rung 14 in fewer steps."""

    def trial() -> None:
        rows: list[Row] = []
        try:
            for row in rows_of(find):
                rows.append(row)
        except Exception:
            if all(gives({}, *row) for row in rows):
                raise
        check_rows(rows)

    proof = f"{NUM_DRAWS} batches of random texts; in an engine, rung 14's tokens in fewer steps."
    trials = [trial, partial(check_on_device, find), partial(same_tokens, find)]
    return noted(proven("my_drafts", trials, proof), "17", "my_drafts", find)


def rows_of(find: Drafts) -> Iterator[Row]:
    """Every text that was drawn, and the drafts that a function finds for it."""
    for texts, lens, limits, num_drafts in drawn_texts():
        made = find(texts.clone(), lens.clone(), limits.clone(), num_drafts)
        check_shape(made, (len(lens), num_drafts))
        yield from zip(texts.tolist(), lens.tolist(), limits.tolist(), made.tolist(), strict=True)


def check_rows(rows: Sequence[Row]) -> None:
    """Raise BrokenContract at the first text with wrong drafts, and name the mistake that gives all rows."""
    wrong = next((row for row in rows if not gives({}, *row)), None)
    if wrong is None:
        return
    alike = [words for words, how in MISTAKES.items() if all(gives(how, *row) for row in rows)]
    if all(draft == NO_DRAFT for *_, drafts in rows for draft in drafts):
        alike = ["There is no draft at all. If `start` is right, `is_draft` must say what is one."]
    row, length, limit, drafts = wrong
    raise BrokenContract(
        "drafts are what follows the latest earlier place of the last two tokens, up to the text's end: "
        f"of the text {row[:length]} with a limit of {limit}, the drafts are {drafts}, expected "
        f"{padded(lookup(row, length, limit), len(drafts))}. {alike[0] if alike else ''}"
    )


def gives(how: dict[str, Any], row: list[int], length: int, limit: int, drafts: list[int]) -> bool:
    """Whether a text has these drafts if they are looked up with a mistake."""
    return padded(lookup(row, length, **({"limit": limit} | how)), len(drafts)) == drafts


def padded(drafts: Sequence[int], num_drafts: int) -> list[int]:
    return [*drafts, *[NO_DRAFT] * num_drafts][:num_drafts]


def check_on_device(part: Callable) -> None:
    """Raise BrokenContract if a function reads values on the host, or does more where texts are longer."""
    counted = []
    for B, W in ((1, 8), (3, 64)):
        texts = torch.zeros(B, W, dtype=torch.int64, device="meta")  # a tensor without values
        lens = texts[:, 0]
        with torch.device("meta"), OperatorCounter() as counter:
            try:
                part(texts, lens, lens, 4)
            except (RuntimeError, TypeError) as error:
                raise BrokenContract(
                    "no value is read on the host, which would wait for the GPU: with tensors that have no "
                    f"values, the function raised {type(error).__name__}. Leave out `.item()`, `.tolist()`, "
                    "`.numpy()`, `if` and masks as an index."
                ) from error
        counted.append(counter.operators)
    if counted[0] != counted[1]:
        raise BrokenContract(
            "the work is a fixed number of operators, whatever a text has: 1 text of 8 tokens took "
            f"{counted[0]}, 3 texts of 64 tokens {counted[1]}. Compare all places at once."
        )


def check_shape(tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise BrokenContract for another shape, or values that are not whole numbers."""
    found = shown(tensor)
    if isinstance(tensor, Tensor):
        found = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    if found != (expected := f"int64 {list(shape)}"):
        raise BrokenContract(f"the result is {expected}: it is {found}.")


# --- step 2: which are kept -----------------------------------------------------------------------------


def drawn_answers() -> Iterator[tuple[Tensor, Tensor]]:
    """Drafts [B, K], and the tokens [B, K + 1] that the model makes after each; some rows make none (-1)."""
    numbers = torch.Generator().manual_seed(18)
    for draw in range(NUM_DRAWS):
        B, K = 1 + draw % 3, 1 + draw % 5
        made = torch.randint(3, (B, K + 1), generator=numbers)
        wrong = torch.rand(B, K, generator=numbers) < 0.3
        drafts = torch.where(wrong, (made[:, :-1] + 1) % 3, made[:, :-1])
        num_drafts = torch.randint(K + 1, (B, 1), generator=numbers)
        drafts = drafts.masked_fill(torch.arange(K) >= num_drafts, NO_DRAFT)
        made[:, 1:].masked_fill_(drafts < 0, 0)
        if draw % 4 == 3:
            made[torch.arange(B), num_drafts[:, 0]] = -1
        yield drafts, made


def tokens_kept(drafts: list[int], made: list[int]) -> list[int]:
    """The definition: as long as the draft is what was made, and then what was made instead of it."""
    kept = [made[0]]
    for j, draft in enumerate(drafts):
        if draft == NO_DRAFT or draft != made[j]:
            break
        kept.append(made[j + 1])
    return kept


def check_accepted(accepted: Accepted) -> Report:
    """Whether a function keeps what the model made up to the first wrong draft, and the token there."""

    def trial() -> None:
        for drafts, made in drawn_answers():
            kept = accepted(drafts.clone(), made.clone())
            check_shape(kept, tuple(made.shape))
            for row in zip(kept.tolist(), drafts.tolist(), made.tolist(), strict=True):
                check_kept(*row)

    def on_device() -> None:
        check_on_device(lambda texts, *_: accepted(texts[:, :7], texts[:, :8]))

    proof = f"{NUM_DRAWS} random batches; in an engine, rung 14's tokens, greedy and drawn, in fewer steps."
    trials = [trial, on_device, partial(same_tokens, None, accepted)]
    return noted(proven("my_accepted", trials, proof), "17", "my_accepted", accepted)


def check_kept(kept: list[int], drafts: list[int], made: list[int]) -> None:
    """Raise BrokenContract unless these are the tokens that a request gets, and NOT_MADE after them."""
    right = tokens_kept(drafts, made)
    if kept == [*right, *[NOT_MADE] * (len(made) - len(right))]:
        return
    tokens = [token for token in kept if token != NOT_MADE]
    contract, hint = "all right drafts before the first wrong one are kept, and no other", ""
    if tokens == right[:-1] and right[1:]:
        contract = "the token after the last kept draft is kept, too"
        hint = (
            "The model has made it in the same step, from right tokens alone. If `is_kept` has `<=`, "
            "`num_right` is too small: draft j is compared with `made[:, j]`."
        )
    elif tokens[: len(right) - 1] == right[:-1] and tokens[len(right) - 1 :] == drafts[len(right) - 1 :][:1]:
        contract = "a wrong draft is replaced by what the model made in its place"
        hint = "That is the token of the row in front of it."
    elif len(tokens) > len(right):
        hint = "What the model made after a wrong draft, it made after a text that does not exist."
        if NO_DRAFT in drafts:
            hint += " And -1 is no draft, whatever was made there."
    raise BrokenContract(
        f"{contract}: of the drafts {drafts} and the tokens {made}, {tokens} are kept, expected {right}. "
        f"{hint}"
    )


# --- step 3: what is given back -------------------------------------------------------------------------


def check_take_back(take_back: TakeBack) -> Report:
    """Whether a function says which tokens' keys and values stay, and which blocks they need."""

    def trial() -> None:
        numbers = torch.Generator().manual_seed(19)
        for _ in range(NUM_DRAWS):
            num_cached, num_drafts, block_size = (
                int(torch.randint(low, high, (), generator=numbers))
                for low, high in ((1, 12), (0, 8), (1, 5))
            )
            num_made = 1 + int(torch.randint(num_drafts + 1, (), generator=numbers))
            num_blocks = -(-(num_cached + 1 + num_drafts) // block_size)
            block_ids = torch.randperm(99, generator=numbers)[:num_blocks].tolist()
            answer = take_back(num_cached, num_made, list(block_ids), block_size)
            check_blocks(answer, num_cached, num_made, block_ids, block_size)

    proof = f"{NUM_DRAWS} random steps; in an engine, no block is lost."
    trials = [trial, partial(same_tokens, None, None, take_back)]
    return noted(proven("my_take_back", trials, proof), "17", "my_take_back", take_back)


def check_blocks(
    answer: tuple[int, list[int]], num_cached: int, num_made: int, block_ids: list[int], block_size: int
) -> None:
    """Raise BrokenContract unless the answer is the new length and the blocks that it needs."""
    words = (
        f"of {num_cached} tokens in the cache and a step that made {num_made}, in {len(block_ids)} blocks of "
        f"{block_size},"
    )
    match answer:
        case (length, [*kept]):
            right = num_cached + num_made
        case _:
            raise BrokenContract(f"a length and the kept blocks are returned: {words} got {shown(answer)}.")
    if length != right:
        raise BrokenContract(
            f"the step's first row and all kept drafts stay in the cache: {words} {length} stay, expected "
            f"{right}. Row 0 was the last token before the step, and then come the right drafts. The newest "
            "token has been in no row yet."
        )
    needed = -(-right // block_size)
    if kept != block_ids[:needed]:
        contract = "a block with a token that stays is kept, and the others are given back"
        hint = "A block that is full needs no other one after it." if len(kept) > needed else ""
        raise BrokenContract(
            f"{contract}: {words} {kept} of {block_ids} are kept, expected {block_ids[:needed]}. {hint}"
        )
