"""Prompts, captions and regions become what a captioner reads, and its tokens become captions."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hf_captioners.processing.processing_captioning import batch_regions, without_repetitions

PAD, BOS, EOS = 0, 1, 2
A, MAN, DOG, TWO, DOGS, ON, THE, BEACH, PHOTO, OF, RED, COMMA, STOP = range(4, 17)
RANDOM = np.random.default_rng(0)
IMAGE = np.zeros((12, 10, 3), dtype=np.uint8)


class TestPrompts:
    def test_an_empty_prompt_is_the_begin_token_alone(self, processor):
        assert processor(text="").data.keys() == {"decoder_input_ids"}
        assert processor(text="", return_tensors="pt")["decoder_input_ids"].tolist() == [[BOS]]

    def test_begin_token_and_no_end_token(self, processor):
        encoded = processor(images=IMAGE, text=" A photo  of ", return_tensors="pt")
        assert encoded.keys() == {"pixel_values", "decoder_input_ids"}  # `generate` would misread input_ids and masks
        assert encoded["decoder_input_ids"].tolist() == [[BOS, A, PHOTO, OF]]

    def test_several_are_padded_on_the_left(self, processor):
        encoded = processor(text=["a photo", "", "dogs"], return_tensors="pt")
        assert encoded["decoder_input_ids"].tolist() == [[BOS, A, PHOTO], [PAD, PAD, BOS], [PAD, BOS, DOGS]]
        assert encoded["decoder_attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1], [0, 1, 1]]

    def test_without_padding_there_is_no_mask(self, processor):
        assert set(processor(text=["a photo", "two dogs"])) == {"decoder_input_ids"}

    def test_one_prompt_serves_all_images(self, processor):
        encoded = processor(images=[IMAGE, IMAGE], text="a", return_tensors="pt")
        assert encoded["decoder_input_ids"].tolist() == [[BOS, A], [BOS, A]]

    def test_other_numbers_are_refused(self, processor):
        with pytest.raises(ValueError, match="3 prompts were given for 2 images"):
            processor(images=[IMAGE, IMAGE], text=["a", "a", "a"])

    def test_the_end_of_long_prompts_is_cut(self, processor):
        assert processor(text="a photo of two dogs", max_length=3, return_tensors="pt").decoder_input_ids.tolist() == [
            [BOS, A, PHOTO]
        ]

    def test_a_final_full_stop_of_a_prompt_stays(self, processor):
        assert processor(text="a dog .", return_tensors="pt").decoder_input_ids.tolist() == [[BOS, A, DOG, STOP]]


class TestCaptions:
    def test_tokens_end_token_and_ignored_padding(self, processor):
        labels = processor(text_target=["Two dogs .", "a man on the beach"], return_tensors="pt")["labels"]
        assert labels.tolist() == [[TWO, DOGS, EOS, -100, -100, -100], [A, MAN, ON, THE, BEACH, EOS]]

    def test_padding_that_is_the_end_token_loses_nothing(self, build):
        labels = build({"pad_token": "</s>"})(text_target=["two dogs", "a"], return_tensors="pt")["labels"]
        assert labels.tolist() == [[TWO, DOGS, EOS], [A, EOS, -100]]

    @settings(max_examples=50, deadline=None)
    @given(captions=st.lists(st.lists(st.sampled_from(["a", "dog", "beach"]), max_size=9), min_size=1, max_size=4))
    @pytest.mark.parametrize("max_length", [None, 1, 4])
    def test_every_row_ends_with_its_end_token(self, processor_for_properties, captions, max_length):
        labels = processor_for_properties(text_target=[" ".join(words) for words in captions], max_length=max_length)
        for row, words in zip(labels["labels"], captions, strict=True):
            real = [token for token in row if token != -100]
            assert real[-1] == EOS and EOS not in real[:-1]
            assert len(real) == min(len(words) + 1, max_length or 99)
            assert row[: len(real)].tolist() == real

    @pytest.mark.parametrize(
        ("fields", "written", "learned"),
        [
            ({}, " A  Man\non the Beach . ", "a man on the beach"),
            ({}, "Two dogs, running!!", "two dogs, running"),
            ({"lowercase": False}, "A Man.", "A Man"),
            ({"drop_final_punctuation": False}, "A man .", "a man ."),
            ({"drop_punctuation": True}, "a man , on -- the beach .", "a man on the beach"),
            ({"drop_punctuation": True, "drop_final_punctuation": False}, "a t-shirt . . .", "a t-shirt"),
            ({}, "...", ""),
        ],
    )
    def test_normalisation(self, build, fields, written, learned):
        assert build(**fields).normalise_caption(written) == learned

    def test_several_captions_an_image(self, processor):
        encoded = processor(images=[IMAGE, IMAGE], text_target=["a", "dog", "two", "dogs"], return_tensors="pt")
        assert encoded["labels"].shape == (4, 2) and encoded["pixel_values"].shape[0] == 2
        with pytest.raises(ValueError, match="3 captions were given for 2 images"):
            processor(images=[IMAGE, IMAGE], text_target=["a", "a", "a"])


class TestDecoding:
    @pytest.mark.parametrize(
        ("row", "caption"),
        [
            ([BOS, TWO, DOGS, EOS, PAD, PAD], "two dogs"),
            ([BOS, TWO, DOGS, EOS, EOS, EOS], "two dogs"),
            ([BOS, TWO, DOGS, EOS, A, MAN], "two dogs"),  # tokens after the end token are ignored
            ([PAD, PAD, BOS, A, MAN, EOS], "a man"),
            ([TWO, DOGS, EOS, -100, -100], "two dogs"),
            ([BOS, A, MAN], "a man"),
            ([BOS, EOS, A], ""),
            ([EOS, A], ""),
            ([], ""),
        ],
    )
    def test_a_caption_ends_before_the_first_end_token(self, processor, row, caption):
        assert processor.decode(row) == caption
        assert processor.decode(torch.tensor(row, dtype=torch.long)) == caption
        assert processor.batch_decode([row, row]) == [caption, caption]
        assert processor.post_process_image_text_to_text(torch.tensor([row], dtype=torch.long)) == [caption]

    def test_begin_end_and_padding_may_be_one_token(self, build):
        processor = build({"bos_token": "</s>", "pad_token": "</s>"})
        assert processor.decode([EOS, EOS, EOS, A, MAN, EOS, EOS]) == "a man"
        processor = build({"pad_token": "</s>"})
        assert processor.decode([BOS, EOS, A]) == "" and processor.decode([EOS, EOS, BOS, A, EOS]) == "a"
        assert processor.decode([EOS, A]) == ""

    def test_special_tokens_on_request(self, processor):
        assert processor.decode([BOS, A, EOS, PAD], skip_special_tokens=False) == "<s> a </s> <pad>"

    def test_repeated_words_on_request(self, build):
        row = [BOS, A, A, DOG, ON, ON, ON, A, EOS]
        assert build().decode(row) == "a a dog on on on a"
        assert build(merge_repeated_words=True).decode(row) == "a dog on a"
        assert without_repetitions([]) == []

    def test_what_was_encoded_is_decoded(self, processor):
        captions = ["two dogs on the beach", "a man", "a red dog"]
        assert processor.batch_decode(processor(text_target=captions)["labels"]) == captions
        assert processor.batch_decode(processor(text=captions)["decoder_input_ids"]) == captions


class TestRegions:
    features = [RANDOM.normal(size=(count, 5)).astype(np.float32) for count in (3, 1, 4)]
    boxes = [np.sort(RANDOM.random((count, 2, 2)), axis=1).reshape(count, 4) for count in (3, 1, 4)]

    def test_padding_and_mask(self, processor):
        batch = processor(regions=self.features, return_tensors="pt")
        assert batch.keys() == {"region_features", "region_mask"}
        assert batch["region_features"].shape == (3, 4, 5) and batch["region_features"].dtype == torch.float32
        assert batch["region_mask"].dtype == torch.bool and batch["region_mask"].sum(1).tolist() == [3, 1, 4]
        for index, features in enumerate(self.features):
            np.testing.assert_array_equal(batch["region_features"][index, : len(features)], features)
        assert (batch["region_features"][~batch["region_mask"]] == 0).all()

    def test_boxes(self):
        entries = [{"features": f, "boxes": b} for f, b in zip(self.features, self.boxes, strict=True)]
        batch = batch_regions(entries)
        assert batch["region_boxes"].shape == (3, 4, 4) and batch["region_boxes"].dtype == np.float32
        np.testing.assert_allclose(batch["region_boxes"][0, :3], self.boxes[0], rtol=1e-6)

    @pytest.mark.parametrize("kind", [np.float16, np.float64, "list", torch.float32, torch.bfloat16])
    def test_kinds_of_arrays(self, kind):
        one = self.features[0]
        if isinstance(kind, torch.dtype):
            one = torch.from_numpy(one).to(kind)
        else:
            one = one.tolist() if kind == "list" else one.astype(kind)
        expected = self.features[0]
        for regions in ([one], {"features": one}):
            np.testing.assert_allclose(batch_regions(regions)["region_features"][0], expected, rtol=1e-2)

    def test_one_image_or_a_stack(self):
        assert batch_regions(self.features[0])["region_features"].shape == (1, 3, 5)
        assert batch_regions(np.zeros((2, 3, 5)))["region_features"].shape == (2, 3, 5)

    @pytest.mark.parametrize(
        ("regions", "message"),
        [
            ([], "is empty"),
            ([np.zeros((0, 5))], r"image 0 has the shape \(0, 5\): it has no features"),
            ([np.zeros((2, 5)), np.zeros(5)], r"image 1 has the shape \(5,\); expected features \[R, D\]"),
            ([np.zeros((2, 5)), np.zeros((2, 6))], r"sizes \[5, 6\]"),
            ([np.array([[0.0, 1.0], [np.nan, 1.0]])], "image 0 has NaN or infinite features, first in region 1"),
            ([np.full((1, 2), np.inf)], "NaN or infinite"),
            ([{"boxes": np.zeros((1, 4))}], "expected 'features'"),
            ([{"features": np.zeros((1, 2)), "box": 0}], r"keys \['box', 'features'\]"),
            ([{"features": np.zeros((2, 2)), "boxes": np.zeros((1, 4))}], r"2 regions need \(2, 4\)"),
            ([{"features": np.zeros((1, 2)), "boxes": [[0, 0, 640, 480]]}], r"from 0 to 640.*boxes / \[width, height"),
            ([{"features": np.zeros((1, 2)), "boxes": [[0, 0, np.nan, 1]]}], "Boxes of image 0 run from"),
            ([{"features": np.zeros((1, 2)), "boxes": [[0.5, 0.5, 0.2, 0.2]]}], "add the first two"),
            ([{"features": np.zeros((1, 2)), "boxes": [[0, 0, 1, 1]]}, np.zeros((1, 2))], "image 1 has none"),
        ],
    )
    def test_bad_regions_are_named(self, regions, message):
        with pytest.raises(ValueError, match=message):
            batch_regions(regions)


def test_a_column_of_a_data_set_is_a_batch(processor):
    rows = Dataset.from_dict({"image": [Image.fromarray(IMAGE)] * 3})
    assert not isinstance(rows["image"], list)
    assert processor(images=rows["image"], return_tensors="pt")["pixel_values"].shape == (3, 3, 8, 8)


class TestStudies:
    """Several views of one thing."""

    other = np.full((7, 9, 3), 255, dtype=np.uint8)

    @pytest.mark.parametrize("kind", ["pt", "np", None])
    def test_views_are_filled_up_and_masked(self, processor, kind):
        encoded = processor(images=[[IMAGE, self.other], [self.other], IMAGE], return_tensors=kind)
        assert encoded.keys() == {"pixel_values", "view_mask"}
        alone = processor(images=[IMAGE, self.other], return_tensors="np")["pixel_values"]
        pixels, mask = (np.asarray(encoded[name]) for name in ("pixel_values", "view_mask"))
        assert pixels.shape == (3, 2, 3, 8, 8) and pixels.dtype == np.float32 and mask.dtype == bool
        assert mask.tolist() == [[True, True], [True, False], [True, False]]
        np.testing.assert_allclose(pixels[mask], alone[[0, 1, 1, 0]], atol=1e-6)
        assert (pixels[~mask] == 0).all()

    @pytest.mark.parametrize("studies", [[[IMAGE]], [(IMAGE,), IMAGE], [[IMAGE], [IMAGE], [IMAGE]]])
    def test_studies_of_one_view_are_images(self, processor, studies):
        encoded = processor(images=studies, return_tensors="pt")
        assert encoded.keys() == {"pixel_values"} and encoded["pixel_values"].shape == (len(studies), 3, 8, 8)

    def test_texts_belong_to_studies(self, processor):
        studies = [[IMAGE, IMAGE], [IMAGE]]
        encoded = processor(images=studies, text="a", text_target=["a", "dog"], return_tensors="pt")
        assert encoded["decoder_input_ids"].tolist() == [[BOS, A]] * 2 and encoded["labels"].shape == (2, 2)
        with pytest.raises(ValueError, match="3 captions were given for 2 images"):
            processor(images=studies, text_target=["a", "a", "a"])

    def test_a_study_without_views_is_named(self, processor):
        with pytest.raises(ValueError, match="Study 1 of `images` has no view"):
            processor(images=[[IMAGE], []])


class TestCall:
    def test_nothing_or_too_much(self, processor):
        with pytest.raises(ValueError, match="Nothing was given"):
            processor()
        with pytest.raises(ValueError, match="Both `images` and `regions`"):
            processor(images=IMAGE, regions=np.zeros((1, 2)))

    def test_misspelled_arguments(self, processor):
        with pytest.raises(TypeError, match=r"has no arguments \['text_targets'\]"):
            processor(text_targets="a")
        for form in ("text_kwargs", "images_kwargs", "common_kwargs"):
            with pytest.raises(TypeError, match=r"has no arguments \['sizes'\]"):
                processor(images=IMAGE, **{form: {"sizes": 3}})
        with pytest.raises(ValueError, match="`max_length`: the tokenizer has no `model_max_length`"):
            processor(text="a", padding="max_length")
        with pytest.raises(ValueError, match="padding"):
            processor(text="a", padding="longer")

    def test_forms_of_transformers(self, processor):
        """Options of each modality, of all and flat ones have one result; no option is given twice."""
        settings, options = {"do_normalize": False}, {"padding": "max_length", "max_length": 5}
        flat = processor(images=IMAGE, text="a dog", **settings, **options, return_tensors="pt")
        forms = (
            {"images_kwargs": settings, "text_kwargs": options, "return_tensors": "pt"},
            {"images_kwargs": settings, "text_kwargs": options, "common_kwargs": {"return_tensors": "pt"}},
        )
        for form in forms:
            again = processor(images=IMAGE, text="a dog", **form)
            assert again.keys() == flat.keys() and all(torch.equal(again[name], flat[name]) for name in flat)
        assert flat["pixel_values"].max() == 0 and flat["decoder_input_ids"].tolist() == [[PAD, PAD, BOS, A, DOG]]
        with pytest.raises(ValueError, match="passed two times"):
            processor(text="a", text_kwargs={"padding": False}, padding="max_length", max_length=3)

    def test_padding_to_a_length(self, processor):
        prompts = processor(text=["a dog", "a"], padding="max_length", max_length=4, return_tensors="pt")
        assert prompts["decoder_input_ids"].tolist() == [[PAD, BOS, A, DOG], [PAD, PAD, BOS, A]]
        assert prompts["decoder_attention_mask"].tolist() == [[0, 1, 1, 1], [0, 0, 1, 1]]
        labels = processor(text_target=["a dog", "a"], padding="max_length", max_length=4)["labels"]
        assert labels.tolist() == [[A, DOG, EOS, -100], [A, EOS, -100, -100]]

    def test_rows_without_padding(self, processor):
        encoded = processor(text=["a dog", "a"], text_target=["a", "two dogs"], padding=False)
        assert encoded.keys() == {"decoder_input_ids", "labels"}
        assert [row.tolist() for row in encoded["decoder_input_ids"]] == [[BOS, A, DOG], [BOS, A]]
        assert [row.tolist() for row in encoded["labels"]] == [[A, EOS], [TWO, DOGS, EOS]]
        same = processor(text=["a dog", "two dogs"], padding=False, return_tensors="pt")
        assert same["decoder_input_ids"].tolist() == [[BOS, A, DOG], [BOS, TWO, DOGS]]
        with pytest.raises(ValueError, match="padding=True"):
            processor(text=["a dog", "a"], padding=False, return_tensors="pt")

    def test_truncation(self, build):
        processor = build({"model_max_length": 3})
        long = {"text": "a photo of two dogs", "return_tensors": "pt"}
        assert processor(**long)["decoder_input_ids"].shape == (1, 6)
        assert processor(**long, truncation=True)["decoder_input_ids"].tolist() == [[BOS, A, PHOTO]]
        assert processor(**long, truncation=True, max_length=2)["decoder_input_ids"].tolist() == [[BOS, A]]
        assert processor(**long, truncation=False, max_length=2)["decoder_input_ids"].shape == (1, 6)

    def test_defaults_of_the_tokenizer(self, build):
        processor = build({"padding": "max_length", "max_length": 4})
        assert processor(text="a", return_tensors="pt")["decoder_input_ids"].tolist() == [[PAD, PAD, BOS, A]]
        assert processor(text="a", padding=True, return_tensors="pt")["decoder_input_ids"].tolist() == [[BOS, A]]

    def test_settings_of_the_image_processor_for_one_call(self, processor):
        encoded = processor(images=IMAGE, size={"height": 4, "width": 6}, return_tensors="pt")
        assert encoded["pixel_values"].shape == (1, 3, 4, 6)

    def test_kinds_of_tensors(self, processor):
        for kind, expected in (("pt", torch.Tensor), ("np", np.ndarray)):
            encoded = processor(images=[IMAGE], text="a", text_target="a", return_tensors=kind)
            assert {type(value) for value in encoded.values()} == {expected}

    def test_names_of_everything_that_may_come_out(self, processor):
        arrays = {"features": np.zeros((1, 2)), "boxes": np.zeros((1, 4)), "views": np.zeros(1)}
        regions = processor(regions=arrays, text=["a"])
        images = processor(images=[IMAGE] * 2, text=["a", "a dog"], text_target=["a", "dog", "man", "dogs"])
        views = processor(images=[[IMAGE, IMAGE]])
        assert set(regions) | set(images) | set(views) == set(processor.model_input_names)

    @pytest.mark.parametrize("name", ["bos_token", "eos_token", "pad_token"])
    def test_a_tokenizer_without_a_token_is_refused(self, build, name):
        with pytest.raises(ValueError, match=f"no `{name}`"):
            build({name: None})
