"""A tiny exported captioner of images with 40 positions, made once a run."""

from pathlib import Path

import pytest

from tests.hub.captioner_cases import save_captioner
from tests.modeling.gpt2_parts import TEXT

NAME = "visualgpt"


@pytest.fixture(scope="session")
def source(once_a_run) -> Path:
    """Folder of a tiny captioner."""
    terms = {"license": "cc-by-4.0", "summary": "Weights of somebody.", "notice": "Named by somebody."}

    def fill(folder: Path) -> None:
        _, model = save_captioner(NAME, folder, encoder_layers=1, text_config=TEXT | {"n_layer": 1})
        model.config.weights_license = terms
        model.generation_config.update(num_beams=3, max_new_tokens=6, suppress_tokens=[3])
        model.save_pretrained(folder)

    return once_a_run("captioner_to_export", fill)


@pytest.fixture(scope="session")
def exported(source, once_a_run) -> Path:
    """Folder of the exported captioner."""
    from hf_captioners.cli import main

    def fill(folder: Path) -> None:
        assert main(["export", str(source), "--output_dir", str(folder / "exported")]) == 0

    return once_a_run("exported_captioner", fill) / "exported"
