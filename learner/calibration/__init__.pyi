from .isotonic import IsotonicScaling as IsotonicScaling
from .platt import PlattScaling as PlattScaling
from .shrinkage import ShrinkageMixture as ShrinkageMixture
