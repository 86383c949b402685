"""Damage of captioners, in one list for both back-ends: a checkpoint for torch, an exported folder for onnxruntime.

Each entry changes a copy of a sound captioner. The digests of an exported folder are written anew afterwards, as an
attacker would.
"""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TORCH, ONNX = "torch", "onnx"
BACKENDS = (TORCH, ONNX)
GRAPHS = {"encoder": "onnx/encoder_model.onnx", "decoder": "onnx/decoder_model_merged.onnx"}
CONFIGURATION = {TORCH: "config.json", ONNX: "captioner.json"}
WEIGHTS = {TORCH: "model.safetensors", ONNX: GRAPHS["decoder"]}

Damage = Callable[[Path, str], None]


def change_json(path: Path, change: Callable[[Any], Any]) -> None:
    """Replace the content of a JSON file by what a function returns."""
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def seal(folder: Path) -> None:
    """Write the digests of an exported folder anew."""
    from hf_captioners.onnx.onnx_facts import file_digest

    facts = json.loads((folder / "captioner.json").read_text())
    facts["files"] = {name: file_digest(folder / name) for name in facts["files"] if (folder / name).is_file()}
    (folder / "captioner.json").write_text(json.dumps(facts))


def generation(**values: Any) -> Damage:
    """Return the damage of defaults of decoding."""

    def damage(folder: Path, backend: str) -> None:
        if backend == TORCH:
            change_json(folder / "generation_config.json", lambda content: content | values)
        else:
            change_json(folder / "captioner.json", lambda facts: facts | {"generation": facts["generation"] | values})

    return damage


def token(name: str, value: Any) -> Damage:
    """Return the damage of a special token: `start`, `end` or `pad`."""
    of_torch = {"start": "decoder_start_token_id", "end": "eos_token_id", "pad": "pad_token_id"}[name]

    def damage(folder: Path, backend: str) -> None:
        if backend == TORCH:
            return generation(**{of_torch: value})(folder, backend)
        wrong = [value] if name == "end" else value
        change_json(folder / "captioner.json", lambda facts: facts | {"tokens": facts["tokens"] | {name: wrong}})

    return damage


def preparation(**values: Any) -> Damage:
    """Return the damage of the preparation of images."""

    def damage(folder: Path, backend: str) -> None:
        crops = {"do_center_crop": True} if "crop_size" in values else {}
        name = "image" if backend == ONNX else "image_processor"
        path = folder / ("captioner.json" if backend == ONNX else "processor_config.json")
        changed = values if backend == ONNX else values | crops
        change_json(path, lambda content: content | {name: content[name] | changed})

    return damage


def weights(part: str, change: Callable[[np.ndarray], np.ndarray]) -> Damage:
    """Return the damage of the numbers of a part: `encoder` or `decoder`."""

    def damage(folder: Path, backend: str) -> None:
        if backend == TORCH:
            from safetensors.numpy import load_file, save_file

            path = folder / WEIGHTS[TORCH]
            arrays = load_file(path)
            of_part = "model.encoder." if part == "encoder" else "model.decoder."
            changed = {name: change(v) if name.startswith(of_part) else v for name, v in arrays.items()}
            save_file(changed, path, metadata={"format": "pt"})
            return
        import onnx
        from onnx import numpy_helper

        path = folder / GRAPHS[part]
        model = onnx.load(path)
        for tensor in model.graph.initializer:
            array = numpy_helper.to_array(tensor)
            if array.dtype == np.float32 and array.size > 1:
                tensor.CopyFrom(numpy_helper.from_array(change(array).astype(np.float32), tensor.name))
        onnx.save(model, path)

    return damage


def content(names: dict[str, str], change: Callable[[bytes], bytes] | None) -> Damage:
    """Return the damage of the bytes of a file; None removes it.

    Args:
        names: its name by back-end.
        change: returns the new content.
    """

    def damage(folder: Path, backend: str) -> None:
        path = folder / names[backend]
        if change is None:
            path.unlink()
        else:
            path.write_bytes(change(path.read_bytes()))

    return damage


def folder_instead(names: dict[str, str]) -> Damage:
    """Return the damage of a file in whose place there is a folder."""

    def damage(folder: Path, backend: str) -> None:
        (folder / names[backend]).unlink()
        (folder / names[backend]).mkdir()

    return damage


