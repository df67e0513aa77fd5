"""Which steps verify drafts."""

from labkit.engine.overlap import NextTokens, ReadOneBehind
from labkit.engine.request import Request, RunningRequests
from labkit.engine.step.resident import ResidentDecodeStep, StepInFlight
from labkit.engine.step.verify import ResidentVerifyStep, Verified, drafts_each


class ReadVerified(ReadOneBehind):
    """While a running request drafts, each step verifies drafts and is read at once, for how many tokens it
    has made decides where the next one begins. Otherwise tokens are read one step behind.

    Nobody drafts in a large batch (`drafts_each`), or while somebody asks for log probabilities, which a step
    that verifies does not have. A request whose drafts fail pauses: see `DraftBalance`.
    """

    def __init__(self, decode_step: ResidentDecodeStep, verify_step: ResidentVerifyStep) -> None:
        super().__init__(decode_step)
        self.verify_step = verify_step

    def next_tokens(self, running: RunningRequests) -> NextTokens:
        """The next tokens of each request that runs: if drafts are verified, of all, and at once."""
        if self.in_flight is None and any(limits := self._limits(running)):
            return self._verified(running, limits)
        return super().next_tokens(running)

    def launch_first(self, running: RunningRequests) -> None:
        """Put a step in flight if there is none, unless the next one verifies drafts."""
        if not self._drafts(running):
            super().launch_first(running)

    def _launch_behind(self, step: StepInFlight, running: RunningRequests) -> StepInFlight | None:
        return None if self._drafts(running) else super()._launch_behind(step, running)

    def _drafts(self, running: RunningRequests) -> bool:
        """Whether the next step, behind what is in flight, should verify drafts."""
        if not running or not drafts_each(len(running)):
            return False
        if any(request.params.logprobs is not None for request in running):
            return False
        return any(request.draft_balance.drafts(len(request.output_token_ids)) for request in running)

    def _limits(self, running: RunningRequests) -> list[int]:
        """How many drafts each request may have, beside a token, within its limit and the free blocks."""
        if not self._drafts(running):
            return []
        most, limits = drafts_each(len(running)), []
        sessions = running.values()
        num_free = self.decode_step.kv_manager.num_free_blocks
        num_free -= sum(session.next_token_takes_block for session in sessions)
        for request, session in running.items():
            num_made = len(request.output_token_ids)
            limit = min(most, request.params.max_new_tokens - num_made - 1)
            next_one = session.num_tokens + 1
            num_blocks = session.blocks_to_reach(next_one + limit) - session.blocks_to_reach(next_one)
            if not request.draft_balance.drafts(num_made) or num_blocks > num_free:
                limit, num_blocks = 0, 0
            num_free -= num_blocks
            limits.append(limit)
        return limits

    def _verified(self, running: RunningRequests, limits: list[int]) -> NextTokens:
        requests = list(running)
        verified = self.verify_step.next_tokens(running, limits)
        for request, each in zip(requests, verified, strict=True):
            num_made = len(each.token_ids)
            request.draft_balance.settle(
                each.num_drafts, num_made - 1, len(request.output_token_ids) + num_made
            )
        first, *more = columns(requests, verified)
        num_drafted = sum(each.num_drafts for each in verified)
        return first._replace(more=tuple(more), num_drafted=num_drafted)


def columns(requests: list[Request], verified: list[Verified]) -> list[NextTokens]:
    """The first token of each request, the second of those that have two, and so on."""
    made: list[tuple[list[Request], list[int | None]]] = []
    for request, each in zip(requests, verified, strict=True):
        for j, token_id in enumerate(each.token_ids):
            if j == len(made):
                made.append(([], []))
            made[j][0].append(request)
            made[j][1].append(token_id)
    return [NextTokens(having, token_ids) for having, token_ids in made]
