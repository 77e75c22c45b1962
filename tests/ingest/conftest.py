"""How the properties of this part are tested."""

from __future__ import annotations

from hypothesis import settings

# the first example of a run compiles kernels, or loads them: a deadline would measure that
settings.register_profile("kernels", deadline=None, print_blob=True)
settings.load_profile("kernels")
