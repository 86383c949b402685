"""Experiment of the demonstration: fine-tuning of a captioner on few images, with and without a language model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

Job = Callable[[], Any]
RunJobs = Callable[[Sequence[Job]], list[Any]]  # returns what the jobs return


@dataclass(frozen=True)
class Scale:
    """Sizes of data sets, and lengths of trainings.

    Args:
        labelled: images with labelled boxes for the vision model, each seen once.
        texts: scenes whose captions train the language model.
        language_steps: batches of 24 rows of three captions.
        images: captioned images for fine-tuning.
        epochs: epochs over their captions.
        unseen: images for evaluation.
        runs: fine-tunings (seeds) from each initialisation.
        image_size: side of the images in pixels.
    """

    labelled: int = 26_000
    texts: int = 4000
    language_steps: int = 500
    images: int = 2000
    epochs: int = 5
    unseen: int = 150
    runs: int = 2
    image_size: int = 64


QUICK = Scale(labelled=320, texts=100, language_steps=20, images=20, epochs=1, unseen=10, runs=1)


@dataclass
class Run:
    """Result of one fine-tuning: captions, metrics and captioner.

    Args:
        pretrained: whether the decoder started from the language model.
        seed: seed of the run.
        captions: captions of the evaluation images.
        cider_d: CIDEr-D of the captions.
        bleu_4: BLEU-4 of the captions.
        shuffled: CIDEr-D of the shuffled control, the same captions scored against the next image's references.
        curve: pairs of progress (0 to 1) and CIDEr-D.
        model: the captioner.
    """

    pretrained: bool
    seed: int
    captions: list[str]
    cider_d: float
    bleu_4: float
    shuffled: float
    curve: list[tuple[float, float]] = field(default_factory=list)
    model: Any = None


@dataclass
class Parts:
    """Pretrained models and data that all fine-tunings share.

    Args:
        language_model: the pretrained GPT-2.
        perplexity: its perplexity per token.
        backbone: the pretrained vision model.
        accuracy: its accuracy by label.
        processor: the processor of the captioner.
        train: captioned images for fine-tuning.
        unseen: captioned images for evaluation.
    """

    language_model: Any
    perplexity: float
    backbone: Any
    accuracy: dict[str, float]
    processor: Any
    train: Any
    unseen: Any


def prepare(scale: Scale, seed: int, run_jobs: RunJobs) -> Parts:
    """Draw images; pretrain the vision model on object labels and the language model on text.

    Args:
        scale: sizes of data sets and lengths of training.
        seed: base seed.
        run_jobs: runs the two pretrainings.
    """
    from hf_captioners.data import load_captions
    from hf_captioners.data.scenes import caption_texts
    from hf_captioners.demo.models import image_preparation, train_backbone, train_language_model
    from hf_captioners.processing.processing_gpt2 import prepare_gpt2_tokenizer
    from hf_captioners.processing.processing_visualgpt import VisualGPTProcessor

    say(f"Drawing {scale.images} images for fine-tuning and {scale.unseen} for evaluation")
    counts = {"train": scale.images, "test": scale.unseen}
    scenes = load_captions("scenes", num_images=counts, image_size=scale.image_size, seed=seed)
    say(f"Vision model: a small ResNet learns from {scale.labelled:,} images with labelled boxes")
    say(f"Language model: a small GPT-2 is trained on {scale.texts * 5:,} captions without images")
    texts = [" ".join(text.lower().split()).rstrip(".") for text in caption_texts(scale.texts, seed)]
    rows = [
        [texts[scene + (first + place) % 5] for place in range(3)]  # three captions of a scene, beginning with any
        for scene in range(0, len(texts), 5)
        for first in range(5)
    ]
    vision = partial(train_backbone, scale.labelled, scale.image_size, seed)
    language = partial(train_language_model, rows, scale.language_steps, seed, rows_per_step=24)
    (backbone, accuracy), (language_model, tokenizer, perplexity) = run_jobs([vision, language])
    shares = ", ".join(f"{name} {share:.0%}" for name, share in accuracy.items())
    say(f"  accuracy of the vision model on held-out images: {shares}")
    say(f"  perplexity of the language model: {perplexity:.2f} per token")
    processor = VisualGPTProcessor(image_preparation(scale.image_size), prepare_gpt2_tokenizer(tokenizer))
    return Parts(language_model, perplexity, backbone, accuracy, processor, scenes["train"], scenes["test"])


def fine_tune(parts: Parts, scale: Scale, pretrained: bool, seed: int, folder: Path) -> Run:
    """Fine-tune a captioner from the language model or from random weights, and evaluate it."""
    from transformers import GPT2LMHeadModel, PrinterCallback, set_seed

    from hf_captioners.metrics import compute_caption_metrics
    from hf_captioners.modeling.modeling_visualgpt import VisualGPTForConditionalGeneration
    from hf_captioners.training import CaptioningTrainer, CaptioningTrainingArguments

    set_seed(seed)
    language_model = parts.language_model if pretrained else GPT2LMHeadModel(parts.language_model.config)
    model = VisualGPTForConditionalGeneration.from_pretrained_parts(
        language_model,
        vision_model=parts.backbone,
        tokenizer=parts.processor.tokenizer,
        encoder_layers=1,
        encoder_ffn_dim=256,
        encoder_dropout=0.0,
        cross_attention_dropout=0.0,
        use_region_boxes=True,
    )
    name = f"{'pretrained' if pretrained else 'random'}-{seed}"
    say(f"{name}: fine-tuning VisualGPT from {'the language model' if pretrained else 'random weights'}, seed {seed}")
    arguments = CaptioningTrainingArguments(
        output_dir=str(folder / name),
        feature_cache_dir=str(folder / "features"),
        seed=seed,
        num_train_epochs=scale.epochs,
        per_device_train_batch_size=32,
        learning_rate=1.2e-3,
        train_sampling_strategy="group_by_length",
        adam_beta2=0.95,
        lr_scheduler_type="cosine",
        warmup_steps=0.1,
        eval_strategy="steps",
        eval_steps=0.2,
        save_strategy="no",
        load_best_model_at_end=False,
        early_stopping_patience=None,
        evaluate_loss=False,
        generation_num_beams=1,
        generation_max_new_tokens=24,
        per_device_eval_batch_size=50,
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = CaptioningTrainer(
        model, arguments, train_dataset=parts.train, eval_dataset=parts.unseen, processing_class=parts.processor
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    captions = trainer.caption(parts.unseen, num_beams=3)
    references = parts.unseen["captions"]
    figures = compute_caption_metrics(captions, references, metrics=("bleu", "cider_d", "cider_d_shuffled"))
    curve = [
        (entry["epoch"] / scale.epochs, entry["eval_cider_d"])
        for entry in trainer.state.log_history
        if "eval_cider_d" in entry
    ]
    say(f"  {name}: CIDEr-D {figures['cider_d']:.3f}, shuffled control {figures['cider_d_shuffled']:.3f}")
    if pretrained:
        trainer.save_model()
    cider_d, bleu_4, shuffled = (figures[name] for name in ("cider_d", "bleu_4", "cider_d_shuffled"))
    return Run(pretrained, seed, captions, cider_d, bleu_4, shuffled, curve, trainer.model)


def mean(values: list[float]) -> float:
    """Compute the arithmetic mean."""
    return sum(values) / len(values)


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, flush=True)  # noqa: T201  the demonstration runs for minutes
