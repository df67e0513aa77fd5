"""What a user meets first: names, reprs, one prompt, errors."""

import importlib
import inspect

import pytest
from helpers import GREEDY, make_engine, small_model

from labkit import Completion, FinishReason, InferenceEngine, StreamingServer, errors, lab
from labkit.engine import Timing
from labkit.errors import LabkitError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind is not LabkitError]
OF_VALUES = {"CheckpointError", "RequestError", "RecordError", "OptionError"}


@pytest.mark.parametrize("name", ["", ".lab", ".engine", ".model", ".show", ".watch", ".bench", ".results"])
def test_tab_completion_shows_public_names_alone(name):
    module = importlib.import_module(f"labkit{name}")
    assert sorted(dir(module)) == sorted(module.__all__)
    assert all(hasattr(module, public) for public in module.__all__)


def test_a_single_text_is_a_list_of_one():
    engine = make_engine()
    assert [c.token_ids for c in engine.generate("To be", GREEDY)] == [
        c.token_ids for c in engine.generate(["To be"], GREEDY)
    ]


def test_a_completion_shows_its_text_and_what_it_took():
    timing, tokenizer = Timing(10.0, 10.4, (10.5, 10.6, 12.0)), small_model().tokenizer
    done = Completion(0, (1,), (72, 105, 33), FinishReason.LENGTH, timing, tokenizer)
    assert repr(done) == "Completion('Hi!', 3 tokens, length, TTFT 500.0 ms, ITL 750.0 ms)"
    none = Completion(0, (1,), (), FinishReason.ERROR, Timing(10.0, None, ()), tokenizer, "no finite logits")
    assert repr(none) == "Completion('', 0 tokens, error, no finite logits)"


def test_an_engine_a_server_and_a_stream_show_their_state():
    engine = InferenceEngine(small_model(), device="cpu")
    number = engine.add_request("To be", GREEDY)
    shown = "InferenceEngine(rung 14, random:small, cpu float32, 0 running, 1 waiting)"
    assert repr(engine) == shown
    engine.cancel(number)
    with StreamingServer(engine) as server:
        stream = server.submit("To be", GREEDY)
        assert len(list(stream)) == 8
        assert repr(stream) == "TokenStream(request 1, ended)"
        assert (
            repr(server)
            == f"StreamingServer({shown.replace('1 waiting', '0 waiting')}, 0 unfinished, serving)"
        )
    assert repr(server).endswith("closed)")


def test_a_lesson_shows_its_rung(capsys):
    assert repr(lab.start("07")) == "Lab(lesson 07: One table for all layers, rung 07, cpu)"
    assert repr(lab.begin("before_00")) == "Desk(before_00: How a CPU drives a GPU, cpu)"


def test_every_error_can_be_caught_as_labkits_and_as_pythons_and_says_what_it_is_for():
    assert len(KINDS) == 11
    for kind in KINDS:
        assert kind.__mro__[1:3] == (LabkitError, ValueError if kind.__name__ in OF_VALUES else RuntimeError)
        assert kind.__doc__ and str(kind("what was wrong")) == "what was wrong"
