"""The page `examples/browser_captioner` in a real browser: the same pixels and captions as `OnnxCaptioner`."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from hf_captioners.onnx import OnnxCaptioner, export_captioner
from hf_captioners.onnx.onnx_images import prepare_image, read_image
from tests.browser import open_browser
from tests.hub.captioner_cases import case_of

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
OPTIONS = (
    {},
    {"num_beams": 1},
    {"num_beams": 4, "length_penalty": 0.0, "early_stopping": True},
    {"num_beams": 2, "length_penalty": 2.0, "early_stopping": "never", "bad_words_ids": [[5], [6, 7]]},
    {"num_beams": 3, "min_new_tokens": 5, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
    {"num_beams": 2, "no_immediate_repetition": True, "bad_ending_ids": [7, 9], "trigram_penalty": 2.0},
)
SIZES = (
    {"size": {"height": 24, "width": 31}},
    {"size": {"shortest_edge": 37}, "crop_size": {"height": 32, "width": 32}},
    {"size": {"max_height": 70, "max_width": 65}, "crop_size": {"height": 72, "width": 41}},
    {"size": None, "crop_size": {"height": 45, "width": 33}, "image_mean": None, "image_std": None},
)
PREPARE = """
const done = arguments[arguments.length - 1];
(async () => {
  const { readImage, prepareImage } = await import("./image.js");
  const image = await readImage(await (await fetch(arguments[0])).blob());
  return arguments[1].map((numbers) => Array.from(prepareImage(image, numbers).values));
})().then(done, (error) => done(String(error)));
"""
CAPTION = """
const done = arguments[arguments.length - 1];
(async () => {
  const blob = await (await fetch(arguments[0])).blob();
  const captions = [];
  for (const options of arguments[1]) captions.push(await captioner.caption(blob, options));
  return captions;
})().then(done, (error) => done(String(error)));
"""


@pytest.fixture(scope="module")
def page():
    """The module of the benchmark, which installs and serves the page."""
    path = ROOT / "benchmarks" / "browser_captions.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))  # it imports others of that folder
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def installed(page, exported, tmp_path_factory):
    """The page with a recurrent captioner, and images of several kinds."""
    if shutil.which("npm") is None:
        pytest.skip("no npm: apt-get install npm")
    folder = tmp_path_factory.mktemp("page")
    try:
        page.install_page(folder, exported)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"npm cannot install onnxruntime-web: {error.stderr.splitlines()[:1]}")
    generator = np.random.default_rng(0)
    levels = generator.integers(0, 256, (57, 80, 4), np.uint8)
    (folder / "images").mkdir()
    PIL.Image.fromarray(levels[..., :3]).save(folder / "images" / "wide.png")
    PIL.Image.fromarray(np.ascontiguousarray(levels[..., :3].swapaxes(0, 1))).save(folder / "images" / "high.png")
    PIL.Image.fromarray(levels[..., 0]).save(folder / "images" / "grey.png")
    levels[..., 3] = np.where(levels[..., 3] > 128, 255, 0)
    PIL.Image.fromarray(levels).save(folder / "images" / "holes.png")
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    PIL.Image.fromarray(levels[..., :3]).save(folder / "images" / "turned.png", exif=exif)
    return folder


def captions_in(browser, folder, path) -> list[str]:
    return browser.execute_async_script(CAPTION, str(path.relative_to(folder)), list(OPTIONS))


def test_captions_and_pixels(page, browser, installed, exported):
    captioner = OnnxCaptioner(exported, threads=1)
    usual = captioner.facts["image"]
    settings = [usual | {"resample": kind} for kind in range(6)] + [usual | {"crop_size": None} | one for one in SIZES]
    with page.serving(installed) as address:
        page.open_page(browser, address)
        assert browser.get_log("browser") == []
        for path in sorted((installed / "images").iterdir()):
            found = browser.execute_async_script(PREPARE, str(path.relative_to(installed)), settings)
            for values, numbers in zip(found, settings, strict=True):
                expected = prepare_image(read_image(path), numbers).reshape(-1)
                assert len(values) == len(expected) and np.abs(np.array(values) - expected).max() < 1e-5, (
                    path,
                    numbers,
                )
            expected = [captioner(str(path), **options)[0]["generated_text"] for options in OPTIONS]
            assert captions_in(browser, installed, path) == expected
        assert (
            page.caption_in_page(browser, installed / "images" / "wide.png")
            == captioner(str(installed / "images" / "wide.png"))[0]["generated_text"]
        )
        assert page.requested_hosts(browser) == {"127.0.0.1"}
        refused = browser.execute_async_script(CAPTION, "images/wide.png", [{"do_sample": True}])
        assert "does not decode with do_sample=true" in refused
        assert "is no image that the browser can read" in browser.execute_async_script(CAPTION, "page.css", [{}])


def test_a_cache_and_byte_pairs(page, browser, installed, tmp_path):
    """VisualGPT, whose cache of keys and values begins empty, and whose tokens stand for bytes."""
    case = case_of("visualgpt")
    export_captioner(case.make_model(), tmp_path / "exported", case.make_processor())
    folder = tmp_path / "page"
    shutil.copytree(installed, folder, symlinks=True, ignore=shutil.ignore_patterns("captioner"))
    shutil.copytree(tmp_path / "exported", folder / "captioner")
    captioner = OnnxCaptioner(tmp_path / "exported", threads=1)
    with page.serving(folder) as address:
        page.open_page(browser, address)
        for path in sorted((folder / "images").iterdir()):
            expected = [captioner(str(path), **options)[0]["generated_text"] for options in OPTIONS]
            assert captions_in(browser, folder, path) == expected


def test_damaged_folders(page, browser, installed, tmp_path):
    folder = tmp_path / "page"
    shutil.copytree(installed, folder, symlinks=True)
    with page.serving(folder) as address:
        with open(folder / "captioner" / "tokenizer.json", "a") as file:
            file.write(" ")
        with pytest.raises(RuntimeError, match=r"tokenizer.json is damaged, or is a file of another export"):
            page.open_page(browser, address)
        (folder / "captioner" / "onnx" / "encoder_model.onnx").unlink()
        with pytest.raises(RuntimeError, match=r"encoder_model.onnx is missing \(404\). Export a captioner: hf-capt"):
            page.open_page(browser, address)
