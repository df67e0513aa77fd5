"""Lesson 17: what the reader's parts must hold, in random draws and in a running engine; and wrong parts.

B requests, W tokens of a text at most, K drafts at most.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

import torch
from torch import Tensor

from labkit.engine.drafting import DraftBalance
from labkit.engine.step.verify import MOST_DRAFTS
from labkit.kernels.ngram_drafts import NO_DRAFT
from labkit.kernels.verify_rows import NOT_MADE
from labkit.learn.exercise import NUM_DRAWN, BrokenContract, Exercise
from labkit.learn.gates.gate import Report, proven
from labkit.learn.lesson_17.engine import Accepted, Drafts, same_tokens
from labkit.learn.steps import check_calls, noted
from labkit.watch import OperatorCounter

TakeBack = Callable[[int, int, list[int], int], tuple[int, list[int]]]
Balance = Callable[[], DraftBalance]  # or a class of the reader's with the same two methods
NUM_DRAWS = 60
NONE = "There is no draft at all. If `start` is right, `is_draft` must say what is one."
SOME = (
    "A place has two tokens before it and lies before the end, and a draft begins there. It lies inside of "
    "the text, and within the limit."
)


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


def lookup(row: list[int], length: int, limit: int) -> list[int]:
    """The definition: what comes after the latest earlier place of a text's last two tokens."""
    last = row[length - 2 : length]
    places = [p for p in range(2, length) if row[p - 2 : p] == last]
    return row[places[-1] : length][:limit] if places else []


def check_drafts(find: Drafts) -> Report:
    """Whether a function finds what follows the latest earlier place of the last two tokens, in tensors; and
    whether an engine that drafts so makes the tokens of rung 14 in fewer steps."""

    def trial() -> None:
        for texts, lens, limits, num_drafts in drawn_texts():
            made = find(texts.clone(), lens.clone(), limits.clone(), num_drafts)
            rows = zip(texts.tolist(), lens.tolist(), limits.tolist(), made.tolist(), strict=True)
            for row, length, limit, drafts in rows:
                right = lookup(row, length, limit)[:num_drafts]
                right += [NO_DRAFT] * (num_drafts - len(right))
                if drafts != right:
                    raise BrokenContract(
                        "drafts are what follows the latest earlier place of the last two tokens, up to the "
                        f"text's end: of the text {row[:length]} with a limit of {limit}, the drafts are "
                        f"{drafts}, expected {right}. {SOME if max(drafts) >= 0 else NONE}"
                    )

    proof = f"{NUM_DRAWS} batches of random texts; in an engine, rung 14's tokens in fewer steps."
    trials = [trial, partial(check_on_device, find), partial(same_tokens, find)]
    return noted(proven("my_drafts", trials, proof), "17", "my_drafts", find)


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


# --- step 2: which are kept -----------------------------------------------------------------------------

KEPT_HINT = (
    "What the model made after a wrong draft, it made after a text that does not exist. And -1 is no draft, "
    "whatever was made there."
)
LAST_HINT = (
    "The model has made it in the same step, from right tokens alone. If `is_kept` has `<=`, `num_right` is "
    "too small: draft j is compared with `made[:, j]`."
)


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


def check_accepted(accepted: Accepted) -> Report:
    """Whether a function keeps what the model made up to the first wrong draft, and the token there."""

    def trial() -> None:
        for drafts, made in drawn_answers():
            kept = accepted(drafts.clone(), made.clone())
            for row in zip(kept.tolist(), drafts.tolist(), made.tolist(), strict=True):
                check_kept(*row)

    def on_device() -> None:
        check_on_device(lambda texts, *_: accepted(texts[:, :7], texts[:, :8]))

    proof = f"{NUM_DRAWS} random batches; in an engine, rung 14's tokens, greedy and drawn, in fewer steps."
    trials = [trial, on_device, partial(same_tokens, None, accepted)]
    return noted(proven("my_accepted", trials, proof), "17", "my_accepted", accepted)


def check_kept(kept: list[int], drafts: list[int], made: list[int]) -> None:
    """Raise BrokenContract unless a request gets what was made as long as the draft before it is right, and
    NOT_MADE after that."""
    right = [made[0]]
    for j, draft in enumerate(drafts):
        if draft == NO_DRAFT or draft != made[j]:
            break
        right.append(made[j + 1])
    if kept != [*right, *[NOT_MADE] * (len(made) - len(right))]:
        tokens = [token for token in kept if token != NOT_MADE]
        contract, hint = "all right drafts before the first wrong one are kept, and no other", KEPT_HINT
        if tokens and tokens == right[:-1]:
            contract, hint = "the token after the last kept draft is kept, too", LAST_HINT
        raise BrokenContract(
            f"{contract}: of the drafts {drafts} and the tokens {made}, {tokens} are kept, expected "
            f"{right}. {hint}"
        )


