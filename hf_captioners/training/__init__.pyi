"""Public names of training and the modules that define them; `__init__.py` loads them on first use."""

from .arguments import CaptioningTrainingArguments as CaptioningTrainingArguments
from .collator import CaptionCollator as CaptionCollator
from .resume import last_complete_checkpoint as last_complete_checkpoint
from .scst.arguments import SCSTArguments as SCSTArguments
from .scst.start import last_scst_checkpoint as last_scst_checkpoint
from .scst.trainer import SCSTTrainer as SCSTTrainer
from .trainer import CaptioningTrainer as CaptioningTrainer
