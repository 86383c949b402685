"""The ```python examples in the docstrings of trainers and rewards run, with tiny models instead of real ones."""

import inspect
import re

import pytest

from hf_captioners.training import CaptioningTrainer, CaptioningTrainingArguments, SCSTTrainer, evaluation, rewards

REWARDS = [rewards.CiderDReward, rewards.Bleu4Reward, rewards.MeteorReward, rewards.RougeLReward]
OF_REWARDS = [
    rewards.TrainingReferences,
    rewards.RewardSum,
    rewards.named_reward,
    rewards.load_frequency,
    rewards.checked,
]
OF_EVALUATION = [evaluation.score_captions, evaluation.caption_statistics]


def examples_of(documented):
    found = re.findall(r"```python\n(.*?)```", inspect.getdoc(documented) or "", re.DOTALL)
    assert found, f"the docstring of {documented.__name__} has no example"
    return found


@pytest.mark.parametrize("documented", [*REWARDS, *OF_REWARDS, *OF_EVALUATION], ids=lambda one: one.__name__)
def test_functions(documented, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for example in examples_of(documented):
        exec(compile(example, documented.__name__, "exec"), {})


def test_every_public_name_of_rewards_has_an_example():
    public = [
        one
        for name, one in vars(rewards).items()
        if getattr(one, "__module__", "") == rewards.__name__ and not name.startswith("_") and name != "ImageColumns"
    ]
    assert set(public) == {*REWARDS, *OF_REWARDS}


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
