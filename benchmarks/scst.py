"""Profile a self-critical training step at the size of the VisualGPT paper, and compare it with the released method.

    python benchmarks/scst.py --tokenizer gpt2 [--width 768 --layers 12] [--output benchmarks/results/scst.json]

The profile covers a step on 10 images with 5 beams each: CPU seconds inside the model (decoding without a graph, the
pass with a graph, backward) and outside (rewards, text, bookkeeping). The comparison uses 2 images with 5 beams each.
The released code keeps the graph of the whole beam search. Measured are CPU seconds and the bytes that autograd keeps
for backward. Weights are random; there are 50 regions per image, and all captions have 20 tokens.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from datasets import Dataset
from decoding_rivals import project_always
from provenance import write_results
from torch import Tensor
from transformers import AutoTokenizer, DynamicCache, EncoderDecoderCache

from hf_captioners.data import load_captions
from hf_captioners.modeling.configuration_visualgpt import VisualGPTConfig
from hf_captioners.modeling.layers_attention import BeamFoldingCrossAttention
from hf_captioners.modeling.modeling_visualgpt import VisualGPTForConditionalGeneration
from hf_captioners.processing.image_processing_captioning import CaptioningImageProcessor
from hf_captioners.processing.processing_gpt2 import prepare_gpt2_tokenizer
from hf_captioners.processing.processing_visualgpt import VisualGPTProcessor
from hf_captioners.training import SCSTArguments, SCSTTrainer

BEAMS, TOKENS, REGIONS, FEATURES = 5, 20, 50, 2048


class Clock:
    """Timer that sums CPU seconds of wrapped functions by name. Nested calls count once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.depth = 0

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a timed version of a function."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start, self.depth = time.thread_time(), self.depth + 1
            try:
                return function(*args, **kwargs)
            finally:
                self.depth -= 1
                if not self.depth:
                    self.seconds[name] = self.seconds.get(name, 0.0) + time.thread_time() - start

        return timed


