"""For `make test-extras`: an exported captioner in an environment that has neither torch nor transformers.

python -m tests.onnx.without_torch make DIR    # here: a tiny captioner, an image, and its captions
python tests/onnx/without_torch.py run DIR     # there: the same captions
"""

import importlib.util
import json
import sys
from pathlib import Path

OPTIONS = ({"num_beams": 1}, {"num_beams": 3, "num_return_sequences": 2})


def make(folder: Path) -> None:
    """Export a tiny captioner, and write what the pipeline returns for an image."""
    import PIL.Image

    from hf_captioners.captioning.columns import load_pipeline
    from hf_captioners.onnx import export_captioner
    from tests.hub.captioner_cases import save_captioner

    save_captioner("show_attend_tell", folder / "captioner")
    PIL.Image.radial_gradient("L").resize((60, 40)).save(folder / "image.png")
    export_captioner(folder / "captioner", folder / "exported")
    pipeline = load_pipeline(str(folder / "captioner"), device="cpu")
    expected = [pipeline(str(folder / "image.png"), **options) for options in OPTIONS]
    (folder / "expected.json").write_text(json.dumps(expected))


def run(folder: Path) -> None:
    """Caption the image, and compare."""
    for name in ("torch", "transformers", "hf_captioners"):
        assert importlib.util.find_spec(name) is None, f"{name} is installed here"
    sys.path.insert(0, str(folder / "exported"))
    from onnx_captioner import OnnxCaptioner

    captioner = OnnxCaptioner(folder / "exported")
    found = [captioner(str(folder / "image.png"), **options) for options in OPTIONS]
    expected = json.loads((folder / "expected.json").read_text())
    assert found == expected, (found, expected)
    print(f"{len(found)} calls without torch and transformers return what the pipeline returns")


if __name__ == "__main__":
    {"make": make, "run": run}[sys.argv[1]](Path(sys.argv[2]))
