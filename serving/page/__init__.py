"""The live page at `/`: curves and tables of all processes.

topic status ──► status_reader ──► history ──► /page/figures ──► page.html (Plotly)
                   (thread)         (pure)
topics experiments, deployments ──► experiment_reader ──► /page/experiments ──► page.html

`charts` names the curves, `field_coverage` compares the fields of events and requests, and `routes`
has the HTTP routes.
"""
