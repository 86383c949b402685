"""Captions of an exported captioner: equal to those of the pipeline, and without torch."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest

from hf_captioners.onnx import OnnxCaptioner
from hf_captioners.onnx.onnx_facts import GenerationOptions
from hf_captioners.onnx.onnx_images import prepare_image, read_image
from hf_captioners.onnx.onnx_search import best, draw

# Run in the exported folder, with nothing of the library and of torch to be found.
ALONE = """
import sys
for name in ("torch", "transformers", "hf_captioners"):
    sys.modules[name] = None
from onnx_captioner import OnnxCaptioner, main
assert OnnxCaptioner(".")("photo.png", num_beams=2)[0]["generated_text"]
assert main(["photo.png"]) == 0
"""
LIGHT = """
import sys
from hf_captioners.onnx import OnnxCaptioner
print(OnnxCaptioner(sys.argv[1])(sys.argv[2])[0]["generated_text"])
assert not {"torch", "transformers"} & set(sys.modules)
"""


@pytest.fixture(scope="module")
def captioner(exported):
    return OnnxCaptioner(exported, threads=1)


@pytest.fixture(scope="module")
def pipeline(source):
    from hf_captioners.captioning.columns import load_pipeline

    return load_pipeline(str(source), device="cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Image files: colours, grey, transparent, turned, 16 bits."""
    folder, generator = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    levels = generator.integers(0, 256, (40, 50, 4), np.uint8)
    PIL.Image.fromarray(levels[..., :3]).save(folder / "a.png")
    PIL.Image.fromarray(levels[..., 0]).save(folder / "b.png")
    PIL.Image.fromarray(levels).save(folder / "c.png")
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    PIL.Image.fromarray(levels[..., 1:]).save(folder / "d.jpg", exif=exif)
    PIL.Image.fromarray(levels[..., 0].astype(np.uint16) * 257).save(folder / "e.png")
    PIL.Image.fromarray(levels[..., :3]).convert("P").save(folder / "f.png", transparency=3)
    PIL.Image.fromarray(levels).convert("CMYK").save(folder / "g.jpg")
    return sorted(map(str, folder.iterdir()))


def test_captions_equal_those_of_the_pipeline(captioner, pipeline, photos):
    calls = (
        {},
        {"num_beams": 1, "return_scores": True},
        {"num_beams": 4, "num_return_sequences": 3, "return_scores": True},
        {"prompt": "A red", "return_token_scores": True, "max_new_tokens": 3},
        {"num_beams": 2, "bad_words_ids": [[4], [5, 6]], "no_immediate_repetition": True, "trigram_penalty": 1.4},
        {"num_beams": 2, "bad_ending_ids": [7, 8], "min_length": 4, "begin_suppress_tokens": [9, 10]},
    )
    for options in calls:
        found, expected = (one(photos, batch_size=3, **options) for one in (captioner, pipeline))
        assert [[row["generated_text"] for row in rows] for rows in found] == [
            [row["generated_text"] for row in rows] for rows in expected
        ], options
        for row, other in zip(sum(found, []), sum(expected, []), strict=True):
            assert row.keys() == other.keys()
            assert row.get("tokens") == other.get("tokens")
            for name in ("score", "token_scores"):
                assert row.get(name, 0) == pytest.approx(other.get(name, 0), abs=1e-4)


def test_forms_of_images_and_results(captioner, photos):
    one = captioner(photos[0])
    assert list(one[0]) == ["generated_text"]
    with open(photos[0], "rb") as file:
        content = file.read()
    same = [content, PIL.Image.open(photos[0]), np.asarray(PIL.Image.open(photos[0])), {"image": photos[0]}]
    assert captioner(same, batch_size=2) == [one] * 4
    assert next(captioner(iter(photos))) == one
    assert captioner([]) == []
    mixed = captioner([{"image": photos[0], "prompt": "a dog"}, photos[0]], batch_size=2)
    assert mixed == [captioner(photos[0], prompt="a dog"), one] and mixed[0] != mixed[1]


def test_images_are_read_and_prepared_as_by_the_processor(photos, captioner, pipeline):
    from hf_captioners.processing import image_reading

    for path in photos:
        found, expected = read_image(path), image_reading.read_image(path)
        assert np.array_equal(found, expected), path
    sizes = ({"shortest_edge": 30}, {"height": 20, "width": 31}, {"max_height": 24, "max_width": 24})
    for size in sizes:
        for crop in (None, {"height": 22, "width": 27}, {"height": 41, "width": 40}):
            numbers = captioner.facts["image"] | {"size": size, "crop_size": crop}
            settings = {"size": size} | ({"do_center_crop": True, "crop_size": crop} if crop else {})
            for path in photos[:3]:
                wanted = pipeline.image_processor(path, return_tensors="np", **settings)["pixel_values"][0]
                np.testing.assert_allclose(prepare_image(read_image(path), numbers), wanted, atol=1e-6)


