"""A device's step beside its plain twin: however it is launched, in however few kernels, it does the same."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from labkit.engine import InferenceEngine
from labkit.engine.step.attention import AttendAndWrite
from labkit.engine.step.device import DeviceStep
from labkit.kernels import paged_attention_append_plain
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates.resident import OF_A_SLOT, of_a_slot
from labkit.watch.replaced import noting, replaced

OF_THE_POOL = ("k_cache", "v_cache")
CLOSE = {"rtol": 1e-3, "atol": 1e-4}  # keys and values; a product of more rows may add in another order


class SameStep:
    """Runs each step of an engine twice from the same state, by a plain `DeviceStep` and as the engine
    launches it, and proves that tokens, slots, keys and values are the same afterwards."""

    def __init__(self, engine: InferenceEngine) -> None:
        self.scheduler, self.kv_manager = engine.scheduler, engine.kv_manager
        self.slots = engine.decode_step.slots
        attention = AttendAndWrite(self.kv_manager, paged_attention_append_plain)
        self.plain = DeviceStep(self.slots, engine.model.network, attention)
        self.addresses = {name: tensor.data_ptr() for name, tensor in self._fixed().items()}

    def launching(self, inner: Callable) -> Callable:
        """A wrapper for the engine's `device_step`."""

        def launch(batch_size: int, max_context_len: int, is_greedy: bool) -> Tensor:
            before = {name: tensor.clone() for name, tensor in self._tensors().items()}
            tokens = self.plain(batch_size, max_context_len, is_greedy).clone()
            expected = {name: tensor.clone() for name, tensor in self._tensors().items()}
            for name, tensor in self._tensors().items():
                tensor.copy_(before[name])
            made = inner(batch_size, max_context_len, is_greedy)
            self._check_it_ran(made, tokens, before)
            for name in OF_THE_POOL:
                self._check_pool(name, expected[name])
            self._check_tokens(made, tokens)
            for name in self._of_the_slots():
                self._check_slots(name, expected[name])
            return made

        return launch

    def _of_the_slots(self) -> dict[str, Tensor]:
        read = {"slot_mapping": self.slots.slot_mapping, "block_tables": self.slots.block_tables}
        return read | of_a_slot(self.slots)

    def _fixed(self) -> dict[str, Tensor]:
        """The slots' tensors, and the one that they lie in, which is what is written."""
        return self._of_the_slots() | {"memory.words": self.slots.memory.words}

    def _tensors(self) -> dict[str, Tensor]:
        return self._of_the_slots() | {name: getattr(self.kv_manager, name) for name in OF_THE_POOL}

    def _whose(self, slot: int) -> str:
        """The request of a slot, in words."""
        for request, session in self.scheduler.running.items():
            if self.slots.slot_of.get(session) == slot:
                return f"request {request.request_id}"
        return "the padding slot" if slot == self.slots.padding_slot else "a free slot"

    # --- what is the same ------------------------------------------------------------------------------

    def _check_it_ran(self, made: Tensor, tokens: Tensor, before: dict[str, Tensor]) -> None:
        if not isinstance(made, Tensor) or made.shape != tokens.shape:
            there = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise BrokenContract(
                f"a step makes a token per request: it made {there} for a batch of {len(tokens)}, expected "
                f"{tuple(tokens.shape)}. Rows that pad a batch belong to no request, and each request "
                "has its own."
            )
        if all(torch.equal(tensor, before[name]) for name, tensor in self._tensors().items()):
            raise BrokenContract(
                "a step runs on the device: lengths, last tokens, keys and values are all as they were "
                "before it. What makes the tokens was not launched, or not on the engine's own tensors."
            )
        for name, tensor in self._fixed().items():
            if tensor.data_ptr() != self.addresses[name]:
                raise BrokenContract(
                    f"the step's tensors stay where they are: slots.{name} is a new tensor, at another "
                    "address. What was captured reads the old one: write into it."
                )

    def _check_pool(self, name: str, expected: Tensor) -> None:
        there = getattr(self.kv_manager, name)
        for layer_idx, block, _, place, _ in (~torch.isclose(there, expected, **CLOSE)).nonzero().tolist():
            raise BrokenContract(
                f"a step writes a key and a value per request and layer, and nothing else: {name} of layer "
                f"{layer_idx}, block {block}, place {place} is not what the plain step leaves there. Either "
                "the new token's place is another (block context_len // block_size of its row, place "
                "context_len % block_size), or what is computed in front of this layer's attention is."
            )

    def _check_tokens(self, made: Tensor, expected: Tensor) -> None:
        for row in (made != expected).nonzero()[:, 0].tolist():
            whose = self._whose(self.slots.slot_mapping[row].item())
            raise BrokenContract(
                f"a step makes the plain step's tokens: row {row} of {len(expected)} ({whose}) is token "
                f"{made[row].item()}, expected {expected[row].item()}. They are made anew in each step, from "
                "the slots as they are then, and drawn where the request draws. A replay leaves them where "
                "its capture did."
            )

    def _check_slots(self, name: str, expected: Tensor) -> None:
        there = self._of_the_slots()[name]
        wrong = there != expected
        if name in OF_A_SLOT and name != "context_lens":
            wrong[self.slots.padding_slot] = False  # nobody's
        for place in wrong.nonzero().tolist():
            whose = f" ({self._whose(place[0])})" if name in OF_A_SLOT else ""
            raise BrokenContract(
                f"a step moves its requests on by one token, and nobody else: {name}{place}{whose} is "
                f"{there[tuple(place)].item()} after it, expected {expected[tuple(place)].item()}. A row "
                "that pads the batch has the padding slot; only a step that draws counts draws."
            )


@contextmanager
def steps_proven(engine: InferenceEngine) -> Iterator[tuple[()]]:
    """Inside the block, every step of the engine's is proven as `SameStep` says."""
    with replaced(engine.decode_step, "device_step", SameStep(engine).launching):
        yield ()


@contextmanager
def replays_proven(engine: InferenceEngine) -> Iterator[tuple[()]]:
    """Inside the block, no step may ask Python for the model's forward: it is a replay of a capture."""
    forwards: list[bool] = []

    def launching(inner: Callable) -> Callable:
        def launch(batch_size: int, max_context_len: int, is_greedy: bool) -> Tensor:
            forwards.clear()
            tokens = inner(batch_size, max_context_len, is_greedy)
            if forwards:
                kind = "greedy " if is_greedy else "drawing "
                raise BrokenContract(
                    f"a step is a replay: the forward was run from Python for a {kind}batch of {batch_size} "
                    "while serving. Capture a graph for each bucket, greedy and not, when the engine is "
                    "made: a capture while serving would move the slots of running requests on."
                )
            return tokens

        return launch

    with (
        replaced(engine.model.network, "decode_one_token", noting(lambda *_: forwards.append(True))),
        replaced(engine.decode_step, "device_step", launching),
    ):
        yield ()
