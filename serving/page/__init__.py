"""The page at `/`: what every process tells of itself, as curves that go on by themselves.

topic status ──► reader ──► history ──► /page/figures ──► page.html (Plotly)
                (thread)    (pure)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
