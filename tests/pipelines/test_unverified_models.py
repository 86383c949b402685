"""Models of families that were not compared: checked once a checkpoint, and refused with what failed."""

import json

import PIL.Image
import pytest
import torch
import transformers as hf

from hf_captioners.captioning.batches import caption_batches, load_pipeline
from hf_captioners.cli import main
from hf_captioners.loading import load_captioner, require_supported
from hf_captioners.pipelines import instructed_checks
from hf_captioners.pipelines.image_captioning import ImageCaptioningPipeline
from tests.tiny_families import LANGUAGE, VICUNA, clip_images, clip_vision, ids, tokenizer, with_large_weights

LENGTH = {"min_new_tokens": 8, "max_new_tokens": 8, "do_sample": False}


def vip_llava(template=VICUNA):
    """A model of a family that is not in the table."""
    words = tokenizer(["<image>"], extra_special_tokens={"image_token": "<image>"})
    config = hf.VipLlavaConfig(
        vision_config=clip_vision(),
        text_config={"model_type": "llama", **LANGUAGE, **ids(words)},
        image_token_index=words.convert_tokens_to_ids("<image>"),
        image_seq_length=16,
        vision_feature_layers=[-2, -1],
    )
    options = {"vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    processor = hf.LlavaProcessor(clip_images(), words, patch_size=8, chat_template=template, **options)
    torch.manual_seed(0)
    return with_large_weights(hf.VipLlavaForConditionalGeneration(config)), processor


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(instructed_checks.constants, "HF_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path):
    for part in vip_llava():
        part.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def results(cache):
    return [json.loads(path.read_text()) for path in cache.rglob("*.json")]


def test_a_sound_model_is_checked_once_and_called_unverified(folder, cache, monkeypatch, caplog):
    require_supported(str(folder))
    captioner = load_pipeline(str(folder), "cpu")
    assert captioner.is_unverified and "vipllava, which was not compared with transformers" in caplog.text
    assert results(cache) == [{"model_type": "vipllava", "fault": None}]
    monkeypatch.setattr(instructed_checks, "fault_of", lambda *_: pytest.fail("it was checked again"))
    assert load_pipeline(str(folder), "cpu").is_unverified
    image, processor = PIL.Image.new("RGB", (40, 50), "red"), hf.AutoProcessor.from_pretrained(folder)
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Describe this image."}]}]
    text = processor.apply_chat_template(chat, add_generation_prompt=True)
    inputs = processor(images=image, text=text, return_tensors="pt")
    tokens = hf.AutoModelForImageTextToText.from_pretrained(folder).generate(**inputs, **LENGTH)
    expected = processor.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()
    assert captioner(image, **LENGTH)[0]["generated_text"] == expected
    image.save(cache / "red.png")
    (batch,) = caption_batches(captioner, [str(cache / "red.png")], **LENGTH)
    assert batch.records[0] | {"unverified": True} == batch.records[0] and batch.records[0]["caption"] == expected


def test_training_refuses_it(folder):
    with pytest.raises(ValueError, match="'vipllava', for which training is not supported"):
        load_captioner(str(folder), "training")


def test_evaluation_says_that_it_is_unverified(folder, tmp_path, capsys):
    images = tmp_path / "images"
    images.mkdir()
    for place in range(2):
        PIL.Image.new("RGB", (40, 50), (90 * place, 0, 0)).save(images / f"{place}.png")
    rows = [{"file_name": f"{place}.png", "captions": ["a red dog"], "split": "test"} for place in range(2)]
    (images / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    output = tmp_path / "scores.json"
    typed = [
        "evaluate",
        str(folder),
        str(images),
        "--max_new_tokens",
        "4",
        "--metrics",
        "bleu",
        "--output",
        str(output),
    ]
    assert main(typed) == 0, capsys.readouterr().err
    metrics = json.loads(output.read_text())
    assert metrics["unverified"] is True and metrics["instruction"] == "Describe this image."


def refused(model, processor, message):
    for _ in range(2):  # the result of the first check is kept
        with pytest.raises(ValueError, match=message):
            ImageCaptioningPipeline(model=model, processor=processor, device="cpu")


def test_a_model_that_does_not_see_the_image(cache):
    model, processor = vip_llava()
    for weight in model.model.multi_modal_projector.parameters():
        torch.nn.init.zeros_(weight)
    refused(model, processor, "the logits of two images differ by 0, those of one image run twice by 0")
    assert "two images" in results(cache)[0]["fault"]


def test_a_model_that_reads_padding(monkeypatch):
    model, processor = vip_llava()
    forward = model.forward

    def without_mask(*args, attention_mask=None, position_ids=None, **kwargs):
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", without_mask)
    monkeypatch.setattr(model, "_validate_model_kwargs", lambda _: None)
    refused(model, processor, "the logits of an image alone and beside a longer row differ by")


def test_inputs_with_two_begin_tokens():
    refused(*vip_llava("<s><s>" + VICUNA), "the processed input has two begin tokens")


def test_a_model_that_cannot_generate(monkeypatch):
    model, processor = vip_llava()
    monkeypatch.setattr(model, "generate", lambda **_: 1 / 0)
    refused(model, processor, "it cannot generate: ZeroDivisionError: division by zero")


def test_templates_with_texts_only():
    """An old template renders no lists; the placeholder of the image is put before the instruction."""
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }} {% endfor %}assistant:"
    model, processor = vip_llava(template)
    captioner = ImageCaptioningPipeline(model=model, processor=processor, device="cpu")
    image = PIL.Image.new("RGB", (40, 50), "red")
    inputs = processor(images=image, text="user: <image>\nDescribe this image. assistant:", return_tensors="pt")
    tokens = model.generate(**inputs, **LENGTH)[0, inputs["input_ids"].shape[1] :]
    expected = processor.decode(tokens, skip_special_tokens=True).strip()
    assert captioner(image, **LENGTH)[0]["generated_text"] == expected


class TestThinkingAloud:
    """Templates of models that write their thoughts before the answer."""

    IMAGE = PIL.Image.new("RGB", (40, 50), "red")

    @staticmethod
    def captioner(template, words, monkeypatch):
        """A captioner that writes these words."""
        model, processor = vip_llava(template)
        captioner = ImageCaptioningPipeline(model=model, processor=processor, device="cpu")
        tokens = torch.tensor([processor.tokenizer(words, add_special_tokens=False)["input_ids"]])

        def generate(input_ids, **_):
            ended = torch.cat((input_ids, tokens, torch.tensor([[2]])), 1)
            return hf.generation.GenerateDecoderOnlyOutput(sequences=ended)

        monkeypatch.setattr(model, "generate", generate)
        return captioner

    def test_thoughts_are_cut_off(self, monkeypatch):
        captioner = self.captioner(
            VICUNA.replace("assistant:", "assistant:<think>\n"), "a man </think>a dog", monkeypatch
        )
        assert captioner(self.IMAGE)[0]["generated_text"] == "a dog"

    def test_thoughts_without_an_end(self, monkeypatch):
        captioner = self.captioner(VICUNA.replace("assistant:", "assistant:<think>\n"), "a man and a", monkeypatch)
        with pytest.raises(ValueError, match="reached no caption in"):
            captioner(self.IMAGE)
        (records,) = captioner.caption_prepared([captioner.prepare(self.IMAGE)])
        assert "reached no caption" in records[0]["error"]

    def test_they_are_switched_off(self, monkeypatch):
        switch = "{% if enable_thinking is false %}<think></think>{% else %}<think>{% endif %}"
        template = VICUNA.replace("assistant:", f"assistant:{switch}")
        captioner = self.captioner(template, "a dog", monkeypatch)
        assert captioner(self.IMAGE)[0]["generated_text"] == "a dog"
        ids = captioner.instructed.encode([captioner.prepare(self.IMAGE)["requests"].value]).tensors["input_ids"]
        assert captioner.tokenizer.decode(ids[0]).endswith("assistant:<think></think>")

    def test_unknown_marks(self):
        with pytest.raises(ValueError, match="thinks aloud, and its chat template has none of the marks"):
            self.captioner("{{ messages[0].reasoning_content }}" + VICUNA, "", None)


CODE = """
from transformers import VipLlavaConfig, VipLlavaForConditionalGeneration


class OtherConfig(VipLlavaConfig):
    model_type = "git"  # as a family that is supported calls itself


class OtherLlava(VipLlavaForConditionalGeneration):
    config_class = OtherConfig
"""


def test_code_of_a_checkpoint_takes_the_same_checks(folder, cache, monkeypatch, caplog):
    """Whatever its configuration calls itself; and it runs only if it is trusted."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(cache.parent / "modules"))
    (folder / "other.py").write_text(CODE)
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "git"}
    config["auto_map"] = {"AutoConfig": "other.OtherConfig", "AutoModelForImageTextToText": "other.OtherLlava"}
    (folder / "config.json").write_text(json.dumps(config))
    captioner = load_pipeline(str(folder), "cpu", trust_remote_code=True)
    assert type(captioner.model).__name__ == "OtherLlava"
    assert captioner.is_unverified and captioner.instructed is not None
    assert "a git, which was not compared with transformers" in caplog.text
    assert [result["fault"] for result in results(cache)] == [None]
    assert captioner(PIL.Image.new("RGB", (40, 50), "red"), **LENGTH)[0]["generated_text"]
