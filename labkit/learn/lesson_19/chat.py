"""Lesson 19: a chat in the notebook, which talks to the reader's server over HTTP."""

import threading
import time
from html import escape

from labkit.learn.lesson_19.parts import NAME, Server
from labkit.show.sliders import show_widget

MOST_TOKENS = 120  # of an answer
WORDS = "A chat: run this cell in JupyterLab to talk to your server."


class Chat:
    """A line to write on, and above it what was said. Each answer streams from the server, in a thread of its
    own, so that the notebook goes on."""

    def __init__(self, server: Server, max_tokens: int = MOST_TOKENS) -> None:
        from ipywidgets import HTML, Button, HBox, Text, VBox

        self._server, self._max_tokens = server, max_tokens
        self._messages: list[dict[str, str]] = []  # of this conversation, as the server is sent them
        self._told: list[str] = []  # all that was said, in HTML
        self.said = HTML()
        line = {"placeholder": "Write here, and press Enter", "continuous_update": False}
        self.line = Text(**line, layout={"width": "30em"})
        self.send = Button(description="Send")
        self.box = VBox([self.said, HBox([self.line, self.send])])
        self.send.on_click(lambda _: self.say(self.line.value))
        self.line.observe(lambda change: self.say(change["new"]), "value")  # Enter, or the line is left

    def say(self, text: str) -> threading.Thread | None:
        """Send a text after all that was said; the thread that waits for its answer."""
        if not text or self.send.disabled:
            return None
        self.send.disabled, self.line.value = True, ""
        self._messages.append({"role": "user", "content": text})
        self._told.append(told("you", text))
        thread = threading.Thread(target=self._answer, daemon=True)
        thread.start()
        return thread

    def _answer(self) -> None:
        try:
            text, note = self._read()
            self._messages.append({"role": "assistant", "content": text})
        except Exception as error:  # whatever the server, or the way to it, says
            text, note = "", f"{type(error).__name__}: {error} What you write next begins anew."
            self._messages.clear()
        self._told.append(told("model", text, note))
        self._draw()
        self.send.disabled = False

    def _read(self) -> tuple[str, str]:
        """The answer, drawn while it comes, and how fast it came."""
        began, first, num_frames, text = time.perf_counter(), 0.0, 0, ""
        stream = self._server.client.chat.completions.create(
            model=NAME, messages=self._messages, stream=True, max_tokens=self._max_tokens, temperature=0.7
        )
        for chunk in stream:
            if chunk.choices and (more := chunk.choices[0].delta.content):
                first = first or time.perf_counter()
                num_frames, text = num_frames + 1, text + more
                self._draw(told("model", text))
        rate = num_frames / max(time.perf_counter() - first, 1e-9)
        return text, f"first text after {1e3 * (first - began):,.0f} ms, then {rate:,.0f} frames per second"

    def _draw(self, *more: str) -> None:
        self.said.value = f'<div style="max-width: 50em">{"".join((*self._told, *more))}</div>'


def told(who: str, text: str, note: str = "") -> str:
    """What somebody said, in HTML, with a line about it in a paler ink."""
    indent = 0 if who == "you" else 2
    said = f'<div style="white-space: pre-wrap; line-height: 1.4; margin: 6px 0 0 {indent}em">'
    said += f"<b>{who}</b> {escape(text)}</div>"
    return said + (
        f'<div style="margin-left: {indent}em; opacity: 0.65">{escape(note)}</div>' if note else ""
    )


def chat(server: Server) -> None:
    """Show a chat with a server. Where a page is only read, a line of words stands in its place."""
    show_widget(Chat(server).box, WORDS)
