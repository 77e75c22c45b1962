"""Why a collector cannot start. What it has to say to clients is in `answer`."""

from __future__ import annotations
