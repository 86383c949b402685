"""Image-to-text models of transformers: captions are those of their own processors and `generate()`."""

import pickle
from functools import partial

import numpy as np
import PIL.Image
import pytest
import torch
import transformers

from hf_captioners.architectures import TRANSFORMERS_CAPTIONERS
from hf_captioners.captioning import CaptionBatches
from hf_captioners.captioning.batches import caption_batches, load_pipeline
from hf_captioners.pipelines.image_captioning import IMAGE_CAPTIONERS, TASK, ImageCaptioningPipeline
from tests.plain_transformers import PlainCaptioner
from tests.tiny_families import FAMILIES, FAST, with_t5, write_family
from tests.variants import slow_unless

EVERY = slow_unless(FAST.__contains__, FAMILIES)
INSTRUCTED = slow_unless(FAST.__contains__, [name for name in FAMILIES if name not in IMAGE_CAPTIONERS])
LENGTH = {"min_new_tokens": 8, "max_new_tokens": 12, "do_sample": False}
WITHOUT_INSTRUCTION = (*IMAGE_CAPTIONERS, "pix2struct")


@pytest.fixture(scope="module")
def images():
    """16 images of several shapes: noise with a gradient, so that all differ."""
    rng = np.random.default_rng(0)
    sizes = [(40, 56), (64, 48), (33, 90), (72, 72)] * 4
    levels = [rng.integers(0, 256, (2, 3, 3), dtype=np.uint8) for _ in sizes]
    return [PIL.Image.fromarray(level).resize(size, 2) for level, size in zip(levels, sizes, strict=True)]


@pytest.fixture(scope="module")
def folder_of(once_a_run):
    return lambda name: once_a_run(f"family_{name}", partial(write_family, model_type=name))


@pytest.fixture
def folder(folder_of, model_type):
    return folder_of(model_type)


def test_every_family_of_the_table_is_compared():
    assert set(FAMILIES) == set(TRANSFORMERS_CAPTIONERS)


@pytest.mark.parametrize("model_type", EVERY)
def test_equals_plain_transformers(model_type, folder, images):
    """Tokens and log-probabilities of 16 images, alone and in batches of 4."""
    plain, captioner = PlainCaptioner(folder), load_pipeline(str(folder), "cpu")
    different = 0
    for size in (1, 4):
        for first in range(0, len(images), size):
            batch = images[first : first + size]
            records = captioner(batch, batch_size=size, return_token_scores=True, **LENGTH)
            for (record,), (tokens, logprobs) in zip(records, plain(batch, **LENGTH), strict=True):
                words = [plain.tokenizer.decode([token]) for token in tokens]
                assert len(tokens) >= 8
                different += record["tokens"] != words
                if record["tokens"] == words:
                    assert record["token_scores"] == pytest.approx(logprobs, abs=1e-4)
    assert different == 0


@pytest.mark.parametrize("model_type", INSTRUCTED)
def test_batches_of_files_equal_the_pipeline(model_type, folder, images, tmp_path):
    """Prepared in another process, which gets no weights, and without the prompt in the captions."""
    files = [str(tmp_path / f"{place}.png") for place in range(4)]
    for image, file in zip(images, files, strict=False):
        image.save(file)
    captioner = load_pipeline(str(folder), "cpu")
    batches = CaptionBatches(captioner, **LENGTH)
    prepare = pickle.loads(pickle.dumps(batches.preparation()))
    (tmp_path / "broken.png").write_bytes(b"no image")
    columns = batches.caption(prepare([*files[:2], str(tmp_path / "broken.png"), *files[2:]]))
    expected = [records[0] for records in captioner(images[:4], batch_size=4, return_scores=True, **LENGTH)]
    assert [text for text in columns["caption"] if text is not None] == [one["generated_text"] for one in expected]
    assert "broken.png" in columns["error"][2] and columns["caption"][2] is None
    assert [score for score in columns["score"] if score is not None] == pytest.approx(
        [record["score"] for record in expected], abs=1e-4
    )


