"""Fixtures: images from the tests of data, tiny captioners from the tests of training."""

from tests.data.conftest import image, load, quiet_progress  # noqa: F401
from tests.training.conftest import make_captioner, make_trainer, processor, scenes, tokenizer  # noqa: F401
