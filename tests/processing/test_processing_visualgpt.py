"""GPT-2's word pieces: one form of a word, three special tokens, and the processor on the disk."""

import json

import numpy as np
import pytest
import torch
import transformers

import hf_captioners  # noqa: F401  registers the classes
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor, CaptioningImageProcessorFast
from hf_captioners.processing.processing_gpt2 import prepare_gpt2_tokenizer, released_rows, released_words
from hf_captioners.processing.processing_visualgpt import VisualGPTProcessor

LETTERS = ["Ġ", *"abcdefghijklmnopqrstuvwxyz"]


def letters():
    """Byte-level tokens of the blank, letters and some marks, merges for ` a` and `do`; id 0 is the end token."""
    tokens = ["<|endoftext|>", *LETTERS, "A", ".", ",", "!", "<", "?", "+", "=", "'", "-", "Ġa", "do", "+=", "<?"]
    merges = [("Ġ", "a"), ("d", "o"), ("+", "="), ("<", "?")]
    return transformers.GPT2Tokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)


@pytest.fixture
def tokenizer():
    return prepare_gpt2_tokenizer(letters())


@pytest.fixture
def processor(tokenizer):
    return VisualGPTProcessor(CaptioningImageProcessor(size={"height": 8, "width": 8}), tokenizer)


class TestPreparedTokenizer:
    def test_missing_tokens_are_added_after_the_vocabulary(self):
        bare = letters()
        ready = prepare_gpt2_tokenizer(bare)
        assert (ready.eos_token_id, ready.bos_token_id, ready.pad_token_id) == (0, len(bare), len(bare) + 1)
        assert len(ready) == len(bare) + 2 and bare.pad_token_id is None  # the given one is not changed

    def test_what_is_there_stays(self, tokenizer):
        again = prepare_gpt2_tokenizer(tokenizer)
        assert len(again) == len(tokenizer)
        assert again.special_tokens_map == tokenizer.special_tokens_map

    def test_ids_of_a_converted_checkpoint_add_nothing(self):
        bare = letters()
        ids = bare.convert_tokens_to_ids(["<?", "+="])
        ready = prepare_gpt2_tokenizer(bare, bos_token_id=ids[0], eos_token_id=0, pad_token_id=ids[1])
        assert len(ready) == len(bare)
        assert [ready.bos_token_id, ready.eos_token_id, ready.pad_token_id] == [ids[0], 0, ids[1]]

    def test_encoding_does_not_change_on_the_disk(self, tmp_path):
        bare = letters()
        ids = bare.convert_tokens_to_ids(["<?", "+="])
        ready = prepare_gpt2_tokenizer(bare, ids[0], 0, ids[1])
        ready.save_pretrained(tmp_path)
        again = transformers.AutoTokenizer.from_pretrained(tmp_path)
        text = "<? a dog += b<|endoftext|>+=+="
        assert again(text)["input_ids"] == ready(text)["input_ids"]

    def test_errors(self):
        with pytest.raises(ValueError, match="bos_token_id=900 is outside"):
            prepare_gpt2_tokenizer(letters(), bos_token_id=900)
        bare = letters()
        bare.eos_token = None
        with pytest.raises(ValueError, match="no end token"):
            prepare_gpt2_tokenizer(bare)


