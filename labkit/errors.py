"""The errors a caller may want to tell apart. Each message says what was wrong and what to do."""


class LabkitError(Exception):
    """Any error that labkit raises on purpose."""


class CheckpointError(LabkitError, ValueError):
    """A model directory, hub id or random model name that cannot be loaded."""


class RequestError(LabkitError, ValueError):
    """A request refused at the door: nothing was changed."""


class RecordError(LabkitError, ValueError):
    """A recorded result, or a file of published figures, that is not there or not what it should be."""


class OutOfBlocksError(LabkitError, RuntimeError):
    """The KV pool has no free block left."""


class EngineBusyError(LabkitError, RuntimeError):
    """Another driver is at work with this engine: one has it at a time. Nothing was changed."""


class BrokenEngineError(LabkitError, RuntimeError):
    """An engine that was stopped in the middle of its bookkeeping, and does nothing more: build a new one."""


class OptionError(LabkitError, ValueError):
    """An option or an argument that is not allowed, or that this machine cannot give."""


class OverloadedError(LabkitError, RuntimeError):
    """The server has as many requests as it takes; try again later. Nothing was changed."""


class StreamError(LabkitError, RuntimeError):
    """A stream that was cut short, or that cannot begin or be read where it was asked for."""
