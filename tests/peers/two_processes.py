"""Run by `processes.py` with torchrun: captioners of all architectures on two CPU processes, with DDP and FSDP2.

Arguments: the kind, `ddp` or `fsdp2`; the file to write, which has the outcome of each architecture.
"""

import copy
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from hf_captioners.architectures import ARCHITECTURES
from tests.hub.captioner_cases import case_of
from tests.modeling.common_case import REGIONS, TOKENS, WAYS_IN
from tests.peers.methods import EXACT, SEARCH

# Their encoder embeds words with the weights of the decoder, which are sharded while `generate()` calls it by itself.
READS_WORDS = ("eta",)
STEPS, ROWS = 3, 4  # rows of both processes together


def batch_of(case: Any, model: Any, way_in: str) -> dict[str, Any]:
    """Return captions of equal length and real regions, so that the mean of both processes is that of all rows."""
    images = case.inputs(way_in, images=ROWS)
    if "region_mask" in images:
        images["region_mask"] = torch.ones(ROWS, REGIONS, dtype=torch.bool)
    return {**images, "labels": case.words(model, ROWS, TOKENS)}


def shard(model: Any) -> Any:
    """Shard with FSDP2: what is not split, the encoder, which `generate()` calls by itself, and the rest."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    names = {*model._no_split_modules, type(model.get_encoder()).__name__}
    for part in reversed([part for part in model.modules() if type(part).__name__ in names]):  # inner ones first
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(
    model: Any, batches: list[dict[str, Any]], accelerator: Accelerator | None = None
) -> tuple[Any, list[float]]:
    """Take the steps of SGD, and return the model, wrapped where there is an accelerator, and the losses."""
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.05)
    if accelerator is not None:
        model, optimizer = accelerator.prepare(model, optimizer)
    losses = []
    for batch in batches:
        loss = model(**batch).loss
        loss.backward() if accelerator is None else accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return model, losses


def mean_of_processes(losses: list[torch.Tensor]) -> torch.Tensor:
    """Return the losses, averaged over the processes."""
    mean = torch.stack(losses)
    distributed.all_reduce(mean)
    return mean / distributed.get_world_size()


def compare(kind: str, name: str) -> str:
    """Train one captioner alone and one by both processes, in evaluation mode: equal losses, weights and captions."""
    case = case_of(name)
    alone = case.make_model()
    shared = copy.deepcopy(alone)
    batches = [batch_of(case, alone, WAYS_IN[step % 2]) for step in range(STEPS)]
    first = ROWS // 2 * distributed.get_rank()
    parts = [{key: value[first : first + ROWS // 2] for key, value in batch.items()} for batch in batches]
    _, expected = train(alone, batches)
    if kind == "ddp":
        wrapped, losses = train(shared, parts, Accelerator(cpu=True))
        assert type(wrapped).__name__ == "DistributedDataParallel"
        weights = shared.state_dict()
    else:
        shard(shared)
        assert all(isinstance(weight, DTensor) for weight in shared.parameters())
        _, losses = train(shared, parts)
        weights = get_model_state_dict(shared, options=StateDictOptions(full_state_dict=True))
    torch.testing.assert_close(mean_of_processes(losses), torch.stack(expected), atol=1e-4, rtol=1e-4)
    for key, weight in alone.state_dict().items() if distributed.get_rank() == 0 else ():
        torch.testing.assert_close(weights[key], weight, atol=1e-4, rtol=1e-3, msg=f"{key} differs")
    with_words = kind == "fsdp2" and name in READS_WORDS
    for way_in in WAYS_IN:
        images = case.inputs(way_in)
        if with_words:
            assert "got mixed torch.Tensor and DTensor" in error_of(lambda images=images: shared.generate(**images))
            shared.unshard()
        assert torch.equal(shared.generate(**images, **SEARCH), alone.generate(**images, **SEARCH)), "captions"
        shared.reshard() if with_words else None
    return f"{EXACT}, after `unshard()`" if with_words else EXACT


def error_of(function: Callable[[], Any]) -> str:
    """Return the message of the error of a function; `""` where it has none."""
    try:
        function()
    except RuntimeError as error:
        return str(error)
    return ""


def strategy_of_accelerate() -> str:
    """Return the strategy that accelerate takes on CPUs where FSDP2 is asked for."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    AcceleratorState._reset_state(True)
    return str(Accelerator(cpu=True, fsdp_plugin=plugin).distributed_type)


def main(kind: str, output: Path, names: list[str]) -> None:
    """Compare the architectures and write the outcomes."""
    distributed.init_process_group("gloo")
    outcomes = {}
    for name in names or [name for name, row in ARCHITECTURES.items() if row.package is None]:
        try:
            outcomes[name] = compare(kind, name)
        except Exception:
            outcomes[name] = traceback.format_exc()
    if kind == "fsdp2":
        outcomes["accelerate"] = strategy_of_accelerate()
    if distributed.get_rank() == 0:
        output.write_text(json.dumps(outcomes))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
