"""The one table of architectures, and their registration with the Auto classes of transformers."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """One captioner.

    Args:
        name: what the command line calls it.
        model_type: key of its configuration in transformers.
        prefix: class names are `{prefix}Config`, `{prefix}Model`, `{prefix}ForConditionalGeneration` and
            `{prefix}Processor`, in `modeling/configuration_{name}.py`, `modeling/modeling_{name}.py` and
            `processing/processing_{name}.py`.
        tokenizer: class of transformers that its tokenizer is saved as.
        paper: where it comes from.
    """

    name: str
    model_type: str
    prefix: str
    tokenizer: str
    paper: str

    def load(self, kind: str) -> Any:
        """A class of this architecture; kind is "Config", "Model", "ForConditionalGeneration" or "Processor"."""
        return getattr(import_module(self.module(kind)), self.prefix + kind)

    def module(self, kind: str) -> str:
        """The module that defines a class of this architecture."""
        folder, file = {
            "Config": ("modeling", "configuration"),
            "Processor": ("processing", "processing"),
        }.get(kind, ("modeling", "modeling"))
        return f"hf_captioners.{folder}.{file}_{self.name}"


KINDS = ("Config", "Model", "ForConditionalGeneration", "Processor")

ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        Architecture(
            name="visualgpt",
            model_type="captioning_visualgpt",
            prefix="VisualGPT",
            tokenizer="GPT2Tokenizer",
            paper="Chen et al., VisualGPT: Data-efficient Adaptation of Pretrained Language Models for Image "
            "Captioning, CVPR 2022",
        ),
        Architecture(
            name="show_attend_tell",
            model_type="captioning_show_attend_tell",
            prefix="ShowAttendTell",
            tokenizer="PreTrainedTokenizerFast",
            paper="Xu et al., Show, Attend and Tell: Neural Image Caption Generation with Visual Attention, ICML 2015",
        ),
    )
}


def list_architectures() -> list[str]:
    """Names of the captioners that this library has, as the command line takes them."""
    return sorted(ARCHITECTURES)


def get_architecture(name: str) -> Architecture:
    """The table's row of a name or model type.

    Raises:
        ValueError: there is no such captioner.
    """
    for architecture in ARCHITECTURES.values():
        if name in (architecture.name, architecture.model_type):
            return architecture
    raise ValueError(f"There is no architecture {name!r}; choose one of {', '.join(list_architectures())}.")


def register() -> None:
    """Register every architecture and the pipeline with transformers; called once transformers is imported."""
    import transformers

    from hf_captioners.hub.bundling import complete_checkpoint
    from hf_captioners.hub.pushing import push_model
    from hf_captioners.modeling.modeling_captioning import CaptioningPreTrainedModel
    from hf_captioners.pipelines.image_captioning import register_pipeline
    from hf_captioners.processing import image_processing_captioning as images

    image_processors = {"pil": images.CaptioningImageProcessor, "torchvision": images.CaptioningImageProcessorFast}
    for architecture in ARCHITECTURES.values():
        config, model, captioner, processor = (architecture.load(kind) for kind in KINDS)
        tokenizer = getattr(transformers, architecture.tokenizer)
        transformers.AutoConfig.register(architecture.model_type, config, exist_ok=True)
        transformers.AutoModel.register(config, model, exist_ok=True)
        transformers.AutoModelForImageTextToText.register(config, captioner, exist_ok=True)
        transformers.AutoProcessor.register(config, processor, exist_ok=True)
        transformers.AutoImageProcessor.register(config, image_processor_classes=image_processors, exist_ok=True)
        transformers.AutoTokenizer.register(config, tokenizer_class=tokenizer, exist_ok=True)
        config.register_for_auto_class()
        model.register_for_auto_class("AutoModel")
        captioner.register_for_auto_class("AutoModelForImageTextToText")
        processor.register_for_auto_class("AutoProcessor")
    for image_processor in image_processors.values():
        image_processor.register_for_auto_class("AutoImageProcessor")
    CaptioningPreTrainedModel.checkpoint_completions[:] = [complete_checkpoint]
    CaptioningPreTrainedModel.push_to_hub = push_model  # type: ignore[method-assign,assignment]
    register_pipeline()


class _AfterImport(MetaPathFinder, Loader):
    """Finds one module as usual and calls a function after its first import."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name, self.then = name, then
        self.loader: Any = None

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's own specification, with this object as its loader."""
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader does it."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then the function."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.then()


def register_with_transformers() -> None:
    """Register now if transformers is imported, otherwise right after its first import; never import it from here."""
    if "transformers" in sys.modules:
        register()
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport("transformers", register))
