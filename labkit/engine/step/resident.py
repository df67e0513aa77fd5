"""A decode step whose state lives on the device (rung 06 and above): reserve, launch, read."""

from collections.abc import Callable, Sequence

from torch import Tensor

from labkit.engine.request import Request
from labkit.engine.session import InferenceSession
from labkit.engine.step.slots import DeviceSlots
from labkit.engine.step.staging import Arriving, PinnedReadback
from labkit.engine.stretch import Stretch
from labkit.kvcache import MutableInfoBlockManager
from labkit.ranges import named_range


class Launched:
    """A step on its way: whose tokens are coming. `read` is called at most once, or `cancel` undoes it."""

    watch_points = ("read",)

    def __init__(
        self,
        step: "ResidentDecodeStep",
        requests: Sequence[Request],
        sessions: list[InferenceSession],
        arriving: Arriving,
    ) -> None:
        """sessions: those of the requests, which they may have lost by the time it is read."""
        self.requests = requests
        self.sessions = sessions
        self._step = step
        self._arriving = arriving

    def read(self) -> list[int | None]:
        """Wait for the tokens; None for a request whose logits are not finite numbers."""
        token_ids = self._arriving.read()
        return token_ids if min(token_ids) >= 0 else [None if i < 0 else i for i in token_ids]

    def cancel(self) -> None:
        """As if it had not been launched, for those who still run."""
        pairs = zip(self.requests, self.sessions, strict=True)
        sessions = [session for request, session in pairs if request.session is session]
        for session in sessions:
            session.num_tokens -= 1
        self._step.undo(sessions)


class ResidentDecodeStep:
    """One token for every running request: reserved on the host, made on the device, read at the end."""

    watch_points = ("launch", "launch_again", "start", "launcher")

    def __init__(
        self,
        kv_manager: MutableInfoBlockManager,
        slots: DeviceSlots,
        launcher: Callable[[int, int, bool], Tensor],
        path: str,
    ) -> None:
        """launcher: a `DeviceStep`, or what stands for one. path: how keys and values are written."""
        self.kv_manager = kv_manager
        self.slots = slots
        self.launcher = launcher
        self.path = path
        self.pinned_readback = PinnedReadback(len(slots.slot_mapping), kv_manager.k_cache.device)

    def next_tokens(self, requests: Sequence[Request]) -> list[int | None]:
        """As `DecodeStep.next_tokens`. If anything fails, all are as before and the error is raised."""
        launched = self.launch(requests)
        try:
            return launched.read()
        except BaseException:
            launched.cancel()
            raise

    def launch(self, requests: Sequence[Request]) -> Launched:
        """Have the device make each request's next token. Every session grows by one token.

        Room is made for the whole batch before the device is asked for anything. If anything
        fails, all sessions are as before and the error is raised.
        """
        sessions = [request.session for request in requests]
        try:
            with named_range("labkit.kv.reserve"):
                changed = [
                    self.kv_manager.reserve_token_batch(
                        table_idx, [session.block_ids_per_layer[table_idx] for session in sessions]
                    )
                    for table_idx in range(self.kv_manager.num_tables)
                ]
            with named_range("labkit.slots.follow"):
                self.slots.follow(requests, changed)
            longest = max(session.num_tokens for session in sessions)
            is_greedy = all(request.params.is_greedy for request in requests)
            launched = self.start(requests, sessions, longest, is_greedy)
        except BaseException:
            self.undo(sessions)
            raise
        for session in sessions:
            session.num_tokens += 1
        return launched

    def launch_again(self, stretch: Stretch) -> Launched:
        """The same for the requests of a stretch, whose books it keeps. If it fails, the stretch is over."""
        try:
            with named_range("labkit.kv.reserve"):
                changed = stretch.make_room()
            if changed:
                self.slots.send_rows(changed)
            launched = self.start(stretch.requests, stretch.sessions, stretch.longest, stretch.is_greedy)
        except BaseException:
            stretch.settle()
            self.undo(stretch.sessions)
            raise
        stretch.launched()
        return launched

    def start(
        self,
        requests: Sequence[Request],
        sessions: list[InferenceSession],
        longest: int,
        is_greedy: bool,
    ) -> Launched:
        """Launch it and the copy of its tokens: what all launches have in common."""
        token_ids = self.launcher(len(sessions), longest, is_greedy)
        arriving = self.pinned_readback.start(token_ids)
        self.kv_manager.append_paths[self.path] += self.kv_manager.num_layers
        return Launched(self, requests, sessions, arriving)

    def undo(self, sessions: Sequence[InferenceSession]) -> None:
        """Bring the books back to what the sessions count; the device is told anew at the next step."""
        self.slots.forget(sessions)
        for session in sessions:
            session.roll_back()
