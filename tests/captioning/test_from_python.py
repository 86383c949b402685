"""Captioning, evaluation and scoring as functions: the same as the commands."""

import json

import numpy as np
import pytest
from transformers import pipeline

from hf_captioners import load_captions
from hf_captioners.captioning.batches import caption_batches, caption_into_file, load_pipeline
from hf_captioners.captioning.caption_files import CaptionFile
from hf_captioners.captioning.data_set import caption_data_set, load_split
from hf_captioners.captioning.image_list import find_images
from hf_captioners.captioning.scoring import MetricSettings, score_files, score_matched
from hf_captioners.features.region_source import Regions
from hf_captioners.features.regions_column import with_regions
from hf_captioners.training.starting import ModelArguments, start_captioner


def test_batches_and_a_file(images, captioner, tmp_path):
    """The file holds the records of the batches; captioned images are not captioned again when it is resumed."""
    pipeline, paths = load_pipeline(captioner, device="cpu"), find_images([str(images)])
    batches = list(caption_batches(pipeline, [*paths, "missing.png"], batch_size=4, num_beams=1))
    assert [len(batch.records) for batch in batches] == [4, 4, 2]
    assert [one.image for one in batches[-1].unreadable] == ["missing.png"]
    records = [record for batch in batches for record in batch.records]
    assert [record["image"] for record in records] == paths
    output, settings = tmp_path / "captions.jsonl", {"model": captioner}
    with CaptionFile(output, settings) as file:
        file.add([records[0] | {"caption": "kept"}])
    with CaptionFile(output, settings, resume=True) as file:
        assert caption_into_file(file, pipeline, paths, batch_size=4, num_beams=1) == []
    written = [json.loads(line) for line in output.read_text().splitlines()]
    assert [record["caption"] for record in written] == ["kept", *(record["caption"] for record in records[1:])]
    with pytest.raises(FileExistsError, match="`overwrite`"):
        CaptionFile(output, settings)


def test_a_data_set_and_its_scores(images, captioner, tmp_path):
    rows = load_split(str(images), None, "train", {})
    assert rows["captions"] == load_captions("caption_folder", data_dir=str(images), split="train")["captions"]
    matched = caption_data_set(load_pipeline(captioner, device="cpu"), rows, num_beams=1)
    assert (matched.images, matched.missing, matched.extra) == (list(rows["image_id"]), [], [])
    settings = MetricSettings(("rouge_l", "cider_d"))
    scores = score_matched(matched, settings)
    assert scores.metrics["images"] == 10
    assert sum(scores.per_image["cider_d"]) / 10 == pytest.approx(scores.metrics["cider_d"])
    assert len(scores.image_lines().splitlines()) == 10
    captions = tmp_path / "captions.jsonl"
    pairs = zip(matched.images, matched.predictions, strict=True)
    captions.write_text("".join(json.dumps({"image": image, "caption": text}) + "\n" for image, text in pairs))
    compared = score_files(captions, images, settings, baseline=captions)
    assert compared.metrics["cider_d"] == scores.metrics["cider_d"]
    assert compared.metrics["comparison"]["cider_d"]["difference"] == 0
    with pytest.raises(ValueError, match="expected a list of names among"):
        MetricSettings(("blue",))


def test_columns_that_a_captioner_reads_beside_the_image(images, vision_model):
    """A column of attributes is given to the captioner, which has no detector of its own here."""
    rows = load_split(str(images), None, "train", {})
    rows = rows.add_column("attributes", [captions[0].split()[:3] for captions in rows["captions"]])
    sizes = ["hidden_size=16", "num_attention_heads=2", "ffn_dim=16", "encoder_layers=1", "decoder_layers=1"]
    start = ModelArguments(
        architecture="eta", vision_model=vision_model, image_size=32, min_word_count=1, model_config=sizes
    )
    model, processor = start_captioner(start, [caption for captions in rows["captions"] for caption in captions])
    captioning = pipeline("image-captioning", model=model, processor=processor, device="cpu")
    inputs = processor(images=rows["image"], attributes=rows["attributes"], return_tensors="pt")
    expected = processor.batch_decode(model.generate(**inputs, num_beams=1, max_new_tokens=6))
    options = {"batch_size": 4, "num_beams": 1, "max_new_tokens": 6}
    assert caption_data_set(captioning, rows, **options).predictions == expected
    found = model.get_region_features(pixel_values=inputs["pixel_values"])
    regions = {
        name: Regions(features.numpy(), boxes.numpy())
        for name, features, boxes in zip(rows["image_id"], *found[:2], strict=True)
    }
    assert caption_data_set(captioning, with_regions(rows, regions), **options).predictions == expected
    assert len(np.unique(expected)) > 1
