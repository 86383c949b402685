"""Fixtures: captioned images, and small language, vision and captioning models."""

from functools import partial

import pytest

from .tiny_parts import (
    draw_scenes,
    write_attribute_detector,
    write_captioner,
    write_detector,
    write_images,
    write_language_model,
    write_vision_model,
    write_word_captioner,
)


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Keep names that are not directories from being looked up on the network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="session")
def scenes(run_folder):
    """10 drawn images with five captions each."""
    return draw_scenes(run_folder / "scenes")


@pytest.fixture(scope="session")
def images(once_a_run, scenes):
    """A folder of images with a `metadata.jsonl`."""
    return once_a_run("images", partial(write_images, scenes=scenes))


@pytest.fixture(scope="session")
def language_model(once_a_run, scenes):
    """A GPT-2 of two layers with a byte-level BPE."""
    return str(once_a_run("language_model", partial(write_language_model, scenes=scenes)))


@pytest.fixture(scope="session")
def vision_model(once_a_run):
    """A ViT with one layer and 16 patches."""
    return str(once_a_run("vision_model", write_vision_model))


@pytest.fixture(scope="session")
def detector(once_a_run):
    """A YOLOS detector with one layer and 6 queries."""
    return str(once_a_run("detector", write_detector))


@pytest.fixture(scope="session")
def attribute_detector(once_a_run, scenes, vision_model):
    """An attribute detector for ten words, over the regions of the vision model."""
    fill = partial(write_attribute_detector, scenes=scenes, vision_model=vision_model)
    return str(once_a_run("attribute_detector", fill))


@pytest.fixture(scope="session")
def captioner(once_a_run, language_model, vision_model):
    """An untrained VisualGPT made of these parts, saved."""
    fill = partial(write_captioner, language_model=language_model, vision_model=vision_model)
    return str(once_a_run("captioner", fill))


@pytest.fixture(scope="session")
def word_captioner(once_a_run, scenes, vision_model):
    """An untrained Show, Attend and Tell with hard attention, saved."""
    fill = partial(write_word_captioner, scenes=scenes, vision_model=vision_model)
    return str(once_a_run("word_captioner", fill))