def without(part: str) -> Callable[[bytes], bytes]:
    """Return a function that removes a part of JSON."""
    return lambda whole: json.dumps({k: v for k, v in json.loads(whole).items() if k != part}).encode()


def growing(part: str) -> Callable[[bytes], bytes]:
    """Return a function that adds 40 rules to a tokenizer, each of which doubles the text."""
    rules = [{"type": "Replace", "pattern": {"String": letter}, "content": letter * 2} for letter in "ae" * 20]
    return lambda whole: json.dumps(json.loads(whole) | {part: {"type": "Sequence", f"{part}s": rules}}).encode()


TOKENIZER = dict.fromkeys(BACKENDS, "tokenizer.json")
DEEP = b"[" * 100_000
FILES = {"configuration": CONFIGURATION, "weights": WEIGHTS, "tokenizer": TOKENIZER}
CONTENTS: dict[str, Callable[[bytes], bytes] | None] = {
    "missing": None,
    "empty": lambda whole: b"",
    "text": lambda whole: b"no content of this kind\n",
    "cut": lambda whole: whole[: len(whole) // 2],
    "null": lambda whole: b"null",
    "a list": lambda whole: b"[1]",
    "deep": lambda whole: DEEP,
    "not UTF-8": lambda whole: b'{"a": "\xff"}',
    "zeros": lambda whole: bytes(len(whole)),
}
HUGE = {"height": 10**6, "width": 10**6}
DAMAGES: dict[str, Damage] = {
    **{f"{name}: {kind}": content(FILES[name], CONTENTS[kind]) for name in FILES for kind in CONTENTS},
    **{f"{name}: a folder": folder_instead(FILES[name]) for name in FILES},
    "tokenizer: without model": content(TOKENIZER, without("model")),
    "tokenizer: decoder that doubles": content(TOKENIZER, growing("decoder")),
    "tokenizer: normalizer that doubles": content(TOKENIZER, growing("normalizer")),
    "weights: NaN in the encoder": weights("encoder", lambda array: array * np.nan),
    "weights: NaN in the decoder": weights("decoder", lambda array: array * np.nan),
    "weights: infinite": weights("decoder", lambda array: np.where(array > 0, np.inf, array)),
    "weights: huge in the encoder": weights("encoder", lambda array: array * np.float32(1e30)),
    "weights: huge in the decoder": weights("decoder", lambda array: array * np.float32(1e38)),
    **{
        f"generation: {name} = {value}": generation(**{name: value})
        for name, value in (
            ("num_beams", 10**6),
            ("num_beams", 0),
            ("num_beams", "x"),
            ("num_beams", 1.5),
            ("max_new_tokens", 10**9),
            ("max_new_tokens", 500),  # the decoder has 40 positions
            ("max_new_tokens", "6"),
            ("num_return_sequences", 10**6),
            ("length_penalty", float("nan")),
            ("length_penalty", 1e308),
            ("repetition_penalty", 0.0),
            ("bad_words_ids", "x"),
        )
    },
    **{f"token: {name} = {value}": token(name, value) for name in ("start", "end") for value in (-1, "a", 1.5)},
    "token: start is not in the vocabulary": token("start", 10**6),
    "image: size of a million pixels": preparation(size=HUGE),
    "image: crop of a million pixels": preparation(size=HUGE, crop_size=HUGE),
    "image: size 0": preparation(size={"height": 0, "width": 0}),
    "image: negative size": preparation(size={"height": -5, "width": 32}),
    "image: another size than the encoder reads": preparation(size={"height": 48, "width": 48}),
    "image: mean of text": preparation(image_mean="x"),
    "image: mean NaN": preparation(image_mean=[float("nan")] * 3),
    "image: std 0": preparation(image_std=[0.0, 0.0, 0.0]),
    "image: unknown filter": preparation(resample=99),
    "image: huge factor": preparation(rescale_factor=1e308),
}
"""The damages by name; none of them leaves a captioner that captions."""


def damaged(source: Path, folder: Path, backend: str, damage: Damage) -> Path:
    """Return a damaged copy of a captioner.

    Args:
        source: the sound captioner.
        folder: where the copy is made.
        backend: for which one it is.
        damage: see `DAMAGES`.
    """
    copy = Path(shutil.copytree(source, folder / "captioner"))
    damage(copy, backend)
    if backend == ONNX:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):  # of damaged facts
            seal(copy)
    return copy
