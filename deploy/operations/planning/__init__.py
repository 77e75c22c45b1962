"""Plans of clusters: how many processes a load needs, and where the design ends.

Read in this order: `workload` (what is asked), `unit_costs` (what a step costs), `distinct_values`
(how many rows a push carries), `cluster_plan` (the formulas).

`relay_plan` adds a relay to a plan, `recorded_costs` has costs for plans without a measurement, and
`plan_report` prints a plan.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
