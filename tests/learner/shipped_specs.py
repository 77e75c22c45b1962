"""The specs that come along."""

from pathlib import Path

import headrace.deploy

MODELS = Path(headrace.deploy.__file__).parent / "models"
