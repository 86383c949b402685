"""Tiny captioners of transformers with random weights."""

from transformers import (
    BlipConfig,
    BlipForConditionalGeneration,
    GitConfig,
    GitForCausalLM,
    GPT2Config,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
)

SIDE = 32


VISION = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": SIDE,
    "patch_size": 8,
}


def tiny_ved(tokenizer):
    text = GPT2Config(vocab_size=len(tokenizer), n_positions=96, n_embd=16, n_layer=1, n_head=2)
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(ViTConfig(**VISION), text)
    config.decoder_start_token_id, config.pad_token_id = tokenizer.bos_token_id, tokenizer.pad_token_id
    config.eos_token_id = tokenizer.eos_token_id
    return VisionEncoderDecoderModel(config)


def tiny_blip(tokenizer):
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "encoder_hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 96,
        "bos_token_id": tokenizer.bos_token_id,
        "sep_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    return BlipForConditionalGeneration(BlipConfig(text_config=text, vision_config=VISION, projection_dim=16))


def tiny_git(tokenizer):
    config = GitConfig(
        vision_config=VISION,
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=96,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return GitForCausalLM(config)
