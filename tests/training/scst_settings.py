"""Small self-critical trainers for the tests."""

from hf_captioners.training import SCSTArguments, SCSTTrainer

SMALL = {
    "use_cpu": True,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-3,
    "num_train_epochs": 2,
    "num_samples": 3,
    "generation_num_beams": 1,
    "generation_max_new_tokens": 5,
    "evaluate_loss": False,
    "logging_steps": 1,
    "disable_tqdm": True,
    "seed": 7,
}


def scst_trainer(model, processor, rows, output_dir, reward_funcs=None, callbacks=None, **fields):
    """Build a trainer on the rows' `train` and `validation` splits; it takes captioners of new parts."""
    model.is_untrained = False
    return SCSTTrainer(
        model,
        SCSTArguments(**({"output_dir": str(output_dir)} | SMALL | fields)),
        train_dataset=rows["train"],
        eval_dataset=rows["validation"],
        processing_class=processor,
        reward_funcs=reward_funcs,
        callbacks=callbacks,
    )


def share_of_o(completions, references, **columns):
    """Return the share of the letter o as the reward."""
    return [text.count("o") / max(1, len(text)) for text in completions]


def log_of(trainer, name):
    """Return the values of a log entry at all steps."""
    return [entry[name] for entry in trainer.state.log_history if name in entry]
