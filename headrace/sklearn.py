"""headrace as a scikit-learn classifier: `pip install 'headrace[sklearn]'`."""

from headrace.learner.local import HeadraceClassifier

__all__ = ["HeadraceClassifier"]
