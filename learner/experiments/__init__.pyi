from .decisions import DecisionRules as DecisionRules
from .decisions import Look as Look
from .decisions import Verdict as Verdict
