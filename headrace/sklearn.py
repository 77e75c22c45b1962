"""headrace as a scikit-learn classifier: `pip install 'headrace[sklearn]'`."""

from headrace.learner.local.classifier import HeadraceClassifier

__all__ = ["HeadraceClassifier"]
