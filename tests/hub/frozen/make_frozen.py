"""Create a frozen checkpoint: `python -m tests.hub.frozen.make_frozen ARCHITECTURE`. Never replace an existing one.

A checkpoint that was once published has to give the same figures in every later version. So these files stay as they
are; a new architecture gets a new folder.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.hub.captioner_cases import case_of
from tests.modeling.common_case import CaptionerCase
from tests.modeling.tiny_detectors import make_attribute_detector


def frozen_inputs(case, model) -> dict[str, torch.Tensor]:
    """Return the inputs of the expected logits."""
    return {**case.inputs("pixels", images=1), "decoder_input_ids": case.captions(model, rows=1)}


def make(name: str) -> None:
    """Save a tiny captioner with its processor, inputs, logits and beam search captions."""
    folder = Path(__file__).with_name(name)
    if folder.exists():
        raise FileExistsError(f"{folder} is frozen.")
    case = case_of(name)
    model = case.make_model(seed=11).eval()
    model.save_pretrained(folder)
    case.make_processor().save_pretrained(folder)
    for path in (*folder.glob("*.py"), folder / "README.md"):  # the code is the package's own here
        path.unlink(missing_ok=True)
    inputs = frozen_inputs(case, model)
    with torch.no_grad():
        expected = {
            "logits": model(**inputs).logits,
            "captions": model.generate(
                pixel_values=inputs["pixel_values"], num_beams=3, max_new_tokens=6
            ).contiguous(),
        }
    save_file(inputs, folder / "inputs.safetensors")
    save_file(expected, folder / "expected.safetensors")


def make_detector() -> None:
    """Save a tiny attribute detector, regions and its probabilities."""
    folder = Path(__file__).with_name("auxiliary") / "attribute_detector"
    if folder.exists():
        raise FileExistsError(f"{folder} is frozen.")
    detector, inputs = make_attribute_detector(), CaptionerCase().inputs("regions")
    detector.save_pretrained(folder)
    for path in folder.glob("*.py"):
        path.unlink()
    save_file(inputs, folder / "inputs.safetensors")
    with torch.no_grad():
        save_file({"probabilities": detector(**inputs).probabilities}, folder / "expected.safetensors")


if __name__ == "__main__":
    make_detector() if sys.argv[1] == "attribute_detector" else make(sys.argv[1])