@pytest.mark.parametrize("model_type", INSTRUCTED)
def test_instructions(model_type, folder, images):
    """They change captions, each image may have its own, and none is part of a caption."""
    captioner = load_pipeline(
        str(folder),
        "cpu",
    )
    asked = "two children ?"
    if model_type in WITHOUT_INSTRUCTION:
        with pytest.raises(ValueError, match=r"`instruction` is 'two children \?', and this pix2struct reads images"):
            captioner(images[0], instruction=asked)
        return
    plain = PlainCaptioner(folder)
    answers = [plain(images[:1], text, **LENGTH)[0] for text in (asked, None)]
    assert abs(answers[0][1][0] - answers[1][1][0]) > 1e-4  # log-probabilities of the first tokens
    texts = [plain.tokenizer.decode(tokens, skip_special_tokens=True).strip() for tokens, _ in answers]
    items = [{"image": images[0], "instruction": asked}, {"image": images[0]}]
    assert [records[0]["generated_text"] for records in captioner(items, batch_size=1, **LENGTH)] == texts
    together = captioner(items, batch_size=2, return_scores=True, **LENGTH)
    alone = captioner(items, batch_size=1, return_scores=True, **LENGTH)
    for (one,), (other,) in zip(together, alone, strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=1e-3)


@pytest.mark.parametrize("model_type", EVERY)
def test_beginnings(model_type, folder, images):
    """A caption goes on as that which began with the same words: its first words, fed back, change nothing."""
    captioner = load_pipeline(str(folder), "cpu")
    (record,) = captioner(images[0], prompt="a dog", max_new_tokens=4, do_sample=False, return_token_scores=True)
    assert record["generated_text"].startswith("a dog") and len(record["tokens"]) <= 4
    items = [{"image": image, "prompt": "a dog"} for image in images[:4]]
    options = {"do_sample": False, "max_new_tokens": 4, "return_scores": True}
    for (one,), (other,) in zip(captioner(items, batch_size=4, **options), captioner(items, **options), strict=True):
        assert one["generated_text"] == other["generated_text"]
        assert one["score"] == pytest.approx(other["score"], abs=1e-3)


@pytest.mark.parametrize("model_type", EVERY)
def test_default_length(model_type, folder):
    pipeline = transformers.pipeline(TASK, model=str(folder), device="cpu")
    length = pipeline._prepare_generate_kwargs({})["max_new_tokens"]
    shared = 128 if model_type == "blip-2" else 256  # it has 256 positions here, some of them of the prompt
    assert length == (32 if model_type in WITHOUT_INSTRUCTION else shared)


@pytest.mark.parametrize("model_type", INSTRUCTED)
def test_beams(model_type, folder, images):
    """Several captions of an image, with the placeholders of its prompt gone."""
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 6, "do_sample": False}
    plain, captioner = PlainCaptioner(folder), load_pipeline(str(folder), "cpu")
    inputs = plain.inputs(images[:2])
    rows = plain.model.generate(**inputs, **options)
    if "input_ids" in inputs and rows[::2, : inputs["input_ids"].shape[1]].equal(inputs["input_ids"]):
        rows = rows[:, inputs["input_ids"].shape[1] :]
    expected = [text.strip() for text in plain.tokenizer.batch_decode(rows, skip_special_tokens=True)]
    found = [
        record["generated_text"] for records in captioner(images[:2], batch_size=2, **options) for record in records
    ]
    assert found == expected


def test_captioners_without_instructions(folder_of, images):
    with pytest.raises(ValueError, match="a blip captioner reads images without an instruction"):
        load_pipeline(str(folder_of("blip")), "cpu")(images[0], instruction="two children ?")


