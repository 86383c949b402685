"""Training that pushes every save to the Hub; test_trained_card.py runs it with `accelerate launch`."""

import sys
from pathlib import Path

from datasets import load_from_disk

from hf_captioners.loading import load_captioner
from hf_captioners.training import CaptioningTrainer, CaptioningTrainingArguments, SCSTArguments, SCSTTrainer

KINDS = {
    "cross_entropy": (CaptioningTrainer, CaptioningTrainingArguments, {"captions_per_image": 1}),
    "self_critical": (SCSTTrainer, SCSTArguments, {"num_samples": 2}),
}

folder = Path(sys.argv[1])
trainer_kind, arguments_kind, fields = KINDS[sys.argv[2]]
model, processor = load_captioner(str(folder / "captioner"))
trainer = trainer_kind(
    model,
    arguments_kind(
        str(folder / "run"),
        use_cpu=True,
        per_device_train_batch_size=6,
        max_steps=2,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=False,
        generation_num_beams=1,
        generation_max_new_tokens=5,
        disable_tqdm=True,
        push_to_hub=True,
        hub_model_id="together",
        hub_always_push=True,
        **fields,
    ),
    train_dataset=load_from_disk(str(folder / "train")),
    eval_dataset=load_from_disk(str(folder / "validation")),
    processing_class=processor,
)
trainer.train()
trainer.push_to_hub()
