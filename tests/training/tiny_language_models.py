"""A tiny language model and a tiny LLaVA, with chat templates."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

SIDE = 16


CAPTIONS = [["a red circle on the left", "one red circle"], ["two blue stars", "blue stars on the right"]]


TEMPLATE = """{% for message in messages %}{{ message['role'] }}: {% if message['content'] is string %}\
{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endif %} {% endfor %}"""


def words_tokenizer():
    """Make a tokenizer of the few words of the references, so that samples share words with them."""
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    words = sorted({word for texts in CAPTIONS for text in texts for word in text.split()})
    vocabulary = {word: number for number, word in enumerate([*special.values(), *words])}
    base = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    base.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=base, **special)


def language_model(tokenizer):
    size = {"n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
    tokenizer.chat_template = TEMPLATE
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=1, **size)), tokenizer


def vision_language_model(tokenizer):
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(image_size=SIDE, patch_size=8, projection_dim=16, **size),
        text_config=LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **size),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    processor = LlavaProcessor(
        CLIPImageProcessorPil(size={"height": SIDE, "width": SIDE}, do_center_crop=False),
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    )
    return LlavaForConditionalGeneration(config), processor
