"""Checks that a process and the parameter server have the same model.

Two specs that differ in a transform or a constant give rows whose numbers look valid, so a process
with another spec refuses to start. The store keeps the text of the spec it was made from, and the
error shows the difference line by line.
"""

import difflib

from headrace.learner.spec.architecture import FREE_TO_DIFFER
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.errors import WrongModel
from headrace.pserver.store import Shape


def check_compatible(spec: ModelSpec, shape: Shape) -> None:
    """Return if the store's model is that of `spec`.

    Raises WrongModel with the difference: `-` in the parameter server, `+` in this process.
    """
    if shape.model != spec.name:
        raise WrongModel(
            f'expected model "{spec.name}" in the parameter server, found "{shape.model}"'
        )
    if shape.fingerprint != spec.fingerprint:
        raise WrongModel(
            f'model "{spec.name}": expected the spec that the model in the parameter server was '
            f"created from, with fingerprint {shape.fingerprint}, got {spec.fingerprint}:\n"
            f"{difference(shape.spec, spec.text, 'parameter server')}"
        )
    if shape.width != spec.width:
        raise WrongModel(
            f'model "{spec.name}": expected rows of {spec.width} floats, '
            f"found {shape.width} in the parameter server"
        )


def check_copy(copy: ModelSpec, original: ModelSpec, where: str) -> None:
    """Return if rows of `original` are valid rows of `copy`, and both learn the same examples.

    The names differ. Admission, expiry and the number of examples learned at once may differ.
    `where` names the source of the original's spec. Raises WrongModel naming the sections and
    lines that differ.
    """
    pairs = {
        "[model]": (_form(copy), _form(original)),
        "[fields], [label] or [examples]": (copy.fields.fingerprint, original.fields.fingerprint),
        "[statistics]": (copy.statistics, original.statistics),
        "[optimizer]": (copy.optimizers.agreed(), original.optimizers.agreed()),
        "[calibration]": (copy.calibration, original.calibration),
    }
    differing = [section for section, (one, other) in pairs.items() if one != other]
    if differing:
        raise WrongModel(
            f'expected "{copy.name}" to be "{original.name}" under another name, found that they '
            f"differ in {', '.join(differing)}:\n{difference(original.text, copy.text, where)}"
        )


def _form(spec: ModelSpec) -> dict[str, object]:
    """Return the keys of [model] that rows depend on, initial values included."""
    agreed = spec.structure.agreed()
    kept = {key: value for key, value in agreed.items() if key not in FREE_TO_DIFFER}
    return {"architecture": spec.architecture} | kept


def difference(stored: str, here: str, where: str) -> str:
    """Return the lines that differ between two texts of a spec: `stored` from `where`, and ours."""
    lines = difflib.unified_diff(
        stored.splitlines(), here.splitlines(), where, "this process", lineterm=""
    )
    found = "\n".join(lines)
    # a default or a transform changed between versions of headrace
    return (
        found or "the texts are equal, but another version of headrace created it: create it again"
    )