# --- step 3: what is given back -------------------------------------------------------------------------


def take_back(num_cached: int, num_made: int, block_ids: list[int], block_size: int) -> tuple[int, list[int]]:
    """The tokens in the cache after a step that made so many, and the blocks that they need."""
    length = num_cached + num_made
    return length, block_ids[: -(-length // block_size)]


def draw_step(rng: Random) -> dict[str, object]:
    """Draw arguments of `take_back`: a step that verifies up to 7 drafts."""
    num_cached, num_drafts, block_size = rng.randint(1, 11), rng.randint(0, 7), rng.randint(1, 4)
    num_blocks = -(-(num_cached + 1 + num_drafts) // block_size)
    num_made = rng.randint(1, 1 + num_drafts)
    return {
        "num_cached": num_cached,
        "num_made": num_made,
        "block_ids": rng.sample(range(99), num_blocks),
        "block_size": block_size,
    }


TAKE_BACK = Exercise(
    solution=take_back,
    draw=draw_step,
    contract="the step's first row and all kept drafts stay in the cache, in as many blocks as they need",
)
TAKE_BACK_HINT = (
    "Row 0 was the last token before the step, and then come the right drafts. The newest token has been in "
    "no row yet. A block with a token that stays is kept, and one that is full needs no other after it."
)


def check_take_back(part: TakeBack) -> Report:
    """Whether a function says which tokens' keys and values stay, and which blocks they need."""
    trial = partial(check_calls, TAKE_BACK, TAKE_BACK_HINT, part)
    return noted(proven("my_take_back", [trial], f"{NUM_DRAWN} random steps."), "17", "my_take_back", part)


# --- step 4: when to stop -------------------------------------------------------------------------------

# Right drafts of each step. No account is full after a pause: the package's own goes back to short pauses.
ACCOUNTS = (
    (0, 0, 0, 0, 0, 0),
    (1, 0, 0, 2, 0, 0, 0, 0, 0),
    (7, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0),
)


def check_balance(balance: Balance) -> Report:
    """Whether a request with this balance accounts for its drafts as the lesson says, and pauses then."""
    trials = [partial(check_account, balance, right) for right in ACCOUNTS]
    report = proven("MyBalance", trials, f"{len(ACCOUNTS)} simulated requests.")
    return noted(report, "17", "MyBalance", balance)


def check_account(balance: Balance, right: Sequence[int]) -> None:
    """Raise BrokenContract unless a request settles its account as the package's does."""
    request, package, num_tokens = balance(), DraftBalance(), 1
    for step, accepted in enumerate(right, 1):
        num_tokens = max(num_tokens, package.resumes_at) + accepted + 1
        for each in (request, package):
            each.settle(MOST_DRAFTS, accepted, num_tokens)
        found, expected = ((each.saved, each.pause, each.resumes_at) for each in (request, package))
        if found != expected:
            raise BrokenContract(
                f"the account holds what drafts brought and cost: after {list(right[:step])} right "
                f"drafts, at {num_tokens} tokens, saved, pause and resumes_at are {found}, expected "
                f"{expected}."
            )


# --- the right acceptance, and parts that are wrong -----------------------------------------------------


def kept(made: Tensor, num_right: Tensor) -> Tensor:
    """The first num_right[b] + 1 tokens of each row, and NOT_MADE after them."""
    return made.masked_fill(torch.arange(made.shape[1]) > num_right[:, None], NOT_MADE)


def right(drafts: Tensor, made: Tensor) -> Tensor:
    """All right drafts before the first wrong one, and the token after them."""
    is_right = (made[:, :-1] == drafts) & (drafts >= 0)
    return kept(made, is_right.long().cumprod(dim=1).sum(dim=1))


def keeps_all_that_are_right(drafts: Tensor, made: Tensor) -> Tensor:
    """Right drafts are counted, also those after a wrong one."""
    return kept(made, ((made[:, :-1] == drafts) & (drafts >= 0)).sum(dim=1))


def keeps_every_draft(drafts: Tensor, made: Tensor) -> Tensor:
    """Every draft is kept, unchecked."""
    num_drafts = (drafts >= 0).sum(dim=1)
    last = made.gather(1, num_drafts[:, None])
    row = torch.cat([drafts, last], dim=1)
    return kept(row.scatter(1, num_drafts[:, None], last), num_drafts)


def nonsense(texts: Tensor, lens: Tensor, limits: Tensor, num_drafts: int) -> Tensor:
    """The drafts are the first tokens of the text, wherever the text is now."""
    is_draft = torch.arange(num_drafts) < torch.minimum(limits, lens)[:, None]
    return texts[:, :num_drafts].masked_fill(~is_draft, NO_DRAFT)
