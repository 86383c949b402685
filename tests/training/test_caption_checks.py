import pytest

from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_captioning import CaptioningProcessor
from hf_captioners.processing.word_tokenizer import build_word_tokenizer
from hf_captioners.training import CaptioningTrainingArguments
from hf_captioners.training.caption_checks import check_training_captions, count_tokens

ENGLISH = ["A brown dog plays.", "Two cats sit on a sofa"]


@pytest.fixture(scope="module")
def processor():
    return CaptioningProcessor(CaptioningImageProcessor(), build_word_tokenizer(ENGLISH, at_least=1))


@pytest.fixture
def arguments(tmp_path):
    return lambda **fields: CaptioningTrainingArguments(str(tmp_path), use_cpu=True, **fields)


def test_unknown_words_are_counted_and_named(processor):
    counts = count_tokens(["a giraffe", "a giraffe and a dog", "Zebra!"], processor, 4)
    assert (counts.captions, counts.tokens, counts.unknown, counts.strange, counts.long) == (3, 8, 4, 1, 1)
    assert counts.unknown_words == [("giraffe", 2), ("and", 1), ("zebra", 1)]
    assert counts.line.startswith("4 of 8 tokens of 3 training captions (50.0%) are unknown; most frequent: 'giraffe'")


def test_another_language_is_refused_with_what_to_type(processor, arguments):
    with pytest.raises(ValueError, match="7 of 7 tokens.*'ein' \\(1\\).*2 captions have no known.*`language_model`"):
        check_training_captions(["Ein Hund läuft schnell", "Zwei Katzen sitzen"], processor, arguments(), False)


def test_a_new_vocabulary_that_leaves_rare_words_out_is_told(processor, arguments, caplog):
    check_training_captions(["a giraffe eats"] * 3, processor, arguments(), True)
    assert "6 of 9 tokens" in caplog.text and "`min_word_count`" in caplog.text
    with pytest.raises(ValueError, match="3 captions have no known word.*`min_word_count`"):
        check_training_captions(["giraffes eat"] * 3, processor, arguments(), True)


def test_one_caption_in_ten_without_a_known_word_is_refused(processor, arguments):
    known = ["a brown dog plays on a sofa"] * 17
    with pytest.raises(ValueError, match="2 captions have no known word"):
        check_training_captions([*known, "Hund", "Katze"], processor, arguments(), False)
    check_training_captions([*known, "Hund"], processor, arguments(), False)


def test_some_unknown_words_and_long_captions_are_told(processor, arguments, caplog):
    captions = ["a brown dog plays on a sofa", "a giraffe sits on a sofa", "two cats sit on a sofa"]
    check_training_captions(captions, processor, arguments(generation_max_new_tokens=7), False)
    assert "2 of 19 tokens" in caplog.text and "'giraffe' (1), 'sits' (1)" in caplog.text
    assert "1 of 3 training captions have more tokens" in caplog.text


def test_captions_without_blanks_are_refused_for_the_ptb_tokenizer(processor, arguments):
    with pytest.raises(ValueError, match="Pass `caption_tokenizer=characters`"):
        check_training_captions(["一只狗在海滩上奔跑。"] * 3, processor, arguments(), True)


def test_a_tokenizer_of_bytes_knows_every_word(tokenizer, arguments):
    processor = CaptioningProcessor(CaptioningImageProcessor(), tokenizer)
    assert not check_training_captions(["Ein Hund läuft"], processor, arguments(), False).unknown
