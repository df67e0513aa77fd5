"""Which steps verify drafts."""

from labkit.engine.drafting import PRICE, SHARED_PRICE
from labkit.engine.overlap import NextTokens, ReadOneBehind
from labkit.engine.request import Request, RunningRequests
from labkit.engine.session import InferenceSession
from labkit.engine.step.resident import InFlight, ResidentDecodeStep, StepInFlight
from labkit.engine.step.verify import drafts_each
from labkit.engine.step.verify_flight import ResidentVerifyStep, Verified, VerifyInFlight


class ReadVerified(ReadOneBehind):
    """While a running request drafts, each step verifies drafts. Otherwise tokens are read one step behind.

    So are those of a step that verifies, where the GPU would wait for the host: the next one is launched
    before they are read, and begins where the device knows that this one ends. It drafts for those who would
    draft even if all of this one's drafts were refused; for nobody, if there is none.

    Nobody drafts in a large batch (`drafts_each`), or while somebody asks for log probabilities, which a step
    that verifies does not have. A request whose drafts fail pauses: see `DraftBalance`.
    """

    in_flight: StepInFlight | VerifyInFlight | None  # type: ignore[assignment]

    def __init__(
        self, decode_step: ResidentDecodeStep, verify_step: ResidentVerifyStep, as_on_gpu: bool
    ) -> None:
        """as_on_gpu: a step that verifies is launched before the one in front is read, its price is shared,
        and it is paid whether drafts are found or not; so there must be a sign of them."""
        super().__init__(decode_step)
        self.verify_step = verify_step
        self.as_on_gpu = as_on_gpu

    def next_tokens(self, running: RunningRequests) -> NextTokens:
        """The next tokens of each request that runs, several if drafts are right. If the launch of a step
        fails, the one in front stays in flight; if reading fails, all are as before."""
        step = self.in_flight
        if step is None and any(limits := self._limits(running)):
            step = self.in_flight = self.verify_step.launch(running, limits)
        if isinstance(step, VerifyInFlight):
            return self._verified(step, running)
        return super().next_tokens(running)

    def launch_first(self, running: RunningRequests) -> None:
        """Put a step in flight if there is none, unless the next one verifies drafts."""
        if not self._drafts(running):
            super().launch_first(running)

    # --- who drafts --------------------------------------------------------------------------------

    def _drafts(self, running: RunningRequests) -> bool:
        """Whether the next step, behind what is in flight, should verify drafts."""
        if not running or not drafts_each(len(running)):
            return False
        if any(request.params.logprobs is not None for request in running):
            return False
        return any(map(self._may_draft, running))

    def _may_draft(self, request: Request) -> bool:
        """Whether a request's balance allows drafts; and where a step that finds none costs as much as one
        that does, whether there is a sign of them."""
        if not request.draft_balance.drafts(len(request.output_token_ids)):
            return False
        return not self.as_on_gpu or self.repeats(request)

    def repeats(self, request: Request) -> bool:
        """Whether the last two tokens that the host knows of a text stood in it before. Then the next one may
        come again, too, and with it what came behind it."""
        return request.seen_pairs.repeat(request.prompt_token_ids, request.output_token_ids)

    def _limits(self, running: RunningRequests, behind: InFlight | None = None) -> list[int]:
        """How many drafts each request may have, beside a token, within its limit and the free blocks; behind
        a step that is in flight."""
        if not self._drafts(running):
            return []
        most, limits = drafts_each(len(running)), []
        num_free = self.decode_step.kv_manager.num_free_blocks
        num_free -= sum(session.next_token_takes_block for session in running.values())
        for request, session in running.items():
            num_made = len(request.output_token_ids)
            limit = min(most, request.params.max_new_tokens - num_made - 1)
            next_one = session.num_tokens + 1
            num_blocks = session.blocks_to_reach(next_one + limit) - session.blocks_to_reach(next_one)
            if num_blocks > num_free or not self._drafts_surely(request, behind):
                limit, num_blocks = 0, 0
            num_free -= num_blocks
            limits.append(limit)
        return limits

    def _drafts_surely(self, request: Request, behind: InFlight | None) -> bool:
        """Whether a request drafts, however the step in flight ends."""
        if not self._may_draft(request):
            return False
        if isinstance(behind, VerifyInFlight) and behind.drafts(request):
            return request.draft_balance.affords_two(self._price(behind.num_drafting))
        return True

    def _price(self, num_drafting: int) -> float:
        """What a step costs each of so many requests that may have drafts in it."""
        return SHARED_PRICE / max(num_drafting, 1) if self.as_on_gpu else PRICE

    # --- launched, and read ------------------------------------------------------------------------

    def _launch_behind(  # type: ignore[override]
        self, step: StepInFlight | VerifyInFlight, running: RunningRequests
    ) -> StepInFlight | VerifyInFlight | None:
        """Launch the next step behind one that is in flight; None if it has to wait for what that one will
        tell. It verifies drafts if any request drafts for sure."""
        drafts = self._drafts(running)
        if not self.as_on_gpu and (drafts or isinstance(step, VerifyInFlight)):
            return None
        if drafts:
            going_on = self._going_on(step, running, num_ahead=1)
            if any(limits := self._limits(going_on, step)):
                self._batch = None
                return self.verify_step.launch(going_on, limits, step)
        if isinstance(step, StepInFlight):
            return super()._launch_behind(step, running)
        # A plain step does not ask who is done: nobody may be, whatever the one in flight makes.
        going_on = self._going_on(step, running, num_ahead=drafts_each(len(step.requests)) + 1)
        return self.decode_step.launch(going_on) if len(going_on) == len(running) else None

    def _going_on(
        self, step: InFlight, running: RunningRequests, num_ahead: int
    ) -> dict[Request, InferenceSession]:
        """Who does not end with a step in flight that makes so many tokens of a request; nobody if the next
        one has to wait for blocks, or for a token that only the step will tell."""
        in_flight = {request: session for request, session in running.items() if step.has(request, session)}
        going_on = {
            request: session
            for request, session in running.items()
            if request.params.max_new_tokens - len(request.output_token_ids)
            > (num_ahead if request in in_flight else 0)
        }
        if not self._can_launch(going_on.values(), set(in_flight.values())):
            return {}
        return going_on

    def _cancel(self, step: InFlight, running: RunningRequests) -> None:
        """Undo a step that could not be read, and the one behind it. One that verifies comes last: it leaves
        what is certain, where a plain one takes its own token off."""
        both = [each for each in (step, self.in_flight) if each is not None]
        self.drop()
        for each in sorted(both, key=lambda each: isinstance(each, VerifyInFlight)):
            each.cancel(running)

    def _verified(self, step: VerifyInFlight, running: RunningRequests) -> NextTokens:
        """The tokens of a step in flight, behind which the next one is launched."""
        following = self.in_flight = self._launch_behind(step, running)
        try:
            verified = step.read()
            rows = self.still_running(step, running)
            for row in rows:
                step.settle(row, verified[row], following)
        except BaseException:
            self._cancel(step, running)
            raise
        requests, made = [step.requests[row] for row in rows], [verified[row] for row in rows]
        price = self._price(step.num_drafting)
        for request, each in zip(requests, made, strict=True):
            num_made = len(each.token_ids)
            num_paid = each.num_drafts or int(self.as_on_gpu and step.drafts(request))
            num_tokens = len(request.output_token_ids) + num_made
            request.draft_balance.settle(num_paid, num_made - 1, num_tokens, price)
        return as_next_tokens(requests, made)


def as_next_tokens(requests: list[Request], verified: list[Verified]) -> NextTokens:
    """The first token of each request, and behind it the second of those that have two, and so on."""
    made: list[tuple[list[Request], list[int | None]]] = [([], [])]
    for request, each in zip(requests, verified, strict=True):
        for j, token_id in enumerate(each.token_ids):
            if j == len(made):
                made.append(([], []))
            made[j][0].append(request)
            made[j][1].append(token_id)
    first, *more = [NextTokens(having, token_ids) for having, token_ids in made]
    num_drafted = sum(each.num_drafts for each in verified)
    return first._replace(more=tuple(more), num_drafted=num_drafted)
