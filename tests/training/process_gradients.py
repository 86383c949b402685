"""Run by test_processes.py, alone or with torchrun: the gradient of one step, written to a file.

Arguments: folder with captioner and rows, file to write, images a process, `cross_entropy` or `scst`.
"""

import sys
from pathlib import Path

import torch
from datasets import load_from_disk
from safetensors.torch import save_file
from transformers import TrainerCallback

from hf_captioners.loading import load_captioner
from hf_captioners.training import CaptioningTrainer, CaptioningTrainingArguments, SCSTArguments, SCSTTrainer
from hf_captioners.training.scst.sampling import CaptionSamples

SAMPLES, LENGTH = 3, 5


class KeepGradient(TrainerCallback):
    """Writes what the optimizer is about to use."""

    def __init__(self, path):
        self.path = path

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if state.is_world_process_zero:
            named = ((name, parameter.grad) for name, parameter in model.named_parameters())
            save_file({name: grad.contiguous() for name, grad in named if grad is not None}, self.path)


class GivenSamples(SCSTTrainer):
    """Samples of an image come from its row alone, whichever process has it."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.rows = inputs["row"].tolist()
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _draw(self, images):
        vocabulary = self.base_model.config.vocab_size
        drawn = [
            torch.randint(3, vocabulary, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(row))
            for row in self.rows
        ]
        tokens = torch.cat(drawn)
        begin = torch.full((len(tokens), 1), self.base_model.config.decoder_start_token_id)
        return CaptionSamples.of(torch.cat((begin, tokens), 1), self.sampling.ends, self.sampling.padding)


def share_of_e(completions, references, **columns):
    """A reward that differs between samples."""
    return [text.count("e") / max(1, len(text)) for text in completions]


folder, output, batch_size, kind = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
model, processor = load_captioner(str(folder / "captioner"))
common = {
    "output_dir": f"{output}-run",
    "use_cpu": True,
    "per_device_train_batch_size": batch_size,
    "max_steps": 1,
    "max_grad_norm": 0.0,
    "disable_tqdm": True,
    "save_strategy": "no",
    "eval_strategy": "no",
    "generation_max_new_tokens": LENGTH,
    "feature_cache_dtype": "float32",
}
rows = load_from_disk(str(folder / "train")).select(range(6))
options = {"train_dataset": rows, "processing_class": processor, "callbacks": [KeepGradient(output)]}
if kind == "cross_entropy":
    trainer = CaptioningTrainer(model, CaptioningTrainingArguments(**common, captions_per_image=1), **options)
else:
    trainer = GivenSamples(model, SCSTArguments(**common, num_samples=SAMPLES), reward_funcs=[share_of_e], **options)
trainer.train()
