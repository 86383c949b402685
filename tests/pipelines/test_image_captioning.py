"""`pipeline("image-captioning")`: all types of input, all types of captioner, and scores."""

import http.server
import json
import threading

import datasets
import numpy as np
import PIL.Image
import pytest
import torch
import transformers
from transformers.pipelines.pt_utils import KeyDataset

import hf_captioners  # noqa: F401  registers the pipeline
from hf_captioners.captioning.batches import load_pipeline
from hf_captioners.modeling import layers_packed
from hf_captioners.pipelines.image_captioning import (
    TASK,
    ImageCaptioningPipeline,
    bundle_pipeline,
    register_pipeline,
    upright_rgb,
)

from .tiny_captioners import BUILDERS, save

ALL = pytest.mark.parametrize("name", BUILDERS)
TOKENS = 6


@pytest.fixture(scope="module", autouse=True)
def offline():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        datasets.disable_progress_bars()
        yield


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    return {name: save(name, tmp_path_factory.mktemp(name)) for name in BUILDERS}


@pytest.fixture(scope="module")
def captioners(directories):
    return {
        name: transformers.pipeline(TASK, model=str(directory), device="cpu", max_new_tokens=TOKENS)
        for name, directory in directories.items()
    }


@pytest.fixture
def captioner(captioners, name):
    return captioners[name]


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    return [PIL.Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)) for _ in range(5)]


def assert_same(found, expected):
    """Compare records: texts exactly, scores within 1e-5 (sums depend on alignment and on the number of threads)."""
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name] == (pytest.approx(value, abs=1e-5) if name == "score" else value), name
    else:
        assert found == expected


def direct(captioner, image, **options):
    """Call `generate` of the model on one image."""
    if captioner.processor is not None and hasattr(captioner.processor, "encode_prompts"):
        inputs = captioner.processor(images=image, return_tensors="pt")
    else:
        inputs = captioner.image_processor(image, return_tensors="pt")
    return captioner.model.generate(**inputs, max_new_tokens=TOKENS, **options)


@ALL
def test_equals_direct_generation(captioner, images):
    for image in images:
        for options, count in (({}, 1), ({"num_beams": 3}, 1), ({"num_beams": 3, "num_return_sequences": 3}, 3)):
            expected = captioner.tokenizer.batch_decode(direct(captioner, image, **options), skip_special_tokens=True)
            records = captioner(image, **options)
            assert [record.keys() for record in records] == [{"generated_text"}] * count
            assert [record["generated_text"] for record in records] == [text.strip() for text in expected]


@ALL
def test_captions_depend_on_images(captioner, images):
    scores = [captioner(image, return_scores=True)[0]["score"] for image in images]
    assert len(set(scores)) == len(images)


@ALL
def test_batches_change_nothing(captioner, images):
    options = {"num_beams": 2, "num_return_sequences": 2, "return_scores": True, "return_token_scores": True}
    alone = [captioner(image, **options) for image in images]
    for batch_size in (1, 2, 5):
        together = captioner(images, batch_size=batch_size, **options)
        for one, other in zip(alone, together, strict=True):
            assert [r["generated_text"] for r in one] == [r["generated_text"] for r in other]
            assert [r["score"] for r in one] == pytest.approx([r["score"] for r in other], abs=1e-4)
            assert [r["tokens"] for r in one] == [r["tokens"] for r in other]


