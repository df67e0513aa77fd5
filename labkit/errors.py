"""The errors that labkit raises on purpose. Each message says what was wrong and what to do."""

TOO_LONG = "context_length_exceeded"  # a RequestError's code


class LabkitError(Exception):
    """Any error that labkit raises on purpose."""


class CheckpointError(LabkitError, ValueError):
    """A model directory, hub id or random model name that cannot be loaded."""


class RequestError(LabkitError, ValueError):
    """A request that is refused because of its prompt, params or id. Nothing was changed.

    code: the name that OpenAI's API has for the reason, such as "context_length_exceeded", if it has one.
    """

    def __init__(self, message: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class RecordError(LabkitError, ValueError):
    """A recorded result or a file of published figures that is missing or malformed."""


class ProjectError(LabkitError, RuntimeError):
    """A notebook, model or record of the project is asked of a package that was installed without it."""


class OutOfBlocksError(LabkitError, RuntimeError):
    """The KV pool has no free block left."""


class EngineBusyError(LabkitError, RuntimeError):
    """Another thread or server drives this engine, which has one driver at a time. Nothing was changed."""


class BrokenEngineError(LabkitError, RuntimeError):
    """An engine that was stopped in the middle of its bookkeeping, and does nothing more: build a new one."""


class RankError(LabkitError, RuntimeError):
    """One of the processes that share a model has failed; it is named. None of them can go on."""


class OptionError(LabkitError, ValueError):
    """An option or an argument that is not allowed, or that this machine cannot give."""


class OverloadedError(LabkitError, RuntimeError):
    """A streaming server that has `max_inflight_requests` unfinished requests. Nothing was changed."""


class StreamError(LabkitError, RuntimeError):
    """A stream that was cut short, or that cannot begin or be read where that was tried."""
