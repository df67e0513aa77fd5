"""What a reader may hand to the API by mistake: refused at the door by name, and nothing changed.

Tables of wrong values, each for every argument that it is wrong for. `test_bad_input.py` has the messages
in full; here a message must name the argument and be short, whatever was given.
"""

import array
import asyncio
import collections
import itertools
import re
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import CONFIG, GREEDY, Boom, ByteTokenizer, make_engine, small_model, tokens_alone
from hypothesis import given
from hypothesis import strategies as st
from streaming_helpers import labkit_threads, nobody_waits_for_ever  # noqa: F401  (an autouse fixture)

from labkit import LADDER, CacheConfig, EngineOptions, InferenceEngine, SamplingParams, SchedulerConfig, lab
from labkit.checks import shown
from labkit.engine import StreamingServer, device
from labkit.engine.device import pick_device
from labkit.errors import LabkitError, OptionError, RequestError

HUGE = 10**5000  # Python refuses to write so many digits


class Broken:
    """A value whose own code raises."""

    def __repr__(self):
        raise RuntimeError("repr fails")

    def __index__(self):
        raise RuntimeError("index fails")

    def __hash__(self):
        raise RuntimeError("hash fails")

    def __eq__(self, other):
        raise RuntimeError("eq fails")


class BrokenList(list):
    def __iter__(self):
        raise RuntimeError("iter fails")


class BreaksAfterOne(list):
    def __iter__(self):
        yield self[0]
        raise RuntimeError("the second fails")


class Uncounted(list):
    def __len__(self):
        raise RuntimeError("len fails")


class Made:
    """A generator can be read once, so a table has what makes it."""

    def __init__(self, make):
        self.make = make


class NeverRead(collections.abc.Sequence):
    """Longer than any model; whoever reads it fails the test."""

    def __len__(self):
        return 10**12

    def __getitem__(self, index):
        raise Boom

    def __iter__(self):
        raise Boom


# What is no argument of any kind; each table adds what looks almost right for its own.
JUNK = {
    "a number": 5,
    "a float": 1.5,
    "infinity": float("inf"),
    "a huge number": HUGE,
    "text": "x",
    "bytes": b"x",
    "a list": [],
    "a list of a list": [[1]],
    "a tuple": (1, "x"),
    "a dict": {"a": 1},
    "a set": {1},
    "an array": np.array([1, 2]),
    "a 0-d array": np.array(3),
    "a tensor": torch.tensor([1, 2]),
    "an object": object(),
    "a class": int,
    "a function": len,
    "a generator": (i for i in ()),
    "what raises": Broken(),
    "megabytes of text": "x" * 10**7,
    "megabytes of bytes": b"x" * 10**7,
}


def without(table, *labels):
    return {label: value for label, value in table.items() if label not in labels}


def rows(**cases):
    """Parameters (name, value), a row each, from one table of values for each name."""
    return [
        pytest.param(name, value, id=f"{name}: {label}")
        for name, table in cases.items()
        for label, value in table.items()
    ]


@contextmanager
def refused(error, match):
    """The error whose message, a line, says what is wrong."""
    with pytest.raises(error, match=match) as refusal:
        yield
    message = str(refusal.value)
    assert len(message) < 400 and "\n" not in message


def refused_by_name(error, name):
    return refused(error, rf"\b{name}\b")


# --- the engine's arguments ------------------------------------------------------------------------