@pytest.mark.parametrize("model_type", FAST)
def test_captions_without_an_end_token_are_counted(model_type, folder_of, images, tmp_path, caplog):
    captioner = load_pipeline(str(folder_of(model_type)), "cpu")
    files = [str(tmp_path / f"{place}.png") for place in range(3)]
    for image, file in zip(images, files, strict=False):
        image.save(file)
    options = {"do_sample": False, "min_new_tokens": 3, "max_new_tokens": 3}
    batches = list(caption_batches(captioner, files, 2, **options))
    assert [batch.unfinished for batch in batches] == [2, 1]
    assert "3 of 3 captions have no end token" in caplog.text
    caplog.clear()
    ((tokens, _),) = PlainCaptioner(folder_of(model_type))(images[:1], **options)
    options = {"do_sample": False, "max_new_tokens": 3, "eos_token_id": tokens[2]}
    assert CaptionBatches(captioner, **options)({"image": files[:1]})["ended"] == [True]
    assert caplog.text == ""


def test_settings_of_the_image_processor(folder_of, images):
    """Smaller images have fewer placeholders; names and values are checked."""
    folder, limit = str(folder_of("qwen2_5_vl")), 32 * 32
    smaller = load_pipeline(folder, "cpu", processor_options={"max_pixels": limit})
    plain = PlainCaptioner(folder)
    plain.processor.image_processor = type(plain.processor.image_processor).from_pretrained(folder, max_pixels=limit)
    ((tokens, logprobs),) = plain(images[3:4], **LENGTH)
    (record,) = smaller(images[3], return_token_scores=True, **LENGTH)
    assert record["token_scores"] == pytest.approx(logprobs, abs=1e-4) and len(tokens) == len(record["tokens"])
    usual = load_pipeline(folder, "cpu")(images[3], return_token_scores=True, **LENGTH)[0]
    assert usual["token_scores"] != pytest.approx(logprobs, abs=1e-4)
    with pytest.raises(ValueError, match="`processor` has 'max_pixel'.*Did you mean `max_pixels`"):
        load_pipeline(folder, "cpu", processor_options={"max_pixel": limit})
    with pytest.raises(ValueError, match="`device` is 'cpu' and `device_map` 'auto', which exclude each other"):
        load_pipeline(folder, "cpu", device_map="auto")


def test_too_little_memory_is_told_with_what_to_lower(folder_of, images, monkeypatch):
    captioner = load_pipeline(str(folder_of("qwen2_5_vl")), "cpu")

    def generate(**_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(captioner.model, "generate", generate)
    with pytest.raises(ValueError, match=r"not enough memory .* 20.00 GiB. Lower `batch_size`.*max_pixels=401408"):
        CaptionBatches(captioner)({"image": images[:1]})


@pytest.mark.parametrize("model_type", ["blip-2", "instructblip"])
def test_question_answering_models_with_an_encoder_decoder(model_type, images):
    """Their language model may be a T5, in whose decoder captions begin."""
    torch.manual_seed(0)
    model, processor = with_t5(model_type)
    captioner = ImageCaptioningPipeline(model=model, processor=processor, device="cpu")
    words = processor.tokenizer
    inputs = processor(images=images[:4], text=["two children ?"] * 4, padding=True, return_tensors="pt")
    expected = words.batch_decode(model.generate(**inputs, **LENGTH), skip_special_tokens=True)
    found = captioner(images[:4], batch_size=4, instruction="two children ?", return_ended=True, **LENGTH)
    assert [record["generated_text"] for (record,) in found] == [text.strip() for text in expected]
    assert not any(record["ended"] for (record,) in found)
    inputs = processor(images=images[:1], text=["two children ?"], return_tensors="pt")
    begun = torch.tensor([[0, *words("a dog", add_special_tokens=False)["input_ids"]]])
    tokens = model.generate(**inputs, decoder_input_ids=begun, do_sample=False, max_new_tokens=4)
    options = {"instruction": "two children ?", "prompt": "a dog", "do_sample": False, "max_new_tokens": 4}
    text = words.decode(tokens[0], skip_special_tokens=True).strip()
    assert captioner(images[0], **options)[0]["generated_text"] == text
    assert text.startswith("a dog")