@contextmanager
def kept_bytes(model: torch.nn.Module) -> Iterator[dict[str, int]]:
    """Context that counts the bytes that autograd keeps for backward: each storage once, without parameters."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, tuple[Tensor, int]] = {}
    result = {"bytes": 0}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters and storage.data_ptr() not in kept:
            kept[storage.data_ptr()] = (tensor, storage.nbytes())  # the tensor is kept, so that no address is reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield result
    result["bytes"] = sum(size for _, size in kept.values())


def make_trainer(args: argparse.Namespace, images: int, folder: str) -> SCSTTrainer:
    """Build a trainer of a new VisualGPT on captions of scenes and random region features."""
    tokenizer = prepare_gpt2_tokenizer(AutoTokenizer.from_pretrained(args.tokenizer))
    torch.manual_seed(0)
    text = {"n_embd": args.width, "n_layer": args.layers, "n_head": args.width // 64, "vocab_size": len(tokenizer)}
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model = VisualGPTForConditionalGeneration(VisualGPTConfig(text_config=text, region_feature_size=FEATURES, **ids))
    scenes = load_captions("scenes", num_images={"train": images}, image_size=32, split="train")
    rng = np.random.default_rng(0)
    rows = Dataset.from_dict(
        {
            "captions": scenes["captions"],
            "regions": [{"features": rng.random((REGIONS, FEATURES), dtype=np.float32)} for _ in range(images)],
        }
    )
    arguments = SCSTArguments(
        folder,
        use_cpu=True,
        sampling="beams",
        num_samples=BEAMS,
        generation_max_new_tokens=TOKENS,
        per_device_train_batch_size=images,
        max_steps=args.repeats + 1,
        eval_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=1000,
    )
    return SCSTTrainer(
        model,
        arguments,
        train_dataset=rows,
        processing_class=VisualGPTProcessor(CaptioningImageProcessor(), tokenizer),
    )


def profile(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the seconds inside and outside the model in steps at paper size, without the first step."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(args, args.images, folder)
        trainer.sampling._generate = clock.wrap("decoding", trainer.sampling._generate)  # type: ignore[method-assign]
        trainer.sampling.logits = clock.wrap("pass with graph", trainer.sampling.logits)  # type: ignore[method-assign]
        trainer.accelerator.backward = clock.wrap("backward", trainer.accelerator.backward)
        step = trainer.training_step
        steps: list[float] = []

        def timed_step(*values: Any, **named: Any) -> Tensor:
            start = time.process_time()
            loss = step(*values, **named)
            steps.append(time.process_time() - start)
            if len(steps) == 1:  # the first step warms up
                clock.seconds.clear()
            return loss

        trainer.training_step = timed_step  # type: ignore[method-assign]
        trainer.train()
    total = sum(steps[1:])
    inside = sum(clock.seconds.values())
    parts = {name: seconds / (len(steps) - 1) for name, seconds in clock.seconds.items()}
    return {
        "images": args.images,
        "step_seconds": total / (len(steps) - 1),
        "parts": parts,
        "outside_share": 1 - inside / total,
    }


def own_step(trainer: SCSTTrainer, inputs: dict[str, Tensor]) -> Tensor:
    """Run a training step of this library: decode without a graph, compute rewards, one pass with a graph."""
    return trainer.compute_loss(trainer.model, dict(inputs))


def released_step(trainer: SCSTTrainer, inputs: dict[str, Tensor]) -> Tensor:
    """Run a training step as the released code: the beam search itself carries the gradient.

    As in the released code, self-attention caches its keys and values, images are repeated for each beam, and
    cross-attention projects them again in each step.
    """
    with patch.object(BeamFoldingCrossAttention, "keys_and_values", project_always):
        return search_with_graph(trainer, inputs)


def search_with_graph(trainer: SCSTTrainer, inputs: dict[str, Tensor]) -> Tensor:
    """Run a beam search whose graph is kept; return the loss."""
    model = trainer.model
    images = len(inputs["row"])
    encoded = model.get_encoder()(region_features=inputs["region_features"], region_mask=inputs["region_mask"])
    words = torch.full((images, 1), model.config.decoder_start_token_id)
    past: Any = EncoderDecoderCache(DynamicCache(config=model.config.text_config), DynamicCache())
    total, chosen, logprobs = torch.zeros(images, 1), words[:, :0], torch.zeros(images, 1, 0)
    for step in range(TOKENS):
        outputs = model(encoder_outputs=encoded, decoder_input_ids=words, cache=past, use_cache=True)
        each = outputs.logits[:, -1].log_softmax(-1).view(images, -1, outputs.logits.shape[-1])
        total, best = (total[..., None] + each.detach()).flatten(1).topk(BEAMS)
        beam, word = best // each.shape[-1], best % each.shape[-1]
        gained = each.flatten(1).gather(1, beam * each.shape[-1] + word)
        logprobs = torch.cat((logprobs.gather(1, beam[..., None].expand(-1, -1, step)), gained[..., None]), -1)
        rows = (beam + torch.arange(images)[:, None] * each.shape[1]).flatten()
        for layer in past.self_attention_cache.layers:
            layer.keys, layer.values = layer.keys[rows], layer.values[rows]
        words = word.view(-1, 1)
        chosen = torch.cat((chosen[rows], words), 1)
        if not step:
            for name in ("last_hidden_state", "level_states", "region_mask"):
                encoded[name] = encoded[name].repeat_interleave(BEAMS, 0)
    completions = trainer.encoder.decode(chosen)
    row = np.repeat(inputs["row"].tolist(), BEAMS).tolist()
    reward = trainer.rewards.total(trainer.rewards(completions, row, [False] * len(row))).view(images, BEAMS)
    advantage = reward - reward.mean(1, keepdim=True)
    return -(logprobs.mean(-1) * advantage).mean()


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Measure median seconds and kept bytes of both methods on two images."""
    images = 2
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(args, images, folder)
        trainer.model.eval()
        items = [trainer.train_dataset[row] for row in range(images)]
        inputs = trainer.data_collator(items)
        measured = {}
        for name, step in (("this library", own_step), ("graph through beam search", released_step)):
            times, sizes = [], []
            for _ in range(args.repeats + 1):
                trainer.model.zero_grad()
                start = time.process_time()
                with kept_bytes(trainer.model) as kept:
                    loss = step(trainer, inputs)
                loss.backward()
                times.append(time.process_time() - start)
                sizes.append(kept["bytes"])
            measured[name] = {"seconds": float(np.median(times[1:])), "activation_bytes": int(np.median(sizes[1:]))}
    ours, theirs = measured["this library"], measured["graph through beam search"]
    return {
        "images": images,
        "rows": measured,
        "time_ratio": ours["seconds"] / theirs["seconds"],
        "memory_ratio": ours["activation_bytes"] / theirs["activation_bytes"],
    }


def main() -> None:
    """Measure both methods, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default="gpt2", help="name or directory of the tokenizer of GPT-2")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--output", default="benchmarks/results/scst.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    result = {
        "setting": {"width": args.width, "layers": args.layers, "beams": BEAMS, "tokens": TOKENS, "regions": REGIONS},
        "profile": profile(args),
        "rival": compare(args),
    }
    write_results(args.output, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
