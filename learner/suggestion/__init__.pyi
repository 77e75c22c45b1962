from .spec_suggestion import suggest_spec as suggest_spec