@ALL
def test_all_types_of_input(captioner, images, tmp_path):
    image, rows = images[0], []
    image.save(tmp_path / "p.png")
    expected = captioner(image)
    array = np.array(image)
    for one in (str(tmp_path / "p.png"), tmp_path / "p.png", (tmp_path / "p.png").read_bytes(), array):
        assert captioner(one) == expected
    assert captioner(torch.from_numpy(array)) == expected
    rows = datasets.Dataset.from_dict(
        {"image": images[:2], "n": [0, 1]},
        features=datasets.Features({"image": datasets.Image(), "n": datasets.Value("int64")}),
    )
    two = [expected, captioner(images[1])]
    many = [
        images[:2],
        tuple(images[:2]),
        np.stack([np.array(one) for one in images[:2]]),
        (one for one in images[:2]),
        iter(images[:2]),
        rows,
        rows.to_iterable_dataset(),
        KeyDataset(rows, "image"),
        [{"image": one} for one in images[:2]],
    ]
    for kind in many:
        assert list(captioner(kind)) == two, type(kind)
        assert isinstance(kind, (list, tuple, np.ndarray)) or next(iter(captioner(rows))) == two[0]
    assert captioner([]) == []
    with pytest.raises(ValueError, match=r"columns \['n'\]; expected 'image'"):
        captioner(rows.remove_columns("image"))


@ALL
def test_urls_and_their_timeout(captioner, images, tmp_path):
    clear = images[0].convert("RGBA")
    clear.putalpha(100)
    clear.save(tmp_path / "p.png")
    expected = captioner(str(tmp_path / "p.png"), return_scores=True)

    answer = threading.Event()

    class Slow(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path))

        def do_GET(self):
            if "slow" in self.path:
                answer.wait()
            super().do_GET()

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/p.png"
        assert_same(captioner(address, return_scores=True), expected)
        with pytest.raises(OSError, match="timed out"):
            captioner(f"{address}?slow", timeout=0.2)
        answer.set()
        server.shutdown()


@ALL
def test_modes_of_images(captioner, tmp_path):
    """Transparent black over white is white, also for the processors of transformers."""
    clear = PIL.Image.new("RGBA", (50, 40), (0, 0, 0, 0))
    clear.save(tmp_path / "clear.png")
    white = captioner(PIL.Image.new("RGB", (50, 40), "white"), return_scores=True)
    assert_same(captioner(str(tmp_path / "clear.png"), return_scores=True), white)
    for mode in ("L", "LA", "P", "1", "CMYK"):
        assert_same(captioner(PIL.Image.new("L", (50, 40), 255).convert(mode), return_scores=True), white)
    grey = np.random.default_rng(0).integers(0, 256, (40, 50), dtype=np.uint8)
    expected = captioner(grey, return_scores=True)
    PIL.Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    assert abs(expected[0]["score"] - white[0]["score"]) > 1e-3
    assert_same(captioner(PIL.Image.fromarray(grey), return_scores=True), expected)
    assert_same(captioner(str(tmp_path / "deep.png"), return_scores=True), expected)


@ALL
def test_scores_are_sums_of_log_probabilities(captioner, images):
    """Recomputed from the processed scores of a plain call, where there is no processing."""
    for options in ({}, {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.0}):
        for image in images[:3]:
            output = direct(captioner, image, return_dict_in_generate=True, output_scores=True, **options)
            records = captioner(image, return_scores=True, return_token_scores=True, **options)
            for index, record in enumerate(records):
                assert record["score"] == pytest.approx(sum(record["token_scores"]), abs=1e-5)
                assert len(record["tokens"]) == len(record["token_scores"]) <= TOKENS
                if "num_beams" in options:
                    assert record["score"] == pytest.approx(output.sequences_scores[index].item(), abs=1e-4)
                else:
                    ids = output.sequences[index, -len(output.scores) :]
                    steps = [
                        s[index].log_softmax(-1)[token].item() for s, token in zip(output.scores, ids, strict=True)
                    ]
                    assert record["token_scores"] == pytest.approx(steps[: len(record["tokens"])], abs=1e-5)


@ALL
def test_scores_end_with_the_end_token(captioner, images):
    ends = {"blip": "[SEP]", "git": "[SEP]"}.get(captioner.model.config.model_type, "</s>")
    torch.manual_seed(0)
    options = {"do_sample": True, "top_k": 0, "temperature": 5.0, "num_return_sequences": 8, "max_new_tokens": 12}
    records = captioner(images, return_token_scores=True, **options)
    ended = [r["tokens"] for image in records for r in image if ends in r["tokens"]]
    assert len(ended) >= 3, "no caption ends: the test checks nothing"
    assert all(tokens.index(ends) == len(tokens) - 1 for tokens in ended)


