"""Run by test_processes.py, alone or with torchrun: a short training, whose results it writes to a file."""

import json
import sys
from pathlib import Path

from datasets import load_from_disk

from hf_captioners.loading import load_captioner
from hf_captioners.training import CaptioningTrainer, CaptioningTrainingArguments

folder, output, batch_size = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
model, processor = load_captioner(str(folder / "captioner"))
trainer = CaptioningTrainer(
    model,
    CaptioningTrainingArguments(
        output,
        use_cpu=True,
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=2,
        learning_rate=1e-3,
        max_steps=4,
        captions_per_image=1,
        logging_steps=1,
        generation_num_beams=2,
        generation_max_new_tokens=5,
        disable_tqdm=True,
        save_strategy="no",
        eval_strategy="no",
        feature_cache_dtype="float32",
    ),
    train_dataset=load_from_disk(str(folder / "train")),
    eval_dataset=load_from_disk(str(folder / "validation")),
    processing_class=processor,
)
trainer.train()
metrics = trainer.evaluate()
captions = trainer.caption(trainer.eval_dataset)
if trainer.is_world_process_zero():
    curve = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    found = {"losses": curve, "captions": captions, "cider_d": metrics["eval_cider_d"], "loss": metrics["eval_loss"]}
    Path(output, "found.json").write_text(json.dumps(found))
