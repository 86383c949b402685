"""Run by test_processes.py with torchrun: a captioner whose parameters are sharded with FSDP2 on two CPU processes.

Arguments: folder with captioner and rows, folder to save into.
"""

import sys
from pathlib import Path

import torch
from datasets import load_from_disk
from torch import distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from hf_captioners.loading import load_captioner


def shard(model, mesh):
    """The encoder by itself, because `generate()` calls it alone; each layer of the decoder; then the rest."""
    fully_shard(model.get_encoder(), mesh=mesh)
    for block in model.model.decoder.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


folder, output = Path(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
whole, processor = load_captioner(str(folder / "captioner"))
sharded, _ = load_captioner(str(folder / "captioner"))
shard(sharded, mesh)
assert all(isinstance(parameter, DTensor) for parameter in sharded.parameters())
rows = load_from_disk(str(folder / "train")).select(range(4))
batch = processor(
    images=list(rows["image"]), text_target=[captions[0] for captions in rows["captions"]], return_tensors="pt"
)
for model in (whole, sharded):
    model.train()
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
    losses = []
    for _ in range(3):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    model.losses = losses
assert sharded.losses[-1] < sharded.losses[0]
torch.testing.assert_close(sharded.losses, whole.losses, atol=1e-4, rtol=1e-4)
images = {"pixel_values": batch["pixel_values"]}
with torch.no_grad():
    written = sharded.generate(**images, num_beams=2, max_new_tokens=5)
    expected = whole.generate(**images, num_beams=2, max_new_tokens=5)
assert torch.equal(written, expected)
state = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
if distributed.get_rank() == 0:
    whole.save_pretrained(output, state_dict=state)
    again = type(whole).from_pretrained(output)
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight, atol=1e-5, rtol=1e-4, msg=name)
    print("sharded, trained, saved, reloaded")
distributed.destroy_process_group()
