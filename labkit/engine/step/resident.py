"""A decode step whose state lives on the device (rung 06 and above): reserve, launch, read."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from torch import Tensor

from labkit.engine.request import Request, RunningRequests
from labkit.engine.sampling import EITHER_WAY, Draws, logprobs_asked
from labkit.engine.session import InferenceSession
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.scored import ScoredCopy, logits_told, scored
from labkit.engine.step.slots import DeviceSlots
from labkit.engine.step.staging import PinnedTokens, TokenCopy
from labkit.errors import OptionError
from labkit.kvcache import MutableInfoBlockManager
from labkit.ranges import named_range

if TYPE_CHECKING:
    from labkit.engine.step.verify_flight import VerifyInFlight


LogitsLeft = Callable[[int, Draws], Tensor | None]  # of a batch size and its draws: see `GraphedStep`
# A step that was launched, and is not read: one token of each request, or several.
InFlight = Union["StepInFlight", "VerifyInFlight"]


@dataclass(eq=False, repr=False)
class StepInFlight:
    """A step that was launched, and whose tokens were not read yet. `read` it once, or `cancel` it.

    sessions: those of the requests at the launch. A request may have lost its own when it is read.
    """

    watch_points = ("read",)

    step: "ResidentDecodeStep"
    requests: list[Request]
    sessions: list[InferenceSession]
    tokens: TokenCopy | ScoredCopy
    is_finite: bool = True  # when it was read: whether every token is one

    def has(self, request: Request, session: InferenceSession | None) -> bool:
        """Whether it makes tokens of this request, in this session."""
        return request in self.requests and session in self.sessions

    def num_ahead(self, request: Request, num_known: int = 0) -> int:
        """How many tokens a running request's session counts beside those that are certain, with this step in
        flight: num_known of one in front, that was read, and its own."""
        return num_known + 1

    def read(self) -> Sequence[int | None]:
        """Wait for the tokens; None for a request whose logits are not finite numbers."""
        token_ids = self.tokens.read()
        self.is_finite = min(token_ids) >= 0
        return token_ids if self.is_finite else [None if i < 0 else i for i in token_ids]

    def cancel(self, running: RunningRequests) -> None:
        """Undo the launch for the requests that still run: their sessions are as before it."""
        pairs = zip(self.requests, self.sessions, strict=True)
        sessions = [session for request, session in pairs if running.get(request) is session]
        for session in sessions:
            session.num_tokens -= 1
        self.step.undo(sessions)


class ResidentDecodeStep:
    """One token for every running request: reserved on the host, made on the device, read at the end."""

    watch_points = ("launch", "start", "device_step")

    # Inside of it a step is undone. An engine sets it: of what the device has, no proof on the host can tell
    # whether it was forgotten, so an error in there is one after which nothing may go on.
    undoing: AbstractContextManager[object] = nullcontext()

    def __init__(
        self,
        kv_manager: MutableInfoBlockManager,
        slots: DeviceSlots,
        device_step: Callable[[int, int, Draws], Tensor],
        kernels: DeviceStep,
    ) -> None:
        """device_step: a `DeviceStep`, or a `GraphedStep` of one; what does not say which families it has, as
        they do, is told batches apart that draw and that do not. If it is somebody's own, and does not say by
        `logits_left` where the logits are, kernels are launched in its place where somebody asks for log
        probabilities. kernels: the same step kernel by kernel."""
        self.kv_manager = kv_manager
        self.slots = slots
        self.device_step = device_step
        self.families: tuple[Draws, ...] = getattr(device_step, "families", EITHER_WAY)
        self.path = kernels.attention.path  # how keys and values are written
        self._kernels = kernels
        self._logits_left: LogitsLeft | None = getattr(device_step, "logits_left", None)
        self._tells_logits = device_step is kernels or self._logits_left is not None
        self._requests: list[Request] = []  # of the last launch, and what they ask for together:
        self._draws = Draws.NONE
        self._asked: Mapping[int, int] = {}  # see `logprobs_asked`
        self.pinned_tokens = PinnedTokens(len(slots.slot_mapping), kv_manager.k_cache.device)

    def next_tokens(self, running: RunningRequests) -> Sequence[int | None]:
        """One token per request; None where its logits are not finite numbers.

        If anything fails, all are as before and the error is raised.
        """
        step = self.launch(running)
        try:
            return step.read()
        except BaseException:
            step.cancel(running)
            raise

    def launch(self, running: RunningRequests) -> StepInFlight:
        """Have the device make each request's next token. Every session grows by one token.

        Room is made for the whole batch before the device is asked for anything. If anything
        fails, all sessions are as before and the error is raised.
        """
        requests, sessions = list(running), list(running.values())
        try:
            with named_range("labkit.kv.reserve"):
                changed = [
                    self.kv_manager.reserve_token_batch(
                        table_idx, [session.block_ids_per_layer[table_idx] for session in sessions]
                    )
                    for table_idx in range(self.kv_manager.num_tables)
                ]
            with named_range("labkit.slots.update"):
                self.slots.update(requests, sessions, changed)
                self.slots.deliver()
            longest = max(session.num_tokens for session in sessions)
            step = self.start(requests, sessions, longest)
        except BaseException:
            self.undo(sessions)
            raise
        for session in sessions:
            session.num_tokens += 1
        return step

    def start(self, requests: list[Request], sessions: list[InferenceSession], longest: int) -> StepInFlight:
        """Launch a step that has its blocks, and after it the copy of its tokens to the host.

        longest: tokens in the cache of the longest sequence.
        """
        if requests != self._requests:  # of those who go on it is known
            asked, draws = logprobs_asked(r.params for r in requests), Draws.of(r.params for r in requests)
            self._asked, self._draws = asked, draws if draws in self.families else Draws.FILTERED
            self._requests = requests
        if self._asked:
            token_ids, logits = self._tokens_and_logits(len(sessions), longest)
            tokens = scored(self.pinned_tokens.start_copy(token_ids), logits, token_ids, self._asked)
        else:
            token_ids = self.device_step(len(sessions), longest, self._draws)
            tokens = self.pinned_tokens.start_copy(token_ids)
        self.kv_manager.append_paths[self.path] += self.kv_manager.num_layers
        return StepInFlight(self, requests, sessions, tokens)

    def _tokens_and_logits(self, batch_size: int, longest: int) -> tuple[Tensor, Tensor]:
        """The next token ids [B], and the logits [B, V] that they were sampled from.

        Raises OptionError for kernels of somebody's own that sample from logits by themselves.
        """
        told: list[Tensor] = []
        launch = self.device_step if self._tells_logits else self._kernels
        with logits_told(self._kernels, told.append):
            token_ids = launch(batch_size, longest, self._draws)
        logits: Tensor | None = None
        if told:
            logits = told[-1][:batch_size]
        elif self._logits_left is not None:
            logits = self._logits_left(batch_size, self._draws)
        if logits is None:
            raise OptionError(
                f"nobody can ask for logprobs here: {type(self._kernels).__name__} samples tokens without "
                "take_likeliest or draw_and_advance, so its logits are not known"
            )
        return token_ids, logits

    def undo(self, sessions: Sequence[InferenceSession]) -> None:
        """Cut blocks back to the sessions' lengths; the device is told of all anew at the next step."""
        with self.undoing:
            self.slots.discard()
            self.slots.forget(sessions)
            for session in sessions:
                session.roll_back()
