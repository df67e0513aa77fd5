"""Lesson 17: when a request stops drafting, held against its contracts on simulated requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from labkit.engine.drafting import DraftBalance
from labkit.engine.step.verify import MOST_DRAFTS
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.gate import Report, proven
from labkit.learn.steps import noted

Balance = Callable[[], DraftBalance]  # or a class of the reader's with the same two methods
LONG, MOST_IN_A_ROW, MOST_AFTER_GOOD = 1000, 4, 8
# Steps with drafts, of a request of LONG tokens whose drafts all fail; with pauses that double there are 14.
MOST_WASTED = 30

# Right drafts of each step; those of FULL fill the account.
ACCOUNTS = ((0, 0, 0, 0, 0, 0), (1, 0, 0, 2, 0, 0, 0, 0, 0))
FULL = (7, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0)


@dataclass
class Simulated:
    """A request whose drafts are right as far as `accepted` says, by how many tokens it has made: the steps
    so far, as how many tokens it had and whether it drafted."""

    balance: DraftBalance
    accepted: Callable[[int], int]
    num_tokens: int = 1
    steps: list[tuple[int, bool]] = field(default_factory=list)

    def until(self, num_tokens: int) -> Sequence[bool]:
        """Run until it has made so many tokens. Whether each of these steps drafted."""
        before = len(self.steps)
        while self.num_tokens < num_tokens:
            drafts = bool(self.balance.drafts(self.num_tokens))
            right = self.accepted(self.num_tokens) if drafts else 0
            self.steps.append((self.num_tokens, drafts))
            self.num_tokens += right + 1
            self.balance.settle(MOST_DRAFTS if drafts else 0, right, self.num_tokens)
        return [drafts for _, drafts in self.steps[before:]]


def check_balance(balance: Balance) -> Report:
    """Whether a request with this balance drafts while it pays, stops when it does not, and tries again."""

    def trial() -> None:
        check_all_wrong(Simulated(balance(), lambda _: 0))
        for right in ACCOUNTS:
            check_account(balance(), right)
        for right, words in ((MOST_DRAFTS, "all"), (1, "one of seven")):
            paying = Simulated(balance(), lambda _, right=right: right)
            if not all(paying.until(LONG)):
                place = next(n for n, drafts in paying.steps if not drafts)
                raise BrokenContract(
                    f"drafts that pay go on: of a request of whose drafts {words} are right in every step, "
                    f"the step after {place} tokens has none. One kept draft a step is more than its price."
                )
        idle = balance()
        for n in range(50):
            idle.settle(0, 0, n + 2)
        if not idle.drafts(52):
            raise BrokenContract(
                "a step without drafts costs nothing: after 50 steps in which its text foretold nothing, a "
                "request does not draft any more."
            )
        later = Simulated(balance(), lambda n: 0 if n < 100 else MOST_DRAFTS)
        later.until(400)
        if not any(drafts for n, drafts in later.steps if n >= 100):
            raise BrokenContract(
                "a request tries again: its drafts were wrong for 100 tokens and would be right for the next "
                "300, and it has not drafted in any of these."
            )
        spoilt = Simulated(balance(), lambda n: MOST_DRAFTS if n < 500 else 0)
        spoilt.until(500)
        if (wasted := run_of(spoilt.until(LONG))) > MOST_AFTER_GOOD:
            raise BrokenContract(
                "what good drafts have brought pays for few bad ones: after 500 tokens with right drafts, "
                f"{wasted} steps in a row had wrong ones. Keep no more than a few tokens in the balance."
            )
        check_account(balance(), FULL)

    return noted(proven("MyBalance", [trial], "Nine simulated requests."), "17", "MyBalance", balance)


def check_all_wrong(request: Simulated) -> None:
    """Raise BrokenContract unless a request whose drafts all fail stops soon, and pauses longer each time."""
    drafted = request.until(LONG)
    if (wasted := run_of(drafted)) > MOST_IN_A_ROW:
        raise BrokenContract(
            f"a request whose drafts fail stops drafting: none was right, and it drafted in {wasted} steps "
            "in a row."
        )
    if sum(drafted) > MOST_WASTED:
        raise BrokenContract(
            f"each pause is longer than the one before: of {LONG:,} steps, in which no draft was right, "
            f"{sum(drafted)} had drafts. If pauses double, there are about 14."
        )


def check_account(balance: DraftBalance, right: Sequence[int]) -> None:
    """Raise BrokenContract unless an account is settled as the lesson says. None gets full after a pause: the
    package's own would go back to short ones."""
    saved, pause, resumes_at, num_tokens = 1.0, 16, 0, 1
    for step, accepted in enumerate(right, 1):
        num_tokens = max(num_tokens, resumes_at) + accepted + 1
        saved = min(saved + accepted - 0.5, 4.0)
        if saved < 0.5:
            saved, resumes_at, pause = 1.0, num_tokens + pause, 2 * pause
        balance.settle(MOST_DRAFTS, accepted, num_tokens)
        found = balance.saved, balance.pause, balance.resumes_at
        if found != (saved, pause, resumes_at):
            raise BrokenContract(
                f"the account holds what drafts brought and cost: after {list(right[:step])} right "
                f"drafts, at {num_tokens} tokens, saved, pause and resumes_at are {found}, expected "
                f"{(saved, pause, resumes_at)}."
            )


def run_of(drafted: Sequence[bool]) -> int:
    """How many steps at the beginning drafted."""
    return next((i for i, drafts in enumerate(drafted) if not drafts), len(drafted))
