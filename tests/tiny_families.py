"""Tiny random checkpoints of transformers' image-to-text model families, with processors."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

WORDS = "a dog and two children play with the red ball on green grass near water while a man in blue watches them"
CHAT = "Describe this image . USER: ASSISTANT: user assistant model system caption en An image of What is it ?"
SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
VISION = {**SIZES, "image_size": 32, "patch_size": 8}
LANGUAGE = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 2048}
SIDE = {"height": 32, "width": 32}
SMALLEST_DEVIATION = 0.15  # of weights; smaller ones are drawn anew, so that captions depend on the image
# Templates as those of the families: markers of turns, and the place of the image.
TURNS = (
    "{{% for m in messages %}}{begin}{% if m['content'] is string %}{{{{ m['content'] }}}}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}{image}{% else %}{{{{ c['text'] }}}}{% endif %}"
    "{% endfor %}{% endif %}{end}{% endfor %}{% if add_generation_prompt %}{answer}{% endif %}"
)


def chat_template(begin: str, image: str, end: str, answer: str) -> str:
    """Return a template with these marks; `ROLE` stands for the role of a turn."""
    text = TURNS.replace("{{{{", "{{").replace("}}}}", "}}").replace("{{%", "{%").replace("%}}", "%}")
    marks = {"{begin}": begin.replace("ROLE", "{{ m['role'] }}"), "{image}": image, "{end}": end, "{answer}": answer}
    for mark, value in marks.items():
        text = text.replace(mark, value)
    return text


CHATML_IMAGE = chat_template("<|im_start|>ROLE\n", "IMAGE", "<|im_end|>\n", "<|im_start|>assistant\n")
VICUNA = chat_template("ROLE: ", "<image>\n", " ", "assistant:")
IDEFICS = chat_template("<|im_start|>ROLE: ", "<image>", "<end_of_utterance>\n", "assistant:")
GEMMA = "<s>" + chat_template("<start_of_turn>ROLE\n", "<start_of_image>", "<end_of_turn>\n", "<start_of_turn>model\n")


def tokenizer(special: Iterable[str] = (), side: str = "left", **options: Any) -> Any:
    """Return a byte-level BPE; ids 0-3 are pad, begin, end and unknown, then come the special tokens."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    names = ["<pad>", "<s>", "</s>", "<unk>", *special]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        [WORDS, CHAT] * 20, trainers.BpeTrainer(vocab_size=420, special_tokens=names, initial_alphabet=alphabet)
    )
    defaults = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=core, padding_side=side, **{**defaults, **options})


def ids(words: Any) -> dict[str, Any]:
    """Return the special tokens of a configuration."""
    names = {"bos_token_id": words.bos_token_id, "eos_token_id": words.eos_token_id}
    return {"vocab_size": len(words), "pad_token_id": words.pad_token_id, **names}


def clip_images() -> Any:
    return hf.CLIPImageProcessor(size=SIDE, crop_size=SIDE)


def clip_vision() -> dict[str, Any]:
    return {"model_type": "clip_vision_model", "projection_dim": 32, **VISION}


def blip() -> tuple[Any, Any]:
    words = tokenizer(side="right")
    text = {**SIZES, **ids(words), "encoder_hidden_size": 32, "max_position_embeddings": 128, "sep_token_id": 2}
    config = hf.BlipConfig(text_config=text, vision_config=VISION, projection_dim=16)
    return hf.BlipForConditionalGeneration(config), hf.BlipProcessor(hf.BlipImageProcessor(size=SIDE), words)


def git() -> tuple[Any, Any]:
    words = tokenizer(side="right")
    config = hf.GitConfig(vision_config=VISION, max_position_embeddings=128, **ids(words), **SIZES)
    return hf.GitForCausalLM(config), hf.GitProcessor(clip_images(), words)


