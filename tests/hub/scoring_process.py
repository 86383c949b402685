"""Load captioners without the package installed, and store their logits.

Usage: python scoring_process.py FOLDER...; each has `captioner/` and `inputs.pt`, and gets `logits.pt`.
"""

import importlib.abc
import sys


class Absent(importlib.abc.MetaPathFinder):
    """Import hook that makes the package impossible to import."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] == "hf_captioners":
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


sys.meta_path.insert(0, Absent())

import torch  # noqa: E402
from transformers import AutoModelForImageTextToText  # noqa: E402

for folder in sys.argv[1:]:
    model = AutoModelForImageTextToText.from_pretrained(f"{folder}/captioner", trust_remote_code=True)
    with torch.no_grad():
        torch.save(model(**torch.load(f"{folder}/inputs.pt")).logits, f"{folder}/logits.pt")
