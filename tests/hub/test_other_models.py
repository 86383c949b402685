"""A model of transformers is pushed, and captions alike from the Hub and in a fresh process."""

import json
import os
from functools import partial

import numpy as np
import PIL.Image
import pytest
from transformers import AutoModelForImageTextToText, AutoProcessor

from hf_captioners.captioning.batches import load_pipeline
from hf_captioners.hub.checkpoint_files import checkpoint_files
from hf_captioners.hub.pushing import push_checkpoint
from hf_captioners.pipelines.image_captioning import IMAGE_CAPTIONERS
from tests.tiny_families import FAMILIES, FAST, write_family
from tests.variants import slow_unless

LENGTH = {"do_sample": False, "min_new_tokens": 8, "max_new_tokens": 8}
FRESH = """
import json, sys
from hf_captioners.captioning.batches import load_pipeline
from hf_captioners.hub.checkpoint_files import checkpoint_files
from hf_captioners.hub.pushing import push_checkpoint

captioner = load_pipeline(sys.argv[1], "cpu")
options = {"do_sample": False, "min_new_tokens": 8, "max_new_tokens": 8, "return_scores": True}
print(json.dumps(captioner(sys.argv[2], **options)))
"""


@pytest.mark.parametrize(
    "model_type", slow_unless(FAST.__contains__, [name for name in FAMILIES if name not in IMAGE_CAPTIONERS])
)
def test_push_and_caption(model_type, once_a_run, hub, fork_server, tmp_path):
    folder = once_a_run(f"family_{model_type}", partial(write_family, model_type=model_type))
    pixels = np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)
    image = str(tmp_path / "a.png")
    PIL.Image.fromarray(pixels).save(image)
    expected = load_pipeline(str(folder), "cpu")(image, return_scores=True, **LENGTH)
    AutoModelForImageTextToText.from_pretrained(folder).push_to_hub("tester/other")
    AutoProcessor.from_pretrained(folder).push_to_hub("tester/other")
    assert load_pipeline("tester/other", "cpu")(image, return_scores=True, **LENGTH) == expected
    for name in (str(folder), "tester/other"):
        environment = {**os.environ, **hub.environment(tmp_path / "fresh")}
        ran = fork_server.run(["-c", FRESH, name, image], env=environment, libraries="torch")
        assert ran.returncode == 0, ran.stderr
        (found,) = json.loads(ran.stdout.splitlines()[-1])
        assert found["generated_text"] == expected[0]["generated_text"]
        assert found["score"] == pytest.approx(expected[0]["score"], abs=1e-4)


def test_second_tokenizers_are_pushed(once_a_run, hub):
    """That of the Q-Former of InstructBLIP lies in a folder; without it the captions differ, and nothing is said."""
    folder = once_a_run("family_instructblip", partial(write_family, model_type="instructblip"))
    names = {path.relative_to(folder).as_posix() for path in checkpoint_files(folder)}
    assert {"qformer_tokenizer/tokenizer.json", "qformer_tokenizer/tokenizer_config.json"} <= names
    push_checkpoint(folder, "tester/second")
    assert names <= set(hub.repository("tester/second").files())