class SeparateParts:
    """Tokenizer and image processor that are saved without a processor."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def save_pretrained(self, folder: Path) -> None:
        for part in self.parts:
            part.save_pretrained(folder)


def vision_encoder_decoder() -> tuple[Any, Any]:
    words = tokenizer(side="right")
    text = hf.GPT2Config(**ids(words), n_embd=32, n_layer=2, n_head=2)
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(hf.ViTConfig(**VISION), text)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 1, 0, 2
    model = hf.VisionEncoderDecoderModel(config)
    model.generation_config = hf.GenerationConfig(
        decoder_start_token_id=1, bos_token_id=1, eos_token_id=2, pad_token_id=0
    )
    return model, SeparateParts(words, hf.ViTImageProcessor(size=SIDE))


def query_former(words: Any) -> dict[str, Any]:
    return {**SIZES, "vocab_size": len(words), "encoder_hidden_size": 32, "max_position_embeddings": 64}


def blip_2() -> tuple[Any, Any]:
    words = tokenizer(["<image>"])
    text = {"model_type": "opt", **ids(words), "hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 48}
    config = hf.Blip2Config(
        vision_config=VISION,
        qformer_config=query_former(words),
        text_config={**text, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 256},
        num_query_tokens=8,
        image_text_hidden_size=16,
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )
    processor = hf.Blip2Processor(hf.BlipImageProcessor(size=SIDE), words, num_query_tokens=8)
    return hf.Blip2ForConditionalGeneration(config), processor


def instructblip() -> tuple[Any, Any]:
    words, queries = tokenizer(["<image>"]), tokenizer(side="right")
    config = hf.InstructBlipConfig(
        vision_config=VISION,
        qformer_config=query_former(queries),
        text_config={"model_type": "llama", **LANGUAGE, **ids(words)},
        num_query_tokens=8,
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )
    processor = hf.InstructBlipProcessor(hf.BlipImageProcessor(size=SIDE), words, queries, num_query_tokens=8)
    return hf.InstructBlipForConditionalGeneration(config), processor


def with_t5(model_type: str) -> tuple[Any, Any]:
    """BLIP-2 or InstructBLIP with the language model of T5."""
    words, queries = tokenizer(["<image>"], side="right", bos_token=None), tokenizer(side="right")
    words._tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    text = {"model_type": "t5", "d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2}
    text |= {"vocab_size": len(words), "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
    options = {"vision_config": VISION, "qformer_config": query_former(queries), "num_query_tokens": 8}
    options |= {"text_config": {**text, "initializer_factor": 3.0}, "image_token_index": 4}
    images = hf.BlipImageProcessor(size=SIDE)
    if model_type == "blip-2":
        model: Any = hf.Blip2ForConditionalGeneration(hf.Blip2Config(image_text_hidden_size=16, **options))
        return with_large_weights(model), hf.Blip2Processor(images, words, num_query_tokens=8)
    model = hf.InstructBlipForConditionalGeneration(hf.InstructBlipConfig(**options))
    return with_large_weights(model), hf.InstructBlipProcessor(images, words, queries, num_query_tokens=8)


def paligemma() -> tuple[Any, Any]:
    words = tokenizer(["<image>"], extra_special_tokens={"image_token": "<image>"})
    images = hf.SiglipImageProcessor(size=SIDE)
    images.image_seq_length = 16
    processor = hf.PaliGemmaProcessor(images, words)  # adds tokens of places
    tokens = ids(processor.tokenizer)
    config = hf.PaliGemmaConfig(
        text_config={"model_type": "gemma", "head_dim": 16, **LANGUAGE, **tokens},
        vision_config={"model_type": "siglip_vision_model", "projection_dim": 32, **VISION},
        image_token_index=words.convert_tokens_to_ids("<image>"),
        projection_dim=32,
        hidden_size=32,
        **tokens,
    )
    return hf.PaliGemmaForConditionalGeneration(config), processor


def llava() -> tuple[Any, Any]:
    words = tokenizer(["<image>"], extra_special_tokens={"image_token": "<image>"})
    config = hf.LlavaConfig(
        vision_config=clip_vision(),
        text_config={"model_type": "llama", **LANGUAGE, **ids(words)},
        image_token_index=words.convert_tokens_to_ids("<image>"),
        image_seq_length=16,
    )
    options = {"vision_feature_select_strategy": "default", "num_additional_image_tokens": 1, "chat_template": VICUNA}
    processor = hf.LlavaProcessor(clip_images(), words, patch_size=8, **options)
    return hf.LlavaForConditionalGeneration(config), processor


def llava_next() -> tuple[Any, Any]:
    words, grid = (
        tokenizer(["<image>"], extra_special_tokens={"image_token": "<image>"}),
        [[32, 64], [64, 32], [64] * 2],
    )
    config = hf.LlavaNextConfig(
        vision_config=clip_vision(),
        text_config={"model_type": "llama", **LANGUAGE, **ids(words)},
        image_token_index=words.convert_tokens_to_ids("<image>"),
        image_seq_length=16,
        image_grid_pinpoints=grid,
    )
    images = hf.LlavaNextImageProcessor(size={"shortest_edge": 32}, crop_size=SIDE, image_grid_pinpoints=grid)
    options = {"vision_feature_select_strategy": "default", "num_additional_image_tokens": 1, "chat_template": VICUNA}
    return hf.LlavaNextForConditionalGeneration(config), hf.LlavaNextProcessor(images, words, patch_size=8, **options)


def qwen(version: str) -> tuple[Any, Any]:
    """Qwen2-VL, Qwen2.5-VL or Qwen3-VL, whose images have any number of patches."""
    names = ("image_pad", "video_pad", "vision_start", "vision_end")
    special = ["<|im_start|>", "<|im_end|>", *(f"<|{name}|>" for name in names)]
    words = tokenizer(special, eos_token="<|im_end|>", bos_token=None)
    tokens = {f"{name.replace('_pad', '')}_token_id": words.convert_tokens_to_ids(f"<|{name}|>") for name in names}
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
    text = {**LANGUAGE, **ids(words), "rope_parameters": rope, "head_dim": 16}
    vision: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": 8, "hidden_size": 32}
    larger = vision | {"intermediate_size": 48, "out_hidden_size": 32}
    visions = {
        "Qwen2VL": vision | {"embed_dim": 32, "mlp_ratio": 2},
        "Qwen2_5_VL": larger | {"window_size": 32, "fullatt_block_indexes": [1]},
        "Qwen3VL": larger | {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
    }
    config = getattr(hf, f"{version}Config")(text_config=text, vision_config=visions[version], **tokens)
    images = hf.Qwen2VLImageProcessor(patch_size=8, size={"shortest_edge": 32 * 32, "longest_edge": 64 * 64})
    videos = getattr(hf, "Qwen3VLVideoProcessor" if version == "Qwen3VL" else "Qwen2VLVideoProcessor")(patch_size=8)
    template = CHATML_IMAGE.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
    processor = getattr(hf, f"{version}Processor")(images, words, videos, chat_template=template)
    return getattr(hf, f"{version}ForConditionalGeneration")(config), processor


def idefics(version: str) -> tuple[Any, Any]:
    """Idefics3 or SmolVLM, which cut images into tiles."""
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    special = ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", "<|im_start|>", *tiles]
    words = tokenizer(special, eos_token="<end_of_utterance>", bos_token="<|im_start|>")
    config = getattr(hf, f"{version}Config")(
        text_config={"model_type": "llama", **LANGUAGE, **ids(words)},
        vision_config=VISION,
        image_token_id=words.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=words.pad_token_id,
    )
    images = getattr(hf, f"{version}ImageProcessor")(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    parts = [images, words] if version == "Idefics3" else [images, words, hf.SmolVLMVideoProcessor()]
    processor = getattr(hf, f"{version}Processor")(*parts, image_seq_len=4, chat_template=IDEFICS)
    return getattr(hf, f"{version}ForConditionalGeneration")(config), processor


def internvl() -> tuple[Any, Any]:
    special = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    special["video_token"] = "<video>"
    words = tokenizer(
        ["<|im_start|>", "<|im_end|>", *special.values()],
        eos_token="<|im_end|>",
        bos_token=None,
        extra_special_tokens=special,
    )
    config = hf.InternVLConfig(
        vision_config={**VISION, "image_size": [32, 32], "patch_size": [8, 8]},
        text_config={"model_type": "qwen2", **LANGUAGE, **ids(words)},
        image_token_id=words.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
        downsample_ratio=0.5,
    )
    images = hf.GotOcr2ImageProcessor(size=SIDE, crop_to_patches=True, max_patches=2)
    videos, template = hf.InternVLVideoProcessor(size=SIDE), CHATML_IMAGE.replace("IMAGE", "<IMG_CONTEXT>\n")
    processor = hf.InternVLProcessor(images, words, videos, image_seq_length=4, chat_template=template)
    return hf.InternVLForConditionalGeneration(config), processor


def gemma3() -> tuple[Any, Any]:
    special = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    words = tokenizer(["<start_of_turn>", "<end_of_turn>", *special.values()], extra_special_tokens=special)
    token = words.convert_tokens_to_ids
    config = hf.Gemma3Config(
        text_config={**LANGUAGE, **ids(words), "head_dim": 16, "sliding_window": 64},
        vision_config={"model_type": "siglip_vision_model", "vision_use_head": False, **VISION},
        mm_tokens_per_image=4,
        boi_token_index=token("<start_of_image>"),
        eoi_token_index=token("<end_of_image>"),
        image_token_index=token("<image_soft_token>"),
    )
    model = hf.Gemma3ForConditionalGeneration(config)
    model.generation_config.eos_token_id = [token("</s>"), token("<end_of_turn>")]
    images = hf.Gemma3ImageProcessor(size=SIDE)
    return model, hf.Gemma3Processor(images, words, chat_template=GEMMA, image_seq_length=4)


def florence2() -> tuple[Any, Any]:
    words = tokenizer(["<image>"], side="right", extra_special_tokens={"image_token": "<image>"})
    marks = [("<s>", 1), ("</s>", 2)]
    words._tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=marks)
    sizes = {"d_model": 32, "max_position_embeddings": 256, "decoder_start_token_id": 2, "forced_bos_token_id": 1}
    parts = {"layers": 2, "attention_heads": 2, "ffn_dim": 48}
    sizes |= {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in parts.items()}
    vision = {"depths": [1, 1], "patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1]}
    vision |= {"patch_prenorm": [False, True], "embed_dim": [16, 32], "num_heads": [2, 2], "num_groups": [2, 2]}
    tokens = {"decoder_start_token_id": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = hf.Florence2Config(
        text_config={"model_type": "bart", **sizes, **ids(words)},
        vision_config={**vision, "window_size": 4, "projection_dim": 32},
        image_token_id=words.convert_tokens_to_ids("<image>"),
        **tokens,
    )
    model = hf.Florence2ForConditionalGeneration(config)
    model.generation_config = hf.GenerationConfig(**tokens, forced_bos_token_id=1)
    images = clip_images()
    images.image_seq_length = 17
    return model, hf.Florence2Processor(images, words, num_additional_image_tokens=1)


def kosmos_2() -> tuple[Any, Any]:
    images = hf.CLIPImageProcessor(size=SIDE, crop_size=SIDE, use_square_size=True)
    processor = hf.Kosmos2Processor(images, tokenizer(), num_patch_index_tokens=16)  # adds tokens of places
    text = {**ids(processor.tokenizer), "embed_dim": 32, "layers": 2, "ffn_dim": 48, "attention_heads": 2}
    config = hf.Kosmos2Config(
        text_config={**text, "max_position_embeddings": 512}, vision_config=VISION, latent_query_num=64
    )
    return hf.Kosmos2ForConditionalGeneration(config), processor


def pix2struct() -> tuple[Any, Any]:
    words = tokenizer(side="right")
    sizes = {"hidden_size": 32, "d_kv": 16, "d_ff": 48, "initializer_factor": 3.0}
    text = {**sizes, **ids(words), "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
    vision = {
        **sizes,
        "patch_embed_hidden_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "seq_len": 4096,
    }
    config = hf.Pix2StructConfig(text_config=text, vision_config=vision)
    config.decoder_start_token_id = 0
    model = hf.Pix2StructForConditionalGeneration(config)
    model.generation_config = hf.GenerationConfig(decoder_start_token_id=0, eos_token_id=2, pad_token_id=0)
    images = hf.Pix2StructImageProcessor(patch_size={"height": 8, "width": 8}, max_patches=32)
    return model, hf.Pix2StructProcessor(images, words)


# The families by model type.
FAMILIES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "blip": blip,
    "git": git,
    "vision-encoder-decoder": vision_encoder_decoder,
    "blip-2": blip_2,
    "instructblip": instructblip,
    "paligemma": paligemma,
    "llava": llava,
    "llava_next": llava_next,
    "qwen2_vl": lambda: qwen("Qwen2VL"),
    "qwen2_5_vl": lambda: qwen("Qwen2_5_VL"),
    "qwen3_vl": lambda: qwen("Qwen3VL"),
    "idefics3": lambda: idefics("Idefics3"),
    "smolvlm": lambda: idefics("SmolVLM"),
    "internvl": internvl,
    "gemma3": gemma3,
    "florence2": florence2,
    "kosmos-2": kosmos_2,
    "pix2struct": pix2struct,
}
CHAT_FAMILIES = (
    "gemma3",
    "idefics3",
    "internvl",
    "llava",
    "llava_next",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "smolvlm",
)
FAST = ("qwen2_5_vl", "florence2")  # the families of `make test`: a chat template, and an encoder-decoder without one


def write_family(folder: Path, model_type: str) -> None:
    """Save an untrained model of a family, and its processor."""
    torch.manual_seed(0)
    model, processor = FAMILIES[model_type]()
    with_large_weights(model).save_pretrained(folder)
    processor.save_pretrained(folder)


def with_large_weights(model: Any) -> Any:
    """Replace small weights by larger ones, so that captions depend on the image."""
    for weight in model.parameters():
        if weight.ndim > 1 and weight.std() < SMALLEST_DEVIATION:
            torch.nn.init.normal_(weight, std=0.2)
    return model.eval()
