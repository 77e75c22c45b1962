from .spec_suggestion import NO_CLICKS as NO_CLICKS
from .spec_suggestion import suggest_spec as suggest_spec
