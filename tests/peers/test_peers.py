"""Every use of another library with every architecture, and the limits of these libraries.

Slow: `make test-extra-peers` installs the libraries into an environment of its own and runs them.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration
from transformers.integrations import peft as integration

from hf_captioners.architectures import ARCHITECTURES
from tests.hub.captioner_cases import case_of
from tests.peers.methods import (
    CHECKS,
    EXACT,
    PROCESSES,
    adapter_config,
    inputs_of,
    launch,
    published_peft,
    train_step,
)

pytestmark = pytest.mark.slow
NAMES = [name for name, row in ARCHITECTURES.items() if row.package is None]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", CHECKS)
def test_use(check: str, name: str, tmp_path: Path) -> None:
    package, function = CHECKS[check]
    pytest.importorskip(package, reason=f"{package} is not installed: `make test-extra-peers`")
    assert function(case_of(name), tmp_path)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: Any) -> dict[str, dict[str, str]]:
    """The outcomes of both kinds of two processes, by kind and architecture."""
    return {kind: launch(kind, tmp_path_factory.mktemp(kind)) for kind in PROCESSES}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", PROCESSES)
def test_two_processes(kind: str, name: str, outcomes: Any) -> None:
    assert outcomes[kind][name].startswith(EXACT), outcomes[kind][name]


def test_limit_accelerate_has_no_fsdp_on_a_cpu(outcomes: Any) -> None:
    """It takes DDP in its place, so `two_processes.py` calls torch's `fully_shard`, as accelerate does on a GPU."""
    assert outcomes["fsdp2"]["accelerate"] == "DistributedType.MULTI_CPU"


@pytest.fixture
def bart() -> Iterator[Any]:
    """A tiny BART of transformers."""
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 20, "max_position_embeddings": 20}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    return BartForConditionalGeneration(BartConfig(**sizes, **heads)).eval()


def test_limit_transformers_leaves_magnitudes_of_dora(bart: Any, tmp_path: Path) -> None:
    """`load_adapter` of transformers does not load them, for its own BART neither."""
    peft = pytest.importorskip("peft")
    tokens = torch.tensor([[0, 5, 6, 2]])
    with published_peft():
        bart.add_adapter(peft.LoraConfig(target_modules=["q_proj", "v_proj"], use_dora=True, init_lora_weights=False))
        for name, weight in bart.named_parameters():
            if "magnitude" in name:
                weight.data.mul_(2)
        expected = bart.eval()(tokens, decoder_input_ids=tokens).logits
        bart.save_pretrained(tmp_path)
        bart.delete_adapter("default")
        report = bart.load_adapter(tmp_path)
    assert all("lora_magnitude_vector" in key for key in report.missing_keys) and report.missing_keys
    assert not torch.allclose(bart.eval()(tokens, decoder_input_ids=tokens).logits, expected, atol=1e-4)


def test_limit_transformers_asks_for_a_later_peft(bart: Any) -> None:
    """`add_adapter` refuses the latest published PEFT, for BART too; `get_peft_model` of PEFT does not ask."""
    peft = pytest.importorskip("peft")
    if tuple(map(int, peft.__version__.split(".")[:2])) >= tuple(
        map(int, integration.MIN_PEFT_VERSION.split(".")[:2])
    ):
        pytest.skip("the installed PEFT is new enough: remove this limit from docs/peers.md")
    config = peft.LoraConfig(target_modules=["q_proj"])
    for model in (bart, case_of("transformer").make_model()):
        with pytest.raises(ValueError, match="version of PEFT you are using is not compatible"):
            model.add_adapter(config)
    assert peft.get_peft_model(bart, config)


@pytest.mark.parametrize("name", ["visualgpt", "aoa_transformer"])
def test_limit_loha_has_no_conv1d(name: str) -> None:
    """GPT-2's linear maps are `Conv1D`, which LoHa of PEFT does not adapt."""
    peft = pytest.importorskip("peft")
    with pytest.raises(TypeError, match=r"Conv1D.* not supported"):
        peft.get_peft_model(case_of(name).make_model(), peft.LoHaConfig(target_modules=["c_attn"]))


@pytest.mark.parametrize("name", NAMES)
def test_limit_no_tokens_for_a_prompt(name: str) -> None:
    """Prompt tuning of PEFT puts a prompt before the tokens that an encoder reads; that of captioners reads none."""
    peft, case = pytest.importorskip("peft"), case_of(name)
    model = case.make_model()
    config = peft.PromptTuningConfig(
        task_type="SEQ_2_SEQ_LM", num_virtual_tokens=2, token_dim=8, num_layers=1, num_attention_heads=1
    )
    adapted = peft.get_peft_model(model, config)
    with pytest.raises(ValueError, match="You have to provide either input_ids or inputs_embeds"):
        adapted(**inputs_of(case, model, "regions"))


def test_adapters_learn_something() -> None:
    """A step changes the adapter, so that equal outputs after loading say something."""
    peft, case = import_module("peft"), case_of("transformer")
    model = case.make_model()
    adapted = peft.get_peft_model(model, adapter_config("lora", model))
    before = {name: weight.clone() for name, weight in adapted.named_parameters() if weight.requires_grad}
    train_step(case, adapted)
    assert any(not torch.equal(weight, before[name]) for name, weight in adapted.named_parameters() if name in before)
