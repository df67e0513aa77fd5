"""What a cache of prefixes does for the engine, whatever it keeps: whole prompts, or their blocks."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from torch import Tensor

from labkit.kvcache.block_books import BlockHolder


class Prefix(Protocol):
    """What a text was found to begin with: blocks for its session to share."""

    @property
    def block_ids_per_layer(self) -> list[list[int]]:
        """The blocks, in order, for each table."""

    @property
    def num_tokens(self) -> int:
        """Tokens in them."""

    @property
    def last_logits(self) -> Tensor | None:
        """The logits [V] after the last of these tokens, if they are kept."""


class PrefixHolder(BlockHolder, Protocol):
    """An entry: blocks that are kept alive, and whose tokens are in them."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The token ids in its blocks."""

    @property
    def text(self) -> tuple[int, ...]:
        """All token ids from the text's beginning up to its blocks' end."""


class Prefixes(Protocol):
    """A cache of prefixes. Iterating over it gives its entries, each of which holds its blocks once."""

    num_evicted: int

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[PrefixHolder]: ...

    def can_free(self, num_blocks: int) -> bool:
        """Whether so many blocks, in each layer, became free if `evict_one` were called until it is False."""

    def lookup(self, token_ids: Sequence[int]) -> Prefix | None:
        """The longest cached beginning of a text that is to be computed; it counts as used."""

    def is_coming(self, token_ids: Sequence[int], computing: Iterable[Sequence[int]]) -> bool:
        """Whether more of this text will be found as soon as these texts are computed: it had better wait."""

    def insert(
        self,
        token_ids: Sequence[int],
        block_ids_per_layer: list[list[int]],
        last_logits: Tensor | None = None,
    ) -> None:
        """Keep, by sharing blocks, what was computed of a prompt.

        last_logits: [V], after the last token, if this is all of a prompt.
        """

    def keep_text(self, token_ids: Sequence[int], block_ids_per_layer: list[list[int]]) -> None:
        """Keep, by sharing blocks, the text of a request that is about to free them. No failure is planted
        here: a request that ends does so as a whole."""

    def forget(self, block_ids_per_layer: list[list[int]]) -> None:
        """Keep none of these blocks, in which there may be no numbers."""

    def evict_one(self) -> bool:
        """Drop the least recently used entry; False if there is none that may go."""

    def clear(self) -> None:
        """Drop every entry."""
