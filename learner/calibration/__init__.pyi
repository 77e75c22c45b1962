from .isotonic import IsotonicScaling as IsotonicScaling
from .platt import PlattScaling as PlattScaling
