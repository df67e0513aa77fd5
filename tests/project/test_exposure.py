"""What the project opens to others: no port, no network that was not asked for, no code of a checkpoint."""

import ast
import json
import socket
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch
from helpers import GREEDY, make_engine
from small_checkpoint import save_small_checkpoint
from sockets import network_calls

from labkit import doctor, lab, load_model
from labkit.bench import __main__ as bench_main
from labkit.engine import StreamingServer
from labkit.errors import CheckpointError
from labkit.paths import ROOT

SERVE = ROOT / "labkit" / "serve"
SOURCES = sorted((ROOT / "labkit").rglob("*.py"))
# Modules that open ports, speak to others, or run what they read. `huggingface_hub` is asked for a hub id.
UNWANTED = {"socket", "socketserver", "http", "urllib", "requests", "httpx", "ssl", "ftplib", "smtplib"}
UNWANTED |= {
    "uvicorn",
    "starlette",
    "xmlrpc",
    "zmq",
    "tornado",
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "shelve",
    "marshal",
}


# --- the network -----------------------------------------------------------------------------------------


def test_the_network_is_heard():
    with network_calls() as calls:
        for use in (
            lambda: socket.create_connection(("127.0.0.1", 9)),
            lambda: socket.getaddrinfo("example.org", 80),
            lambda: socket.socket().bind(("127.0.0.1", 0)),
        ):
            with pytest.raises(OSError, match="no network"), socket.socket():
                use()
    assert [event for event, _ in calls][-2:] == ["socket.getaddrinfo", "socket.bind"]


def test_a_model_of_the_disk_a_random_one_and_an_engine_need_no_network(tmp_path):
    save_small_checkpoint(tmp_path)
    doctor.examine()  # imports all packages, of which one tries once whether there is IPv6
    with network_calls() as calls:
        for source in (tmp_path, "data/tiny-gpt2"):
            assert load_model(source).config.num_layers > 0
        for source in ("data/nowhere", tmp_path / "nowhere", "random:nothing", "./gpt2/x/y", "/gpt2"):
            with pytest.raises(CheckpointError):
                load_model(source)
        make_engine().generate([[1, 2]], GREEDY)
        with StreamingServer(make_engine()) as server:
            assert list(server.submit([1, 2], GREEDY))
        lab.start("00").predict("q", "us", 1).score(2)
        assert doctor.examine()
    assert calls == []


def test_a_hub_id_is_the_one_thing_that_asks_the_hub(monkeypatch):
    asked = []

    def ask(hub_id, **_):
        asked.append(hub_id)
        socket.getaddrinfo("huggingface.co", 443)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", ask)
    with network_calls() as calls, pytest.raises(CheckpointError, match="the hub did not give it"):
        load_model("some-one/some-model")
    assert asked == ["some-one/some-model"] and len(calls) == 1


# --- ports -----------------------------------------------------------------------------------------------


def imported(path: Path) -> set[str]:
    """The top-level modules that a source imports, and the names that it reads of others."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.split(".")[0] for name in names}


PAIR = ("engine_client", "engine_process", "wire")


@pytest.mark.slow
def test_no_module_can_open_a_port_or_unpickle():
    """Those commands too that are not run above. The server's room may do the one, and never the other."""
    assert len(SOURCES) > 200 and len(bench_main.COMMANDS) > 10
    found = {path.relative_to(ROOT).as_posix(): imported(path) & UNWANTED for path in SOURCES}
    assert {name: modules for name, modules in found.items() if modules} == {
        "labkit/serve/__main__.py": {"uvicorn"},
        "labkit/serve/http.py": {"starlette"},
        "labkit/serve/running.py": {"uvicorn", "starlette"},
        # The three of a pair of sockets between two processes, which has no address.
        **{f"labkit/serve/{name}.py": {"socket"} for name in PAIR},
    }
    listens = (".bind(", ".listen(", "AF_INET")
    assert not [call for name in PAIR for call in listens if call in (SERVE / f"{name}.py").read_text()]
    calls = ("start_server", "create_server", "open_connection", "torch.load", "load_pickle", "unsafe_load")
    assert [(p.name, call) for p in SOURCES for call in calls if call in p.read_text(encoding="utf-8")] == []


# --- code of others --------------------------------------------------------------------------------------


def test_no_code_of_a_checkpoint_is_ever_trusted():
    for path in SOURCES:
        source = path.read_text(encoding="utf-8")
        assert "trust_remote_code" not in source or "trust_remote_code=False" in source, path


def test_code_that_a_checkpoint_brings_is_left_alone(tmp_path):
    """config.json may name classes of its own (auto_map): they are not even imported."""
    save_small_checkpoint(tmp_path)
    (tmp_path / "modeling.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\nclass Model: pass\n")
    config = json.loads((tmp_path / "config.json").read_text())
    auto = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForCausalLM"), "modeling.Model")
    (tmp_path / "config.json").write_text(json.dumps({**config, "auto_map": auto, "trust_remote_code": True}))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["modeling.Model"]}})
    )
    before = set(sys.modules)
    model = load_model(tmp_path)
    assert model.network.prefill(torch.tensor([[1, 2]]), torch.tensor([2])).last_logits.shape == (1, 260)
    assert not (tmp_path / "sprung").exists() and not {
        n for n in set(sys.modules) - before if "modeling" in n
    }


def test_pickled_weights_are_refused_with_a_sentence(tmp_path):
    save_small_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError) as error:
        load_model(tmp_path)
    said = "(found pytorch_model.bin); labkit reads no other format"
    assert f"no *.safetensors file in {tmp_path} {said}" in str(error.value)
