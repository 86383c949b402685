"""The ```python examples in the docstrings of trainers and rewards run, with tiny models instead of real ones."""

import inspect
import re

import pytest

from hf_captioners.training import (
    CaptioningTrainer,
    CaptioningTrainingArguments,
    SCSTTrainer,
    evaluation,
)
from hf_captioners.training.rewards import functions, references, weighted_sum
from hf_captioners.training.scst.self_retrieval import SelfRetrieval


def public_names(module):
    return [
        one
        for name, one in vars(module).items()
        if getattr(one, "__module__", "") == module.__name__ and not name.startswith("_")
        if not (isinstance(one, type) and issubclass(one, Exception))
    ]


OF_REWARDS = [one for module in (references, weighted_sum, functions) for one in public_names(module)]
OF_EVALUATION = [evaluation.score_captions, evaluation.caption_statistics]


def examples_of(documented):
    found = re.findall(r"```python\n(.*?)```", inspect.getdoc(documented) or "", re.DOTALL)
    assert found, f"the docstring of {documented.__name__} has no example"
    return found


def refuses(check_rewards, name):
    """Whether a name is refused with its nearest one."""
    with pytest.raises(ValueError, match=f"There is no reward '{name}'.*Did you mean `cider_d`"):
        check_rewards([name])
    return True


# What holds after examples that show a call without a result that a reader needs to see.
HOLDS = {
    "load_frequency": lambda names: names["frequency"].n_documents == 2 and len(names["frequency"].counts) > 0,
    "check_rewards": lambda names: refuses(names["check_rewards"], "ciderd"),
}


@pytest.mark.parametrize("documented", [*OF_REWARDS, *OF_EVALUATION], ids=lambda one: one.__name__)
def test_functions(documented, tmp_path, monkeypatch):
    """Every example asserts what it shows, or `HOLDS` does."""
    monkeypatch.chdir(tmp_path)
    for example in examples_of(documented):
        names = {}
        exec(compile(example, documented.__name__, "exec"), names)
        if documented.__name__ in HOLDS:
            assert HOLDS[documented.__name__](names)
        else:
            assert re.search(r"^assert ", example, re.MULTILINE), f"the example of {documented.__name__} shows nothing"


def test_public_names_of_rewards():
    assert {"MetricReward", "RewardSum", "TrainingReferences", "caption_reward"} <= {
        one.__name__ for one in OF_REWARDS
    }


def test_self_retrieval(make_captioner, processor, scenes):
    """The example's captions have the probabilities of their images, which those of the other image complement."""
    names = {"model": make_captioner(), "processor": processor, "images": scenes}
    (example,) = examples_of(SelfRetrieval)
    exec(compile(example, "SelfRetrieval", "exec"), names)
    first, second = (names["rows"][index]["image"] for index in (0, 1))
    swapped = names["reward"](["a red circle", "two blue stars"], images=[second, first])
    assert [one + other for one, other in zip(names["values"], swapped, strict=True)] == pytest.approx([1.0, 1.0])
    assert names["values"] != swapped


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
    names["model"].is_untrained = False  # as if it had been trained, which self-critical training needs
    for example in examples_of(documented):
        exec(compile(example, documented.__name__, "exec"), names)
    assert names["trainer"].state.global_step == 1
    assert list(tmp_path.glob("my_*captioner/checkpoint-1/model.safetensors"))
