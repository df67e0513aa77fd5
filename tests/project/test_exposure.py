"""What the project opens to others: no port, no network that was not asked for, no code of a checkpoint."""

import json
import socket
import sys

import huggingface_hub
import pytest
import torch
from helpers import GREEDY, make_engine
from small_checkpoint import save_small_checkpoint
from sockets import network_calls

from labkit import doctor, lab, load_model
from labkit.engine import StreamingServer
from labkit.errors import CheckpointError

# --- the network -----------------------------------------------------------------------------------------


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


# --- code of others --------------------------------------------------------------------------------------


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
