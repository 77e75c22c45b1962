from .bucket_lease import FoldPolicy as FoldPolicy
from .expiry import Expiry as Expiry
from .keeper import Keeper as Keeper
from .process import KeeperSettings as KeeperSettings
from .process import run_keeper as run_keeper
