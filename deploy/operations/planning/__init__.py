"""Plans of clusters: how many processes a load needs, and where the design ends.

Read in this order: `workload` (what is asked), `unit_costs` (what a step costs), `distinct_values`
(how many rows a push carries), `cluster_plan` (the formulas).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
