"""Many short users for locust, of a server that speaks OpenAI's API. They read, and one in five leaves.

python -m labkit.serve --model data/tiny-gpt2
locust -f tests/soak/locustfile.py --host http://127.0.0.1:8000 --headless -u 50 -r 25 -t 30s
"""

import random

from locust import HttpUser, between, task

ASKED = {"prompt": "To be, or not to be", "ignore_eos": True}


class Reader(HttpUser):
    """Asks for completions, one after the other."""

    wait_time = between(0, 0.2)

    def on_start(self) -> None:
        """Learn the model's name, and ask once, however soon the run ends."""
        self.model = self.client.get("/v1/models").json()["data"][0]["id"]
        self.read_it_whole()

    @task(3)
    def read_a_stream(self) -> None:
        """Up to [DONE]."""
        with self.ask("a stream, read", stream=True) as reply:
            lines = [line for line in reply.iter_lines() if line]
            if reply.status_code != 200 or lines[-1:] != [b"data: [DONE]"]:
                reply.failure(f"{reply.status_code}: it ends with {lines[-1:]}")

    @task(1)
    def leave_a_stream(self) -> None:
        """After its first frame."""
        with self.ask("a stream, left", stream=True, max_tokens=100) as reply:
            if not next(reply.iter_lines()).startswith(b"data: "):
                reply.failure("no frame")
            reply.close()

    @task(1)
    def read_it_whole(self) -> None:
        """In one piece."""
        with self.ask("in one piece", max_tokens=4) as reply:
            if reply.json()["usage"]["completion_tokens"] != 4:
                reply.failure(reply.text)

    def ask(self, name: str, stream: bool = False, max_tokens: int | None = None):
        """A request, under a name in locust's table."""
        body = ASKED | {
            "model": self.model,
            "stream": stream,
            "max_tokens": max_tokens or random.randint(1, 16),
        }
        return self.client.post("/v1/completions", json=body, stream=stream, name=name, catch_response=True)
