"""When a request drafts: as long as its drafts bring more tokens than they cost."""

from dataclasses import dataclass

PRICE = 0.5  # tokens that a step with drafts must bring a request beside the one that any step brings
MOST_SAVED = 4.0  # of what good drafts bring beyond that, for later bad ones
FIRST_PAUSE = 16  # tokens made without drafts when the balance is used up; each later pause is twice as long


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

    def settle(self, num_drafts: int, num_accepted: int, num_tokens: int) -> None:
        """Count a step with so many drafts, after which the request has made `num_tokens` tokens."""
        if not num_drafts:
            return
        self.saved = min(self.saved + num_accepted - PRICE, MOST_SAVED)
        if self.saved == MOST_SAVED:
            self.pause = FIRST_PAUSE
        elif self.saved < PRICE:
            self.saved, self.resumes_at = 2 * PRICE, num_tokens + self.pause
            self.pause *= 2
