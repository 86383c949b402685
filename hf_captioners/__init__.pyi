"""Public names of the library and the modules that define them; `__init__.py` loads them on first use."""

from . import data as data
from . import metrics as metrics
from . import modeling as modeling
from . import pipelines as pipelines
from . import processing as processing
from . import training as training
from ._version import __version__ as __version__
from .architectures import list_architectures as list_architectures
from .captioning.ensemble import CaptionerEnsemble as CaptionerEnsemble
from .data import load_captions as load_captions
from .default_model import list_models as list_models
from .image_text_processor import ImageTextProcessor as ImageTextProcessor
from .loading import load_captioner as load_captioner
from .metrics import compute_caption_metrics as compute_caption_metrics
from .modeling.configuration_aoa_transformer import AoATransformerConfig as AoATransformerConfig
from .modeling.configuration_aoanet import AoANetConfig as AoANetConfig
from .modeling.configuration_attribute_detector import AttributeDetectorConfig as AttributeDetectorConfig
from .modeling.configuration_captioning import CaptioningConfig as CaptioningConfig
from .modeling.configuration_eta import ETAConfig as ETAConfig
from .modeling.configuration_image_transformer import ImageTransformerConfig as ImageTransformerConfig
from .modeling.configuration_m2_transformer import M2TransformerConfig as M2TransformerConfig
from .modeling.configuration_show_attend_tell import ShowAttendTellConfig as ShowAttendTellConfig
from .modeling.configuration_transformer import CaptioningTransformerConfig as CaptioningTransformerConfig
from .modeling.configuration_visualgpt import VisualGPTConfig as VisualGPTConfig
from .modeling.configuration_zodiac import ZodiacConfig as ZodiacConfig
from .modeling.configuration_zodiac_aoanet import ZodiacAoANetConfig as ZodiacAoANetConfig
from .modeling.modeling_aoa_transformer import (
    AoATransformerForConditionalGeneration as AoATransformerForConditionalGeneration,
)
from .modeling.modeling_aoa_transformer import AoATransformerModel as AoATransformerModel
from .modeling.modeling_aoanet import AoANetForConditionalGeneration as AoANetForConditionalGeneration
from .modeling.modeling_aoanet import AoANetModel as AoANetModel
from .modeling.modeling_attribute_detector import AttributeDetectorModel as AttributeDetectorModel
from .modeling.modeling_eta import ETAForConditionalGeneration as ETAForConditionalGeneration
from .modeling.modeling_eta import ETAModel as ETAModel
from .modeling.modeling_image_transformer import (
    ImageTransformerForConditionalGeneration as ImageTransformerForConditionalGeneration,
)
from .modeling.modeling_image_transformer import ImageTransformerModel as ImageTransformerModel
from .modeling.modeling_m2_transformer import (
    M2TransformerForConditionalGeneration as M2TransformerForConditionalGeneration,
)
from .modeling.modeling_m2_transformer import M2TransformerModel as M2TransformerModel
from .modeling.modeling_show_attend_tell import (
    ShowAttendTellForConditionalGeneration as ShowAttendTellForConditionalGeneration,
)
from .modeling.modeling_show_attend_tell import ShowAttendTellModel as ShowAttendTellModel
from .modeling.modeling_transformer import (
    CaptioningTransformerForConditionalGeneration as CaptioningTransformerForConditionalGeneration,
)
from .modeling.modeling_transformer import CaptioningTransformerModel as CaptioningTransformerModel
from .modeling.modeling_visualgpt import VisualGPTForConditionalGeneration as VisualGPTForConditionalGeneration
from .modeling.modeling_visualgpt import VisualGPTModel as VisualGPTModel
from .modeling.modeling_zodiac import ZodiacForConditionalGeneration as ZodiacForConditionalGeneration
from .modeling.modeling_zodiac import ZodiacModel as ZodiacModel
from .modeling.modeling_zodiac_aoanet import (
    ZodiacAoANetForConditionalGeneration as ZodiacAoANetForConditionalGeneration,
)
from .modeling.modeling_zodiac_aoanet import ZodiacAoANetModel as ZodiacAoANetModel
from .pipelines.image_captioning import ImageCaptioningPipeline as ImageCaptioningPipeline
from .processing.image_processing_captioning import CaptioningImageProcessor as CaptioningImageProcessor
from .processing.image_processing_captioning import CaptioningImageProcessorFast as CaptioningImageProcessorFast
from .processing.processing_aoa_transformer import AoATransformerProcessor as AoATransformerProcessor
from .processing.processing_aoanet import AoANetProcessor as AoANetProcessor
from .processing.processing_captioning import CaptioningProcessor as CaptioningProcessor
from .processing.processing_eta import ETAProcessor as ETAProcessor
from .processing.processing_image_transformer import ImageTransformerProcessor as ImageTransformerProcessor
from .processing.processing_m2_transformer import M2TransformerProcessor as M2TransformerProcessor
from .processing.processing_show_attend_tell import ShowAttendTellProcessor as ShowAttendTellProcessor
from .processing.processing_transformer import CaptioningTransformerProcessor as CaptioningTransformerProcessor
from .processing.processing_visualgpt import VisualGPTProcessor as VisualGPTProcessor
from .processing.processing_zodiac import ZodiacProcessor as ZodiacProcessor
from .processing.processing_zodiac_aoanet import ZodiacAoANetProcessor as ZodiacAoANetProcessor
from .training import CaptioningTrainer as CaptioningTrainer
from .training import CaptioningTrainingArguments as CaptioningTrainingArguments
from .training import SCSTArguments as SCSTArguments
from .training import SCSTTrainer as SCSTTrainer
