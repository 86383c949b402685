"""Mistakes that type checkers find: each line with a comment `error`, and no other. It is never run."""

from hf_captioners import (
    CaptioningTrainingArguments,
    VisualGPTConfig,
    compute_caption_metrics,
    load_captioner,
    load_captions,
)
from hf_captioners.captioning import CaptionBatches
from hf_captioners.metrics import cider_dee  # error
from hf_captioners.training import CaptioningTrainerr  # error

load_captioner(3)  # error
load_captioner("x", processor_options=["size"])  # error
load_captions()  # error
load_captions("caption_folder", streaming="yes")  # error
CaptionBatches("x", num_beems=3)  # error
CaptionBatches("x", num_beams="three")  # error
CaptionBatches("x", bookkeeping="alive")  # error
CaptionBatches(column=1)  # error
compute_caption_metrics("a dog", 3)  # error
compute_caption_metrics(["a dog"], [["a dog"]], metric="cider_d")  # error
VisualGPTConfig(srau_treshold=0.2)  # error with transformers
VisualGPTConfig(fusion="add")  # error with transformers
CaptioningTrainingArguments("x", generation_num_beems=3)  # error with transformers

__all__ = ["CaptioningTrainerr", "cider_dee"]
