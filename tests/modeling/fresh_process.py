"""Load a checkpoint first without the package, then with it, and store the results.

Usage: python fresh_process.py CHECKPOINT INPUTS RESULTS FOLDER PACKAGE, the package that registers the architecture
"""

import importlib
import importlib.abc
import sys


class Absent(importlib.abc.MetaPathFinder):
    """Finder that makes the package impossible to import."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] == "hf_captioners":
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


absent = Absent()
sys.meta_path.insert(0, absent)

import torch  # noqa: E402
from PIL import Image  # noqa: E402
from transformers import AutoModel, AutoModelForImageTextToText, AutoProcessor, pipeline  # noqa: E402

checkpoint, inputs_file, results_file, folder, package = sys.argv[1:]
given = torch.load(inputs_file)
image = Image.open(given["image"])


@torch.no_grad()
def run(**trust) -> dict:
    """Return logits, states, captions and inputs of the checkpoint."""
    model = AutoModelForImageTextToText.from_pretrained(checkpoint, **trust)
    trunk = AutoModel.from_pretrained(checkpoint, **trust)
    processor = AutoProcessor.from_pretrained(checkpoint, **trust)
    forward = {way: {**inputs, "decoder_input_ids": given["captions"]} for way, inputs in given["inputs"].items()}
    processed = dict(processor(images=image, text="a dog", return_tensors="pt"))
    return {
        "logits": {way: model(**inputs).logits for way, inputs in forward.items()},
        "hidden": {way: trunk(**inputs).last_hidden_state for way, inputs in forward.items()},
        "captions": model.generate(**given["inputs"]["regions"], num_beams=3, max_new_tokens=6),
        "processed": processed,
        "text": processor.post_process_image_text_to_text(
            model.generate(pixel_values=processed["pixel_values"], max_new_tokens=6)
        ),
        "modules": sorted({type(part).__module__ for part in (model, trunk, processor)}),
    }


results = {}
try:
    import hf_captioners
except ModuleNotFoundError as error:
    results["import_error"] = str(error)
results["without"] = run(trust_remote_code=True)
captioner = pipeline(model=checkpoint, trust_remote_code=True)
results["without"]["pipeline"] = captioner(image, max_new_tokens=6)
studies = [[image, image.transpose(Image.Transpose.ROTATE_90)], [image]]
results["without"]["studies"] = captioner(studies, batch_size=2, max_new_tokens=6)
results["executed"] = {name.rpartition(".")[2] for name in sys.modules if name.startswith("transformers_modules.")}
results["imported"] = sorted(name for name in sys.modules if name.partition(".")[0] in ("hf_captioners", "modeling"))

sys.meta_path.remove(absent)
import hf_captioners  # noqa: E402, F401, F811

sys.path.append(folder)
importlib.import_module(package)
results["with"] = run()
captioner = pipeline("image-captioning", checkpoint)
results["with"]["pipeline"] = captioner(image, max_new_tokens=6)
results["with"]["studies"] = captioner(studies, batch_size=2, max_new_tokens=6)
torch.save(results, results_file)
