"""Lesson 19's gates: likely mistakes in the hints are refused by what they break."""

import pytest
from gate_tests import mistake_tests

from labkit.paths import ROOT

pytestmark = pytest.mark.slow

HELD, STOPS, FRAMES, LEAVING, ADMIT = range(5)
CERTAIN = "len(text) - num_held(text, self.stop)"
OVER = '        if self.is_over:\n            return ""\n'
ROLE = '        yield event(reply.chunk({"role": "assistant", "content": ""}))\n'
DONE = '        yield b"data: [DONE]\\n\\n"\n'
TEXT = 'event(reply.chunk({"content": text}, reason))'
NO_JSON = "f'data: {reply.chunk(dict(content=text), reason)}\\n\\n'.encode()"
LEFT = "        if completion is None:\n"
ALL_FIRST = "for text, completion in [piece async for piece in pieces]"
FOR_NOBODY = f"{LEFT}            yield event(reply.error(RuntimeError('nobody is there')))\n"
WAIT = '    while (await receive())["type"] != "http.disconnect":\n        pass'
MISTAKES = [
    (HELD, "text.endswith(string[:size])", "re.search(string[:size] + '$', text)", "expected 0"),
    (STOPS, CERTAIN, "len(text)", "half a stop string is never shown"),
    (STOPS, CERTAIN, "0", "text is shown as soon as it may be"),
    (STOPS, "return self.held", 'return ""', "nothing is lost at the end"),
    (STOPS, OVER, "", "an answer ends before its first stop string"),
    (STOPS, 'self.is_over, self.held = True, ""', "self.is_over = True", "nothing is lost at the end"),
    (STOPS, "(MyStops, num_held)", "(MyStops, lambda text, stop: 0)", "fill in step 1 first"),
    (FRAMES, ROLE, "", "the first frame says who speaks"),
    (FRAMES, "reply.reason(completion)", '"stop"', "finish_reason says how an answer ended"),
    (FRAMES, TEXT, NO_JSON, "the text is all there"),
    (FRAMES, "json.dumps(body)}\\n", "json.dumps(body)}", "and an empty line"),
    (FRAMES, '(body)}\\n\\n".encode()', '(body)}\\n\\n"', "a frame is bytes"),
    (FRAMES, DONE, "", "[DONE] is for a normal end"),
    (FRAMES, "if reply.include_usage", "if True", "usage comes last, and only if it is asked for"),
    (FRAMES, 'b"data: [DONE]\\n\\n"', 'event("[DONE]")', "It is no JSON"),
    (FRAMES, "async for", "for", "raised TypeError: 'async_generator' object is not iterable, at `for"),
    (FRAMES, "except Exception", "except ValueError", "the generator raised 'a step of the engine failed'"),
    (FRAMES, "reply.error(error)", '{"error": str(error)}', "an answer that fails ends with its error"),
    (FRAMES, "yield event(reply.error(error))", "pass", "an answer that fails ends with its error"),
    (FRAMES, "error(error))", f"error(error))\n{DONE}", "[DONE] is for a normal end"),
    (FRAMES, "async for text, completion in pieces", ALL_FIRST, "a stream streams found for an answer in"),
    (FRAMES, LEFT, FOR_NOBODY, "ends with its error, and no other"),
    (LEAVING, "in streams:", "in streams[:1]:", "2 of 3 streams were not closed"),
    (LEAVING, "stream.close", "await anext(stream, None)\n        stream.close", "blocks within one step"),
    (LEAVING, "    pass", "    [stream.close() for stream in streams]", "that is there keeps its answer"),
    (LEAVING, WAIT, "    for _ in range(3):\n        await receive()", "that is there keeps its answer"),
    (ADMIT, "unfinished + asked <= limit", "unfinished < limit", "for which there is no room now gets 429"),
    (ADMIT, "<= limit", "< limit", "what there is room for is let in"),
    (ADMIT, "    if asked > limit:\n        return 400\n", "", "what can never be served"),
]  # fmt: skip

shell, test_a_likely_mistake_is_refused_with_its_sentence = mistake_tests(
    ROOT / "notebooks" / "19_server.ipynb", MISTAKES
)
