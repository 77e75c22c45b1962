"""Whether a process and the parameter server mean the same model: asked by learners and servers.

Two specs that differ in a transform or a constant give rows whose numbers cannot be told from good
ones, so a process that disagrees does not start. The store keeps the text of the spec it was made
from; the difference is shown as a person would ask for it, line by line.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from headrace.learner.spec.architecture import FREE_TO_DIFFER
from headrace.pserver import WrongModel

if TYPE_CHECKING:
    from headrace.learner.spec.model_spec import ModelSpec
    from headrace.pserver import Shape


def check_compatible(spec: ModelSpec, shape: Shape) -> None:
    """Return if the store's model is the one that `spec` declares.

    Raises WrongModel naming the difference: `-` as the parameter server has it, `+` as here.
    """
    if shape.model != spec.name:
        raise WrongModel(
            f'expected model "{spec.name}" in the parameter server, found "{shape.model}"'
        )
    if shape.fingerprint != spec.fingerprint:
        raise WrongModel(
            f'model "{spec.name}": the parameter server was made from another spec '
            f"(fingerprint {shape.fingerprint}) than this process has ({spec.fingerprint}):\n"
            f"{difference(shape.spec, spec.text, 'parameter server')}"
        )
    if shape.width != spec.width:
        raise WrongModel(
            f'model "{spec.name}": expected rows of {spec.width} floats, '
            f"found {shape.width} in the parameter server"
        )


def check_copy(copy: ModelSpec, original: ModelSpec, where: str) -> None:
    """Return if rows of `original` are good rows of `copy`, and both learn the same examples.

    The name differs; how far the model may grow (admission, expiry) may, and how many examples are
    learned at once. `where` says where the original's spec was found. Raises WrongModel naming the
    sections that differ, and the lines.
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
    """Return what of the section rows mean: what they begin with, too, is reckoned from it."""
    agreed = spec.structure.agreed()
    kept = {key: value for key, value in agreed.items() if key not in FREE_TO_DIFFER}
    return {"architecture": spec.architecture} | kept


def difference(stored: str, here: str, where: str) -> str:
    """Return how two texts of a spec differ, line by line: `stored` as `where` has it."""
    lines = difflib.unified_diff(
        stored.splitlines(), here.splitlines(), where, "this process", lineterm=""
    )
    found = "\n".join(lines)
    # one text, two meanings: a default or a transform changed between versions of headrace
    return found or "the texts are equal: another version of headrace wrote it; make it anew"
