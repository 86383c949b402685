"""Trimmed captioners: the same logits of the tokens that they keep, and the same tokens of the captions."""

import json

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer, Tokenizer, models
from transformers import AutoTokenizer, BlipConfig, BlipForConditionalGeneration, PreTrainedTokenizerFast

from hf_captioners.cli import main
from hf_captioners.hub.card_facts import EvaluationFacts, TrainingFacts
from hf_captioners.hub.trimming import closed_under_merges, trim_vocabulary
from hf_captioners.loading import load_captioner
from hf_captioners.processing.processing_captioning import CaptioningProcessor
from hf_captioners.processing.processing_gpt2 import GPT2CaptioningProcessor, prepare_gpt2_tokenizer
from tests.modeling.gpt2_parts import TEXT
from tests.modeling.toy import TOY

from .captioner_cases import NAMES, case_of, save_captioner

CORPUS = ["a black dog is running in the snow", "two dogs are playing on a beach", "a girl in a red dress is singing"]
OTHER = ["zebras & naïve café", "日本 ☃", "tab\tand\nline", "a dog, snowing"]


@pytest.fixture(scope="module")
def byte_pairs():
    """A tokenizer of byte pairs with some merges."""
    base, end = ByteLevelBPETokenizer(), "<|endoftext|>"
    base.train_from_iterator([f" {text}" for text in CORPUS], 320, 1, special_tokens=[end], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=base._tokenizer, bos_token=end, eos_token=end, unk_token=end)
    return prepare_gpt2_tokenizer(tokenizer)


def captioner_of(name, byte_pairs):
    """Return the case of an architecture, a tiny model and its processor; GPT-2 reads byte pairs."""
    case = case_of(name)
    processor = case.make_processor()
    if not isinstance(processor, GPT2CaptioningProcessor):
        return case, case.make_model(), processor
    processor.tokenizer = byte_pairs
    ids = {f"{part}_token_id": getattr(byte_pairs, f"{part}_token_id") for part in ("bos", "eos", "pad")}
    text = TEXT | ids | {"vocab_size": len(byte_pairs)}
    return case, case.make_model(text_config=text, decoder_start_token_id=ids["bos_token_id"], **ids), processor


def pieces(processor, text: str) -> list[str]:
    """Return the tokens of a caption as texts."""
    return processor.tokenizer.convert_ids_to_tokens(processor.encode_captions([text])[0].tolist())


@pytest.mark.parametrize("name", sorted({*NAMES} - {TOY.name}))  # the words that the toy reads are of no tokenizer
def test_logits_of_kept_tokens(name, byte_pairs):
    """The logits of every architecture are those of the tokens that were kept, and special tokens stay special."""
    case, model, processor = captioner_of(name, byte_pairs)
    last = len(processor.tokenizer) - 5
    words = [processor.tokenizer.decode([token]) for token in (last - 2, last)]
    model.generation_config.update(suppress_tokens=[3, last - 1], bad_words_ids=[[4, last - 1], [last]])
    model.optimize_for_generation()
    packed = model.packed_weights
    trimmed, trimmed_processor = trim_vocabulary(model, processor, [" ".join(words)])
    old, new = processor.tokenizer.get_vocab(), trimmed_processor.tokenizer.get_vocab()
    kept = sorted(old[text] for text in new)
    assert trimmed.config.vocab_size == len(kept) == len(new) < model.config.vocab_size
    assert trimmed.lm_head.weight.shape[0] == trimmed.get_input_embeddings().weight.shape[0] == len(kept)
    places = {token: place for place, token in enumerate(kept)}
    start = model.config.decoder_start_token_id
    rows = torch.tensor([[start, last, *(token for token in kept if token != start)][:6]] * 3)
    given = {"attribute_ids": torch.tensor([[last, last - 2]] * 3)}
    given = given if given.keys() <= model.config.encoder_inputs.keys() else {}
    inputs = case.inputs("regions")
    with torch.no_grad():
        expected = model(**inputs, **given, decoder_input_ids=rows).logits[..., kept]
        moved = {word: ids.clone().apply_(places.get) for word, ids in {**given, "decoder_input_ids": rows}.items()}
        found = trimmed(**inputs, **moved).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    for one, whole in ((trimmed.config, model.config), (trimmed.generation_config, model.generation_config)):
        for field in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"):
            token = getattr(whole, field)
            assert getattr(one, field) == (None if token is None else places[token]), field
    assert trimmed.generation_config.suppress_tokens == [places[token] for token in (3, last - 1) if token in places]
    assert trimmed.generation_config.bad_words_ids == [[places[last]]]
    assert len(processor.tokenizer) == len(old) > len(kept), "the captioner has changed"
    assert packed and model.packed_weights == packed, "the captioner has changed"


