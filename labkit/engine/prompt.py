"""From prompts to token ids, reading hardly more of any input than the model has positions for."""

from array import array
from collections.abc import Iterable, Mapping, Sequence, Set, Sized
from dataclasses import dataclass
from itertools import islice

import numpy as np
from torch import Tensor

from labkit.checks import shown, whole
from labkit.engine.sampling import SamplingParams
from labkit.errors import TOO_LONG, RequestError
from labkit.model.tokenizer import Tokenizer, first_token_ids

Prompt = str | Sequence[int]

NO_LIST = (str, bytes, bytearray, memoryview, Mapping, Set)  # a set's items have no order


@dataclass(frozen=True)
class Limits:
    """What a request must fit to be served by an engine: its vocabulary, its positions and its pool."""

    vocab_size: int
    max_positions: int  # tokens of the longest sequence
    block_size: int
    max_blocks_per_layer: int

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer; the last one's key and value are never stored."""
        return min(self.max_positions, self.max_blocks_per_layer * self.block_size + 1)

    def check_prompt(self, prompt: Prompt, params: SamplingParams, tokenizer: Tokenizer) -> tuple[int, ...]:
        """The prompt's token ids. Raises RequestError if they are not valid or can never fit."""
        max_new_tokens = check_params(params).max_new_tokens
        token_ids = token_ids_of(prompt, max_new_tokens, tokenizer, self.max_positions)
        if not token_ids:
            raise RequestError("the prompt is empty; give it at least one token")
        if not are_below(token_ids, self.vocab_size):
            strange = next(token_id for token_id in token_ids if not 0 <= token_id < self.vocab_size)
            raise RequestError(
                f"token id {shown(strange)} is not in the vocabulary (0 to {self.vocab_size - 1})"
            )
        total = len(token_ids) + max_new_tokens
        needed = -(-(total - 1) // self.block_size)
        if needed > self.max_blocks_per_layer:
            raise RequestError(
                f"the request can grow to {total - 1} cached tokens, {needed} blocks of {self.block_size}; "
                f"the pool has {self.max_blocks_per_layer} a layer: shorten it or give the engine more "
                "blocks",
                TOO_LONG,
            )
        return token_ids


def token_ids_of(prompt: Prompt, max_new_tokens: int, tokenizer: Tokenizer, limit: int) -> tuple[int, ...]:
    """The token ids of a prompt that fits into `limit` positions with the tokens that are to come.

    prompt: text, or whole numbers of any type in their order: a list, a 1-D array or tensor, a generator.
    Raises RequestError for anything else, and as soon as it is known that there are too many.
    """
    if isinstance(prompt, str):
        encoded, is_all = first_token_ids(prompt, tokenizer, limit)
        token_ids = tuple(encoded)
    elif not isinstance(prompt, list | tuple) and not is_list(prompt):
        raise RequestError(f"a prompt is text or a list of token ids, not {shown(prompt)}")
    else:
        is_sized = isinstance(prompt, Sized)
        if is_sized:
            check_length(size_of("the prompt", prompt), max_new_tokens, limit)
        token_ids = first_of("the prompt", prompt, limit)
        if list(map(type, token_ids)).count(int) < len(token_ids):  # as a rule all are, and there are many
            token_ids = tuple(map(as_token_id, token_ids))
        is_all = is_sized or len(token_ids) < limit
    check_length(len(token_ids), max_new_tokens, limit, is_all)
    return token_ids


def size_of(name: str, items: Sized) -> int:
    """The number of items. Raises RequestError if `len` fails on them."""
    try:
        return len(items)
    except Exception as error:
        raise RequestError(f"{name} cannot be read: {shown(error)}") from error


def is_list(prompt: object) -> bool:
    """Whether it has items in an order, in one dimension."""
    ndim = getattr(prompt, "ndim", 1)
    return isinstance(prompt, Iterable) and not isinstance(prompt, NO_LIST) and ndim == 1


def as_token_id(value: object) -> int:
    """A token id as int, from a whole number of any type, NumPy's and torch's too.

    Raises RequestError for anything else.
    """
    token_id = whole(value)
    if token_id is None:
        raise RequestError(f"token id {shown(value)} is not a whole number")
    return token_id


def are_below(token_ids: tuple[int, ...], limit: int) -> bool:
    """Whether all token ids, of which there is one at least, are from 0 to limit - 1.

    NumPy finds the largest of many sooner than Python's `min` and `max`.
    """
    try:
        numbers = np.frombuffer(array("Q", token_ids), np.uint64)
    except OverflowError:  # one is negative, or has more than 64 bits
        return False
    return int(numbers.max()) < limit


def check_length(num_tokens: int, max_new_tokens: int, limit: int, is_all: bool = True) -> None:
    """Raises RequestError if the prompt and what is to come are together more than the engine's positions.

    is_all: whether num_tokens counts the whole prompt; else it has more tokens, not counted.
    """
    total = num_tokens + max_new_tokens
    if total <= limit:
        return
    or_more = "" if is_all else " or more"
    raise RequestError(
        f"the prompt has {num_tokens} tokens{or_more} and max_new_tokens is {shown(max_new_tokens)}, "
        f"together {shown(total)}{or_more}; the engine has {limit} positions: "
        f"shorten one by {shown(total - limit)}{or_more}",
        TOO_LONG,
    )


def prompts_with_params(
    prompts: str | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams]
) -> list[tuple[Prompt, SamplingParams]]:
    """Each prompt with its sampling parameters: its own, or the single ones given for all.

    prompts: a single text is a list of one. Raises RequestError if they are no list, or if there are more or
    fewer params.
    """
    prompts = [prompts] if isinstance(prompts, str) else prompts
    has_items = isinstance(prompts, Iterable) and isinstance(prompts, Sized)
    ndim = getattr(prompts, "ndim", 1)
    is_table = ndim != 1 and not isinstance(prompts, np.ndarray | Tensor)  # its items are columns' names
    if isinstance(prompts, NO_LIST) or not has_items or ndim == 0 or is_table:
        raise RequestError(f"prompts must be a list of prompts, not {shown(prompts)}")
    listed = first_of("prompts", prompts)
    if not isinstance(params, Sequence):
        check_params(params)
        return [(prompt, params) for prompt in listed]
    num_params = size_of("params", params)
    if num_params == len(listed):  # others are not read
        each_params = first_of("params", params)
        num_params = len(each_params)
    if num_params != len(listed):
        raise RequestError(f"there are {len(listed)} prompts but {num_params} SamplingParams")
    return list(zip(listed, each_params, strict=True))


def check_params(params: object) -> SamplingParams:
    """The params themselves. Raises RequestError if they are not SamplingParams."""
    if not isinstance(params, SamplingParams):
        raise RequestError(f"params must be SamplingParams, not {type(params).__name__}")
    return params


def first_of(name: str, items: Iterable, limit: int | None = None) -> tuple:
    """The first items, `limit` at most; any error that iterating them raises becomes a RequestError that
    names `name`."""
    try:
        if type(items) is list or type(items) is tuple:  # which need not be read one by one
            return tuple(items[:limit])
        # Their numbers one by one take 100 times as long. (Times would become numbers.)
        if isinstance(items, Tensor) or (isinstance(items, np.ndarray) and items.dtype.kind not in "mM"):
            return tuple(items[:limit].tolist())
        return tuple(islice(items, limit))
    except Exception as error:
        raise RequestError(f"{name} cannot be read: {shown(error)}") from error
