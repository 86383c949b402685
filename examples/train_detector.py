"""Train a small RT-DETR (Zhao et al., CVPR 2024) on drawn scenes, and measure it on unseen ones.

    python examples/train_detector.py --output_dir runs/scene_detector

The detector is a vision part for captioners (`--vision_model runs/scene_detector`, see docs/regions.md); nothing of it
is pretrained. `backbone/` in the output folder holds the ResNet of the detector by itself, to compare its grid with
the regions; `detection.json` has the mean average precision. To train on images of your own, replace
`load_captions("scenes")` by a data set with columns `image` and `objects`: labels, and boxes x1, y1, x2, y2 as shares
of the sides of the image.
"""

import argparse
import contextlib
import io
import json
import time
from pathlib import Path

import torch
from datasets import Dataset
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import Tensor
from transformers import (
    ResNetConfig,
    ResNetModel,
    RTDetrConfig,
    RTDetrForObjectDetection,
    RTDetrImageProcessor,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_captioners.data import load_captions

BACKBONE = {"embedding_size": 32, "hidden_sizes": [32, 64, 128, 192], "depths": [1, 1, 1, 1], "layer_type": "basic"}
STAGES = {"out_features": ["stage2", "stage3", "stage4"]}
SIZES = {
    **{"d_model": 96, "encoder_hidden_dim": 96, "encoder_ffn_dim": 192, "decoder_ffn_dim": 192, "decoder_layers": 3},
    **{"encoder_attention_heads": 3, "decoder_attention_heads": 3, "hidden_expansion": 0.5},
    **{"encoder_in_channels": BACKBONE["hidden_sizes"][1:], "decoder_in_channels": [96] * 3},
    **{"num_queries": 20, "num_denoising": 20, "dropout": 0.0},
}


def new_detector(labels: list[str]) -> RTDetrForObjectDetection:
    """Return an untrained detector of these labels."""
    config = RTDetrConfig(
        backbone_config=ResNetConfig(**BACKBONE, **STAGES),
        freeze_backbone_batch_norms=False,  # there are no pretrained statistics to keep
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
        **SIZES,
    )
    return RTDetrForObjectDetection(config)


def centre_boxes(boxes: list[list[float]]) -> Tensor:
    """Return boxes x1, y1, x2, y2 as centre, width and height, `[objects, 4]`."""
    corners = torch.tensor(boxes).reshape(-1, 4)
    first, last = corners[:, :2], corners[:, 2:]
    return torch.cat(((first + last) / 2, last - first), 1)


class Collator:
    """Turns rows into pixels and labels of the detector."""

    def __init__(self, image_processor: RTDetrImageProcessor) -> None:
        self.image_processor = image_processor

    def __call__(self, rows: list[dict]) -> dict:
        """Return `pixel_values` `[B, 3, S, S]` and the labels and boxes of each image."""
        pixels = self.image_processor([row["image"] for row in rows], return_tensors="pt")["pixel_values"]
        labels = [
            {
                "class_labels": torch.tensor([one["label"] for one in row["objects"]]),
                "boxes": centre_boxes([one["box"] for one in row["objects"]]),
            }
            for row in rows
        ]
        return {"pixel_values": pixels, "labels": labels}


@torch.no_grad()
def average_precision(
    model: RTDetrForObjectDetection, image_processor: RTDetrImageProcessor, rows: Dataset, batch_size: int = 50
) -> dict[str, float]:
    """Return the mean average precision over labels: at an IoU of 0.5, and over IoU from 0.5 to 0.95, as in COCO."""
    model.eval()
    images, truth, found = [], [], []
    for first in range(0, len(rows), batch_size):
        batch = [rows[row] for row in range(first, min(first + batch_size, len(rows)))]
        outputs = model(image_processor([row["image"] for row in batch], return_tensors="pt")["pixel_values"])
        sizes = [row["image"].size[::-1] for row in batch]
        detected = image_processor.post_process_object_detection(outputs, threshold=0.0, target_sizes=sizes)
        for number, (row, detections) in enumerate(zip(batch, detected, strict=True), first):
            width, height = row["image"].size
            images.append({"id": number, "width": width, "height": height})
            for one in row["objects"]:
                x1, y1, x2, y2 = one["box"]
                box = [x1 * width, y1 * height, (x2 - x1) * width, (y2 - y1) * height]
                truth.append({"id": len(truth) + 1, "image_id": number, "category_id": one["label"], "bbox": box})
                truth[-1] |= {"area": box[2] * box[3], "iscrowd": 0}
            for label, score, box in zip(
                *(detections[name].tolist() for name in ("labels", "scores", "boxes")), strict=True
            ):
                sides = [box[2] - box[0], box[3] - box[1]]
                found.append({"image_id": number, "category_id": label, "bbox": [*box[:2], *sides], "score": score})
    reference = COCO()
    categories = [{"id": index, "name": name} for index, name in model.config.id2label.items()]
    reference.dataset = {"info": {}, "images": images, "annotations": truth, "categories": categories}
    with contextlib.redirect_stdout(io.StringIO()):
        reference.createIndex()
        evaluation = COCOeval(reference, reference.loadRes(found), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return {"map_50": float(evaluation.stats[1]), "map_50_95": float(evaluation.stats[0])}


def main() -> None:
    """Train, save and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--num_images", type=int, default=8000)
    parser.add_argument("--num_test_images", type=int, default=500)
    parser.add_argument("--image_size", type=int, default=128)
    parser.add_argument("--num_train_epochs", type=float, default=8)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--max_steps", type=int, default=-1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    set_seed(args.seed)
    start = time.time()
    number = {"train": args.num_images, "test": args.num_test_images}
    scenes = load_captions("scenes", num_images=number, image_size=args.image_size)
    labels = scenes["train"].features["objects"].feature["label"].names
    model = new_detector(labels)
    image_processor = RTDetrImageProcessor(size={"height": args.image_size, "width": args.image_size})
    training = TrainingArguments(
        str(args.output_dir),
        per_device_train_batch_size=args.batch_size,
        num_train_epochs=args.num_train_epochs,
        max_steps=args.max_steps,
        learning_rate=args.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=200,
        weight_decay=1e-4,
        max_grad_norm=0.1,
        logging_steps=100,
        save_strategy="no",
        remove_unused_columns=False,
        seed=args.seed,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(model, training, Collator(image_processor), scenes["train"])
    trainer.train()
    model.save_pretrained(args.output_dir)
    image_processor.save_pretrained(args.output_dir)
    backbone = ResNetModel(ResNetConfig(**BACKBONE))
    backbone.load_state_dict(model.model.backbone.model.state_dict())
    backbone.save_pretrained(args.output_dir / "backbone")
    image_processor.save_pretrained(args.output_dir / "backbone")
    figures = average_precision(model.cpu(), image_processor, scenes["test"])
    figures |= {"images": args.num_test_images, "steps": trainer.state.global_step, "seconds": time.time() - start}
    (args.output_dir / "detection.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(f"mean average precision at IoU 0.5: {figures['map_50']:.3f} ({figures['seconds'] / 60:.0f} minutes)")


if __name__ == "__main__":
    main()
