"""Recorded specs: their fingerprints and refusals, from before the parser became declarative.

`recorded_specs.json` holds base texts and edits of them: what to replace once, and by what. The
fingerprints must never change, because stores and examples carry them. A refusal may be reworded;
its file, line, key and the value found stay. It also records whether the JSON Schema refuses the
spec: rules across keys and the difference of 8 and 8.0 are beyond it.
"""

import json
from pathlib import Path
from typing import NamedTuple

import headrace.deploy

_DEPLOY = Path(headrace.deploy.__file__).parent
_RECORDED = json.loads(Path(__file__).with_suffix(".json").read_text())


class Accepted(NamedTuple):
    """A valid spec."""

    text: str
    fingerprint: str
    fields_fingerprint: str


class Refused(NamedTuple):
    """An invalid spec."""

    text: str
    message: str
    """For a file named m.toml."""
    by_schema: bool


def _text(base: str, old: str, new: str) -> str:
    if not base:
        return new
    if base.startswith("deploy/"):
        return (_DEPLOY / base.removeprefix("deploy/")).read_text()
    return str(_RECORDED["bases"][base]).replace(old, new, 1) if old else _RECORDED["bases"][base]


ACCEPTED = [Accepted(_text(*row[:3]), *row[3:]) for row in _RECORDED["fingerprints"]]
REFUSED = [Refused(_text(*row[:3]), *row[3:]) for row in _RECORDED["refusals"]]
