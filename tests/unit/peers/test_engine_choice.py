"""Which engine a peer gets: every case says why, and what cannot be had says what to do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from peers.build.model import engine_choice
from peers.build.model.engine_choice import EngineChoice, EngineFacts, choose
from peers.errors import CannotHere, WrongUsage
from peers.fit.hardware import Gpu, Machine
from swarm.settings.config import Config, EngineSettings, Peer
from swarm.settings.peer_limits import Limits

GIB = 1 << 30
H100 = Gpu("H100", 80 * GIB, 79 * GIB)
SMALL = Gpu("RTX 3060", 12 * GIB, 12 * GIB)
BILLION = 1_000_000_000


def seen(
    vllm: bool = True, gpus: tuple[Gpu, ...] = (H100,), parameters: int = 8 * BILLION, quantize: str = "none"
) -> EngineFacts:
    return EngineFacts(vllm, gpus, parameters, quantize)


def test_a_gpu_with_room_and_vllm_give_vllm() -> None:
    assert choose(EngineSettings(), seen()) == EngineChoice(
        "vllm", "vLLM is installed, and the H100 has room for it"
    )


@pytest.mark.parametrize(
    ("settings", "here", "reason"),
    [
        (
            EngineSettings(),
            seen(gpus=()),
            "there is no GPU, where vLLM has to be asked for: peer.engine.name = vllm",
        ),
        (EngineSettings(), seen(vllm=False, gpus=()), "there is no GPU"),
        (
            EngineSettings(),
            seen(vllm=False),
            "vLLM is not installed; pip install 'gepo-swarm[vllm]' samples faster on this GPU",
        ),
        (
            EngineSettings(device="cpu"),
            seen(),
            "peer.engine.device is cpu, where vLLM has to be asked for: peer.engine.name = vllm",
        ),
        (
            EngineSettings(),
            seen(gpus=(SMALL,)),
            "the model needs 19.4 GB in vLLM, which may take 10.2 GB of the RTX 3060",
        ),
        (EngineSettings(memory=0.3), seen(quantize="int8"), "vLLM cannot quantize to int8 while it loads"),
        (
            EngineSettings(),
            seen(gpus=(H100._replace(free=40 * GIB),)),
            "vLLM would take 68.0 GB of the H100, 40.0 GB are free: lower peer.engine.memory",
        ),
    ],
)
def test_else_auto_is_transformers_and_says_why(
    settings: EngineSettings, here: EngineFacts, reason: str
) -> None:
    assert choose(settings, here) == EngineChoice("hf", reason)


def test_a_share_of_a_busy_gpu_is_enough_where_it_is_asked_for() -> None:
    busy = H100._replace(free=40 * GIB)
    assert choose(EngineSettings(memory=0.4), seen(gpus=(busy,))).name == "vllm"
    assert choose(EngineSettings(device="cuda:1"), seen(gpus=(busy, H100))).name == "vllm"


def test_four_bits_make_room() -> None:
    assert choose(EngineSettings(), seen(gpus=(SMALL,), quantize="nf4")).name == "vllm"


def test_what_is_asked_for_is_given() -> None:
    assert choose(EngineSettings(name="hf"), seen()).name == "hf"
    assert choose(EngineSettings(name="vllm"), seen(gpus=())).name == "vllm"
    assert (
        choose(EngineSettings(name="vllm-server", url="http://127.0.0.1:8000"), seen(vllm=False)).name
        == "vllm-server"
    )


@pytest.mark.parametrize(
    ("settings", "here", "error", "words"),
    [
        (
            EngineSettings(name="vllm"),
            seen(vllm=False),
            CannotHere,
            r"not installed here: pip install 'gepo-swarm\[vllm\]'",
        ),
        (EngineSettings(name="vllm"), seen(quantize="int8"), WrongUsage, "cannot quantize to int8"),
        (
            EngineSettings(name="vllm"),
            seen(gpus=(), quantize="nf4"),
            WrongUsage,
            "on GPUs only: set peer.engine.name to hf",
        ),
        (EngineSettings(name="vllm-server"), seen(), WrongUsage, "set peer.engine.url too"),
        (
            EngineSettings(name="vllm-server", url="http://127.0.0.1:8000"),
            seen(quantize="nf4"),
            WrongUsage,
            "set peer.engine.name to hf",
        ),
        (EngineSettings(name="toy"), seen(), WrongUsage, "for simulations"),
    ],
)
def test_what_cannot_be_had_says_what_to_do(
    settings: EngineSettings, here: EngineFacts, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        choose(settings, here)


def test_the_sentence_names_the_engine() -> None:
    assert str(choose(EngineSettings(), seen(gpus=()))).startswith("engine hf: there is no GPU")


@pytest.mark.parametrize(
    ("share", "free", "billions", "said"),
    [
        (0.5, 36, 8, "vLLM would take 40.0 GB of the H100, 36.0 GB are free: lower peer.engine.memory"),
        (0.6, 80, 16, "vLLM is installed, and the H100 has room for it"),
        (1.0, 80, 30, "the model needs 72.6 GB in vLLM, which may take 68.0 GB of the H100"),
    ],
)
def test_auto_counts_the_memory_that_vllm_is_then_told_to_take(
    monkeypatch: pytest.MonkeyPatch, share: float, free: int, billions: int, said: str
) -> None:
    gpu = H100._replace(free=free * GIB)
    monkeypatch.setattr(engine_choice, "installed", lambda: True)
    monkeypatch.setattr(engine_choice.hardware, "machine", lambda: Machine((gpu,), 8, 64 * GIB, 64 * GIB))
    monkeypatch.setattr(
        "peers.fit.model_shape.examine", lambda _: SimpleNamespace(parameters=billions * BILLION)
    )
    config = Config(peer=Peer(limits=Limits(gpu_memory=share)))
    assert engine_choice.chosen(Path("model"), config).reason == said
    assert engine_choice.limited(config).memory == min(share, 0.85)
