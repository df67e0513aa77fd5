"""The chat of lesson 19 sends all that was said, and after an error it begins anew."""

import pytest

from labkit.learn.gates.gate import small_model
from labkit.learn.lesson_19.parts import Chat, Server, own_engine


@pytest.mark.slow
def test_an_answer_stands_below_what_was_said_and_an_error_begins_anew():
    with Server(own_engine(small_model())) as server:
        chat = Chat(server, max_tokens=4)
        for text in ("1 <2>", "9 " * 100, "5"):  # the second is longer than the model's positions
            chat.say(text).join()
            assert not chat.line.disabled
        assert chat.say("") is None
    said = chat.said.value
    assert "1 &lt;2&gt;" in said and said.count("<b>model</b>") == 3
    assert said.count("BadRequestError") == 1 and said.index("BadRequestError") < said.rindex("<b>you</b> 5")
