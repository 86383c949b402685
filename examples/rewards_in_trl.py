"""Train a vision-language model with TRL's `GRPOTrainer` and rewards of captions, on drawn scenes.

    python examples/rewards_in_trl.py --model Qwen/Qwen3-VL-2B-Instruct --output_dir my_vision_language_model

The rewards are CIDEr-D, whose document frequencies come from the captions of all scenes, and ROUGE-L. Replace
`drawn_scenes` by a data set with the columns `prompt`, `image` and `captions` to train on your own images.
"""

import argparse

from datasets import Dataset
from transformers import AutoModelForImageTextToText, AutoProcessor
from trl import GRPOConfig, GRPOTrainer

from hf_captioners.data.scenes import draw_example
from hf_captioners.training.rewards import caption_reward

INSTRUCTION = "Describe this image."


def drawn_scenes(count: int, image_size: int, seed: int = 0) -> Dataset:
    """Draw scenes: the instruction as a conversation, the image, and its captions."""
    examples = [draw_example(seed, index, "train", image_size) for index in range(count)]
    return Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": INSTRUCTION}]] * count,
            "image": [image for _, image, _ in examples],
            "captions": [captions for _, _, captions in examples],
        }
    )


def main() -> None:
    """Train, and save the model and its processor."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="vision-language model: name or directory")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--images", type=int, default=500, help="scenes to draw")
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--generations", type=int, default=4, help="captions of each image, which are compared")
    parser.add_argument("--learning_rate", type=float, default=1e-5)
    parser.add_argument("--max_new_tokens", type=int, default=32)
    parser.add_argument("--use_cpu", action="store_true")
    args = parser.parse_args()
    rows = drawn_scenes(args.images, args.image_size)
    trainer = GRPOTrainer(
        AutoModelForImageTextToText.from_pretrained(args.model),
        reward_funcs=[
            caption_reward("cider_d", captions=rows["captions"], references_column="captions"),
            caption_reward("rouge_l", references_column="captions"),
        ],
        args=GRPOConfig(
            args.output_dir,
            max_steps=args.steps,
            num_generations=args.generations,
            per_device_train_batch_size=args.generations,
            max_completion_length=args.max_new_tokens,
            learning_rate=args.learning_rate,
            use_cpu=args.use_cpu,
            bf16=not args.use_cpu,
            logging_steps=1,
            report_to=[],
        ),
        train_dataset=rows,
        processing_class=AutoProcessor.from_pretrained(args.model),
    )
    trainer.train()
    trainer.save_model(args.output_dir)
    for entry in trainer.state.log_history:
        if "reward" in entry:
            parts = {name: entry[f"rewards/{name}/mean"] for name in ("cider_d", "rouge_l")}
            print(f"step {entry['step']}: reward {entry['reward']:.3f}", *(f"{k} {v:.3f}" for k, v in parts.items()))


if __name__ == "__main__":
    main()
