"""`torch_compile` does not change the results of training."""

import pytest
from torch._dynamo import OptimizedModule

from hf_captioners.loading import load_captioner

from .scst_settings import log_of, scst_trainer

pytestmark = pytest.mark.slow

COMPILED = {"torch_compile": True, "torch_compile_backend": "aot_eager"}  # as inductor, without a C++ compiler


def test_cross_entropy(make_trainer, make_captioner, tmp_path):
    curves = []
    for fields in ({}, COMPILED):
        trainer = make_trainer(make_captioner(), output_dir=str(tmp_path / str(len(curves))), **fields)
        trainer.train()
        assert isinstance(trainer.model_wrapped, OptimizedModule) == bool(fields)
        curves.append(log_of(trainer, "loss") + log_of(trainer, "eval_loss") + log_of(trainer, "eval_cider_d"))
        trainer.save_model()
    assert curves[0] == pytest.approx(curves[1], abs=1e-4)
    model, _ = load_captioner(trainer.args.output_dir)
    assert model.state_dict().keys() == make_captioner().state_dict().keys()


def test_self_critical(make_captioner, processor, scenes, tmp_path):
    curves = []
    for fields in ({}, COMPILED):
        trainer = scst_trainer(make_captioner(), processor, scenes, tmp_path / str(len(curves)), **fields)
        trainer.train()
        curves.append(log_of(trainer, "reward") + log_of(trainer, "loss") + log_of(trainer, "eval_cider_d"))
    assert curves[0] == pytest.approx(curves[1], abs=1e-4)
