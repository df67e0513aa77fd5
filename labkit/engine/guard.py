"""Who may drive an engine, when an interrupt may stop it, and whether it can still be trusted."""

import signal
import threading
import weakref

# What the functions of `signal` call: their conversion to enums takes longer than all else here.
from _signal import getsignal as get_handler
from _signal import signal as set_handler
from types import FrameType
from typing import TYPE_CHECKING

from labkit.errors import BrokenEngineError, EngineBusyError, RequestError

if TYPE_CHECKING:
    from labkit.engine.engine import InferenceEngine

ANOTHER = "another thread"
DRIVER = "driver"
BROKEN = (
    "an error or a second interrupt stopped this engine in the middle of its bookkeeping, so that its tokens "
    "could be wrong from here on: build a new engine"
)


class Bookkeeping:
    """The context of a change of which no proof can see the half: an error inside breaks the engine."""

    def __init__(self) -> None:
        self.depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if error is None:
            self.depth -= 1


class Guard:
    """The context of every call that changes an engine, or brings its state up to date.

    One thread at a time: a call from another one raises EngineBusyError, with nothing changed. The thread
    that is inside may come in again.

    In the main thread, an interrupt (Ctrl-C, or JupyterLab's "Interrupt Kernel") waits until the call is
    over, so that it never meets half a change. A second one does not wait: it goes to the handler at once.
    No other signal waits: what its handler raises can stop a call anywhere.

    After an error inside, but for RequestError, the state is proven. If it does not add up, if the error came
    inside of `bookkeeping`, or if an interrupt that did not wait was raised, every later call raises
    BrokenEngineError.
    """

    def __init__(self, engine: "InferenceEngine") -> None:
        self.is_broken = False
        self.bookkeeping = Bookkeeping()
        self.name = ANOTHER  # the driver inside, as it is named to others
        # Weak, so that an engine goes when its last user lets go of it, and not at some garbage collection.
        self._engine = weakref.ref(engine)
        # The thread inside, by DRIVER. No lock: an error could come between taking it and noting who has it.
        # `setdefault` does both at once.
        self.inside: dict[str, int] = {}
        self._depth = 0
        self._handler: object = None  # whom an interrupt is for; None: it does not wait
        self._is_interrupted = False

    @property
    def is_inside(self) -> bool:
        """Whether it is this thread that is inside."""
        return self.inside.get(DRIVER) == threading.get_ident()

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self.inside.get(DRIVER) == me:
            if self.is_broken:
                raise BrokenEngineError(BROKEN)
            self._depth += 1
            return
        handler = self._whom_interrupts_are_for()
        try:
            self._have_interrupts_wait(handler)
            if self.inside.setdefault(DRIVER, me) != me:
                raise EngineBusyError(
                    f"{self.name} drives this engine, and an engine has one driver at a time: wait until it "
                    "is done, submit to the server if there is one, or build a second engine"
                )
            if self.is_broken:
                raise BrokenEngineError(BROKEN)
            self._depth, self._handler = 1, handler
        except BaseException:
            if self.inside.get(DRIVER) == me:
                del self.inside[DRIVER]
            self._hand_back(handler)
            raise

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        try:
            if error is not None and not isinstance(error, RequestError):
                self._examine()
        finally:
            self._depth -= 1
            if self._depth == 0:
                handler, self._handler = self._handler, None
                self.name = ANOTHER
                del self.inside[DRIVER]
                self._hand_back(handler)

    def _examine(self) -> None:
        engine = self._engine()
        if self.bookkeeping.depth or engine is None:
            self.is_broken = True
        elif not self.is_broken:
            try:
                engine.check_integrity()
            except BaseException:
                self.is_broken = True

    @staticmethod
    def _whom_interrupts_are_for() -> object:
        """Their handler; None if this is not the main thread, whose business alone they are."""
        is_main = threading.get_ident() == threading.main_thread().ident
        return get_handler(signal.SIGINT) if is_main else None

    def _have_interrupts_wait(self, handler: object) -> None:
        if handler is not None:
            set_handler(signal.SIGINT, self._note)

    def _hand_back(self, handler: object) -> None:
        """Interrupts wait no more. One that has come, until the very last moment, goes to its handler now."""
        if handler is None:
            return
        try:
            if get_handler(signal.SIGINT) == self._note:  # else code inside has chosen another, to stay
                set_handler(signal.SIGINT, handler)
        finally:
            is_interrupted, self._is_interrupted = self._is_interrupted, False
        if is_interrupted:
            pass_on(handler)

    def let_interrupts_in(self) -> None:
        """To be called where all is complete: an interrupt that has come is raised now."""
        if self._is_interrupted and self._handler is not None:
            try:
                self._hand_back(self._handler)
            finally:
                self._handler = self._whom_interrupts_are_for()  # it may have chosen who gets the next one
                self._have_interrupts_wait(self._handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if not self._is_interrupted:
            self._is_interrupted = True
            return
        try:
            pass_on(self._handler)
        except BaseException:
            # All that follows may be cut short by one more, so the handler goes back now.
            self.is_broken, self._is_interrupted = True, False
            set_handler(signal.SIGINT, self._handler)
            raise


def pass_on(handler: object) -> None:
    """Do what an interrupt does when it need not wait."""
    if callable(handler):
        handler(signal.SIGINT, None)
    elif handler == signal.SIG_DFL:
        raise KeyboardInterrupt