def test_sampling(captioner, photos):
    """The seed decides; the best token alone is greedy search; draws follow the distribution."""
    options = {"num_beams": 1, "do_sample": True, "num_return_sequences": 4, "max_new_tokens": 5}
    first = captioner(photos[0], seed=1, **options)
    assert first == captioner(photos[0], seed=1, **options) != captioner(photos[0], seed=2, **options)
    greedy = captioner(photos[0], num_beams=1, max_new_tokens=5)
    assert captioner(photos[0], seed=1, top_k=1, **options) == greedy * 4
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], np.float32)).repeat(20_000, 0)
    for changes, expected in (
        ({}, [0.5, 0.3, 0.15, 0.05]),
        ({"top_k": 2}, [0.625, 0.375, 0, 0]),
        ({"top_p": 0.9}, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        ({"temperature": 0.5}, [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]),
    ):
        drawn = draw(logits, GenerationOptions(do_sample=True, **changes), np.random.default_rng(0))
        np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 20_000, expected, atol=0.012)


def test_best_prefers_the_first_of_equal_ones():
    values = np.array([[1.0, 3.0, 3.0, 2.0, 3.0]])
    assert best(values, 2).tolist() == [[1, 2]] and best(values, 9).tolist() == [[1, 2, 4, 3, 0]]


@pytest.mark.parametrize("size", [4096, 12_701])
def test_best_of_many(size):
    """Which are looked for in the chunks with the largest maxima."""
    values = np.random.default_rng(0).permuted(np.arange(3 * size).reshape(3, size), axis=1).astype(np.float32)
    values[2, -1] = 1e9
    assert (best(values, 10) == np.argsort(-values, axis=-1)[:, :10]).all()


def test_without_torch(exported, photos, tmp_path):
    """The folder captions alone; the library's class imports neither torch nor transformers."""
    folder = tmp_path / "alone"
    shutil.copytree(exported, folder)
    shutil.copy(photos[0], folder / "photo.png")
    ran = subprocess.run([sys.executable, "-c", ALONE], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    caption = OnnxCaptioner(exported)(photos[0])[0]["generated_text"]
    assert ran.stdout.strip() == f"photo.png\t{caption}"
    typed = [sys.executable, "-c", LIGHT, str(exported), photos[0]]
    ran = subprocess.run(typed, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert (ran.stdout.strip(), ran.returncode) == (caption, 0), ran.stderr


def test_refused_options(captioner, photos):
    with pytest.raises(TypeError, match="no option `num_beam`; did you mean `num_beams`"):
        captioner(photos[0], num_beam=2)
    for options, message in (
        ({"num_beams": 0}, "`num_beams` is 0"),
        ({"num_beams": 1, "num_return_sequences": 2}, "do_sample=True"),
        ({"do_sample": True}, "`num_beams` above 1"),
        ({"temperature": 0.0}, "`temperature` is 0"),
        ({"top_p": 1.5}, "`top_p` is 1.5"),
        ({"batch_size": 0}, "`batch_size` is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            captioner([photos[0]], **options)


def test_refused_images(captioner, tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    (tmp_path / "page.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    for name in ("broken.jpg", "page.jpg"):
        with pytest.raises(ValueError, match=f"{name} cannot be read"):
            captioner(str(tmp_path / name))
    with pytest.raises(FileNotFoundError, match="missing.jpg"):
        captioner("missing.jpg")
    with pytest.raises(TypeError, match="given as int"):
        captioner(3)
    with pytest.raises(ValueError, match="reads images"):
        captioner({"features": np.zeros((2, 3))})


def test_damaged_folders(exported, tmp_path):
    """A missing, changed or foreign file is named with what to do."""
    with pytest.raises(FileNotFoundError, match="hf-captioners export"):
        OnnxCaptioner(tmp_path)
    folder = tmp_path / "copy"
    shutil.copytree(exported, folder)
    facts = json.loads((folder / "captioner.json").read_text())
    graph = folder / "onnx" / "decoder_model_merged.onnx"
    content = graph.read_bytes()
    graph.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"decoder_model_merged.onnx is damaged, or is a file of another export"):
        OnnxCaptioner(folder)
    graph.unlink()
    with pytest.raises(FileNotFoundError, match="lacks onnx/decoder_model_merged.onnx"):
        OnnxCaptioner(folder)
    (folder / "captioner.json").write_text(json.dumps(facts | {"format": 99}))
    with pytest.raises(ValueError, match="format 99, expected 1"):
        OnnxCaptioner(folder)
    (folder / "captioner.json").write_text("{")
    with pytest.raises(ValueError, match=r"captioner.json is damaged"):
        OnnxCaptioner(folder)


@pytest.mark.parametrize("kind", ["device", "folder", "large"])
def test_a_description_that_is_no_small_file_is_named(tmp_path, kind):
    path = tmp_path / "captioner.json"
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        with open(path, "wb") as file:
            file.truncate(2**34)
    with pytest.raises(
        ValueError, match=r"captioner.json is damaged or cannot be used: it (is no plain|has more than)"
    ):
        OnnxCaptioner(tmp_path)