def test_tokens_of_byte_pairs(byte_pairs, tmp_path):
    """Captions have the same tokens as before, all texts can be written, and a saved tokenizer is the same."""
    _, model, processor = captioner_of("visualgpt", byte_pairs)
    captions = [CORPUS[0], "two dogs"]
    trimmed, smaller = trim_vocabulary(model, processor, captions)
    assert "Ġbeach" in byte_pairs.get_vocab() and "Ġbeach" not in smaller.tokenizer.get_vocab()
    for text in captions:
        assert pieces(smaller, text) == pieces(processor, text)
    smaller.tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.get_vocab() == smaller.tokenizer.get_vocab()
    for text in (*captions, *OTHER):
        ids = smaller.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert again(text, add_special_tokens=False)["input_ids"] == ids
        assert smaller.tokenizer.decode(ids) == text and max(ids) < trimmed.config.vocab_size


def test_merges_are_closed():
    """Tokens on the way to a token are kept, and those that no merge makes; of words only what is needed."""
    vocabulary = {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "bc": 5, "end": 6}
    merges = [["a", "b"], ["ab", "c"], ["b", "c"]]
    pairs = {"type": "BPE", "vocab": vocabulary, "merges": merges}
    assert closed_under_merges(pairs, {4}) == [0, 1, 2, 3, 4, 6]
    marked = {"type": "BPE", "vocab": {"a": 0, "##b": 1, "ab": 2}, "merges": [["a", "##b"]]}
    assert closed_under_merges(marked | {"continuing_subword_prefix": "##"}, {2}) == [0, 1, 2]
    assert closed_under_merges({"type": "WordLevel", "vocab": vocabulary}, {4, 6}) == [4, 6]


def test_command_line(tmp_path, capsys):
    """The command writes a whole captioner with a card that says what was kept."""
    save_captioner("show_attend_tell", tmp_path / "captioner")
    facts = TrainingFacts(evaluations=[EvaluationFacts(figures={"cider_d": 0.5})], licence="cc-by-4.0")
    facts.save(tmp_path / "captioner")
    whole, processor = load_captioner(str(tmp_path / "captioner"))
    size = whole.config.vocab_size
    word = processor.tokenizer.decode([9])
    (tmp_path / "captions.jsonl").write_text(json.dumps({"image": "a.jpg", "captions": [f"{word} {word}"]}) + "\n")
    command = ["trim-vocabulary", str(tmp_path / "captioner"), "--output", str(tmp_path / "small"), "--captions"]
    assert main([*command, str(tmp_path / "captions.jsonl")]) == 0
    assert f"5 of {size} tokens, those of 1 captions" in capsys.readouterr().out
    model, smaller = load_captioner(str(tmp_path / "small"))
    assert model.config.vocab_size == 5 and word in smaller.tokenizer.get_vocab()
    card = (tmp_path / "small" / "README.md").read_text()
    row = f"| vocabulary | 5 of {size} tokens, those of 1 captions; evaluated before it was trimmed |"
    assert row in card and "license: cc-by-4.0" in card
    assert main([*command, str(tmp_path / "captions.jsonl")]) == 2
    assert "small has files already. Pass a new folder" in capsys.readouterr().err
    assert main([*command[:-2], str(tmp_path / "other"), "--captions", str(tmp_path / "caption.jsonl")]) == 2
    assert "captions.jsonl`?" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_refused(byte_pairs):
    case, model, processor = captioner_of("show_attend_tell", byte_pairs)
    blip = BlipForConditionalGeneration(
        BlipConfig(
            text_config={"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 9},
            vision_config={"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "image_size": 32},
        )
    )
    with pytest.raises(ValueError, match="BlipForConditionalGeneration .* is no class of this library"):
        trim_vocabulary(blip, processor, CORPUS)
    with pytest.raises(ValueError, match="`processor` is missing"):
        trim_vocabulary(model, None, CORPUS)
    with pytest.raises(ValueError, match="The captions have no tokens"):
        trim_vocabulary(model, processor, [" "])
    with pytest.raises(ValueError, match="another captioner: it has a token 310, and `vocab_size` is 30"):
        trim_vocabulary(model, type(processor)(processor.image_processor, byte_pairs), [CORPUS[0]])
    pairs = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.Unigram([("a", 0.0)])), unk_token="a")
    pairs.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<p>"})
    with pytest.raises(ValueError, match="The tokenizer is a Unigram, expected"):
        trim_vocabulary(model, CaptioningProcessor(processor.image_processor, pairs), ["a"])
    model.generation_config.sequence_bias = [[[3], 1.0]]
    with pytest.raises(ValueError, match="`sequence_bias`, whose tokens cannot be renumbered. Remove it"):
        trim_vocabulary(model, processor, case.make_processor().tokenizer.get_vocab())
    model.generation_config.sequence_bias = None
    model.peft_config = {"default": None}
    with pytest.raises(ValueError, match="merge_adapter"):
        trim_vocabulary(model, processor, CORPUS)
