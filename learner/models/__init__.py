"""Models: what the loop, serving and whoever else holds one needs of it, and how one is opened.

A model keeps all it has learned in rows of one width, in a view that it is handed; so whatever
holds for rows (exactly once, replicas, snapshots) holds for every model. Which one a spec means is
decided here, and what it needs is imported only then: a logistic regression never loads the
kernels, or the libraries, of another.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
