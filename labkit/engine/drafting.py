"""When a request drafts: as long as its drafts bring more tokens than they cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

PRICE = 0.5  # tokens that a step with drafts must bring a request beside the one that any step brings
# On a GPU rows cost little and the step about as much for one request as for eight: its price is shared by
# those who draft.
SHARED_PRICE = 0.75
MOST_SAVED = 4.0  # of what good drafts bring beyond that, for later bad ones
# Tokens made without drafts when the balance is used up; each later pause is twice as long, until the balance
# has been at its most.
FIRST_PAUSE = 16


@dataclass
class DraftBalance:
    """What a request's drafts have brought, less what they have cost, in tokens.

    It begins with the price of two bad drafts. When it is used up, the request drafts no more until it has
    so many tokens as `resumes_at` says.
    """

    saved: float = 2 * PRICE
    pause: int = FIRST_PAUSE
    resumes_at: int = 0

    def drafts(self, num_tokens: int) -> bool:
        """Whether a request that has made so many tokens drafts."""
        return num_tokens >= self.resumes_at

    def affords_two(self, price: float) -> bool:
        """Whether it would draft after a step of this price whose drafts are all refused."""
        return self.saved - price >= PRICE

    def settle(self, num_drafts: int, num_accepted: int, num_tokens: int, price: float = PRICE) -> None:
        """Count a step with so many drafts, after which the request has made `num_tokens` tokens."""
        if not num_drafts:
            return
        self.saved = min(self.saved + num_accepted - price, MOST_SAVED)
        if self.saved == MOST_SAVED:
            self.pause = FIRST_PAUSE
        elif self.saved < PRICE:
            self.saved, self.resumes_at = 2 * PRICE, num_tokens + self.pause
            self.pause *= 2


class SeenPairs:
    """Which two tokens have stood behind each other in a text that grows."""

    def __init__(self) -> None:
        self._pairs: set[tuple[int, int]] = set()
        self._num_tokens = 1  # whose pairs are in it

    def repeat(self, prompt: Sequence[int], output: Sequence[int]) -> bool:
        """Whether the last two tokens of a prompt and what was made behind it stood before in that text."""
        num_tokens = len(prompt) + len(output)
        start = self._num_tokens - 1
        if start < len(prompt):
            new = [*islice(prompt, start, None), *output]
        else:
            new = [*islice(output, start - len(prompt), None)]
        pairs = list(pairwise(map(int, new)))
        self._pairs.update(pairs[:-1])
        self._num_tokens = max(num_tokens - 1, 1)
        return bool(pairs) and pairs[-1] in self._pairs
