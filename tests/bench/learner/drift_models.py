"""The models that `tests.bench.drift` compares: their inputs and optimizers.

All read the same five fields of an event. Logistic regression also gets pairs of user and category,
and DIN the user's last clicks. The constants are the same for all, and not tuned.
"""

from headrace.learner.spec.model_spec import ModelSpec, parse_spec

RECENT = "recent"
"""Raw field of an event: categories of what its user clicked last, the latest last."""
_FIELDS = """
[label]
policy = "window"

[fields.user_id]
number = 1
transform = "id"

[fields.item_id]
number = 2
transform = "id"

[fields.category]
number = 3
transform = "id"

[fields.position]
number = 4
transform = "id"

[fields.device]
number = 5
transform = "id"
"""
_TASTE = """
[fields.user_category]
number = 10
transform = "cross"
of = ["user_id", "category"]
"""
_INTERESTS = f"""
[fields.{RECENT}]
number = 11
transform = "bag"
"""
_FTRL = '[optimizer]\nname = "ftrl"\nalpha = 0.2\nbeta = 1.0\nl1 = 0.0\nl2 = 2.0\n'
_VECTORS = '[optimizer.embeddings]\nname = "ftrl"\nalpha = 0.2\nbeta = 1.0\nl1 = 0.0\nl2 = 4.0\n'
_LAYERS = '[optimizer.dense]\nname = "adagrad"\nalpha = 0.02\n'
_STEPPED = _FTRL + _VECTORS + _LAYERS
_VECTOR = "dimensions = 8\ninit_scale = 0.05\nseed = 1\n"
_FEW = _VECTOR + "mini_batch = 32\n"
_DEEP = _FEW + "layers = [32, 16]\n"
MODELS = {
    # tastes concern pairs: a sum needs them as inputs, products find them
    "logistic regression": ("", _TASTE + _FTRL),
    "factorization machine": (
        'architecture = "factorization_machine"\n' + _VECTOR,
        _FTRL + _VECTORS,
    ),
    "field-weighted FM": ('architecture = "field_weighted_fm"\n' + _FEW, _STEPPED),
    "Wide & Deep": ('architecture = "wide_and_deep"\n' + _DEEP, _STEPPED),
    "DeepFM": ('architecture = "deepfm"\n' + _DEEP, _STEPPED),
    "DCN-V2": ('architecture = "dcn_v2"\ncross_layers = 2\n' + _DEEP, _STEPPED),
    "DIN": (
        f'architecture = "din"\nhistory = "{RECENT}"\ntarget = "category"\n' + _DEEP,
        _INTERESTS + _STEPPED,
    ),
}
"""Name -> content of `[model]`, and additional fields and optimizers."""


def spec_of(model: str) -> ModelSpec:
    """Return the spec of one of MODELS."""
    section, more = MODELS[model]
    return parse_spec(f'[model]\nname = "drift"\n{section}{_FIELDS}{more}', "drift.toml")
