"""Which part makes each option's value: the package's own, or one of the caller's in its place."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from labkit.checks import require_kind, shown
from labkit.engine.overlap import ReadAtOnce, ReadOneBehind
from labkit.engine.packed_chunk import PackedChunk
from labkit.engine.step.device import DeviceStep
from labkit.engine.step.fused import FusedDeviceStep
from labkit.engine.step.graphed import GraphedStep
from labkit.engine.step.lanes import LanedDeviceStep
from labkit.engine.step.slots import DeviceSlots
from labkit.errors import OptionError
from labkit.kvcache import (
    AppendBatched,
    AppendBatchedFastPath,
    AppendPerToken,
    CachedBlockTables,
    FullBatchWrite,
    IdentityPosWrite,
    IndexedWrite,
    KVBlockManager,
    MutableInfoBlockManager,
    OneTableBlockManager,
    RebuiltBlockTables,
)
from labkit.options import EngineOptions

Part = Callable[..., Any]  # a class, or a function
NO_PARTS: Mapping[str, Part] = MappingProxyType({})

# By option and value. Those that are not here are functions that the device decides on: see `build`.
PARTS: dict[str, dict[str, Part]] = {
    "block_tables": {"rebuilt": RebuiltBlockTables, "cached": CachedBlockTables, "resident": DeviceSlots},
    "kv_append": {
        "per_token": AppendPerToken,
        "batched_fast_path": AppendBatchedFastPath,
        "batched": AppendBatched,
    },
    "kv_write": {"indexed": IndexedWrite, "full_batch": FullBatchWrite, "identity_pos": IdentityPosWrite},
    "block_info": {"replaced": KVBlockManager, "mutable": MutableInfoBlockManager},
    "layer_tables": {"shared": OneTableBlockManager},
    "launch": {"graph": GraphedStep},
    "layer_kernels": {"separate": DeviceStep, "fused": FusedDeviceStep},
    "readback": {"at_once": ReadAtOnce, "one_behind": ReadOneBehind},
    "latency": {"hidden": LanedDeviceStep},
    "batching": {"packed": PackedChunk},
}


class Parts:
    """The parts that an engine of some options is built from.

    own: by the name of an option, what takes the place of the part that the option's value names, and is
    called as that one is. Raises OptionError for what is no mapping, for a name that is no such option, and
    for a part that is no callable.
    """

    def __init__(self, options: EngineOptions, own: Mapping[str, Part]) -> None:
        require_kind("parts", own, Mapping, "a dict from the name of an option to your part for it")
        self.options = options
        self._own = dict(own)
        self._unused = set(own)
        names = [field.name for field in fields(options)]
        for name, part in own.items():
            if name not in names:
                raise OptionError(f"{shown(name)} is no option with a part; choose from {', '.join(names)}")
            if not callable(part):
                raise OptionError(f"the part for {name} must be a class or a function, not {shown(part)}")

    def __getitem__(self, option: str) -> Part:
        """The part for the option's value."""
        return self.own(option) or PARTS[option][getattr(self.options, option)]

    def own(self, option: str) -> Part | None:
        """The caller's part for an option, if there is one."""
        self._unused.discard(option)
        return self._own.get(option)

    def check_all_are_used(self) -> None:
        """Raises OptionError for a part that the engine, which is built by now, has no use for."""
        for name in sorted(self._unused):
            value, article = getattr(self.options, name), "an" if name == "attention" else "a"
            raise OptionError(
                f"an engine of these options has no use for {article} {name}: {name} = {value!r}"
            )