@ALL
def test_prompts(captioner, images):
    for record in captioner(images[0], prompt="a photo of", num_beams=2, num_return_sequences=2, return_scores=True):
        assert record["generated_text"].startswith("a photo of")
    bare = captioner(images[0])
    assert captioner(images[0], prompt="") == bare
    both = captioner([{"image": images[0], "prompt": "a dog"}, {"image": images[1], "prompt": "two man"}])
    assert [records[0]["generated_text"].split()[:2] for records in both] == [["a", "dog"], ["two", "man"]]
    batched = captioner(
        [{"image": images[0], "prompt": "a dog"}, {"image": images[1], "prompt": "two man"}], batch_size=2
    )
    assert batched == both


def test_prompts_of_different_lengths_in_a_batch(captioners, images):
    items = [{"image": images[0], "prompt": "a"}, {"image": images[1], "prompt": "two man on"}, images[2]]
    ours = captioners["visualgpt"]
    assert ours(items, batch_size=3) == ours(items)
    with pytest.raises(ValueError, match=r"have \[1, 3\] tokens; GitForCausalLM requires equal lengths"):
        captioners["git"](items[:2], batch_size=2)


def test_studies_of_several_views(captioners, images):
    """A study has one caption, in any batch and for any form of the views."""
    captioner = next(one for one in captioners.values() if one._is_native)
    studies = [images[:2], images[2:3], images[:3]]
    options = {"num_beams": 2, "return_scores": True}
    expected = []
    for study in studies:
        inputs = captioner.processor(images=[study], return_tensors="pt")
        output = captioner.model.generate(**inputs, max_new_tokens=TOKENS, num_beams=2)
        expected += captioner.processor.post_process_image_text_to_text(output)
    alone = [captioner([study], **options)[0] for study in studies]
    assert [records[0]["generated_text"] for records in alone] == expected
    assert len({records[0]["score"] for records in alone}) == 3
    assert alone[1][0]["score"] == pytest.approx(captioner(images[2], **options)[0]["score"], abs=1e-4)
    rows = datasets.Dataset.from_dict({"images": studies}).cast_column("images", datasets.List(datasets.Image()))
    ways = [studies, [studies[0], images[2], studies[2]], [{"images": study} for study in studies], rows]
    for batch_size in (1, 2, 3):
        for way in ways:
            together = list(captioner(way, batch_size=batch_size, **options))
            assert [records[0]["generated_text"] for records in together] == expected
            scores = [records[0]["score"] for records in together]
            assert scores == pytest.approx([records[0]["score"] for records in alone], abs=1e-4)
    foreign = next(one for one in captioners.values() if not one._is_native)
    with pytest.raises(ValueError, match=r"keys \['images'\]; expected 'image'"):
        foreign([studies[0]])


def test_regions(captioners):
    ours = captioners["visualgpt"]
    rng = np.random.default_rng(0)
    items = [{"features": rng.normal(size=(count, 16)).astype(np.float32)} for count in (2, 5, 3)]
    alone = [ours(item, num_beams=2, return_scores=True) for item in items]
    together = ours(items, num_beams=2, return_scores=True, batch_size=3)
    for one, other in zip(alone, together, strict=True):
        assert one[0]["generated_text"] == other[0]["generated_text"]
        assert one[0]["score"] == pytest.approx(other[0]["score"], abs=1e-4)
    with pytest.raises(ValueError, match=r"keys \['features'\]; expected 'image'"):
        captioners["blip"](items[0])


