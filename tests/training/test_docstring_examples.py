"""The ```python examples in the docstrings of trainers and rewards run, with tiny models instead of real ones."""

import inspect
import re

import pytest

from hf_captioners.training import (
    CaptioningTrainer,
    CaptioningTrainingArguments,
    SCSTTrainer,
    evaluation,
    reward_references,
    reward_sum,
    rewards,
)
from hf_captioners.training.self_retrieval import SelfRetrieval


def public_names(module):
    return [
        one
        for name, one in vars(module).items()
        if getattr(one, "__module__", "") == module.__name__ and not name.startswith("_")
    ]


OF_REWARDS = [one for module in (reward_references, reward_sum, rewards) for one in public_names(module)]
OF_EVALUATION = [evaluation.score_captions, evaluation.caption_statistics]


def examples_of(documented):
    found = re.findall(r"```python\n(.*?)```", inspect.getdoc(documented) or "", re.DOTALL)
    assert found, f"the docstring of {documented.__name__} has no example"
    return found


@pytest.mark.parametrize("documented", [*OF_REWARDS, *OF_EVALUATION], ids=lambda one: one.__name__)
def test_functions(documented, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for example in examples_of(documented):
        exec(compile(example, documented.__name__, "exec"), {})


def test_public_names_of_rewards():
    assert {"MetricReward", "RewardSum", "TrainingReferences", "caption_reward"} <= {
        one.__name__ for one in OF_REWARDS
    }


def test_self_retrieval(make_captioner, processor, scenes):
    names = {"model": make_captioner(), "processor": processor, "images": scenes}
    for example in examples_of(SelfRetrieval):
        exec(compile(example, "SelfRetrieval", "exec"), names)


@pytest.mark.parametrize("documented", [CaptioningTrainer, SCSTTrainer], ids=lambda one: one.__name__)
def test_trainers(documented, make_captioner, processor, scenes, tmp_path, monkeypatch):
    """With the arguments of the example, but one step on a CPU with short captions."""
    monkeypatch.chdir(tmp_path)
    initialise = CaptioningTrainingArguments.__post_init__

    def shortened(self):
        self.use_cpu, self.max_steps, self.disable_tqdm = True, 1, True
        self.generation_num_beams, self.generation_max_new_tokens = 1, 4
        initialise(self)

    monkeypatch.setattr(CaptioningTrainingArguments, "__post_init__", shortened)
    names = {"model": make_captioner(), "processor": processor, "images": scenes}
    for example in examples_of(documented):
        exec(compile(example, documented.__name__, "exec"), names)
    assert names["trainer"].state.global_step == 1
    assert list(tmp_path.glob("my_*captioner/checkpoint-1/model.safetensors"))