ENGINE_ARGUMENTS = rows(
    model=JUNK
    | {
        "None": None,
        "a path": "data/tiny-gpt2",
        "the GPT2 inside": small_model().gpt2,
        "a config": CONFIG,
        "the class": type(small_model()),
    },
    options=JUNK
    | {
        "None": None,
        "a rung's number": "05",
        "a rung": LADDER["05"],
        "the ladder": LADDER,
        "the class": EngineOptions,
        "fields in a dict": {"block_tables": "rebuilt"},
    },
    cache=JUNK | {"None": None, "the other config": SchedulerConfig(), "the class": CacheConfig},
    scheduler=JUNK | {"None": None, "the other config": CacheConfig(), "the class": SchedulerConfig},
    device=JUNK
    | {
        **{repr(name): name for name in ("", "banana", "CPU", " cpu", "cpu ", "cpu\n", "cpu:", "cpu:1")},
        **{repr(name): name for name in ("meta", "mps", "xpu", "hpu", "vulkan", "privateuseone", "gpu")},
        **{repr(name): name for name in ("cuda:", "cuda:-1", "cuda:01", "cuda:1.0", "cuda:٠", "cuda 0")},
        "an index of 5000 digits": "cuda:" + "9" * 5000,
        "zero": 0,
        "True": True,
        "False": False,
        "b'cpu'": b"cpu",
        "['cpu']": ["cpu"],
        "the meta device": torch.device("meta"),
        "the mps device": torch.device("mps"),
        "the second CPU": torch.device("cpu", 1),
        "the class": torch.device,
    },
    dtype=JUNK
    | {
        **{repr(name): name for name in ("float32", "torch.float32", "fp16", "auto", "")},
        **{
            str(kind): kind
            for kind in (
                *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, torch.complex64),
                *(torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2, torch.qint8),
            )
        },
        **{str(kind): kind for kind in (float, np.float32, np.dtype("float32"), torch.FloatTensor)},
        "0": 0,
        "False": False,
        "16": 16,
    },
)


@pytest.mark.parametrize(("name", "value"), ENGINE_ARGUMENTS)
def test_an_argument_of_the_engine_that_is_something_else_is_refused_by_name(name, value):
    arguments = {"model": small_model(), "device": "cpu"} | {name: value}
    with refused_by_name(OptionError, name):
        InferenceEngine(**arguments)


@pytest.mark.parametrize("number", LADDER)
@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.float8_e4m3fn, float, "float32", 0])
def test_every_rung_refuses_what_it_does_not_compute_in(number, dtype):
    with refused_by_name(OptionError, "dtype"):
        InferenceEngine(small_model(), LADDER[number].options, device="cpu", dtype=dtype)


@pytest.mark.parametrize("number", LADDER)
def test_float64_is_refused_where_a_rung_has_kernels_for_less(number):
    arguments = (small_model(), LADDER[number].options)
    if number >= "09":
        with refused(OptionError, "dtype = torch.float64 needs layer_kernels = 'separate'"):
            InferenceEngine(*arguments, device="cpu", dtype=torch.float64)
    else:
        engine = InferenceEngine(*arguments, device="cpu", dtype=torch.float64)
        (completion,) = engine.generate([(1, 2, 3)], GREEDY)
        assert completion.token_ids == tokens_alone((1, 2, 3), GREEDY)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("number", ["00", "05", "10"])
def test_the_other_floats_run(number, dtype):
    engine = InferenceEngine(small_model(), LADDER[number].options, device="cpu", dtype=dtype)
    assert (engine.dtype, engine.model.dtype) == (dtype, dtype)
    assert len(engine.generate([(1, 2, 3)], GREEDY)[0].token_ids) == 8


@pytest.mark.parametrize(
    "name", ["cpu", "cpu:0", torch.device("cpu"), torch.device("cpu", 0), np.str_("cpu")]
)
def test_the_cpu_has_these_names(name):
    assert pick_device(name) == torch.device("cpu")


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "empty", lambda _, device: SimpleNamespace(device=torch.device(device)))


@pytest.mark.parametrize(
    "name", ["cuda:2", "cuda:9", "cuda:256", "cuda:300", "cuda:9999", torch.device("cuda", 2)]
)
def test_a_gpu_past_the_last_is_refused(two_gpus, name):
    """Also an index that torch wraps around: its "cuda:256" is the first GPU."""
    with refused(OptionError, f"device '{name}' is not on this machine: .* 'cuda:0' to 'cuda:1'"):
        pick_device(name)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:1", torch.device("cuda"), torch.device("cuda", 1)])
def test_a_gpu_that_is_there_is_taken(two_gpus, name):
    assert pick_device(name) == torch.device(name)
    assert pick_device(None) == torch.device("cuda")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7", torch.device("cuda", 1)])