@ALL
def test_options_of_generate(captioner, images, directories, name):
    torch.manual_seed(0)
    sampled = {captioner(images[0], do_sample=True, top_k=0)[0]["generated_text"] for _ in range(8)}
    assert len(sampled) > 1
    short = captioner(images[0], max_new_tokens=2, return_token_scores=True)[0]
    assert len(short["tokens"]) <= 2
    assert captioner(images[0], generate_kwargs={"num_beams": 3}) == captioner(images[0], num_beams=3)
    with pytest.raises(ValueError, match="num_beems"):
        captioner(images[0], num_beems=3)
    with pytest.raises(ValueError, match=r"\['num_beams'\] were passed both"):
        captioner(images[0], num_beams=3, generate_kwargs={"num_beams": 2})
    preset = transformers.pipeline(
        TASK, model=str(directories[name]), device="cpu", max_new_tokens=TOKENS, num_beams=3, return_scores=True
    )
    assert_same(preset(images[0]), captioner(images[0], num_beams=3, return_scores=True))
    assert_same(preset(images[0], num_beams=1), captioner(images[0], num_beams=1, return_scores=True))


def test_own_options_of_generate_at_construction(directories, captioners, images):
    """`bookkeeping` is not a field of every generation configuration."""
    live = transformers.pipeline(TASK, model=str(directories["visualgpt"]), device="cpu", bookkeeping="live")
    expected = captioners["visualgpt"](images, bookkeeping="live", num_beams=3, max_new_tokens=8)
    assert live(images, num_beams=3, max_new_tokens=8) == expected


@ALL
def test_saved_pipeline_needs_neither_task_nor_library_names(captioner, images, tmp_path):
    captioner.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["custom_pipelines"] == {
        "captioning": {
            "impl": "image_captioning.ImageCaptioningPipeline",
            "pt": ["AutoModelForImageTextToText"],
            "type": "multimodal",
        }
    }
    options = {"device": "cpu", "max_new_tokens": TOKENS}
    travelled = transformers.pipeline(model=str(tmp_path), trust_remote_code=True, **options)
    assert type(travelled).__module__.startswith("transformers_modules")
    registered = transformers.pipeline(TASK, model=str(tmp_path), **options)  # without `trust_remote_code`
    assert type(registered) is ImageCaptioningPipeline
    expected = captioner(images, num_beams=2, return_scores=True)
    assert_same(travelled(images, num_beams=2, return_scores=True), expected)
    assert_same(registered(images, num_beams=2, return_scores=True), expected)


def test_bundling_keeps_the_configuration_and_may_be_repeated(directories, tmp_path):
    save("visualgpt", tmp_path)
    before = json.loads((tmp_path / "config.json").read_text())
    mode = (tmp_path / "config.json").stat().st_mode
    for _ in range(2):
        bundle_pipeline(tmp_path)
        after = json.loads((tmp_path / "config.json").read_text())
        assert {key: value for key, value in after.items() if key != "custom_pipelines"} == {
            key: value for key, value in before.items() if key != "custom_pipelines"
        }
    assert (tmp_path / "image_captioning.py").is_file()
    assert (tmp_path / "config.json").stat().st_mode == mode


def test_registering_twice_is_quiet(caplog):
    register_pipeline()
    register_pipeline()
    assert "already registered" not in caplog.text


def test_parts_without_a_processor(images):
    model, tokenizer, image_processor = BUILDERS["vision-encoder-decoder"]()
    parts = {"model": model, "tokenizer": tokenizer, "image_processor": image_processor}
    assert transformers.pipeline(TASK, **parts, device="cpu")(images[0])[0]["generated_text"]
    with pytest.raises(ValueError, match="The model has no image_processor"):
        ImageCaptioningPipeline(model=model, tokenizer=tokenizer, device="cpu")
    blind = transformers.ViTModel(transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1))
    with pytest.raises(ValueError, match="ViTModel cannot generate text"):
        ImageCaptioningPipeline(model=blind, tokenizer=tokenizer, image_processor=image_processor)


@ALL
def test_bad_images_are_named(captioner, tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"")
    with pytest.raises((ValueError, OSError), match="bad.jpg"):
        captioner(str(tmp_path / "bad.jpg"))
    with pytest.raises((ValueError, OSError), match="missing.jpg"):
        captioner(str(tmp_path / "missing.jpg"))


