"""Deprecation: features to be removed or changed warn for one version.

```python
@deprecated("`old_name` is gone in 1.3; use `new_name`.")
def old_name() -> None: ...


@deprecated_arguments(beams="`beams` is gone in 1.3; use `num_beams`.")
@changing_defaults(batch_size="The default of `batch_size` is 32 from 1.3; pass it.")
def caption(images, beams=None, num_beams=None, batch_size=16): ...
```

`python -m release.public_api` puts deprecations into the list of public names, and refuses a break without one. The
help of a flag that goes begins with `Deprecated`.
"""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from typing_extensions import deprecated as _deprecated

P = ParamSpec("P")
T = TypeVar("T")
Decorator = Callable[[Callable[P, T]], Callable[P, T]]


def deprecated(message: str) -> Callable[[T], T]:
    """Return a decorator for functions or classes that warns at every call; type checkers show the message too.

    Args:
        message: what to use instead, and the version without it.
    """
    return _deprecated(message, category=FutureWarning)


def deprecated_arguments(**messages: str) -> Decorator[P, T]:
    """Return a decorator for functions that warns when deprecated arguments are passed.

    Args:
        **messages: the messages by the names of the arguments.

    Raises:
        ValueError: the function has no such argument.
    """
    return _warning(messages, when_passed=True)


def changing_defaults(**messages: str) -> Decorator[P, T]:
    """Return a decorator for functions that warns when arguments with changing defaults are omitted.

    Args:
        **messages: the messages by the names of the arguments.

    Raises:
        ValueError: the function has no such argument.
    """
    return _warning(messages, when_passed=False)


def _warning(messages: dict[str, str], when_passed: bool) -> Decorator[P, T]:
    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        rules = [*getattr(function, "_deprecation_rules", ()), (messages, when_passed)]
        # Of several decorators one function remains, so that a warning names the line of the caller.
        inner: Callable[P, T] = function.__wrapped__ if len(rules) > 1 else function  # type: ignore[attr-defined]
        signature = inspect.signature(inner)
        if unknown := messages.keys() - signature.parameters.keys():
            raise ValueError(f"{inner.__qualname__} has no argument {', '.join(sorted(unknown))}.")

        @functools.wraps(inner)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            passed = signature.bind_partial(*args, **kwargs).arguments
            for texts, if_passed in rules:
                for name, text in texts.items():
                    if (name in passed) == if_passed:
                        warnings.warn(text, FutureWarning, stacklevel=2)
            return inner(*args, **kwargs)

        call._deprecation_rules = rules  # type: ignore[attr-defined]
        call.__deprecated_arguments__ = {name: text for texts, _ in rules for name, text in texts.items()}  # type: ignore[attr-defined]
        return call

    return decorate
