"""Registration of all architectures with the Auto classes and pipelines of transformers."""

import logging
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from .architectures import ARCHITECTURES, AUXILIARY_MODELS, KINDS, Architecture
from .default_model import default_model, list_models

NO_MODEL = "No model was supplied, defaulted to "  # begin of the warning of transformers


def register_architecture(architecture: Architecture) -> None:
    """Register an architecture of another package, so that this library supports it like its own.

    Its files import this library by absolute names (`from hf_captioners.modeling.modeling_captioning import ...`) and
    each other by relative ones; saved checkpoints contain both, and load without either package.

    ```python
    register_architecture(
        Architecture(
            name="toy", model_type="captioning_toy", prefix="Toy", tokenizer="words", paper="", package="my_package"
        )
    )
    ```

    Args:
        architecture: its row, with `package`. Call this when the package is imported.

    Raises:
        ValueError: a different architecture has this name or model type.
    """
    for known in ARCHITECTURES.values():
        same = known.name == architecture.name or known.model_type == architecture.model_type
        if same and known != architecture:
            raise ValueError(
                f"The name {architecture.name!r} or the model type {architecture.model_type!r} belongs to "
                f"{known.prefix} of {known.package or 'this library'}. Choose different ones."
            )
    ARCHITECTURES[architecture.name] = architecture
    if "transformers" in sys.modules:
        register_classes(architecture)


def register_classes(architecture: Architecture) -> None:
    """Register the classes of an architecture with the Auto classes of transformers."""
    import transformers

    from hf_captioners.processing import image_processing_captioning as images

    image_processors = {"pil": images.CaptioningImageProcessor, "torchvision": images.CaptioningImageProcessorFast}
    config, model, captioner, processor = (architecture.load(kind) for kind in KINDS)
    tokenizer = getattr(transformers, architecture.tokenizer_class)
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


def register_auxiliary(row: Architecture) -> None:
    """Register configuration and model of an auxiliary model with the Auto classes of transformers."""
    import transformers

    from hf_captioners.processing import image_processing_captioning as images

    image_processors = {"pil": images.CaptioningImageProcessor, "torchvision": images.CaptioningImageProcessorFast}
    config, model = (row.load(kind) for kind in row.kinds)
    transformers.AutoConfig.register(row.model_type, config, exist_ok=True)
    transformers.AutoModel.register(config, model, exist_ok=True)
    transformers.AutoImageProcessor.register(config, image_processor_classes=image_processors, exist_ok=True)
    config.register_for_auto_class()
    model.register_for_auto_class("AutoModel")


def register() -> None:
    """Register all architectures and the pipeline, when transformers is imported."""
    from transformers.pipelines import PIPELINE_REGISTRY

    from hf_captioners.hub.bundling import bundle_library_code, complete_checkpoint
    from hf_captioners.hub.pushing import push_model
    from hf_captioners.modeling.modeling_captioning import CaptioningPreTrainedModel
    from hf_captioners.pipelines.image_captioning import TASK, register_pipeline
    from hf_captioners.processing import image_processing_captioning as images
    from hf_captioners.processing.processing_captioning import CaptioningProcessor

    for architecture in ARCHITECTURES.values():
        register_classes(architecture)
    for row in AUXILIARY_MODELS.values():
        register_auxiliary(row)
    for image_processor in (images.CaptioningImageProcessor, images.CaptioningImageProcessorFast):
        image_processor.register_for_auto_class("AutoImageProcessor")
    CaptioningPreTrainedModel.checkpoint_completions[:] = [complete_checkpoint]
    CaptioningProcessor.checkpoint_completions[:] = [bundle_library_code]
    CaptioningPreTrainedModel.push_to_hub = push_model  # type: ignore[method-assign,assignment]
    register_pipeline()
    PIPELINE_REGISTRY.supported_tasks[TASK]["default"] = InstalledDefault()
    logging.getLogger("transformers.pipelines").addFilter(introduce_default)


class InstalledDefault(dict[str, Any]):
    """Default model of the pipeline task: the installed captioner, looked up when a pipeline is made."""

    def __contains__(self, name: object) -> bool:
        """Return whether a key is the one entry."""
        return name == "model"

    def __getitem__(self, name: str) -> Any:
        """Return folder and revision of the installed default captioner."""
        return str(default_model().folder), "main"


def introduce_default(record: logging.LogRecord) -> bool:
    """Replace transformers' warning about a default model by an introduction of the installed captioner."""
    message = record.getMessage()
    if message.startswith(NO_MODEL) and (models := [model for model in list_models() if str(model.folder) in message]):
        record.msg, record.args = models[0].introduction, ()
    return True


class _AfterImport(MetaPathFinder, Loader):
    """Import hook that calls a function after the first import of a module.

    If files of this library import that module first, the function is called after the outermost of them: it must not
    find one of them half-read.

    Args:
        name: the module.
        packages: names of the packages with those files.
        then: the function.
    """

    def __init__(self, name: str, packages: tuple[str, ...], then: Callable[[], None]) -> None:
        self.name, self.packages, self.then = name, packages, then
        self.loaders: dict[str, Any] = {}
        self.depth, self.searching = 0, False

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the import specification of a module that registration waits for, with this object as loader."""
        if self.searching or not (fullname == self.name or fullname.rpartition(".")[0] in self.packages):
            return None
        self.searching = True  # the other finders are asked
        try:
            spec = find_spec(fullname)
        finally:
            self.searching = False
        if spec is not None and spec.loader is not None:
            self.loaders[fullname], spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module with its original loader."""
        return self.loaders[spec.name].create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, then call the function once all watched modules are fully imported."""
        assert module.__spec__ is not None
        loader = self.loaders.pop(module.__spec__.name)
        module.__spec__.loader = module.__loader__ = loader
        self.depth += 1
        try:
            loader.exec_module(module)
        finally:
            self.depth -= 1
        if self.depth == 0 and self.name in sys.modules and self in sys.meta_path:
            sys.meta_path.remove(self)
            self.then()


def register_with_transformers() -> None:
    """Register now if transformers is imported, otherwise right after its import."""
    if "transformers" in sys.modules:
        register()
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        packages = tuple(f"{__package__}.{name}" for name in ("modeling", "processing", "pipelines"))
        sys.meta_path.insert(0, _AfterImport("transformers", packages, register))
