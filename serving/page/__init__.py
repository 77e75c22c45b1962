"""The page at `/`: what every process tells of itself, as curves that go on by themselves.

topic status ──► reader ──► history ──► /page/figures ──► page.html (Plotly)
                (thread)    (pure)
"""
