"""Configuration of the bilinear captioner."""

from typing import ClassVar

from transformers import AutoConfig

from .configuration_captioning import CaptioningConfig, positive, rate


class BilinearConfig(CaptioningConfig):
    """Configuration of a captioner with a GRU and bilinear attention over regions.

    Args:
        vocab_size (`int`, defaults to 10,000): words.
        hidden_size (`int`, defaults to 512): D of words, regions and states.
        dropout (`float`, defaults to 0.5): rate on words and on the output.
    """

    model_type = "captioning_bilinear"
    sub_configs: ClassVar = {"vision_config": AutoConfig}

    vocab_size: int = positive(default=10000)
    hidden_size: int = positive(default=512)
    dropout: float | int = rate(default=0.5)
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