class TestProcessor:
    def test_a_word_has_one_form_at_any_place(self, processor):
        tokens = processor.tokenizer.convert_ids_to_tokens
        labels = processor(text_target="A dog a")["labels"][0]
        assert tokens(labels) == ["Ġa", "Ġ", "do", "g", "Ġa", "<|endoftext|>"]
        assert tokens(processor(text="a")["decoder_input_ids"][0]) == ["<|bos|>", "Ġa"]

    def test_a_prompt_is_the_beginning_of_its_caption(self, processor):
        prompt = processor(text="a do")["decoder_input_ids"][0, 1:]
        np.testing.assert_array_equal(processor(text_target="a dog")["labels"][0, : len(prompt)], prompt)

    def test_padding_is_ignored_and_the_end_kept(self, processor):
        labels = processor(text_target=["a dog", "a"])["labels"]
        assert labels[1].tolist()[1:] == [0, *[-100] * (labels.shape[1] - 2)]
        assert processor.batch_decode(labels) == ["a dog", "a"]

    def test_decoding_of_generated_rows(self, processor):
        labels = processor(text_target="a dog")["labels"][0].tolist()
        bos, pad = processor.tokenizer.bos_token_id, processor.tokenizer.pad_token_id
        for row in ([bos, *labels, pad], [pad, bos, *labels], [bos, *labels, 0, 5, 5]):
            assert processor.decode(row) == "a dog"

    @pytest.mark.parametrize("images", [CaptioningImageProcessor, CaptioningImageProcessorFast])
    @pytest.mark.parametrize("backend", [None, "pil", "torchvision"])
    def test_saved_and_loaded(self, tokenizer, images, backend, tmp_path):
        fields = {"lowercase": False, "drop_punctuation": True, "merge_repeated_words": True, "released_text": True}
        size = {"shortest_edge": 16}
        image_processor = images(size=size, do_center_crop=True, crop_size=12, resample=2)
        processor = VisualGPTProcessor(image_processor, tokenizer, **fields)
        processor.save_pretrained(tmp_path)
        options = {} if backend is None else {"backend": backend}
        again = transformers.AutoProcessor.from_pretrained(tmp_path, **options)
        assert type(again) is VisualGPTProcessor
        assert {name: getattr(again, name) for name in fields} == fields
        assert len(again.tokenizer) == len(tokenizer)
        image = np.random.default_rng(0).integers(0, 256, (30, 20, 3), dtype=np.uint8)
        first, second = (one(images=image, text="a dog", return_tensors="pt") for one in (processor, again))
        assert first.keys() == second.keys() == {"pixel_values", "decoder_input_ids"}
        assert torch.equal(first["decoder_input_ids"], second["decoder_input_ids"])
        torch.testing.assert_close(first["pixel_values"], second["pixel_values"], rtol=1e-6, atol=1e-6)
        saved = json.loads((tmp_path / "processor_config.json").read_text())
        assert saved["image_processor"]["image_processor_type"] == "CaptioningImageProcessor"
        assert saved["auto_map"] == {"AutoProcessor": "processing_visualgpt.VisualGPTProcessor"}
        assert {path.name for path in tmp_path.glob("*.py")} == {
            "image_processing_captioning.py",
            "image_reading.py",
            "processing_captioning.py",
            "processing_gpt2.py",
            "processing_visualgpt.py",
        }


class TestReleasedText:
    """The rules themselves; the authors' cases are in tests/parity."""

    @pytest.fixture
    def released(self):
        bare = letters()
        ids = bare.convert_tokens_to_ids(["<?", "+="])
        ready = prepare_gpt2_tokenizer(bare, ids[0], 0, ids[1])
        return VisualGPTProcessor(CaptioningImageProcessor(), ready, released_text=True)

    def test_words(self):
        assert released_words("A dog .. , -- ; b-c 's .\n") == ["a", "dog", "..", "b-c", "'s"]

    def test_the_same_caption_keeps_or_loses_its_end_by_its_batch(self, released):
        tokenizer = released.tokenizer
        ids = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
        alone = released_rows(["a dog"], tokenizer, *ids)[1][0]
        beside = released_rows(["a dog", "a a a a a"], tokenizer, *ids)[1][0]
        assert tokenizer.eos_token_id not in alone and len(alone) == 4
        assert tokenizer.eos_token_id in beside

    def test_labels(self, released):
        labels = released(text_target=["a", "a a a"])["labels"]
        a = released.tokenizer.convert_tokens_to_ids("Ġa")
        assert labels.tolist() == [[a, 0, -100, -100], [a, a, a, 0]]
        with pytest.raises(ValueError, match="max_length=3 cannot be used"):
            released(text_target="a", max_length=3)

    def test_decoding_cuts_the_text(self, released):
        encode = released.tokenizer
        row = encode("<? a dog's<|endoftext|>!!")["input_ids"]
        assert released.decode(row) == "a dog's"
        assert released.decode(encode("<? a dog!!")["input_ids"]) == "a dog!!"
        assert released.decode(encode("<? a a dog+=")["input_ids"]) == "a a dog+="
        released.merge_repeated_words = True
        assert released.decode(encode("<? a a dog<|endoftext|>")["input_ids"]) == "a dog"
