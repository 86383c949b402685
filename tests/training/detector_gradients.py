"""Run by test_processes.py with torchrun: two steps of a captioner with a trained detector of every family.

Argument: a folder, which receives the gradients of the first process, one file per family. In the second step, a
parameter that had no gradient in the first one stops the processes with an error.
"""

import sys
from pathlib import Path

import torch
import torch.distributed
from safetensors.torch import save_file
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).parents[2]))
from tests.modeling.tiny_detectors import FAMILIES, detector_batch, make_captioner  # noqa: E402

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
for family in FAMILIES:
    model = DistributedDataParallel(make_captioner(family, freeze_vision=False).eval())
    batch = {name: values[2 * rank : 2 * rank + 2] for name, values in detector_batch(family).items()}
    for _ in range(2):
        model.zero_grad()
        model(**batch).loss.backward()
    if rank == 0:
        named = model.module.named_parameters()
        save_file({n: p.grad.contiguous() for n, p in named if p.requires_grad}, Path(sys.argv[1], family))
torch.distributed.destroy_process_group()