def test_upright(tmp_path):
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    PIL.Image.new("RGB", (4, 2)).save(tmp_path / "turned.jpg", exif=exif)
    assert upright_rgb(tmp_path / "turned.jpg").size == (2, 4)


class TestBuiltInPipeline:
    """The `image-text-to-text` pipeline of transformers, which requires a text."""

    @pytest.fixture(scope="class")
    def built_in(self, directories):
        return transformers.pipeline("image-text-to-text", model=str(directories["visualgpt"]), device="cpu")

    def test_without_a_prompt(self, built_in, captioners, images):
        for image in images:
            expected = captioners["visualgpt"](image)[0]["generated_text"]
            assert built_in(image, text="", max_new_tokens=TOKENS)[0]["generated_text"].strip() == expected

    def test_what_is_missing_is_said(self, built_in, images):
        with pytest.raises(ValueError, match="text"):
            built_in(images[0])
        with pytest.raises(ValueError, match=r'pipeline\(images=image, text=""\)'):
            built_in(text="a dog", max_new_tokens=TOKENS)
        with pytest.raises(ValueError, match=r"`guidance_scale` is 1.5, and captioners have no"):
            built_in(images[0], text="", generate_kwargs={"guidance_scale": 1.5})

    def test_with_a_prefix(self, built_in, captioners, images):
        expected = captioners["visualgpt"](images[0], prompt="a dog")[0]["generated_text"]
        whole = built_in(images[0], text="a dog", max_new_tokens=TOKENS)
        assert whole[0]["generated_text"] == expected
        added = built_in(images[0], text="a dog", max_new_tokens=TOKENS, return_full_text=False)
        assert f"a dog{added[0]['generated_text']}" == expected

    def test_several(self, built_in, captioners, images):
        prompts = ["a", "two man on", ""]
        records = built_in(images[:3], text=prompts, max_new_tokens=TOKENS)
        for image, prompt, record in zip(images, prompts, records, strict=False):
            record = record[0] if isinstance(record, list) else record
            assert (
                record["generated_text"].strip() == captioners["visualgpt"](image, prompt=prompt)[0]["generated_text"]
            )

    def test_beams(self, built_in, directories, images):
        options = {"num_beams": 3, "num_return_sequences": 3}
        records = built_in(images[0], text="", max_new_tokens=TOKENS, generate_kwargs=options)
        exact = transformers.pipeline(
            TASK, model=str(directories["visualgpt"]), device="cpu", packed_weights="float32"
        )
        expected = exact(images[0], max_new_tokens=TOKENS, **options)  # random weights do not bear float16
        assert [r["generated_text"].strip() for r in records] == [r["generated_text"] for r in expected]


class TestPackedWeights:
    """The number format of packed weights where none is given: float16 for one image at a time."""

    @pytest.mark.parametrize(("batch_size", "weights"), [(None, "float16"), (1, "float16"), (8, "float32")])
    def test_default_follows_the_batch_size(self, directories, batch_size, weights):
        source = str(directories["visualgpt"])
        captioner = transformers.pipeline(TASK, model=source, device="cpu", batch_size=batch_size)
        if weights not in captioner.model.packings:
            weights = "float32"
        assert captioner.model.packed_weights == weights

    def test_weights_that_are_packed_stay(self, directories):
        captioner = transformers.pipeline(TASK, model=str(directories["visualgpt"]), device="cpu", batch_size=8)
        again = transformers.pipeline(
            TASK, model=captioner.model, tokenizer=captioner.tokenizer, image_processor=captioner.image_processor
        )
        assert again.model.packed_weights == "float32"

    def test_machine_without_float16_packs_float32(self, directories, monkeypatch):
        monkeypatch.setitem(layers_packed.PACKING, "float16", None)
        captioner = transformers.pipeline(TASK, model=str(directories["visualgpt"]), device="cpu")
        assert captioner.model.packed_weights == "float32"

    def test_batches_of_a_job_are_exact(self, directories):
        assert load_pipeline(str(directories["visualgpt"]), "cpu").model.packed_weights == "float32"
