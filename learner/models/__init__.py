"""Models of rows: the interface that the loop and the server use, and `open_model`.

A model keeps all it has learned in rows of one width, in a view that its caller passes in. So
everything that holds for rows (exactly once, replicas, snapshots) holds for every model. `factory`
decides which model a spec means and imports only that one: a logistic regression never loads the
kernels, or the libraries, of another. Read `protocols`, `row_model`, then `logistic`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
