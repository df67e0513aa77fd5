"""A gate: what it proves and in which order, and reports that name what broke without ever raising."""

import sys
from functools import partial

import pytest
import torch

from labkit import LADDER, InferenceEngine, lab
from labkit.kernels import draw_plain
from labkit.learn.exercise import BrokenContract
from labkit.learn.gates import Gate, gate
from labkit.learn.gates.gate import Report, proven, raised, small_model
from labkit.learn.gates.schedule import Invariant

RUNG_01 = LADDER["01"].options
build = partial(InferenceEngine, options=RUNG_01, device="cpu")


def engine_of(model, **settings):
    return build(model, **settings)


def test_of_several_parts_a_report_names_those_that_are_the_readers():
    def broken(model, **settings):
        raise BrokenContract("Refused.")

    gate = Gate(("layer_tables", "kv_write"), LADDER["06"].options)
    assert gate.check(broken).text == "layer_tables with kv_write breaks a contract: Refused."
    assert gate.check(broken, "kv_write").text == "kv_write breaks a contract: Refused."


def test_schedules_and_texts_are_short_only_where_the_interpreted_part_is_the_readers(monkeypatch):
    played, compared = [], []
    monkeypatch.setattr(Gate, "_schedules", lambda self, build, num_moves: played.append(num_moves))
    monkeypatch.setattr(Gate, "_same_text", lambda self, build, num_tokens: compared.append(num_tokens))
    both = Gate(("layer_tables", "kv_write"), LADDER["06"].options, interpreted=("kv_write",))
    for own in ((), ("kv_write",), ("layer_tables",)):
        both.check(engine_of, *own)
    assert played == [gate.FEW_MOVES, gate.FEW_MOVES, gate.NUM_MOVES] == [25, 25, 80]
    assert compared == [gate.FEW_TOKENS, gate.FEW_TOKENS, gate.NUM_TOKENS] == [3, 3, 24]


def test_an_invariant_that_is_off_is_told_with_its_hint_and_the_moves():
    crowded = Invariant(
        "at most one request runs",
        lambda engine: "two run." if len(engine.scheduler.running) > 1 else "",
        "One is enough.",
    )
    report = Gate(("block_tables",), LADDER["00"].options, (crowded,)).check(engine_of)
    assert not report.ok
    assert report.text.startswith(
        "block_tables breaks a contract: at most one request runs: two run. One is enough."
    )
    assert report.text.endswith("a step.)")


def test_a_lost_block_is_told():
    def leaks(model, **settings):
        engine = engine_of(model, **settings)
        free = engine.kv_manager.free
        engine.kv_manager.free = lambda block_ids: free(block_ids[:-1])
        return engine

    text = Gate(("block_tables",), LADDER["00"].options).check(leaks).text
    assert "breaks a contract: every block is accounted for: reference counts differ from holders" in text


def test_a_wrong_token_is_told_with_the_one_expected():
    def off_by_one(model, **settings):
        engine = engine_of(model, **settings)
        sample = engine.decode_step.sample
        engine.decode_step.sample = lambda *about: [(token + 1) % 97 for token in sample(*about)]
        return engine

    text = Gate(("block_tables",), LADDER["00"].options).check(off_by_one).text
    assert (
        "breaks a contract: tokens: new token 1 of request" in text
        and "what it gets when it is alone" in text
    )


@pytest.mark.slow
def test_text_that_goes_on_differently_is_told_in_words():
    def other_text(model, **settings):
        engine = engine_of(model, **settings)
        if model.config.vocab_size > 97:  # the trained model
            sample = engine.decode_step.sample
            engine.decode_step.sample = lambda *about: [token ^ 1 for token in sample(*about)]
        return engine

    gate = Gate(("block_tables",), LADDER["00"].options, below_name="the plain engine")
    text = gate.check(other_text).text
    assert "text: new token 1 after 'To be, or not to be' is" in text and "on the plain engine" in text