def test_a_gpu_is_refused_where_there_is_none(monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused(OptionError, f"device '{name}' needs a CUDA GPU"):
        pick_device(name)


# --- sizes -----------------------------------------------------------------------------------------

TOO_LARGE = [
    pytest.param(name, sizes, id=f"{name} {len(str(min(value, 10**99)))} digits{label}")
    for value in (10**13, 2**62, 2**63, 10**30, HUGE)
    for name, sizes, label in (
        ("block_size", {"cache": CacheConfig(block_size=value)}, ""),
        ("max_blocks_per_layer", {"cache": CacheConfig(max_blocks_per_layer=value)}, ""),
        ("max_batch_size", {"scheduler": SchedulerConfig(value)}, ""),
        (
            "max_batch_size",
            {"scheduler": SchedulerConfig(value), "cache": CacheConfig(max_blocks_per_layer=4)},
            ", few blocks",
        ),
    )
]


@pytest.mark.parametrize("number", ["00", "10"])
@pytest.mark.parametrize(("name", "sizes"), TOO_LARGE)
def test_what_no_memory_can_hold_is_refused_by_name(name, sizes, number):
    with refused(OptionError, rf"of memory\. Lower .*\b{name}\b"):
        InferenceEngine(small_model(), LADDER[number].options, device="cpu", **sizes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_pool_may_be_as_large_as_the_memory_and_no_larger(monkeypatch, dtype):
    num_bytes = 5 * 4 * CONFIG.kv_values_per_token * dtype.itemsize  # five blocks of four tokens
    monkeypatch.setattr(device, "memory_of", lambda _: num_bytes)

    def make(num_blocks):
        cache, scheduler = CacheConfig(4, num_blocks), SchedulerConfig(1)
        return InferenceEngine(small_model(), device="cpu", dtype=dtype, cache=cache, scheduler=scheduler)

    assert make(5).stats().blocks_per_layer == 5
    with refused(OptionError, r"KV pool is too large: .* max_blocks_per_layer \(6; "):
        make(6)


def test_the_logits_of_a_batch_may_be_as_large_as_the_memory_and_no_larger(monkeypatch):
    monkeypatch.setattr(device, "memory_of", lambda _: 12 * CONFIG.vocab_size * 4)
    make_engine(max_blocks_per_layer=4, max_batch_size=12)
    with refused(OptionError, r"logits of a full batch .* Lower max_batch_size \(13\)"):
        make_engine(max_blocks_per_layer=4, max_batch_size=13)


def test_a_system_that_does_not_say_its_memory_limits_nothing(monkeypatch):
    monkeypatch.delattr(device.os, "sysconf_names")
    assert device.memory_of(torch.device("cpu")) >= 2**62


@pytest.mark.parametrize("value", [2**31, 2**63, 10**30, HUGE], ids=["2**31", "2**63", "10**30", "huge"])
def test_limits_that_take_no_memory_may_be_of_any_size(value):
    engine = make_engine(
        max_prefix_entries=value,
        prefill_max_batch_size=value,
        prefill_max_tokens=value,
        pack_window=value,
        admission_policy="pack",
    )
    (completion,) = engine.generate([(1, 2, 3)], replace(GREEDY, top_k=value, seed=value))
    assert completion.token_ids == tokens_alone((1, 2, 3), GREEDY)


# --- fields ----------------------------------------------------------------------------------------

NO_SIZE = without(JUNK, "a number", "a huge number") | {
    "zero": 0,
    "a negative number": -1,
    "a huge negative number": -HUGE,
    "True": True,
    "text of a number": "8",
    "a whole float": 8.0,
    "NumPy's number": np.int64(8),
    "torch's number": torch.tensor(8),
}
NO_BOOL = JUNK | {
    "None": None,
    "0": 0,
    "1": 1,
    "'no'": "no",
    "'false'": "false",
    "NumPy's": np.False_,
    "torch's": torch.tensor(True),
    "many": np.array([True, False]),
}
NO_CHOICE = JUNK | {
    "None": None,
    "no text": "",
    "the wrong case": "FIFO",
    "an array of choices": np.array(["fifo", "auto"]),
    "a list of choices": ["fifo", "auto"],
}
POSITIVE = ("block_size", "max_blocks_per_layer", "max_prefix_entries")
POSITIVE_SCHEDULER = ("max_batch_size", "prefill_max_batch_size", "prefill_max_tokens", "pack_window")
OPTIONS = tuple(EngineOptions.__dataclass_fields__)


@pytest.mark.parametrize(
    ("name", "value"),
    rows(**dict.fromkeys(POSITIVE, NO_SIZE), prefix_cache=NO_BOOL),
)
def test_a_wrong_field_of_the_cache_is_refused_by_name(name, value):
    with refused_by_name(OptionError, name):
        CacheConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    rows(**dict.fromkeys(POSITIVE_SCHEDULER, NO_SIZE), decode_first=NO_BOOL, admission_policy=NO_CHOICE),
)
def test_a_wrong_field_of_the_scheduler_is_refused_by_name(name, value):
    with refused_by_name(OptionError, name):
        SchedulerConfig(**{name: value})


@pytest.mark.parametrize(("name", "value"), rows(**dict.fromkeys(OPTIONS, NO_CHOICE)))
def test_a_wrong_option_is_refused_by_name(name, value):
    with refused_by_name(OptionError, name):
        EngineOptions(**{name: value})


NO_NUMBER = without(JUNK, "a number", "a float") | {
    "None": None,
    "True": True,
    "NaN": float("nan"),
    "a negative number": -1,
    "a huge negative number": -HUGE,
    "text of a number": "0.5",
    "complex": 1j,
    "Decimal": Decimal("0.5"),
    "Fraction": Fraction(1, 2),
    "NumPy's float32": np.float32(0.5),
    "torch's number": torch.tensor(0.5),
}
SAMPLING = rows(
    max_new_tokens=NO_SIZE | {"None": None},
    temperature=NO_NUMBER,
    top_p=NO_NUMBER | {"zero": 0, "above one": 1.0001},
    top_k=without(NO_SIZE, "zero") | {"None": None},
    seed=without(NO_SIZE, "zero", "a negative number", "a huge negative number"),
    stop_on_eos=NO_BOOL,
)


@pytest.mark.parametrize(("name", "value"), SAMPLING)
def test_a_wrong_sampling_parameter_is_refused_by_name(name, value):
    with refused_by_name(RequestError, name):
        SamplingParams(**{name: value})


NO_RUNG = JUNK | {"None": None, "a number of a rung": 5, "no text": "", "one digit": "5", "past": "12"}


@pytest.mark.parametrize("number", [*NO_RUNG.values(), "11"], ids=[*NO_RUNG, "the capstone"])
def test_what_is_no_rung_is_refused(number):
    with refused(OptionError, "there is no rung .*; there are 00, 01, .* 10, as text"):
        LADDER[number]


@pytest.mark.parametrize("number", NO_RUNG.values(), ids=NO_RUNG)
def test_what_is_no_lesson_is_refused(number, capsys):
    with refused(OptionError, "there is no lesson .*; there are 00, 01, .* 11, as text"):
        lab.start(number)
    assert capsys.readouterr().out == ""


def test_a_rung_is_found_by_its_number():
    assert [LADDER[number].number for number in LADDER] == list(LADDER)
    assert LADDER[np.str_("05")] is LADDER["05"] is LADDER.get("05")


# --- prompts ---------------------------------------------------------------------------------------

BAD_PROMPTS = without(JUNK, "text", "an array", "a tensor") | {
    "None": None,
    "True": True,
    "bytearray": bytearray(b"x"),
    "memoryview": memoryview(b"xy"),
    "a dict of ids": {1: 2},
    "keys of a dict": {1: 2}.keys(),
    "an OrderedDict": collections.OrderedDict({1: 2}),
    "a UserDict": collections.UserDict({1: 2}),
    "a Counter": collections.Counter([1, 2]),
    "a frozenset": frozenset({1}),
    "a 0-d tensor": torch.tensor(3),
    "a 2-D array": np.array([[1, 2]]),
    "a column": torch.tensor([[1], [2]]),
    "no rows": np.empty((0, 3), int),
    "floats": [1.0],
    "an array of floats": np.array([1.0, 2.0]),
    "a tensor of bools": torch.tensor([True, False]),
    "an array of bools": np.array([True]),
    "a tensor of complex numbers": torch.tensor([1j]),
    "tensors of one number": [torch.tensor([1]), torch.tensor([2])],
    "arrays of one number": [np.array([1])],
    "a masked array": np.ma.array([1, 2], mask=[False, True]),
    "dates": np.array(["2024-01-01"], dtype="datetime64[D]"),
    "a meta tensor": torch.ones(3, dtype=torch.int64, device="meta"),
    "a huge id": [HUGE],
    "a huge negative id": [-HUGE],
    "an id that raises": [1, Broken()],
    "ids that raise": BrokenList([1, 2]),
    "ids that raise later": BreaksAfterOne([1, 2]),
    "a length that raises": Uncounted([1, 2]),
    "a generator that raises": Made(lambda: (1 // (2 - i) for i in range(1, 9))),
    "the class": list,
    "a file": open(__file__, "rb"),  # noqa: SIM115  (never read)
    "an engine": SimpleNamespace(prompt=[1]),
}
ENDLESS = {
    "a range": range(10**8),
    "a longer range": range(10**15),
    "count": Made(itertools.count),
    "repeat": Made(lambda: itertools.repeat(1)),
    "cycle": Made(lambda: itertools.cycle([1, 2])),
    "a long array": np.zeros(10**6, np.int64),
    "a long tensor": torch.zeros(10**6, dtype=torch.int64),
    "a view without memory": torch.zeros(1, dtype=torch.int64).expand(10**15),
    "an array without memory": np.broadcast_to(np.int64(1), 10**15),
    "a long deque": collections.deque([1]) * 1000,
    "never read": NeverRead(),
    "a million letters": "a" * 10**6,
    "a million spaces": " " * 10**6,
    "a million words": "To be " * 10**6,
}


def fresh(prompt):
    return prompt.make() if isinstance(prompt, Made) else prompt


@pytest.fixture(scope="module")
def server():
    with StreamingServer(make_engine(), max_inflight_requests=3) as server:
        yield server
    assert labkit_threads() == []


async def submit_async(server, prompt):
    server.submit_async(prompt, GREEDY)


SUBMIT = {
    "submit": lambda server, prompt: server.submit(prompt, GREEDY),
    "submit_async": lambda server, prompt: asyncio.run(submit_async(server, prompt)),
}
WAYS = {
    "add_request": lambda engine, prompt: engine.add_request(prompt, GREEDY),
    "generate": lambda engine, prompt: engine.generate([[1], prompt, [2]], GREEDY),
    "stream": lambda engine, prompt: engine.stream(prompt, GREEDY),
}


@pytest.fixture
def engine():
    """An engine with a request that waits; at the end, it must be the one that it was."""
    engine = make_engine()
    engine.add_request((1, 2, 3), GREEDY)
    before = engine.stats()
    yield engine
    assert engine.stats() == before and engine.has_work
    engine.check_integrity()
    assert engine.add_request((7,), GREEDY) == 1  # no id was given away


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("prompt", BAD_PROMPTS.values(), ids=BAD_PROMPTS)
def test_what_is_no_prompt_is_refused_and_nothing_is_queued(engine, prompt, way):
    with refused(RequestError, "prompt|token id"):
        way(engine, fresh(prompt))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("prompt", ENDLESS.values(), ids=ENDLESS)
def test_a_prompt_far_too_long_is_refused_without_reading_it(engine, prompt, way):
    with refused(RequestError, r"prompt has \d+ tokens.* the model has 64 positions: shorten"):
        way(engine, fresh(prompt))


@pytest.mark.parametrize("way", SUBMIT.values(), ids=SUBMIT)
@pytest.mark.parametrize("prompt", (BAD_PROMPTS | ENDLESS).values(), ids=BAD_PROMPTS | ENDLESS)
def test_a_server_refuses_the_same_and_gives_the_room_back(server, prompt, way):
    """Three requests may be unfinished: were a refused one kept, the fourth would be OverloadedError."""
    with refused(RequestError, "prompt|token id"):
        way(server, fresh(prompt))
    assert not server.engine.has_work


def test_of_a_generator_no_more_is_read_than_the_model_has_positions(engine):
    ids = itertools.count()
    with refused(RequestError, "has 64 tokens or more .* together 72 or more; .* by 8 or more"):
        engine.add_request(ids, GREEDY)
    assert next(ids) <= CONFIG.n_positions + 1


def test_of_a_text_far_too_long_the_beginning_is_encoded(monkeypatch, engine):
    lengths = []

    def encode(self, text):
        lengths.append(len(text))
        return [97] * (len(text) // 20)  # longer tokens than it expects

    monkeypatch.setattr(ByteTokenizer, "encode", encode)
    with refused(RequestError, "the prompt has .* tokens or more and max_new_tokens is 8, tog"):
        engine.add_request("a" * 10**6, GREEDY)
    assert sum(lengths) < 10**4


def test_a_text_of_few_tokens_may_be_long(monkeypatch):
    monkeypatch.setattr(ByteTokenizer, "encode", lambda self, text: [97] * len(text.split()))
    engine = make_engine()
    (completion,) = engine.generate(["a" * 10**5 + " b" * 10], GREEDY)
    assert completion.prompt_token_ids == (97,) * 11


GOOD_PROMPTS = {
    "a tuple": (1, 2, 3),
    "a range": range(1, 4),
    "a generator": Made(lambda: (i for i in (1, 2, 3))),
    "a map": Made(lambda: map(int, "123")),
    "a deque": collections.deque([1, 2, 3]),
    "an array of the array module": array.array("q", [1, 2, 3]),
    "values of a dict": {"a": 1, "b": 2, "c": 3}.values(),
    "a UserList": collections.UserList([1, 2, 3]),
    "a tensor": torch.tensor([1, 2, 3], dtype=torch.int16),
    "an array of objects": np.array([1, 2, 3], dtype=object),
    "a view": np.arange(6)[1:4],
    "numbers of four kinds": [np.uint8(1), torch.tensor(2), 3],
    "0-d arrays": [np.array(1), np.array(2), np.array(3)],
    "text": "\x01\x02\x03",
    "NumPy's text": np.str_("\x01\x02\x03"),
}


@pytest.mark.parametrize("prompt", GOOD_PROMPTS.values(), ids=GOOD_PROMPTS)
def test_whole_numbers_in_their_order_are_a_prompt(prompt):
    (completion,) = make_engine().generate([fresh(prompt)], GREEDY)
    assert completion.prompt_token_ids == (1, 2, 3)
    assert completion.token_ids == tokens_alone((1, 2, 3), GREEDY)


BAD_PROMPT_LISTS = without(JUNK, "a list", "a list of a list") | {
    "None": None,
    "an iterator": iter([[1], [2]]),
    "a generator of prompts": ([i] for i in (1, 2)),
    "endless": itertools.repeat([1]),
    "prompts by name": {"a": [1], "b": [2]},
    "names of prompts": {"a": [1]}.keys(),
    "a set of texts": {"To", "be"},
    "a bytearray": bytearray(b"To be"),
    "a memoryview": memoryview(b"To be"),
    "ids": [1, 2, 3],
    "a range": range(10**8),
    "a 0-d tensor": torch.tensor(3),
    "a 3-D tensor": torch.ones(2, 2, 2, dtype=torch.int64),
    "prompts that raise": BrokenList([[1], [2]]),
    "prompts that raise later": BreaksAfterOne([[1], [2]]),
    "text": "To be",
}


@pytest.mark.parametrize("prompts", BAD_PROMPT_LISTS.values(), ids=BAD_PROMPT_LISTS)
def test_what_is_no_list_of_prompts_is_refused(engine, prompts):
    with refused(RequestError, "prompt"):
        engine.generate(prompts, GREEDY)


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, collections.deque])
def test_prompts_may_be_rows(kind):
    completions = make_engine().generate(kind([[1, 2, 3], [4, 5, 6]]), GREEDY)
    assert [c.prompt_token_ids for c in completions] == [(1, 2, 3), (4, 5, 6)]


BAD_PARAMS = JUNK | {"None": None, "the class": SamplingParams, "a dict of fields": {"max_new_tokens": 3}}


@pytest.mark.parametrize("params", BAD_PARAMS.values(), ids=BAD_PARAMS)
@pytest.mark.parametrize(
    "way",
    [
        lambda engine, params: engine.add_request([1], params),
        lambda engine, params: engine.stream([1], params),
        lambda engine, params: engine.generate([[1], [2], [3]], params),
        lambda engine, params: engine.generate([[1], [2]], [GREEDY, params]),
    ],
    ids=["add_request", "stream", "generate", "generate, one of two"],
)
def test_params_of_another_kind_are_refused(engine, params, way):
    with refused(RequestError, "params must be SamplingParams|but .* SamplingParams"):
        way(engine, params)


@pytest.mark.parametrize("params", [None, "x", {}, 5])
def test_params_of_no_prompt_are_checked_too(engine, params):
    with refused(RequestError, "params must be SamplingParams|0 prompts but 1 SamplingParams"):
        engine.generate([], params)
    assert engine.generate([], GREEDY) == engine.generate([], []) == []


@pytest.mark.parametrize(
    ("prompts", "params"),
    [([[1]], Uncounted([GREEDY])), (Uncounted([[1]]), [GREEDY]), ([[1]], BrokenList([GREEDY]))],
)
def test_params_that_raise_are_refused(engine, prompts, params):
    with refused(RequestError, "^(prompts|params) cannot be read: RuntimeError"):
        engine.generate(prompts, params)


def test_params_far_more_than_prompts_are_not_read(engine):
    with refused(RequestError, "there are 1 prompts but 1000000000000 SamplingParams"):
        engine.generate([[1]], NeverRead())


@pytest.mark.parametrize("params", BAD_PARAMS.values(), ids=BAD_PARAMS)
def test_a_server_refuses_params_of_another_kind(server, params):
    with refused(RequestError, "params must be SamplingParams"):
        server.submit([1], params)


@pytest.mark.parametrize("text", ["a" * 10**6, "", "a\ud800"])
def test_a_text_that_another_thread_encodes_is_refused_in_the_stream(text):
    with StreamingServer(make_engine(), tokenize_workers=1) as server:
        stream = server.submit(text, GREEDY)
        with refused(RequestError, "prompt"):
            next(stream)


# --- cancel ----------------------------------------------------------------------------------------

NO_ID = without(JUNK, "a 0-d array") | {
    "None": None,
    "a float that equals it": 0.0,
    "a bool that equals it": False,
    "NumPy's bool": np.False_,
    "torch's bool": torch.tensor(False),
    "text of it": "0",
    "it in a list": [0],
    "it in a tensor": torch.tensor([0]),
    "complex": 0j,
    "Decimal": Decimal(0),
    "Fraction": Fraction(0),
    "negative": -1,
    "another": 1,
}


@pytest.mark.parametrize("request_id", NO_ID.values(), ids=NO_ID)
def test_cancelling_what_is_no_request_is_refused(engine, request_id):
    with refused(RequestError, "there is no request .* here; .*request_id is the whole"):
        engine.cancel(request_id)


@pytest.mark.parametrize("kind", [int, np.int64, np.uint8, torch.tensor])
def test_an_id_may_be_a_whole_number_of_any_type(kind):
    engine = make_engine()
    assert engine.cancel(kind(engine.add_request([1], GREEDY))).request_id == 0
    assert not engine.has_work


# --- a server --------------------------------------------------------------------------------------

SERVER_ARGUMENTS = rows(
    engine=JUNK | {"None": None, "a model": small_model(), "the class": InferenceEngine},
    max_inflight_requests=NO_SIZE,
    stream_interval=NO_SIZE | {"None": None},
    tokenize_workers=without(NO_SIZE, "zero") | {"None": None},
)


@pytest.mark.parametrize(("name", "value"), SERVER_ARGUMENTS)
def test_an_argument_of_a_server_that_is_something_else_is_refused_by_name(name, value):
    threads = labkit_threads()
    with refused_by_name(OptionError, name):
        StreamingServer(**{"engine": make_engine()} | {name: value})
    assert labkit_threads() == threads


# --- anything --------------------------------------------------------------------------------------

ATOMS = st.one_of(
    st.none(),
    *(st.booleans(), st.integers(), st.integers(0, 255), st.floats(), st.complex_numbers()),
    *(st.text(max_size=5), st.binary(max_size=5), st.decimals(), st.fractions(), st.builds(Broken)),
    st.builds(np.int64, st.integers(-5, 5)),
    st.builds(torch.tensor, st.integers(-5, 5) | st.floats() | st.booleans()),
)
ANYTHING = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(st.integers(0, 9))
        | st.dictionaries(st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)
SPARE = make_engine()


@pytest.mark.slow
@given(ANYTHING)
def test_whatever_is_handed_in_is_taken_or_refused_by_name(value):
    calls = {
        "prompt|token id": lambda: SPARE.check_prompt(value, GREEDY),
        "request_id": lambda: SPARE.cancel(value),
        "params": lambda: SPARE.add_request([1], value),
        "rung": lambda: LADDER[value],
        "device": lambda: pick_device(value),
        **{
            name: lambda name=name: SamplingParams(**{name: value})
            for name in SamplingParams.__dataclass_fields__
        },
        **{name: lambda name=name: CacheConfig(**{name: value}) for name in CacheConfig.__dataclass_fields__},
    }
    for name, call in calls.items():
        try:
            call()
        except LabkitError as error:
            assert re.search(name, str(error)) and len(str(error)) < 400
        assert not SPARE.has_work


@given(ANYTHING)
def test_a_value_is_shown_in_a_short_line(value):
    assert 0 < len(shown(value)) <= 80 and "\n" not in shown(value)
