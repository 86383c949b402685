"""Public names of the metrics and the modules that define them; `__init__.py` loads them on first use."""

from .bleu import BleuCounts as BleuCounts
from .bleu import bleu_counts as bleu_counts
from .bleu import bleu_from_counts as bleu_from_counts
from .bleu import corpus_bleu as corpus_bleu
from .cider import CiderD as CiderD
from .cider import CiderOriginal as CiderOriginal
from .compute import compute_caption_metrics as compute_caption_metrics
from .diversity import caption_health as caption_health
from .diversity import set_diversity as set_diversity
from .document_frequency import DocumentFrequency as DocumentFrequency
from .meteor import Meteor as Meteor
from .meteor_tables import MeteorTables as MeteorTables
from .module_folders import module_path as module_path
from .ngrams import cut_at_end as cut_at_end
from .ptb_tokenizer import PTBTokenizer as PTBTokenizer
from .registry import METRICS as METRICS
from .registry import Metric as Metric
from .registry import Score as Score
from .rouge import rouge_l as rouge_l
from .shuffled_control import shuffled_cider_d as shuffled_cider_d
from .significance import compare_systems as compare_systems
from .spice import OriginalSpice as OriginalSpice
from .spice import score_scenes as score_scenes
