"""Streaming online learning for click-through-rate models.

As a service: `headrace demo`, `headrace run`, or the parts one by one (`headrace --help`). As a
library, without Kafka and Redis:

    import headrace

    model = headrace.LocalModel("news.toml")
    model.learn(impressions, clicks)  # iterables of events, or DataFrames
    model.predict([{"article": "a-1"}, {"article": "a-2"}], {"user": "u-1"})
    model.metrics()
    model.save("models/")

Everything public is listed here and loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.ingest.client import CollectorClient as CollectorClient
    from headrace.ingest.features.spec_text import SpecError as SpecError
    from headrace.learner.local.event_join import RefusedEvent as RefusedEvent
    from headrace.learner.local.local_model import LearnSummary as LearnSummary
    from headrace.learner.local.local_model import LocalModel as LocalModel
    from headrace.learner.spec.model_spec import ModelSpec as ModelSpec
    from headrace.learner.spec.model_spec import load_spec as load_spec
    from headrace.learner.spec.model_spec import parse_spec as parse_spec
    from headrace.learner.validation.progressive import (
        ProgressiveValidation as ProgressiveValidation,
    )
else:
    _MODULES = {
        "headrace.ingest.client": ("CollectorClient",),
        "headrace.ingest.features.spec_text": ("SpecError",),
        "headrace.learner.local.event_join": ("RefusedEvent",),
        "headrace.learner.local.local_model": ("LearnSummary", "LocalModel"),
        "headrace.learner.spec.model_spec": ("ModelSpec", "load_spec", "parse_spec"),
        "headrace.learner.validation.progressive": ("ProgressiveValidation",),
    }
    __all__ = [name for names in _MODULES.values() for name in names]

    def __getattr__(name):
        for module, names in _MODULES.items():
            if name in names:
                return getattr(import_module(module), name)
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