def test_an_error_names_the_line_of_the_readers_that_raised_it():
    def broken(model, **settings):
        return torch.zeros(2) @ torch.zeros(3)

    report = Gate(("block_tables",), LADDER["00"].options).check(broken)
    assert not report.ok and report.text.startswith("block_tables raised RuntimeError: ")
    assert report.text.endswith(", at `return torch.zeros(2) @ torch.zeros(3)`")


def test_an_error_that_another_one_caused_names_the_line_of_the_first():
    def broken(model, **settings):
        try:
            return settings["missing"]
        except KeyError as error:
            raise RuntimeError("wrapped") from error

    text = Gate(("block_tables",), LADDER["00"].options).check(broken).text
    assert text == 'block_tables raised RuntimeError: wrapped, at `return settings["missing"]`'


def test_a_read_that_ends_a_capture_is_told_with_what_to_do_and_not_what_it_led_to():
    def broken(model, **settings):
        try:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    text = Gate(("sampler",), LADDER["11"].options).check(broken).text
    assert text.startswith("sampler raised RuntimeError: CUDA error: operation not permitted when stream is")
    assert 'is capturing")`. In a captured step the host gets no answer from the GPU: no `.item()`' in text


@pytest.mark.cuda
def test_on_a_gpu_a_sampler_that_reads_is_told_what_to_do():
    def reading(logits, *others):
        logits.sum().item()
        draw_plain(logits, *others)

    text = lab.start("12").check(sampler=reading).text
    assert "at `logits.sum().item()`. In a captured step the host gets no answer from the GPU" in text


def test_a_key_that_is_missing_is_told_by_its_type_where_its_repr_is_long():
    assert raised(KeyError("a")) == "raised KeyError: 'a'" and raised(KeyError()) == "raised KeyError"
    assert raised(KeyError(("x" * 30,) * 30)) == "raised KeyError: an object of type tuple"


def test_a_kernels_error_is_told_without_the_interpreters_wrapping():
    class InterpreterError(Exception):
        pass

    try:
        try:
            raise ValueError("shapes differ")
        except ValueError as error:
            raise InterpreterError(repr(error)) from error
    except InterpreterError as wrapped:
        assert raised(wrapped) == 'raised ValueError: shapes differ, at `raise ValueError("shapes differ")`'


REFUSED = Report(
    False, "kv_append breaks a contract: one write per layer: layer 0 had 0, expected 1. Write `them` all."
)


def test_of_a_part_that_is_broken_on_purpose_the_first_paragraph_says_how():
    class TooEarly:
        """It writes too early.

        And more."""

    assert REFUSED.on_purpose(TooEarly).drawn.rows[0] == ("broke", "It writes too early.")
    assert Report(True, "kv_append: right. All.").on_purpose(TooEarly).drawn[:3:2] == ("✗", "not refused")


@pytest.mark.parametrize("text", ["right", "replay raised ValueError: x: y", "held: not attempted yet."])
def test_whatever_a_report_says_is_drawn(text):
    assert " ".join(part for row in Report(False, text).drawn.rows for part in row[1:])[-3:] == text[-3:]


def test_a_part_that_leaves_python_ends_no_cell():
    report = proven("my_part", [sys.exit], "nothing")
    assert not report.ok and report.text == "my_part raised SystemExit"


def test_a_part_with_a_loop_that_never_stops_is_told_so(monkeypatch):
    monkeypatch.setattr(gate, "MOST_LINES", 10_000)

    def waits():
        while not sys.stdin.closed:
            continue

    report = proven("readback", [lambda: None, waits], "two trials.")
    assert report == Report(
        False, "readback has run 10,000 lines without an end. Is there a loop that never stops?"
    )
    assert sys.gettrace() is None


def test_lines_of_the_package_do_not_count(monkeypatch):
    monkeypatch.setattr(gate, "MOST_LINES", 100)
    engine = InferenceEngine(small_model(), LADDER["00"].options, device="cpu")
    assert proven("a part", [lambda: engine.generate([[1, 2, 3]])], "one trial.").ok
